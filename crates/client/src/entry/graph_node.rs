//! Nodes: adding them to graphs, their parameters, and the same parameters in executable graphs.

use super::graph_params as params;
use super::stream_values::batch_node;
use crate::client::{Client, run};
use crate::entry::code::launch::node_attribute;
use crate::graph::kinds::{KernelWork, NodeKind};
use crate::graph::update::set;
use crate::result::Result;
use crate::stream::life::clamped;
use crate::thread::current;
use cuda_abi::graph::model::Kind;
use cuda_abi::graph::params::check_change;
use cuda_abi::graph::reuse::Site;
use cuda_abi::graph::user_object::HostWork;
use cuda_abi::types::*;
use link::wire::command::LaunchAttribute;
use zerocopy::{FromBytes, IntoBytes};

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;
/// The place of what replaces a node's parameters, which is not memory.
const NOWHERE: Site<'_> = Site { graph: CUgraph::NULL, after: &[] };

/// Reads a structure of the caller's; null is CUDA_ERROR_INVALID_VALUE.
///
/// # Safety
/// A pointer that is not null is valid.
unsafe fn read<T: Copy>(pointer: *const T) -> Result<T> {
    super::arguments::not_null(pointer)?;
    // SAFETY: not null; the caller's promise.
    Ok(unsafe { pointer.read() })
}

/// Nodes that are added on a thread with a context alone.
fn in_a_context() -> Result {
    current::context().map(drop)
}

/// Nodes that are added on any thread.
fn anywhere() -> Result {
    Ok(())
}

/// Declares the four functions of a kind of node whose parameters come by pointer: add, get, set,
/// and set in an executable graph.
macro_rules! node_functions {
    ($($add:ident, $get:ident, $set:ident, $set_executable:ident: $ty:ty, $where:ident,
        |$client:ident, $asked:ident, $before:ident| $make:expr, $kind:ident => $show:expr;)*) => {$(
        pub(crate) unsafe fn $add(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            numDependencies: usize,
            nodeParams: *const $ty,
        ) -> CUresult {
            run(|$client| {
                $where()?;
                let $before: Option<&NodeKind> = None;
                let _ = $before;
                // SAFETY: the caller's structure and arrays.
                unsafe {
                    let $asked = &read(nodeParams)?;
                    let after = (dependencies, core::ptr::null(), numDependencies);
                    $client.graphs.registry.add_node(hGraph, phGraphNode, after, || $make)
                }
            })
        }

        pub(crate) unsafe fn $get(hNode: CUgraphNode, nodeParams: *mut $ty) -> CUresult {
            run(|client| {
                let NodeKind::$kind(work) = &client.graphs.registry.kind(hNode)? else {
                    return Err(INVALID);
                };
                put!(nodeParams, $show(work));
                Ok(())
            })
        }

        pub(crate) unsafe fn $set(hNode: CUgraphNode, nodeParams: *const $ty) -> CUresult {
            run(|$client| {
                let graph = $client.graphs.registry.graph_of(hNode)?;
                let before = graph.kind(hNode)?;
                let $before = Some(&before);
                let _ = $before;
                // SAFETY: the caller's structure.
                let kind = unsafe {
                    let $asked = &read(nodeParams)?;
                    $make?
                };
                graph.set_kind(hNode, kind)
            })
        }

        pub(crate) unsafe fn $set_executable(
            hGraphExec: CUgraphExec,
            hNode: CUgraphNode,
            nodeParams: *const $ty,
        ) -> CUresult {
            run(|$client| {
                let executable = $client.executable(hGraphExec)?;
                let before = $client.graphs.registry.kind(hNode)?;
                let $before = Some(&before);
                let _ = $before;
                // SAFETY: the caller's structure.
                let kind = unsafe {
                    let $asked = &read(nodeParams)?;
                    $make?
                };
                set($client, &executable, hNode, kind)
            })
        }
    )*};
}

