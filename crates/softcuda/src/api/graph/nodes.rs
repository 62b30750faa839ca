//! Nodes: adding them to graphs, their parameters, and the same parameters in executable graphs.

use std::sync::Arc;

use cuda_abi::graph::model::Kind;
use cuda_abi::graph::params::{Told, check_change};
use cuda_abi::graph::reuse::Site;
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUcontext, CUdeviceptr, CUevent, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode,
    CUgraphNodeParams, CUkernelNodeAttrID, CUkernelNodeAttrValue, CUresult,
};

use super::kinds::{EventWork, NodeKind};
use super::memory::{FreeWork, GraphAllocation, collect};
use super::{params, update};
use crate::api::answer::Answer;
use crate::api::driver::{Driver, current, current_or, driver};
use crate::api::objects::Context;
use crate::api::out;

/// The place of what replaces a node's parameters, which is not memory.
const NOWHERE: Site<'_> = Site { graph: CUgraph::NULL, after: &[] };

/// Nodes that need no context.
fn anywhere() -> Answer<(&'static Driver, ())> {
    Ok((driver()?, ()))
}

/// The current context; on a thread without one, the context that a call names.
fn current_or_named(named: CUcontext) -> Answer<(&'static Driver, Arc<Context>)> {
    match current() {
        Err(CUresult::ERROR_INVALID_CONTEXT) if !named.is_null() => {
            current_or(driver()?.context(named)?.id)
        }
        answer => answer,
    }
}

/// Declares the functions that add a node whose parameters come by pointer, read and set them, and
/// set them in an executable graph.
macro_rules! node_functions {
    ($($add:ident, $get:ident, $set:ident, $set_executable:ident: $ty:ty, $where:ident,
        |$driver:ident, $context:ident, $asked:ident, $before:ident| $make:expr, $kind:ident => $show:expr;)*) => {
        api! {
            $(
                fn $add(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *const $ty) {
                    let ($driver, $context) = $where()?;
                    let $before: Option<&NodeKind> = None;
                    // SAFETY: the caller's structure and arrays.
                    unsafe {
                        let $asked = &out::read(nodeParams)?;
                        let dependencies = (dependencies, std::ptr::null(), numDependencies);
                        $driver.graphs.add_node(hGraph, phGraphNode, dependencies, || { let _ = $before; $make })
                    }
                }

                fn $get(hNode: CUgraphNode, nodeParams: *mut $ty) {
                    let (driver, _) = $where()?;
                    match &driver.graphs.kind(hNode)? {
                        // SAFETY: the caller's pointer.
                        NodeKind::$kind(work) => unsafe { out::write(nodeParams, $show(work)) },
                        _ => Err(CUresult::ERROR_INVALID_VALUE),
                    }
                }

                fn $set(hNode: CUgraphNode, nodeParams: *const $ty) {
                    let ($driver, $context) = $where()?;
                    let graph = $driver.graphs.graph_of(hNode)?;
                    let before = graph.kind(hNode)?;
                    let $before = Some(&before);
                    // SAFETY: the caller's structure.
                    let kind = unsafe {
                        let $asked = &out::read(nodeParams)?;
                        let _ = $before;
                        $make?
                    };
                    graph.set_kind(hNode, kind)
                }

                fn $set_executable(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *const $ty) {
                    let ($driver, $context) = $where()?;
                    let executable = $driver.executable(hGraphExec)?;
                    let before = $driver.graphs.kind(hNode)?;
                    let $before = Some(&before);
                    // SAFETY: the caller's structure.
                    let kind = unsafe {
                        let $asked = &out::read(nodeParams)?;
                        let _ = $before;
                        $make?
                    };
                    update::set(&executable, hNode, kind)
                }
            )*
        }
    };
}

node_functions! {
    cuGraphAddKernelNode, cuGraphKernelNodeGetParams, cuGraphKernelNodeSetParams, cuGraphExecKernelNodeSetParams: CUDA_KERNEL_NODE_PARAMS_v1, current,
        |driver, context, asked, before| params::kernel(driver, &context, &asked.into(), before), Kernel => params::kernel_parameters_v1;
    cuGraphAddKernelNode_v2, cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2: CUDA_KERNEL_NODE_PARAMS, current,
        |driver, context, asked, before| params::kernel(driver, &context, asked, before), Kernel => params::kernel_parameters;
    cuGraphAddHostNode, cuGraphHostNodeGetParams, cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams: CUDA_HOST_NODE_PARAMS, anywhere,
        |_driver, _context, asked, before| HostWork::new(asked.fn_, asked.userData).map(NodeKind::Host), Host => params::host_parameters;
    cuGraphAddBatchMemOpNode, cuGraphBatchMemOpNodeGetParams, cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams: CUDA_BATCH_MEM_OP_NODE_PARAMS, current,
        |driver, _context, asked, before| params::memory_ops(driver, asked), BatchMemOp => params::memory_ops_parameters;
}

