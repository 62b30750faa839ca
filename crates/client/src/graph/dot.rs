//! A graph as text for Graphviz.

use super::kinds::NodeKind;
use super::model::Graph;
use cuda_abi::types::CUgraphDebugDot_flags as Flags;
use std::fmt::Write;

/// The text of a graph, as the flags want it.
pub(crate) fn print(graph: &Graph, flags: u32) -> String {
    let mut text = String::from("digraph dot {\n");
    cluster(graph, flags, "graph", &mut text);
    text.push_str("}\n");
    text
}

/// Appends a graph as a cluster; names of nodes are numbers within it, so that equal graphs give equal texts.
fn cluster(graph: &Graph, flags: u32, name: &str, text: &mut String) {
    let state = graph.lock();
    let keys: Vec<usize> = state.shape.nodes().map(|(key, _)| key).collect();
    let place = |node: usize| keys.binary_search(&node).unwrap_or(0);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "subgraph \"cluster_{name}\" {{\nlabel=\"{name}\";");
    for (index, (handle, node)) in state.shape.nodes().enumerate() {
        let mut label = title(&node.kind, flags);
        if flags & (Flags::HANDLES.0 | Flags::VERBOSE.0) != 0 {
            let _ = write!(label, "\\n{handle:#x}");
        }
        let _ = writeln!(text, "\"{name}_{index}\" [label=\"{index}\\n{label}\"];");
        if let NodeKind::Child(inner) = &node.kind {
            cluster(inner, flags, &format!("{name}_{index}"), text);
        }
    }
    for edge in state.shape.edges() {
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
                let (grid, block) = (work.grid, work.block);
                let shared = work.dynamic_shared_bytes;
                let _ = write!(label, "\\ngrid {grid:?} block {block:?} shared {shared}");
            }
            label
        }
        NodeKind::Memcpy(copy) if shows(Flags::MEMCPY_NODE_PARAMS) => {
            format!("MEMCPY\\n{} bytes", copy.size_bytes())
        }
        NodeKind::Memset(fill) if shows(Flags::MEMSET_NODE_PARAMS) => {
            let (rows, value) = (fill.rows, fill.pattern.value);
            format!("MEMSET\\n{:#x} value {value} x {}", rows.address, rows.width * rows.height)
        }
        NodeKind::Memcpy(_) => "MEMCPY".to_owned(),
        NodeKind::Memset(_) => "MEMSET".to_owned(),
        NodeKind::Host(_) => "HOST".to_owned(),
        NodeKind::Child(_) => "GRAPH".to_owned(),
        NodeKind::Empty => "EMPTY".to_owned(),
        NodeKind::EventRecord(_) => "EVENT_RECORD".to_owned(),
        NodeKind::EventWait(_) => "EVENT_WAIT".to_owned(),
        NodeKind::MemAlloc(memory) => format!("MEM_ALLOC\\n{} bytes", memory.size_bytes),
        NodeKind::MemFree(_) => "MEM_FREE".to_owned(),
        NodeKind::WriteValue(_) => "BATCH_MEM_OP".to_owned(),
    }
}
