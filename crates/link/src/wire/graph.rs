//! Graphs on the wire: one description makes an executable graph, a launch is one command.
//!
//! A node is written as the command that would do its work at once: an [`Opcode`] and that
//! command's body, in which the stream is unused. A description lists nodes so that each comes
//! after what it depends on; hence it can hold no cycle. It lies in a region of the client, and the
//! executor parses a copy of it.

use super::command::{Opcode, PAYLOAD_LIMIT_BYTES, Role, wire_struct};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Executable graphs have numbers below this.
pub const MAX_GRAPHS: u32 = 1 << 16;
/// Most nodes of one description.
pub const MAX_NODES: u32 = 1 << 17;
/// Most edges of one description.
pub const MAX_EDGES: u32 = 1 << 20;
/// Most descriptions of one graph.
pub const MAX_SECTIONS: u32 = 1 << 14;
/// Longest description.
pub const MAX_DESCRIPTION_BYTES: u64 = 1 << 28;
/// Alignment of a node in a description.
pub(crate) const NODE_ALIGN: usize = 8;

wire_struct! {
    /// See [`Opcode::GraphCreate`].
    struct GraphCreate {
        /// Number, chosen by the client.
        graph: u32,
        /// `CUgraphInstantiate_flags`.
        flags: u32,
        /// First address of the descriptions.
        address: u64,
        /// Their length.
        size_bytes: u64,
        /// What the graph's conditions were made for; 0 if it has none.
        home: u32,
        /// How many descriptions follow the graph's own: those of its conditional nodes' graphs.
        bodies: u32,
    }
    /// See [`Opcode::GraphCondition`].
    struct GraphCondition {
        /// Number, from 1, chosen by the client; the first condition makes the home.
        home: u32,
        /// The value that launches begin with, if `flags` say so.
        value: u32,
        /// `CU_GRAPH_COND_ASSIGN_DEFAULT`, or 0.
        flags: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`Opcode::GraphCondition`].
    struct GraphConditionReply {
        /// What kernels set the value by.
        handle: u64,
    }
    /// See [`Opcode::GraphHomeDestroy`].
    struct GraphHomeDestroy {
        /// Number.
        home: u32,
        /// Zero.
        reserved: u32,
    }
    /// A conditional node; the numbers of its graphs' descriptions follow, 32 bits each. A graph is
    /// described after the one that it is in.
    struct ConditionalNode {
        /// The condition.
        handle: u64,
        /// `CUgraphConditionalNodeType`.
        kind: u32,
        /// How many graphs.
        bodies: u32,
    }
    /// See [`Opcode::GraphDestroy`].
    struct GraphDestroy {
        /// Number.
        graph: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::GraphLaunch`].
    struct GraphLaunch {
        /// Number.
        graph: u32,
        /// Slot.
        stream: u32,
    }
    /// See [`Opcode::GraphUpload`].
    struct GraphUpload {
        /// Number.
        graph: u32,
        /// Slot.
        stream: u32,
    }
    /// See [`Opcode::GraphSet`]; a [`NodeHeader`] and the node's new body follow.
    struct GraphSet {
        /// Number.
        graph: u32,
        /// Place of the node in the description.
        node: u32,
    }
    /// See [`Opcode::GraphEnable`].
    struct GraphEnable {
        /// Number.
        graph: u32,
        /// Place of the node in the description.
        node: u32,
        /// 0: later launches leave the node out; 1: they do it.
        enabled: u32,
        /// Zero.
        reserved: u32,
    }
    /// Starts a description: so many nodes follow, then so many edges.
    struct DescriptionHeader {
        /// How many nodes.
        nodes: u32,
        /// How many [`Dependency`].
        edges: u32,
    }
    /// Starts a node; its body follows, padded to a multiple of eight bytes.
    struct NodeHeader {
        /// An [`Opcode`]: what the node does. `Ping` does nothing.
        opcode: u32,
        /// Length of the body without padding.
        size_bytes: u32,
    }
    /// An edge, by places of nodes.
    struct Dependency {
        /// What comes first.
        before: u32,
        /// What waits for it; a greater place.
        after: u32,
    }
}

/// Why bytes are no description of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DescriptionError {
    /// It ends early.
    #[error("a graph's description ends within its {0}")]
    Short(&'static str),
    /// It says that it has more than any graph may have.
    #[error("a graph's description has {count} {what}, beyond {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u32,
        /// How many there may be.
        limit: u32,
    },
    /// A node's opcode does not exist, or is no work for a graph.
    #[error("opcode {0} is no work of a graph's node")]
    Opcode(u32),
    /// An edge names a node that is not there, or does not lead forward.
    #[error("an edge from node {before} to node {after} of {nodes} does not lead forward")]
    Edge {
        /// Its start.
        before: u32,
        /// Its end.
        after: u32,
        /// How many nodes there are.
        nodes: u32,
    },
}

/// One node: what it does, and the body of the command that would do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// What it does.
    pub opcode: Opcode,
    /// As in a command.
    pub body: &'a [u8],
}

impl<'a> Node<'a> {
    /// Reads a node off the front of `bytes`; gives what follows it.
    ///
    /// # Errors
    /// [`DescriptionError`] for bytes that are none.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DescriptionError> {
        let short = DescriptionError::Short("nodes");
        let (header, rest) = NodeHeader::read_from_prefix(bytes).map_err(|_| short)?;
        let opcode = u16::try_from(header.opcode).ok().and_then(Opcode::from_number);
        let opcode = opcode
            .filter(|opcode| opcode.facts().role == Role::Node)
            .ok_or(DescriptionError::Opcode(header.opcode))?;
        let length = header.size_bytes as usize;
        if length > PAYLOAD_LIMIT_BYTES {
            return Err(short);
        }
        let body = rest.get(..length).ok_or(short)?;
        let rest = rest.get(length.next_multiple_of(NODE_ALIGN)..).ok_or(short)?;
        Ok((Self { opcode, body }, rest))
    }
}

/// A graph, as described.
#[derive(Clone, Debug, PartialEq)]
pub struct Description<'a> {
    /// Each after what it depends on.
    pub nodes: Vec<Node<'a>>,
    /// By places in `nodes`.
    pub edges: Vec<Dependency>,
}

impl<'a> Description<'a> {
    /// Reads descriptions that follow one another: a graph's own, which is section 0, and those of
    /// its conditional nodes' graphs. What follows them is ignored.
    ///
    /// # Errors
    /// [`DescriptionError`] for bytes that are none.
    pub fn parse_all(bytes: &'a [u8], count: u32) -> Result<Vec<Self>, DescriptionError> {
        let check = |what, count, limit| match count <= limit {
            true => Ok(()),
            false => Err(DescriptionError::TooMany { what, count, limit }),
        };
        check("sections", count, MAX_SECTIONS)?;
        let (mut found, mut rest, mut nodes) = (Vec::new(), bytes, 0);
        for _ in 0..count {
            let (description, after) = Self::parse(rest)?;
            nodes += description.nodes.len() as u32;
            check("nodes", nodes, MAX_NODES)?;
            found.push(description);
            rest = after;
        }
        Ok(found)
    }

    /// Reads a description; gives what follows it.
    ///
    /// # Errors
    /// [`DescriptionError`] for bytes that are none.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DescriptionError> {
        let (header, mut rest) = DescriptionHeader::read_from_prefix(bytes)
            .map_err(|_| DescriptionError::Short("header"))?;
        let check = |what, count, limit| match count <= limit {
            true => Ok(()),
            false => Err(DescriptionError::TooMany { what, count, limit }),
        };
        check("nodes", header.nodes, MAX_NODES)?;
        check("edges", header.edges, MAX_EDGES)?;
        let mut nodes = Vec::new();
        for _ in 0..header.nodes {
            let (node, after) = Node::parse(rest)?;
            nodes.push(node);
            rest = after;
        }
        let mut edges = Vec::new();
        for _ in 0..header.edges {
            let (edge, after) =
                Dependency::read_from_prefix(rest).map_err(|_| DescriptionError::Short("edges"))?;
            if edge.before >= edge.after || edge.after >= header.nodes {
                let Dependency { before, after } = edge;
                return Err(DescriptionError::Edge { before, after, nodes: header.nodes });
            }
            edges.push(edge);
            rest = after;
        }
        Ok((Self { nodes, edges }, rest))
    }
}

/// Makes a description.
#[derive(Clone, Debug, Default)]
pub struct DescriptionWriter {
    nodes: u32,
    bytes: Vec<u8>,
    edges: Vec<Dependency>,
}

impl DescriptionWriter {
    /// Adds a node; returns its place.
    pub fn add(&mut self, opcode: Opcode, body: &[&[u8]]) -> u32 {
        write_node(&mut self.bytes, opcode, body);
        self.nodes += 1;
        self.nodes - 1
    }

    /// Makes the node at place `after` wait for that at place `before`.
    pub fn depend(&mut self, before: u32, after: u32) {
        self.edges.push(Dependency { before, after });
    }

    /// How many nodes were added.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The description; `None` if it is larger than an executor takes.
    pub fn finish(&self) -> Option<Vec<u8>> {
        let edges = u32::try_from(self.edges.len()).ok().filter(|&count| count <= MAX_EDGES)?;
        let header = DescriptionHeader { nodes: self.nodes, edges };
        let bytes = [header.as_bytes(), &self.bytes, self.edges.as_bytes()].concat();
        (self.nodes <= MAX_NODES && bytes.len() as u64 <= MAX_DESCRIPTION_BYTES).then_some(bytes)
    }
}

/// Appends a node to `bytes`.
pub fn write_node(bytes: &mut Vec<u8>, opcode: Opcode, body: &[&[u8]]) {
    let length: usize = body.iter().map(|part| part.len()).sum();
    let header = NodeHeader { opcode: u32::from(opcode as u16), size_bytes: length as u32 };
    bytes.extend_from_slice(header.as_bytes());
    body.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.resize(bytes.len().next_multiple_of(NODE_ALIGN), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written() -> Vec<u8> {
        let mut writer = DescriptionWriter::default();
        let first = writer.add(Opcode::Fill, &[&[1, 2, 3], &[4]]);
        let second = writer.add(Opcode::Launch, &[&[9; 16]]);
        let third = writer.add(Opcode::Ping, &[]);
        writer.depend(first, second);
        writer.depend(second, third);
        writer.finish().unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = written();
        let (read, rest) = Description::parse(&bytes).unwrap();
        assert!(rest.is_empty());
        assert_eq!(read.nodes.len(), 3);
        assert_eq!(read.nodes[0], Node { opcode: Opcode::Fill, body: &[1, 2, 3, 4] });
        assert_eq!(read.nodes[2], Node { opcode: Opcode::Ping, body: &[] });
        let edge = |before, after| Dependency { before, after };
        assert_eq!(read.edges, [edge(0, 1), edge(1, 2)]);
    }

    #[test]
    fn several_follow_one_another() {
        let both = [written(), written()].concat();
        let read = Description::parse_all(&both, 2).unwrap();
        assert_eq!(read[0], read[1]);
        assert!(matches!(Description::parse_all(&both, 3), Err(DescriptionError::Short(_))));
        let many = Description::parse_all(&both, MAX_SECTIONS + 1);
        assert!(matches!(many, Err(DescriptionError::TooMany { what: "sections", .. })));
    }

    #[test]
    fn every_cut_is_noticed() {
        let bytes = written();
        for length in 0..bytes.len() {
            let read = Description::parse(&bytes[..length]);
            assert!(matches!(read, Err(DescriptionError::Short(_))), "{length}: {read:?}");
        }
    }

    #[test]
    fn what_no_graph_can_have_is_refused() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = written();
            change(&mut bytes);
            Description::parse(&bytes).unwrap_err()
        };
        let error = refused(&|bytes| bytes[3] = 0xff);
        assert!(matches!(error, DescriptionError::TooMany { what: "nodes", .. }), "{error}");
        let error = refused(&|bytes| bytes[7] = 0xff);
        assert!(matches!(error, DescriptionError::TooMany { what: "edges", .. }), "{error}");
        assert_eq!(refused(&|bytes| bytes[8] = 50), DescriptionError::Opcode(50), "a module load");
        assert_eq!(refused(&|bytes| bytes[15] = 0xff), DescriptionError::Short("nodes"));
        let backward = refused(&|bytes| {
            let last = bytes.len() - 8;
            bytes[last..].copy_from_slice(Dependency { before: 2, after: 2 }.as_bytes());
        });
        assert_eq!(backward, DescriptionError::Edge { before: 2, after: 2, nodes: 3 });
    }

    proptest! {
        #[test]
        fn no_bytes_are_trusted(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..8)) {
            let mut bytes = written();
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            if let Ok((read, _)) = Description::parse(&bytes) {
                let nodes = read.nodes.len() as u32;
                prop_assert!(read.edges.iter().all(|e| e.before < e.after && e.after < nodes));
            }
        }
    }
}
