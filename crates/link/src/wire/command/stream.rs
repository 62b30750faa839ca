//! Streams, events, values written and waited for in stream order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::wire_struct;

wire_struct! {
    /// See [`super::Opcode::StreamCreate`].
    struct StreamCreate {
        /// Slot, from 1.
        stream: u32,
        /// `CU_STREAM_*` flags, or [`super::DEFAULT_STREAM`].
        flags: u32,
        /// Priority as CUDA counts it.
        priority: i32,
        /// The partition that it runs in: [`super::super::partition`].
        partition: u32,
        /// Slot of the default stream that a blocking stream is ordered with.
        legacy: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::StreamDestroy`].
    struct StreamDestroy {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::Signal`].
    struct Signal {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
        /// Greater than every value before it in this slot.
        value: u64,
    }
    /// See [`super::Opcode::StreamSynchronize`].
    struct StreamSynchronize {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::StreamWaitEvent`].
    struct StreamWaitEvent {
        /// Slot of the stream that waits.
        stream: u32,
        /// Number of the event.
        event: u32,
        /// `CU_EVENT_WAIT_*` flags.
        flags: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::EventCreate`].
    struct EventCreate {
        /// Number.
        event: u32,
        /// `CU_EVENT_*` flags.
        flags: u32,
    }
    /// See [`super::Opcode::EventDestroy`].
    struct EventDestroy {
        /// Number.
        event: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::EventRecord`].
    struct EventRecord {
        /// Number.
        event: u32,
        /// Slot.
        stream: u32,
        /// For the stream's completion word.
        value: u64,
    }
    /// See [`super::Opcode::EventElapsed`].
    struct EventElapsed {
        /// The earlier event.
        start: u32,
        /// The later one.
        end: u32,
    }
    /// Answer to [`super::Opcode::EventElapsed`].
    struct EventElapsedReply {
        /// Milliseconds, as CUDA counts them.
        milliseconds: f32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::StreamWriteValue`] and [`super::Opcode::StreamWaitValue`].
    struct StreamWriteValue {
        /// Slot.
        stream: u32,
        /// 4 or 8.
        value_bytes: u32,
        /// Where.
        address: u64,
        /// What.
        value: u64,
        /// `CU_STREAM_WRITE_VALUE_*` or `CU_STREAM_WAIT_VALUE_*` flags.
        flags: u32,
        /// Zero.
        reserved: u32,
    }
}
