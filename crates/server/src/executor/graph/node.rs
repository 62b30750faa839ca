//! One node: checked as the command would be that it stands for, and made a node of the driver's.

use super::super::copy::{TOO_LARGE, extent_bytes, volume_bytes};
use super::super::failure::Failure;
use super::super::launch::split;
use super::super::module::SharedLibrary;
use super::super::partition::Partition;
use super::super::state::State;
use super::array;
use cuda_abi::graph::params::write_of;
use cuda_abi::types::*;
use link::wire::command::{
    Copy, Copy3d, EventRecord, Fill, Launch, Opcode, StreamWaitEvent, StreamWriteValue,
};
use link::wire::graph::ConditionalNode;
use link::wire::partition::OWN_SHARE;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use zerocopy::FromBytes;

/// A node of a graph of the driver's.
#[derive(Debug)]
pub(super) struct Node {
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

    /// Gives up what the node kept alive.
    pub(super) fn release(self, state: &State) {
        let driver = state.driver();
        state.quietly_each(self.library.and_then(Arc::into_inner), |library| {
            // SAFETY: a handle that nothing else names any more; the driver waits for its kernels.
            let _ = unsafe { driver.cuLibraryUnload(library) };
        });
        if let Some(event) = self.event.and_then(Arc::into_inner) {
            // SAFETY: as above.
            let _ = unsafe { driver.cuEventDestroy_v2(event) };
        }
    }
}

