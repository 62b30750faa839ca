//! Nodes are added to graphs of the driver, and changed there.

use super::*;
use crate::objects::graph::array;
use crate::session::failure::Failure;
use crate::session::state::State;

impl Node {
    /// Gives up what the node kept alive.
    pub(crate) fn release(self, state: &State) {
        let driver = state.driver();
        let library = self.library.and_then(Arc::into_inner);
        library.into_iter().for_each(|library| state.unload_later(library));
        if let Some(event) = self.event.and_then(Arc::into_inner) {
            // SAFETY: a handle that nothing else names any more.
            let _ = unsafe { driver.cuEventDestroy_v2(event) };
        }
    }
}

impl State {
    /// Adds a described node to a graph of the driver's. A conditional one has one of these
    /// conditions.
    pub(crate) fn add_node(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        described: &link::wire::graph::Node<'_>,
        conditions: &[CUgraphConditionalHandle],
    ) -> Result<(Node, Bodies), Failure> {
        let (mut node, work) = self.check_node(described)?;
        if let Work::Kernel { shape, code, parameters, attributes } = &work
            && captured::is_cooperative(attributes)
        {
            let kernel = (shape, *code, &**parameters);
            let place = node.partition.as_deref();
            let added = self.capture_kernel(graph, after, kernel, attributes, place);
            return match added {
                Ok(handle) => Ok((Node { handle, ..node }, Bodies::new())),
                Err(failure) => {
                    node.release(self);
                    Err(failure)
                }
            };
        }
        let mut bodies = Bodies::new();
        let context = self.context().handle();
        let (driver, place) = (self.driver(), &mut node.handle);
        let (first, count) = (array(after), after.len());
        // SAFETY: live handles of this session and checked parameters, which the driver copies; the
        // result is written.
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

    pub(crate) fn set_attributes(&self, node: CUgraphNode, work: &Work<'_>) -> Result<(), Failure> {
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
    pub(crate) fn check_change<'a>(
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
    pub(crate) fn change_template(&self, node: &Node, work: &Work<'_>) -> Result<(), Failure> {
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
    pub(crate) fn change_in_place(
        &self,
        executable: CUgraphExec,
        node: &Node,
        work: &Work<'_>,
    ) -> bool {
        if !node.attributes.is_empty() {
            // Those of an executable graph's kernels cannot be changed.
            return false;
        }
        if !node.has_room() {
            // NVIDIA's driver would mix it up with others ([`crate::submit::chain`]).
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
