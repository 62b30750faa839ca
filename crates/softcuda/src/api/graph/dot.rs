//! A graph as text for Graphviz.

use std::ffi::c_char;
use std::fmt::Write;

use cuda_abi::types::{CUgraph, CUgraphDebugDot_flags as Flags, CUresult};

use super::kinds::NodeKind;
use super::model::Graph;
use crate::api::driver::driver;
use crate::api::out;

api! {
    fn cuGraphDebugDotPrint(hGraph: CUgraph, path: *const c_char, flags: u32) {
        let graph = driver()?.graph(hGraph)?;
        // SAFETY: the caller's text.
        let path = unsafe { out::string(path)? };
        let mut text = String::from("digraph dot {\n");
        print(&graph, flags, "graph", &mut text);
        text.push_str("}\n");
        std::fs::write(path, text).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)
    }
}

/// Appends a graph as a cluster; names of nodes are numbers within it, so that equal graphs give equal texts.
fn print(graph: &Graph, flags: u32, name: &str, text: &mut String) {
    let state = graph.lock();
    let place = |node: usize| state.nodes.keys().position(|other| *other == node).unwrap_or(0);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "subgraph \"cluster_{name}\" {{\nlabel=\"{name}\";");
    for (index, (handle, node)) in state.nodes.iter().enumerate() {
        let mut label = title(&node.kind, flags);
        if flags & (Flags::HANDLES.0 | Flags::VERBOSE.0) != 0 {
            let _ = write!(label, "\\n{handle:#x}");
        }
        let _ = writeln!(text, "\"{name}_{index}\" [label=\"{index}\\n{label}\"];");
        if let NodeKind::Child(inner) = &node.kind {
            print(inner, flags, &format!("{name}_{index}"), text);
        }
    }
    for edge in &state.edges {
        let (from, to) = (place(edge.from), place(edge.to));
        let _ = writeln!(text, "\"{name}_{from}\" -> \"{name}_{to}\";");
    }
    text.push_str("}\n");
}

fn title(kind: &NodeKind, flags: u32) -> String {
    let shows = |flag: Flags| flags & (flag.0 | Flags::VERBOSE.0) != 0;
    match kind {
        NodeKind::Kernel(work) => {
            let mut label = work.function.name.to_string_lossy().into_owned();
            if shows(Flags::KERNEL_NODE_PARAMS) {
                let shape = &work.asked;
                let _ = write!(
                    label,
                    "\\ngrid {:?} block {:?} shared {}",
                    shape.grid, shape.block, shape.dynamic_shared_bytes
                );
            }
            label
        }
        NodeKind::Memcpy(volume) if shows(Flags::MEMCPY_NODE_PARAMS) => {
            format!("MEMCPY\\n{:?} bytes", volume.extent())
        }
        NodeKind::Memset(fill) if shows(Flags::MEMSET_NODE_PARAMS) => {
            format!(
                "MEMSET\\n{:#x} value {} x {}",
                fill.address,
                fill.value,
                fill.width * fill.height
            )
        }
        NodeKind::Memcpy(_) => "MEMCPY".to_owned(),
        NodeKind::Memset(_) => "MEMSET".to_owned(),
        NodeKind::Host(_) => "HOST".to_owned(),
        NodeKind::Child(_) => "GRAPH".to_owned(),
        NodeKind::Empty => "EMPTY".to_owned(),
        NodeKind::EventRecord(_) => "EVENT_RECORD".to_owned(),
        NodeKind::EventWait(_) => "EVENT_WAIT".to_owned(),
        NodeKind::MemAlloc(allocation) => {
            format!("MEM_ALLOC\\n{} bytes", allocation.memory.size_bytes)
        }
        NodeKind::MemFree(_) => "MEM_FREE".to_owned(),
        NodeKind::BatchMemOp(_) => "BATCH_MEM_OP".to_owned(),
    }
}
