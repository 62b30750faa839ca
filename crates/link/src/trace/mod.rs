//! The shared memory of a trace: a ring of records from one process to whoever traces it.
//!
//! `openmps trace` gets two kinds: one ring from a client, with its driver calls and NVTX ranges,
//! and one for each of its sessions, with what the executor knows of kernels and copies. Writers
//! wait for room, so nothing is lost while the reader lives; a record is there whole or not at all,
//! however its writer ends. Texts are records of their own, named by number from others
//! ([`Record::Text`]).
//!
//! Neither side believes the other: a reader takes words that may be anything, a writer uses
//! positions only modulo the ring's length.

mod record;
mod ring;

pub use record::{
    Annotation, MAX_TEXT_BYTES, RECORD_WORDS, Record, TEXT_BYTES, Words, Work, WorkKind,
};
#[cfg(test)]
pub(crate) use ring::ring_layout;
pub use ring::{RING_BYTES, RING_RECORDS, TraceReader, TraceRing};