node_functions! {
    cuGraphAddKernelNode, cuGraphKernelNodeGetParams, cuGraphKernelNodeSetParams, cuGraphExecKernelNodeSetParams: CUDA_KERNEL_NODE_PARAMS_v1, in_a_context,
        |client, asked, before| params::kernel(client, &asked.into(), before), Kernel => params::kernel_parameters_v1;
    cuGraphAddKernelNode_v2, cuGraphKernelNodeGetParams_v2, cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2: CUDA_KERNEL_NODE_PARAMS, in_a_context,
        |client, asked, before| params::kernel(client, asked, before), Kernel => params::kernel_parameters;
    cuGraphAddHostNode, cuGraphHostNodeGetParams, cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams: CUDA_HOST_NODE_PARAMS, anywhere,
        |client, asked, before| HostWork::new(asked.fn_, asked.userData).map(NodeKind::Host), Host => params::host_parameters;
    cuGraphAddBatchMemOpNode, cuGraphBatchMemOpNodeGetParams, cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams: CUDA_BATCH_MEM_OP_NODE_PARAMS, in_a_context,
        |client, asked, before| batch_node(client, asked), BatchMemOp => params::batch_parameters;
}

/// Declares the four functions of a kind of node whose parameters come with a context where it is
/// added and where an executable graph is changed.
macro_rules! node_functions_with_context {
    ($($add:ident, $get:ident, $set:ident, $set_executable:ident: $ty:ty, $make:path, $kind:ident => $show:path;)*) => {$(
        pub(crate) unsafe fn $add(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            numDependencies: usize,
            nodeParams: *const $ty,
            ctx: CUcontext,
        ) -> CUresult {
            run(|client| {
                // SAFETY: the caller's structure and arrays.
                unsafe {
                    let asked = &read(nodeParams)?;
                    let after = (dependencies, core::ptr::null(), numDependencies);
                    client.graphs.registry.add_node(hGraph, phGraphNode, after, || $make(client, asked, ctx))
                }
            })
        }

        pub(crate) unsafe fn $get(hNode: CUgraphNode, nodeParams: *mut $ty) -> CUresult {
            run(|client| {
                let NodeKind::$kind(work) = &client.graphs.registry.kind(hNode)? else {
                    return Err(INVALID);
                };
                put!(nodeParams, $show(work));
                Ok(())
            })
        }

        pub(crate) unsafe fn $set(hNode: CUgraphNode, nodeParams: *const $ty) -> CUresult {
            run(|client| {
                // SAFETY: the caller's structure.
                let asked = &unsafe { read(nodeParams) }?;
                let graph = client.graphs.registry.graph_of(hNode)?;
                graph.set_kind(hNode, $make(client, asked, CUcontext::NULL)?)
            })
        }

        pub(crate) unsafe fn $set_executable(
            hGraphExec: CUgraphExec,
            hNode: CUgraphNode,
            nodeParams: *const $ty,
            ctx: CUcontext,
        ) -> CUresult {
            run(|client| {
                let executable = client.executable(hGraphExec)?;
                client.graphs.registry.graph_of(hNode)?;
                // SAFETY: the caller's structure.
                let asked = &unsafe { read(nodeParams) }?;
                set(client, &executable, hNode, $make(client, asked, ctx)?)
            })
        }
    )*};
}

node_functions_with_context! {
    cuGraphAddMemcpyNode, cuGraphMemcpyNodeGetParams, cuGraphMemcpyNodeSetParams, cuGraphExecMemcpyNodeSetParams: CUDA_MEMCPY3D,
        params::memcpy, Memcpy => params::memcpy_parameters;
    cuGraphAddMemsetNode, cuGraphMemsetNodeGetParams, cuGraphMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams: CUDA_MEMSET_NODE_PARAMS,
        params::memset, Memset => params::memset_parameters;
}

/// Declares the four functions of a kind of node that names an event.
macro_rules! event_functions {
    ($($add:ident, $get:ident, $set:ident, $set_executable:ident: $make:path, $kind:ident;)*) => {$(
        pub(crate) unsafe fn $add(
            phGraphNode: *mut CUgraphNode,
            hGraph: CUgraph,
            dependencies: *const CUgraphNode,
            numDependencies: usize,
            event: CUevent,
        ) -> CUresult {
            run(|client| {
                let after = (dependencies, core::ptr::null(), numDependencies);
                // SAFETY: the caller's arrays.
                unsafe { client.graphs.registry.add_node(hGraph, phGraphNode, after, || $make(client, event)) }
            })
        }

        pub(crate) unsafe fn $get(hNode: CUgraphNode, event_out: *mut CUevent) -> CUresult {
            run(|client| {
                let NodeKind::$kind(event) = &client.graphs.registry.kind(hNode)? else {
                    return Err(INVALID);
                };
                put!(event_out, CUevent(event.token));
                Ok(())
            })
        }

        pub(crate) unsafe fn $set(hNode: CUgraphNode, event: CUevent) -> CUresult {
            run(|client| client.graphs.registry.graph_of(hNode)?.set_kind(hNode, $make(client, event)?))
        }

        pub(crate) unsafe fn $set_executable(
            hGraphExec: CUgraphExec,
            hNode: CUgraphNode,
            event: CUevent,
        ) -> CUresult {
            run(|client| {
                let executable = client.executable(hGraphExec)?;
                set(client, &executable, hNode, $make(client, event)?)
            })
        }
    )*};
}

