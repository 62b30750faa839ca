//! A graph as text for Graphviz.

use super::model::{Graph, Kind, Role};
use crate::types::{CUgraphConditionalNodeType, CUgraphDebugDot_flags as Flags, CUgraphNodeType};
use std::fmt::Write;

/// What is printed of a node, beyond its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// A kernel.
    Kernel {
        /// As in its module.
        name: String,
        /// In blocks.
        grid: [u32; 3],
        /// In threads.
        block: [u32; 3],
        /// Dynamic shared memory.
        shared_bytes: u32,
    },
    /// A copy.
    Memcpy {
        /// All of it.
        size_bytes: u64,
    },
    /// A fill.
    Memset {
        /// First byte.
        address: u64,
        /// Of an element.
        value: u32,
        /// How many elements.
        elements: u64,
    },
    /// Memory of the graph.
    MemAlloc {
        /// How much.
        size_bytes: u64,
    },
    /// Memory of the graph that is freed.
    MemFree {
        /// Where.
        address: u64,
    },
    /// A host function.
    Host {
        /// Its address.
        function: usize,
        /// Its argument.
        user_data: usize,
    },
    /// A node that names an event.
    Event {
        /// Whether it records or waits.
        type_: CUgraphNodeType,
        /// The event's handle.
        event: usize,
    },
    /// Operations on memory.
    BatchMemOp {
        /// How many.
        count: usize,
    },
    /// A conditional node.
    Conditional {
        /// Its condition.
        handle: u64,
        /// How it decides.
        type_: CUgraphConditionalNodeType,
    },
    /// A node about which there is no more to say.
    Plain(CUgraphNodeType),
}

/// The text of a graph, as the flags want it. Names of nodes are numbers within their graph, so
/// that equal graphs give equal texts.
pub fn print<K: Kind>(graph: &Graph<K>, flags: u32) -> String {
    let mut text = String::from("digraph dot {\n");
    cluster(graph, flags, "graph", &mut text);
    text.push_str("}\n");
    text
}

fn cluster<K: Kind>(graph: &Graph<K>, flags: u32, name: &str, text: &mut String) {
    let contents = graph.lock();
    let keys: Vec<usize> = contents.shape.nodes().map(|(key, _)| key).collect();
    let place = |node: usize| keys.binary_search(&node).unwrap_or(0);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "subgraph \"cluster_{name}\" {{\nlabel=\"{name}\";");
    for (index, (handle, node)) in contents.shape.nodes().enumerate() {
        let mut label = node.kind.label().text(flags);
        if flags & (Flags::HANDLES.0 | Flags::VERBOSE.0) != 0 {
            let _ = write!(label, "\\n{handle:#x}");
        }
        let _ = writeln!(text, "\"{name}_{index}\" [label=\"{index}\\n{label}\"];");
        match node.kind.role() {
            Role::Child(inner) => cluster(inner, flags, &format!("{name}_{index}"), text),
            role => {
                for (number, body) in role.embedded().iter().enumerate() {
                    cluster(body, flags, &format!("{name}_{index}_{number}"), text);
                }
            }
        }
    }
    for edge in contents.shape.edges() {
        let (from, to) = (place(edge.from), place(edge.to));
        let _ = writeln!(text, "\"{name}_{from}\" -> \"{name}_{to}\";");
    }
    text.push_str("}\n");
}

impl Label {
    fn text(&self, flags: u32) -> String {
        let shows = |flag: Flags| flags & (flag.0 | Flags::VERBOSE.0) != 0;
        let events = Flags::EVENT_NODE_PARAMS;
        match self {
            Self::Kernel { name, grid, block, shared_bytes } => {
                match shows(Flags::KERNEL_NODE_PARAMS) {
                    true => format!("{name}\\ngrid {grid:?} block {block:?} shared {shared_bytes}"),
                    false => name.clone(),
                }
            }
            Self::Memcpy { size_bytes } if shows(Flags::MEMCPY_NODE_PARAMS) => {
                format!("MEMCPY\\n{size_bytes} bytes")
            }
            Self::Memcpy { .. } => "MEMCPY".to_owned(),
            Self::Memset { address, value, elements } if shows(Flags::MEMSET_NODE_PARAMS) => {
                format!("MEMSET\\n{address:#x} value {value} x {elements}")
            }
            Self::Memset { .. } => "MEMSET".to_owned(),
            Self::MemAlloc { size_bytes } => format!("MEM_ALLOC\\n{size_bytes} bytes"),
            Self::MemFree { address } if shows(Flags::MEM_FREE_NODE_PARAMS) => {
                format!("MEM_FREE\\n{address:#x}")
            }
            Self::MemFree { .. } => "MEM_FREE".to_owned(),
            Self::Host { function, user_data } if shows(Flags::HOST_NODE_PARAMS) => {
                format!("HOST\\n{function:#x}({user_data:#x})")
            }
            Self::Host { .. } => "HOST".to_owned(),
            Self::Event { type_, event } if shows(events) => {
                format!("{}\\n{event:#x}", type_name(*type_))
            }
            Self::Event { type_, .. } | Self::Plain(type_) => type_name(*type_).to_owned(),
            Self::BatchMemOp { count } if shows(Flags::BATCH_MEM_OP_NODE_PARAMS) => {
                format!("BATCH_MEM_OP\\n{count} operations")
            }
            Self::BatchMemOp { .. } => "BATCH_MEM_OP".to_owned(),
            Self::Conditional { handle, type_ } => {
                let name = match *type_ {
                    CUgraphConditionalNodeType::IF => "IF",
                    CUgraphConditionalNodeType::WHILE => "WHILE",
                    _ => "SWITCH",
                };
                match shows(Flags::CONDITIONAL_NODE_PARAMS) {
                    true => format!("CONDITIONAL\\n{name} {handle:#x}"),
                    false => format!("CONDITIONAL\\n{name}"),
                }
            }
        }
    }
}

fn type_name(type_: CUgraphNodeType) -> &'static str {
    match type_ {
        CUgraphNodeType::GRAPH => "GRAPH",
        CUgraphNodeType::EMPTY => "EMPTY",
        CUgraphNodeType::EVENT_RECORD => "EVENT_RECORD",
        CUgraphNodeType::WAIT_EVENT => "EVENT_WAIT",
        _ => "NODE",
    }
}