/// What a node does, in the driver's terms.
pub(super) enum Work<'a> {
    Empty,
    Kernel {
        shape: Launch,
        code: Code,
        parameters: &'a [u8],
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
pub(super) type Bodies = Vec<(usize, CUgraph)>;

/// A kernel as a node names it.
#[derive(Clone, Copy)]
pub(in crate::executor) enum Code {
    /// Runs on all SMs of its context, whatever context the node names.
    Function(CUfunction),
    /// Runs on the SMs of that context.
    Kernel(CUkernel, CUcontext),
}

fn body<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Failure> {
    T::read_from_prefix(bytes)
        .map_err(|_| Failure::Protocol("a graph's node is shorter than its command".into()))
}

impl State {
    /// Checks a described node.
    fn check_node<'a>(
        &self,
        described: &link::wire::graph::Node<'a>,
    ) -> Result<(Node, Work<'a>), Failure> {
        let mut node = Node::new(described.opcode);
        let bytes = described.body;
        let work = match described.opcode {
            Opcode::Launch => {
                let (shape, rest) = body::<Launch>(bytes)?;
                let (mut attributes, parameters) = split(shape, rest)?;
                self.map_priorities(&mut attributes);
                let function = self.modules.function(shape.function)?;
                if shape.parameter_bytes < function.parameter_bytes {
                    return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
                }
                node.function = Some(shape.function);
                node.prints = function.prints;
                node.frame_bytes = function.frame_bytes;
                node.library = Some(self.modules.library_of(function)?);
                node.attributes = attributes.iter().map(|attribute| attribute.id).collect();
                node.place = shape.stream;
                node.partition = self.partitions.find(shape.stream)?;
                let code = match &node.partition {
                    Some(partition) => Code::Kernel(function.kernel, partition.context()),
                    None => Code::Function(function.handle),
                };
                Work::Kernel { shape, code, parameters, attributes }
            }
            Opcode::Copy => {
                let (Copy { destination, source, size_bytes, .. }, _) = body(bytes)?;
                let whole = Copy3d {
                    destination,
                    source,
                    width_bytes: size_bytes,
                    height: 1,
                    depth: 1,
                    ..Default::default()
                };
                Work::Copy(Box::new(self.check_copy(&mut node, whole)?))
            }
            Opcode::Copy3d => Work::Copy(Box::new(self.check_copy(&mut node, body(bytes)?.0)?)),
            Opcode::Fill => Work::Fill(self.check_fill(&mut node, body(bytes)?.0)?),
            Opcode::EventRecord => {
                let (EventRecord { event, .. }, _) = body(bytes)?;
                node.event_number = Some(event);
                Work::Record(*node.event.insert(self.graph_event(event)?).as_ref())
            }
            Opcode::StreamWaitEvent => {
                let (StreamWaitEvent { event, .. }, _) = body(bytes)?;
                node.event_number = Some(event);
                Work::Wait(*node.event.insert(self.graph_event(event)?).as_ref())
            }
            Opcode::StreamWriteValue => {
                let (words, rest) = bytes.as_chunks::<{ size_of::<StreamWriteValue>() }>();
                if !rest.is_empty() {
                    return Err(Failure::Protocol("a graph's node has half a value".into()));
                }
                let words = words.iter().map(|word| {
                    let word = zerocopy::transmute!(*word);
                    self.check_write(&mut node, word)
                });
                Work::Write(words.collect::<Result<_, _>>()?)
            }
            Opcode::GraphConditional => {
                let (ConditionalNode { handle, kind, bodies }, rest) = body(bytes)?;
                let (sections, rest) = rest.as_chunks::<4>();
                if sections.len() != bodies as usize || !rest.is_empty() {
                    return Err(Failure::Protocol(
                        "a conditional node does not say what its graphs are".into(),
                    ));
                }
                Work::Conditional {
                    handle,
                    type_: CUgraphConditionalNodeType(kind),
                    sections: sections.iter().map(|number| u32::from_ne_bytes(*number)).collect(),
                }
            }
            // The description has no others.
            _ => Work::Empty,
        };
        Ok((node, work))
    }

    /// An event for a node, which keeps it; events of several processes are absent.
    fn graph_event(&self, number: u32) -> Result<Arc<CUevent>, Failure> {
        if self.is_shared_event(number) {
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        self.kept_event(number)
    }

    fn touch(&self, node: &mut Node, at: u64, size_bytes: u64) -> Result<(), Failure> {
        self.check_range(at, size_bytes)?;
        node.touches.push((at, size_bytes));
        Ok(())
    }

    fn check_copy(&self, node: &mut Node, wanted: Copy3d) -> Result<CUDA_MEMCPY3D, Failure> {
        let Copy3d { destination, source, width_bytes, height, depth, .. } = wanted;
        if width_bytes == 0 || height == 0 || depth == 0 {
            return Err(TOO_LARGE);
        }
        // The driver's structure counts rows from slice to slice.
        let rows = |pitch: u64, slice: u64| match depth {
            1 => Ok(height),
            _ if pitch > 0 && slice.is_multiple_of(pitch) => Ok(slice / pitch),
            _ => Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED)),
        };
        let pitch = |pitch: u64| if height == 1 && depth == 1 { width_bytes } else { pitch };
        let (to_pitch, from_pitch) =
            (pitch(wanted.destination_pitch_bytes), pitch(wanted.source_pitch_bytes));
        let extent = |pitch, slice| volume_bytes(width_bytes, height, depth, pitch, slice);
        let to = extent(to_pitch, wanted.destination_slice_bytes).ok_or(TOO_LARGE)?;
        let from = extent(from_pitch, wanted.source_slice_bytes).ok_or(TOO_LARGE)?;
        self.touch(node, destination, to)?;
        self.touch(node, source, from)?;
        node.copied_bytes = width_bytes.saturating_mul(height).saturating_mul(depth);
        Ok(CUDA_MEMCPY3D {
            srcMemoryType: CUmemorytype::UNIFIED,
            srcDevice: source,
            srcPitch: from_pitch as usize,
            srcHeight: rows(from_pitch, wanted.source_slice_bytes)? as usize,
            dstMemoryType: CUmemorytype::UNIFIED,
            dstDevice: destination,
            dstPitch: to_pitch as usize,
            dstHeight: rows(to_pitch, wanted.destination_slice_bytes)? as usize,
            WidthInBytes: width_bytes as usize,
            Height: height as usize,
            Depth: depth as usize,
            ..Default::default()
        })
    }

    fn check_fill(
        &self,
        node: &mut Node,
        wanted: Fill,
    ) -> Result<CUDA_MEMSET_NODE_PARAMS, Failure> {
        let Fill { element_bytes, destination, pitch_bytes, width, height, value, .. } = wanted;
        if !matches!(element_bytes, 1 | 2 | 4) || width == 0 || height == 0 {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let row_bytes = width.checked_mul(element_bytes.into()).ok_or(TOO_LARGE)?;
        let extent = extent_bytes(row_bytes, height, 1, pitch_bytes, 0).ok_or(TOO_LARGE)?;
        self.touch(node, destination, extent)?;
        Ok(CUDA_MEMSET_NODE_PARAMS {
            dst: destination,
            pitch: pitch_bytes as usize,
            value,
            elementSize: element_bytes,
            width: width as usize,
            height: height as usize,
        })
    }

    fn check_write(
        &self,
        node: &mut Node,
        wanted: StreamWriteValue,
    ) -> Result<CUstreamBatchMemOpParams, Failure> {
        let StreamWriteValue { value_bytes, address, value, flags, .. } = wanted;
        if value_bytes == 0 {
            let mut barrier = CUstreamBatchMemOpParams::default();
            barrier.memoryBarrier.operation = CUstreamBatchMemOpType::BARRIER;
            return Ok(barrier);
        }
        let operation = match value_bytes {
            4 => CUstreamBatchMemOpType::WRITE_VALUE_32,
            8 => CUstreamBatchMemOpType::WRITE_VALUE_64,
            _ => return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE)),
        };
        self.touch(node, address, value_bytes.into())?;
        Ok(write_of(operation, address, value, flags))
    }

    /// Adds a described node to a graph of the driver's. A conditional one has one of these conditions.
    pub(super) fn add_node(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        described: &link::wire::graph::Node<'_>,
        conditions: &[CUgraphConditionalHandle],
    ) -> Result<(Node, Bodies), Failure> {
        let (mut node, work) = self.check_node(described)?;
        let mut bodies = Bodies::new();
        let context = self.context().handle();
        let (driver, place) = (self.driver(), &mut node.handle);
        let (first, count) = (array(after), after.len());
        // SAFETY: live handles of this session and checked parameters, which the driver copies; the result is written.
        let result = unsafe {
            match &work {
                Work::Empty => driver.cuGraphAddEmptyNode(place, graph, first, count),
                Work::Kernel { shape, code, parameters, .. } => {
                    with_kernel(shape, *code, parameters, |kernel| {
                        driver.cuGraphAddKernelNode_v2(place, graph, first, count, kernel)
                    })
                }
                Work::Copy(copy) => {
                    driver.cuGraphAddMemcpyNode(place, graph, first, count, &**copy, context)
                }
                Work::Fill(fill) => {
                    driver.cuGraphAddMemsetNode(place, graph, first, count, fill, context)
                }
                Work::Record(event) => {
                    driver.cuGraphAddEventRecordNode(place, graph, first, count, *event)
                }
                Work::Wait(event) => {
                    driver.cuGraphAddEventWaitNode(place, graph, first, count, *event)
                }
                Work::Write(writes) => with_operations(writes, context, |operations| {
                    driver.cuGraphAddBatchMemOpNode(place, graph, first, count, operations)
                }),
                Work::Conditional { handle, .. } if !conditions.contains(handle) => {
                    CUresult::ERROR_INVALID_VALUE
                }
                Work::Conditional { handle, type_, sections } => {
                    let mut asked = conditional(*handle, *type_, sections.len(), context);
                    let data = ptr::null();
                    let added =
                        driver.cuGraphAddNode_v2(place, graph, first, data, count, &mut asked);
                    if added.is_success() {
                        let graphs = asked.anonymous.conditional.phGraph_out;
                        let made = (0..sections.len()).map(|index| graphs.add(index).read());
                        bodies = sections.iter().map(|&number| number as usize).zip(made).collect();
                    }
                    added
                }
            }
        };
        let made = self.check(result).and_then(|()| self.set_attributes(node.handle, &work));
        match made {
            Ok(()) => Ok((node, bodies)),
            Err(failure) => {
                // A node that was made goes with its graph.
                node.release(self);
                Err(failure)
            }
        }
    }

    pub(super) fn set_attributes(&self, node: CUgraphNode, work: &Work<'_>) -> Result<(), Failure> {
        let Work::Kernel { attributes, .. } = work else { return Ok(()) };
        for attribute in attributes {
            let driver = self.driver();
            // SAFETY: a live kernel node; the value holds no handles.
            self.check(unsafe {
                driver.cuGraphKernelNodeSetAttribute(node, attribute.id, &attribute.value)
            })?;
        }
        Ok(())
    }

    /// Checks what a node of kind `kind` is to become; its handle is missing.
    pub(super) fn check_change<'a>(
        &self,
        kind: Opcode,
        described: &link::wire::graph::Node<'a>,
    ) -> Result<(Node, Work<'a>), Failure> {
        let is_copy = |opcode| matches!(opcode, Opcode::Copy | Opcode::Copy3d);
        if described.opcode != kind && !(is_copy(described.opcode) && is_copy(kind)) {
            return Err(Failure::Protocol("a graph's node cannot change its kind".into()));
        }
        self.check_node(described)
    }

    /// Gives a node of a template other work of its kind, but for attributes.
    pub(super) fn change_template(&self, node: &Node, work: &Work<'_>) -> Result<(), Failure> {
        let (driver, handle) = (self.driver(), node.handle);
        // SAFETY: live handles of this session and checked parameters, which the driver copies.
        self.check(unsafe {
            match work {
                Work::Empty => CUresult::SUCCESS,
                Work::Kernel { shape, code, parameters, .. } => {
                    with_kernel(shape, *code, parameters, |kernel| {
                        driver.cuGraphKernelNodeSetParams_v2(handle, kernel)
                    })
                }
                Work::Copy(copy) => driver.cuGraphMemcpyNodeSetParams(handle, &**copy),
                Work::Fill(fill) => driver.cuGraphMemsetNodeSetParams(handle, fill),
                Work::Record(event) => driver.cuGraphEventRecordNodeSetEvent(handle, *event),
                Work::Wait(event) => driver.cuGraphEventWaitNodeSetEvent(handle, *event),
                Work::Write(writes) => {
                    with_operations(writes, self.context().handle(), |operations| {
                        driver.cuGraphBatchMemOpNodeSetParams(handle, operations)
                    })
                }
                Work::Conditional { .. } => CUresult::ERROR_NOT_SUPPORTED,
            }
        })
    }

    /// The same for an executable graph; says whether that could be done.
    pub(super) fn change_in_place(
        &self,
        executable: CUgraphExec,
        node: &Node,
        work: &Work<'_>,
    ) -> bool {
        if !node.attributes.is_empty() {
            // Those of an executable graph's kernels cannot be changed.
            return false;
        }
        let (driver, handle, context) = (self.driver(), node.handle, self.context().handle());
        // SAFETY: live handles of this session and checked parameters, which the driver copies.
        let changed = unsafe {
            match work {
                Work::Empty => CUresult::SUCCESS,
                Work::Kernel { shape, code, parameters, .. } => {
                    with_kernel(shape, *code, parameters, |kernel| {
                        driver.cuGraphExecKernelNodeSetParams_v2(executable, handle, kernel)
                    })
                }
                Work::Copy(copy) => {
                    driver.cuGraphExecMemcpyNodeSetParams(executable, handle, &**copy, context)
                }
                Work::Fill(fill) => {
                    driver.cuGraphExecMemsetNodeSetParams(executable, handle, fill, context)
                }
                Work::Record(event) => {
                    driver.cuGraphExecEventRecordNodeSetEvent(executable, handle, *event)
                }
                Work::Wait(event) => {
                    driver.cuGraphExecEventWaitNodeSetEvent(executable, handle, *event)
                }
                Work::Write(writes) => with_operations(writes, context, |operations| {
                    driver.cuGraphExecBatchMemOpNodeSetParams(executable, handle, operations)
                }),
                Work::Conditional { .. } => CUresult::ERROR_NOT_SUPPORTED,
            }
        };
        self.check(changed).is_ok()
    }
}

/// Calls `body` with a kernel node's parameters.
pub(in crate::executor) fn with_kernel<R>(
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

/// Calls `body` with the parameters of a node of memory operations.
fn with_operations<R>(
    operations: &[CUstreamBatchMemOpParams],
    context: CUcontext,
    body: impl FnOnce(&CUDA_BATCH_MEM_OP_NODE_PARAMS) -> R,
) -> R {
    // The driver only reads them.
    let (count, array) = (operations.len() as u32, operations.as_ptr().cast_mut());
    body(&CUDA_BATCH_MEM_OP_NODE_PARAMS { ctx: context, count, paramArray: array, flags: 0 })
}

/// The parameters of a conditional node.
fn conditional(
    handle: CUgraphConditionalHandle,
    type_: CUgraphConditionalNodeType,
    size: usize,
    context: CUcontext,
) -> CUgraphNodeParams {
    let mut asked = CUgraphNodeParams { type_: CUgraphNodeType::CONDITIONAL, ..Default::default() };
    asked.anonymous.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
        handle,
        type_,
        size: size as u32,
        phGraph_out: ptr::null_mut(),
        ctx: context,
    };
    asked
}
