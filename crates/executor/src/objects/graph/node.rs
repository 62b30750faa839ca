//! One node: checked ([`checking`]), and made a node of the driver's.

mod adding;
mod captured;
mod checking;

use crate::code::module::SharedLibrary;
use crate::sms::partition::Partition;
use cuda_abi::types::*;
use link::wire::command::{Launch, Opcode};
use link::wire::partition::OWN_SHARE;
use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// A node of a graph of the driver's.
#[derive(Debug)]
pub(crate) struct Node {
    pub(super) handle: CUgraphNode,
    pub(super) kind: Opcode,
    pub(super) is_enabled: bool,
    /// Ranges that the driver itself reads or writes when it runs.
    pub(super) touches: Vec<(u64, u64)>,
    pub(super) copied_bytes: u64,
    /// A kernel's function, its local memory per thread, and whether it can print.
    pub(super) function: Option<u32>,
    pub(super) frame_bytes: u32,
    pub(super) prints: bool,
    /// A kernel's parameters, and those that the executable graph's node was made with.
    parameter_bytes: u32,
    room_bytes: u32,
    /// What must stay alive.
    library: Option<SharedLibrary>,
    event: Option<Arc<CUevent>>,
    pub(super) event_number: Option<u32>,
    /// Where its kernel runs, other than on the whole device.
    pub(super) partition: Option<Arc<Partition>>,
    /// That partition's number in the session.
    pub(super) place: u32,
    attributes: Vec<CUlaunchAttributeID>,
}

impl Node {
    /// An executable graph was made with what it does now.
    pub(super) fn was_made(&mut self) {
        self.room_bytes = self.parameter_bytes;
    }

    /// The executable graph has a node in its place already.
    pub(super) fn takes_place_of(&mut self, old: &Node) {
        (self.handle, self.is_enabled) = (old.handle, old.is_enabled);
        self.room_bytes = old.room_bytes;
    }

    /// Whether the executable graph's node was made with as many parameters as it has now.
    fn has_room(&self) -> bool {
        self.parameter_bytes <= self.room_bytes
    }

    fn new(kind: Opcode) -> Self {
        Self {
            handle: CUgraphNode::NULL,
            kind,
            is_enabled: true,
            touches: Vec::new(),
            copied_bytes: 0,
            function: None,
            frame_bytes: 0,
            prints: false,
            parameter_bytes: 0,
            room_bytes: 0,
            library: None,
            event: None,
            event_number: None,
            partition: None,
            place: OWN_SHARE,
            attributes: Vec::new(),
        }
    }

    /// The attributes that its kernel is launched with.
    pub(super) fn attributes(&self) -> &[CUlaunchAttributeID] {
        &self.attributes
    }
}

/// What a node does, in the driver's terms.
pub(crate) enum Work<'a> {
    Empty,
    Kernel {
        shape: Launch,
        code: Code,
        parameters: Cow<'a, [u8]>,
        attributes: Vec<CUlaunchAttribute>,
    },
    Copy(Box<CUDA_MEMCPY3D>),
    Fill(CUDA_MEMSET_NODE_PARAMS),
    Record(CUevent),
    Wait(CUevent),
    Write(Vec<CUstreamBatchMemOpParams>),
    Conditional {
        handle: CUgraphConditionalHandle,
        type_: CUgraphConditionalNodeType,
        /// Numbers of the sections that describe its graphs.
        sections: Vec<u32>,
    },
}

/// Graphs of a conditional node, by the numbers of the sections that describe them.
pub(crate) type Bodies = Vec<(usize, CUgraph)>;

/// A kernel as a node names it.
#[derive(Clone, Copy)]
pub(crate) enum Code {
    /// Runs on all SMs of its context, whatever context the node names.
    Function(CUfunction),
    /// Runs on the SMs of that context.
    Kernel(CUkernel, CUcontext),
}

/// Calls `body` with a kernel node's parameters.
pub(crate) fn with_kernel<R>(
    shape: &Launch,
    code: Code,
    parameters: &[u8],
    body: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> R,
) -> R {
    let mut parameter_bytes = parameters.len();
    let mut extra = [
        ptr::without_provenance_mut::<c_void>(CU_LAUNCH_PARAM_BUFFER_POINTER),
        parameters.as_ptr().cast_mut().cast(),
        ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
        (&raw mut parameter_bytes).cast(),
        ptr::without_provenance_mut(CU_LAUNCH_PARAM_END),
    ];
    let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (shape.grid, shape.block);
    let (func, kern, ctx) = match code {
        Code::Function(function) => (function, CUkernel::NULL, CUcontext::NULL),
        Code::Kernel(kernel, context) => (CUfunction::NULL, kernel, context),
    };
    body(&CUDA_KERNEL_NODE_PARAMS {
        func,
        kern,
        ctx,
        gridDimX: grid_x,
        gridDimY: grid_y,
        gridDimZ: grid_z,
        blockDimX: block_x,
        blockDimY: block_y,
        blockDimZ: block_z,
        sharedMemBytes: shape.dynamic_shared_bytes,
        extra: if parameters.is_empty() { ptr::null_mut() } else { extra.as_mut_ptr() },
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_room_for_as_much_as_it_was_made_with() {
        let of_bytes = |parameter_bytes| Node { parameter_bytes, ..Node::new(Opcode::Launch) };
        let mut made = of_bytes(16);
        made.was_made();
        let put_behind = |old: &Node, parameter_bytes| {
            let mut node = of_bytes(parameter_bytes);
            node.takes_place_of(old);
            node
        };
        let fewer = put_behind(&made, 8);
        assert!(fewer.has_room() && put_behind(&fewer, 16).has_room());
        let mut more = put_behind(&fewer, 24);
        assert!(!more.has_room());
        more.was_made();
        assert!(more.has_room() && put_behind(&more, 24).has_room());
    }
}