api! {
    fn cuGraphAddMemcpyNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) {
        let (driver, context) = current()?;
        // SAFETY: the caller's structure and arrays.
        unsafe {
            let asked = out::read(copyParams)?;
            let dependencies = (dependencies, std::ptr::null(), numDependencies);
            driver.graphs.add_node(hGraph, phGraphNode, dependencies, || params::memcpy(driver, &context, &asked, ctx))
        }
    }

    fn cuGraphMemcpyNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_MEMCPY3D) {
        let (driver, _) = current()?;
        match driver.graphs.kind(hNode)? {
            // SAFETY: the caller's pointer.
            NodeKind::Memcpy(volume) => unsafe { out::write(nodeParams, volume.to_c()) },
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphMemcpyNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_MEMCPY3D) {
        let (driver, context) = current()?;
        // SAFETY: the caller's structure.
        let asked = unsafe { out::read(nodeParams)? };
        driver.graphs.graph_of(hNode)?.set_kind(hNode, params::memcpy(driver, &context, &asked, CUcontext::NULL)?)
    }

    fn cuGraphExecMemcpyNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, copyParams: *const CUDA_MEMCPY3D, ctx: CUcontext) {
        let (driver, context) = current()?;
        let executable = driver.executable(hGraphExec)?;
        driver.graphs.graph_of(hNode)?;
        // SAFETY: the caller's structure.
        let asked = unsafe { out::read(copyParams)? };
        update::set(&executable, hNode, params::memcpy(driver, &context, &asked, ctx)?)
    }

    fn cuGraphAddMemsetNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) {
        let (driver, context) = current_or_named(ctx)?;
        // SAFETY: the caller's structure and arrays.
        unsafe {
            let asked = out::read(memsetParams)?;
            let dependencies = (dependencies, std::ptr::null(), numDependencies);
            driver.graphs.add_node(hGraph, phGraphNode, dependencies, || params::memset(driver, &context, &asked, ctx))
        }
    }

    fn cuGraphMemsetNodeGetParams(hNode: CUgraphNode, nodeParams: *mut CUDA_MEMSET_NODE_PARAMS) {
        let (driver, _) = current()?;
        match driver.graphs.kind(hNode)? {
            // SAFETY: the caller's pointer.
            NodeKind::Memset(fill) => unsafe { out::write(nodeParams, params::memset_parameters(&fill)) },
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphMemsetNodeSetParams(hNode: CUgraphNode, nodeParams: *const CUDA_MEMSET_NODE_PARAMS) {
        let (driver, context) = current()?;
        // SAFETY: the caller's structure.
        let asked = unsafe { out::read(nodeParams)? };
        driver.graphs.graph_of(hNode)?.set_kind(hNode, params::memset(driver, &context, &asked, CUcontext::NULL)?)
    }

    fn cuGraphExecMemsetNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, memsetParams: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) {
        let (driver, context) = current()?;
        let executable = driver.executable(hGraphExec)?;
        driver.graphs.graph_of(hNode)?;
        // SAFETY: the caller's structure.
        let asked = unsafe { out::read(memsetParams)? };
        update::set(&executable, hNode, params::memset(driver, &context, &asked, ctx)?)
    }

    fn cuGraphAddEmptyNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize) {
        let (driver, _) = current()?;
        // SAFETY: the caller's arrays.
        unsafe { driver.graphs.add_node(hGraph, phGraphNode, (dependencies, std::ptr::null(), numDependencies), || Ok(NodeKind::Empty)) }
    }

    fn cuGraphAddChildGraphNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, childGraph: CUgraph) {
        let (driver, _) = current()?;
        let inner = driver.graphs.graph(childGraph)?;
        // SAFETY: the caller's arrays.
        unsafe {
            let dependencies = (dependencies, std::ptr::null(), numDependencies);
            driver.graphs.add_node(hGraph, phGraphNode, dependencies, || Ok(NodeKind::Child(driver.graphs.duplicate(&inner)?)))
        }
    }

    fn cuGraphChildGraphNodeGetGraph(hNode: CUgraphNode, phGraph: *mut CUgraph) {
        let (driver, _) = current()?;
        match driver.graphs.kind(hNode)? {
            // SAFETY: the caller's pointer.
            NodeKind::Child(inner) => unsafe { out::write(phGraph, inner.handle) },
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphExecChildGraphNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, childGraph: CUgraph) {
        let (driver, _) = current()?;
        let executable = driver.executable(hGraphExec)?;
        update::set(&executable, hNode, NodeKind::Child(driver.graphs.graph(childGraph)?))
    }

    fn cuGraphAddEventRecordNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) {
        let (driver, _) = current()?;
        // SAFETY: the caller's arrays.
        unsafe {
            let dependencies = (dependencies, std::ptr::null(), numDependencies);
            driver.graphs.add_node(hGraph, phGraphNode, dependencies, || Ok(NodeKind::EventRecord(EventWork::new(driver, event)?)))
        }
    }

    fn cuGraphAddEventWaitNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, event: CUevent) {
        let (driver, _) = current()?;
        // SAFETY: the caller's arrays.
        unsafe {
            let dependencies = (dependencies, std::ptr::null(), numDependencies);
            driver.graphs.add_node(hGraph, phGraphNode, dependencies, || Ok(NodeKind::EventWait(EventWork::new(driver, event)?)))
        }
    }

    fn cuGraphEventRecordNodeGetEvent(hNode: CUgraphNode, event_out: *mut CUevent) {
        let (driver, _) = current()?;
        match driver.graphs.kind(hNode)? {
            // SAFETY: the caller's pointer.
            NodeKind::EventRecord(work) => unsafe { out::write(event_out, work.handle) },
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphEventWaitNodeGetEvent(hNode: CUgraphNode, event_out: *mut CUevent) {
        let (driver, _) = current()?;
        match driver.graphs.kind(hNode)? {
            // SAFETY: the caller's pointer.
            NodeKind::EventWait(work) => unsafe { out::write(event_out, work.handle) },
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphEventRecordNodeSetEvent(hNode: CUgraphNode, event: CUevent) {
        let (driver, _) = current()?;
        driver.graphs.graph_of(hNode)?.set_kind(hNode, NodeKind::EventRecord(EventWork::new(driver, event)?))
    }

    fn cuGraphEventWaitNodeSetEvent(hNode: CUgraphNode, event: CUevent) {
        let (driver, _) = current()?;
        driver.graphs.graph_of(hNode)?.set_kind(hNode, NodeKind::EventWait(EventWork::new(driver, event)?))
    }

    fn cuGraphExecEventRecordNodeSetEvent(hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) {
        let (driver, _) = current()?;
        let executable = driver.executable(hGraphExec)?;
        update::set(&executable, hNode, NodeKind::EventRecord(EventWork::new(driver, event)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent(hGraphExec: CUgraphExec, hNode: CUgraphNode, event: CUevent) {
        let (driver, _) = current()?;
        let executable = driver.executable(hGraphExec)?;
        update::set(&executable, hNode, NodeKind::EventWait(EventWork::new(driver, event)?))
    }

    fn cuGraphAddMemAllocNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS) {
        // SAFETY: the caller's structure and arrays.
        unsafe {
            let mut asked = out::read(nodeParams)?;
            let pool = asked.poolProps;
            let device = driver()?.device(pool.location.id);
            let (driver, context) = current_or_named(device.map_or(CUcontext::NULL, |it| it.primary_handle))?;
            let dependencies = (dependencies, std::ptr::null(), numDependencies);
            let mut address = asked.dptr;
            let added = driver.graphs.add_node_at(hGraph, phGraphNode, dependencies, |site| {
                let (place, shared_as) = (pool.location.id, pool.handleTypes);
                let allocation = GraphAllocation::new(driver, context.id, site, place, shared_as, asked.bytesize)?;
                address = allocation.memory.address;
                Ok(NodeKind::MemAlloc(allocation))
            });
            if added.is_err() {
                // Memory of a node that did not come to be.
                collect(driver);
                return added;
            }
            asked.dptr = address;
            out::write(nodeParams, asked)
        }
    }

    fn cuGraphMemAllocNodeGetParams(hNode: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) {
        let (driver, _) = current()?;
        match driver.graphs.kind(hNode)? {
            // SAFETY: the caller's pointer.
            NodeKind::MemAlloc(allocation) => unsafe { out::write(params_out, allocation.parameters()) },
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphAddMemFreeNode(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, numDependencies: usize, dptr: CUdeviceptr) {
        let (driver, _) = current()?;
        // SAFETY: the caller's arrays.
        unsafe {
            let dependencies = (dependencies, std::ptr::null(), numDependencies);
            driver.graphs.add_node(hGraph, phGraphNode, dependencies, || Ok(NodeKind::MemFree(FreeWork::in_graph(driver, hGraph, dptr)?)))
        }
    }

    fn cuGraphMemFreeNodeGetParams(hNode: CUgraphNode, dptr_out: *mut CUdeviceptr) {
        let (driver, _) = current()?;
        match driver.graphs.kind(hNode)? {
            // SAFETY: the caller's pointer.
            NodeKind::MemFree(work) => unsafe { out::write(dptr_out, work.memory.address) },
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn cuGraphAddNode_v2(phGraphNode: *mut CUgraphNode, hGraph: CUgraph, dependencies: *const CUgraphNode, dependencyData: *const CUgraphEdgeData, numDependencies: usize, nodeParams: *mut CUgraphNodeParams) {
        let (driver, context) = current()?;
        // SAFETY: the caller's structure and arrays.
        unsafe {
            let mut asked = out::read(nodeParams)?;
            let mut told = Told::Nothing;
            let dependencies = (dependencies, dependencyData, numDependencies);
            let added = driver.graphs.add_node_at(hGraph, phGraphNode, dependencies, |site| {
                let (kind, answer) = params::any(driver, &context, site, &asked, None)?;
                told = answer;
                Ok(kind)
            });
            if added.is_err() {
                // Memory of a node that did not come to be.
                collect(driver);
                return added;
            }
            told.write(&mut asked);
            out::write(nodeParams, asked)
        }
    }

    fn cuGraphNodeSetParams(hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) {
        let (driver, context) = current()?;
        let graph = driver.graphs.graph_of(hNode)?;
        // SAFETY: the caller's structure.
        let kind = unsafe { for_update(driver, &context, &graph.kind(hNode)?, nodeParams)? };
        graph.set_kind(hNode, kind)
    }

    fn cuGraphExecNodeSetParams(hGraphExec: CUgraphExec, hNode: CUgraphNode, nodeParams: *mut CUgraphNodeParams) {
        let (driver, context) = current()?;
        let executable = driver.executable(hGraphExec)?;
        // SAFETY: the caller's structure.
        let kind = unsafe { for_update(driver, &context, &driver.graphs.kind(hNode)?, nodeParams)? };
        update::set(&executable, hNode, kind)
    }

    fn cuGraphKernelNodeSetAttribute(hNode: CUgraphNode, attr: CUkernelNodeAttrID, value: *const CUkernelNodeAttrValue) {
        let (driver, _) = current()?;
        let graph = driver.graphs.graph_of(hNode)?;
        let NodeKind::Kernel(work) = graph.kind(hNode)? else { return Err(CUresult::ERROR_INVALID_VALUE) };
        let mut shape = work.asked.clone();
        // SAFETY: the caller's value.
        shape.set(attr, &unsafe { out::read(value)? })?;
        graph.set_kind(hNode, NodeKind::Kernel(work.with_shape(shape)?))
    }

    fn cuGraphKernelNodeGetAttribute(hNode: CUgraphNode, attr: CUkernelNodeAttrID, value_out: *mut CUkernelNodeAttrValue) {
        let (driver, _) = current()?;
        let NodeKind::Kernel(work) = driver.graphs.kind(hNode)? else { return Err(CUresult::ERROR_INVALID_VALUE) };
        // SAFETY: the caller's pointer.
        unsafe { out::write(value_out, work.asked.get(attr)?) }
    }

    fn cuGraphKernelNodeCopyAttributes(dst: CUgraphNode, src: CUgraphNode) {
        let (driver, _) = current()?;
        let target = driver.graphs.graph_of(dst)?;
        match (target.kind(dst)?, driver.graphs.kind(src)?) {
            (NodeKind::Kernel(work), NodeKind::Kernel(from)) => {
                let mut shape = work.asked.clone();
                shape.copy_attributes(&from.asked);
                target.set_kind(dst, NodeKind::Kernel(work.with_shape(shape)?))
            }
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

/// The function of before edges had data.
#[allow(non_snake_case)]
pub(crate) unsafe fn cuGraphAddNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut CUgraphNodeParams,
) -> CUresult {
    let no_data = std::ptr::null();
    // SAFETY: the caller's promises are those of the target, which may be given no edge data.
    unsafe {
        cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, no_data, numDependencies, nodeParams)
    }
}

/// New parameters for a node: of its own kind, and of one whose parameters can change.
///
/// # Safety
/// `asked` and what it points to are as the type that it states demands.
unsafe fn for_update(
    driver: &Driver,
    context: &std::sync::Arc<crate::api::objects::Context>,
    before: &NodeKind,
    asked: *mut CUgraphNodeParams,
) -> Answer<NodeKind> {
    // SAFETY: by the caller's promise.
    let asked = unsafe { out::read(asked)? };
    check_change(before.type_code(), &asked)?;
    // SAFETY: by the caller's promise.
    unsafe { params::any(driver, context, NOWHERE, &asked, Some(before)) }.map(|(kind, _)| kind)
}