event_functions! {
    cuGraphAddEventRecordNode, cuGraphEventRecordNodeGetEvent, cuGraphEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent:
        params::event_record, EventRecord;
    cuGraphAddEventWaitNode, cuGraphEventWaitNodeGetEvent, cuGraphEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent:
        params::event_wait, EventWait;
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
) -> CUresult {
    run(|client| {
        let after = (dependencies, core::ptr::null(), numDependencies);
        // SAFETY: the caller's arrays.
        unsafe {
            client.graphs.registry.add_node(hGraph, phGraphNode, after, || Ok(NodeKind::Empty))
        }
    })
}

pub(crate) unsafe fn cuGraphAddChildGraphNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    childGraph: CUgraph,
) -> CUresult {
    run(|client| {
        let inner = client.graphs.registry.graph(childGraph)?;
        let make = || client.graphs.registry.duplicate(&inner).map(NodeKind::Child);
        let after = (dependencies, core::ptr::null(), numDependencies);
        // SAFETY: the caller's arrays.
        unsafe { client.graphs.registry.add_node(hGraph, phGraphNode, after, make) }
    })
}

pub(crate) unsafe fn cuGraphChildGraphNodeGetGraph(
    hNode: CUgraphNode,
    phGraph: *mut CUgraph,
) -> CUresult {
    run(|client| {
        let NodeKind::Child(inner) = client.graphs.registry.kind(hNode)? else {
            return Err(INVALID);
        };
        put!(phGraph, inner.handle);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphExecChildGraphNodeSetParams(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    childGraph: CUgraph,
) -> CUresult {
    run(|client| {
        let executable = client.executable(hGraphExec)?;
        set(client, &executable, hNode, NodeKind::Child(client.graphs.registry.graph(childGraph)?))
    })
}

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    run(|client| {
        // SAFETY: the caller's structure and arrays.
        unsafe {
            let mut asked = read(nodeParams)?;
            let after = (dependencies, core::ptr::null(), numDependencies);
            let mut told = asked.dptr;
            let added = client.graphs.registry.add_node_at(hGraph, phGraphNode, after, |site| {
                let (pool, size_bytes) = (&asked.poolProps, asked.bytesize);
                let (kind, address) = params::allocation(client, site, pool, size_bytes)?;
                told = address;
                Ok(kind)
            });
            if added.is_err() {
                // Memory of a node that did not come to be.
                client.graphs.memory.collect(client);
            }
            added?;
            asked.dptr = told;
            nodeParams.write(asked);
        }
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphMemAllocNodeGetParams(
    hNode: CUgraphNode,
    params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    run(|client| {
        let NodeKind::MemAlloc(memory) = client.graphs.registry.kind(hNode)? else {
            return Err(INVALID);
        };
        put!(params_out, memory.parameters());
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphAddMemFreeNode(
    phGraphNode: *mut CUgraphNode,
    hGraph: CUgraph,
    dependencies: *const CUgraphNode,
    numDependencies: usize,
    dptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        let after = (dependencies, core::ptr::null(), numDependencies);
        let make = || client.graphs.memory.to_be_freed(client, hGraph, dptr).map(NodeKind::MemFree);
        // SAFETY: the caller's arrays.
        unsafe { client.graphs.registry.add_node(hGraph, phGraphNode, after, make) }
    })
}

pub(crate) unsafe fn cuGraphMemFreeNodeGetParams(
    hNode: CUgraphNode,
    dptr_out: *mut CUdeviceptr,
) -> CUresult {
    run(|client| {
        let NodeKind::MemFree(memory) = client.graphs.registry.kind(hNode)? else {
            return Err(INVALID);
        };
        put!(dptr_out, memory.address);
        Ok(())
    })
}

/// New parameters for a node: of its own kind, and of one whose parameters can change.
///
/// # Safety
/// `asked` and what it points to are as the type that it states demands.
unsafe fn for_update(
    client: &Client,
    before: &NodeKind,
    asked: *mut CUgraphNodeParams,
) -> Result<NodeKind> {
    // SAFETY: the caller's promise.
    let asked = unsafe { read(asked) }?;
    check_change(before.type_code(), &asked)?;
    // SAFETY: the caller's promise.
    unsafe { params::any(client, NOWHERE, &asked, Some(before)) }.map(|(kind, _)| kind)
}

pub(crate) unsafe fn cuGraphNodeSetParams(
    hNode: CUgraphNode,
    nodeParams: *mut CUgraphNodeParams,
) -> CUresult {
    run(|client| {
        let graph = client.graphs.registry.graph_of(hNode)?;
        // SAFETY: the caller's structure.
        let kind = unsafe { for_update(client, &graph.kind(hNode)?, nodeParams) }?;
        graph.set_kind(hNode, kind)
    })
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    hGraphExec: CUgraphExec,
    hNode: CUgraphNode,
    nodeParams: *mut CUgraphNodeParams,
) -> CUresult {
    run(|client| {
        let executable = client.executable(hGraphExec)?;
        let before = client.graphs.registry.kind(hNode)?;
        // SAFETY: the caller's structure.
        let kind = unsafe { for_update(client, &before, nodeParams) }?;
        set(client, &executable, hNode, kind)
    })
}

fn kernel_of(client: &Client, node: CUgraphNode) -> Result<KernelWork> {
    match client.graphs.registry.kind(node)? {
        NodeKind::Kernel(work) => Ok(work),
        _ => Err(INVALID),
    }
}

pub(crate) unsafe fn cuGraphKernelNodeSetAttribute(
    hNode: CUgraphNode,
    attr: CUkernelNodeAttrID,
    value: *const CUkernelNodeAttrValue,
) -> CUresult {
    const { assert!(size_of::<CUkernelNodeAttrValue>() == size_of::<[u64; 8]>()) };
    run(|client| {
        let mut work = kernel_of(client, hNode)?;
        // SAFETY: the caller's value: 64 bytes, which need not all be initialised by a careless
        // program, but are mapped.
        let bytes = unsafe { read(value.cast::<[u8; 64]>()) }?;
        let value = <[u64; 8]>::read_from_bytes(&bytes).map_err(|_| INVALID)?;
        let mut attribute = LaunchAttribute { id: attr.0, reserved: 0, value };
        if attr == CUlaunchAttributeID::PRIORITY {
            let device = work.function.context.device;
            let priority = clamped(client, device, (value[0] as u32).cast_signed())?;
            attribute.value[0] = u64::from(priority.cast_unsigned());
        }
        work.set_attribute(node_attribute(attribute)?);
        client.graphs.registry.graph_of(hNode)?.set_kind(hNode, NodeKind::Kernel(work))
    })
}

pub(crate) unsafe fn cuGraphKernelNodeGetAttribute(
    hNode: CUgraphNode,
    attr: CUkernelNodeAttrID,
    value_out: *mut CUkernelNodeAttrValue,
) -> CUresult {
    run(|client| {
        let work = kernel_of(client, hNode)?;
        if attr.0 == 0 || attr.0 >= CUlaunchAttributeID::MAX.0 {
            return Err(INVALID);
        }
        let value = work.attribute(attr.0).map_or([0; 8], |attribute| attribute.value);
        let mut bytes = [0u8; 64];
        bytes.copy_from_slice(value.as_bytes());
        put!(value_out.cast::<[u8; 64]>(), bytes);
        Ok(())
    })
}

pub(crate) unsafe fn cuGraphKernelNodeCopyAttributes(
    dst: CUgraphNode,
    src: CUgraphNode,
) -> CUresult {
    run(|client| {
        let (mut work, from) = (kernel_of(client, dst)?, kernel_of(client, src)?);
        work.attributes = from.attributes;
        client.graphs.registry.graph_of(dst)?.set_kind(dst, NodeKind::Kernel(work))
    })
}
