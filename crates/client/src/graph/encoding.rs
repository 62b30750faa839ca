//! A node as the command that does its work.

use super::kinds::{CopyWork, NodeKind};
use crate::copy::shape::{End, Extent};
use link::wire::command::{Copy, Copy3d, EventRecord, Fill, Launch, Opcode, StreamWaitEvent};
use zerocopy::IntoBytes;

/// What the executor is told of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) opcode: Opcode,
    pub(super) body: Vec<u8>,
}

impl Encoded {
    fn new(opcode: Opcode, parts: &[&[u8]]) -> Self {
        Self { opcode, body: parts.concat() }
    }
}

/// The executor's part of a node; of a conditional node, without its graphs.
pub(super) fn encode(kind: &NodeKind) -> Encoded {
    match kind {
        NodeKind::Kernel(work) => {
            let packed = work.packed();
            let body = Launch {
                function: work.function.number,
                stream: work.partition,
                grid: work.grid,
                block: work.block,
                dynamic_shared_bytes: work.dynamic_shared_bytes,
                parameter_bytes: packed.len() as u32,
                attributes: work.attributes.len() as u32,
                reserved: 0,
            };
            let parts = [body.as_bytes(), work.attributes.as_bytes(), packed];
            Encoded::new(Opcode::Launch, &parts)
        }
        NodeKind::Memcpy(CopyWork { to, from, extent, .. }) => encode_copy(*to, *from, *extent),
        NodeKind::Memset(work) => {
            let body = Fill {
                stream: 0,
                element_bytes: work.pattern.element_bytes,
                destination: work.rows.address,
                pitch_bytes: work.rows.pitch_bytes,
                width: work.rows.width,
                height: work.rows.height,
                value: work.pattern.value,
                reserved: 0,
            };
            Encoded::new(Opcode::Fill, &[body.as_bytes()])
        }
        NodeKind::EventRecord(event) => {
            let body = EventRecord { event: event.number_for_graphs(), stream: 0, value: 0 };
            Encoded::new(Opcode::EventRecord, &[body.as_bytes()])
        }
        NodeKind::EventWait(event) => {
            let body =
                StreamWaitEvent { event: event.number_for_graph_waits(), ..Default::default() };
            Encoded::new(Opcode::StreamWaitEvent, &[body.as_bytes()])
        }
        NodeKind::BatchMemOp(work) if !work.words.is_empty() => {
            Encoded::new(Opcode::StreamWriteValue, &[work.words.as_bytes()])
        }
        NodeKind::Host(_)
        | NodeKind::Child(_)
        | NodeKind::Empty
        | NodeKind::BatchMemOp(_)
        | NodeKind::Conditional(_)
        | NodeKind::MemAlloc(_)
        | NodeKind::MemFree(_) => Encoded::new(Opcode::Ping, &[]),
    }
}

/// A copy between ends that the executor reaches.
pub(super) fn encode_copy(to: End, from: End, extent: Extent) -> Encoded {
    if extent.height == 1 && extent.depth == 1 {
        let body = Copy {
            stream: 0,
            reserved: 0,
            destination: to.address,
            source: from.address,
            size_bytes: extent.width_bytes,
        };
        return Encoded::new(Opcode::Copy, &[body.as_bytes()]);
    }
    let body = Copy3d {
        stream: 0,
        reserved: 0,
        destination: to.address,
        destination_pitch_bytes: to.pitch_bytes,
        destination_slice_bytes: to.slice_bytes,
        source: from.address,
        source_pitch_bytes: from.pitch_bytes,
        source_slice_bytes: from.slice_bytes,
        width_bytes: extent.width_bytes,
        height: extent.height,
        depth: extent.depth,
    };
    Encoded::new(Opcode::Copy3d, &[body.as_bytes()])
}
