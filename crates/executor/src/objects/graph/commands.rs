//! What clients ask of graphs.

use super::*;
use crate::code::module::Touch;
use crate::session::failure::below;
use crate::session::state::State;
use crate::submit::submitted::{Launched, Submission, Submitted};
use crate::turns::costs::Piece;
use executor_link::history::NotedLaunch;
use link::wire::command::Opcode;
use link::wire::graph::{
    Description, GraphCreate, GraphDestroy, GraphEnable, GraphLaunch, GraphSet, GraphUpload,
    MAX_DESCRIPTION_BYTES, MAX_GRAPHS, MAX_NODES,
};

/// Nodes of all graphs of one session.
const MAX_SESSION_NODES: usize = 4 * MAX_NODES as usize;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`; what the other flags ask for is the client's
/// affair, or absent.
const FLAGS: u32 = 8;

impl State {
    fn graph(&mut self, number: u32) -> Result<&mut Graph, Failure> {
        below("graph", number, MAX_GRAPHS)?;
        let graph = self.graphs.graphs.get_mut(&number);
        graph.ok_or(Failure::Cuda(CUresult::ERROR_INVALID_HANDLE))
    }

    /// Events that a graph's nodes wait for, and those that they record.
    pub(crate) fn graph_events(&self, number: u32) -> (Vec<u32>, Vec<u32>) {
        let nodes = self.graphs.graphs.get(&number).map_or(&[][..], |graph| &graph.nodes);
        let of_kind = |kind| {
            let named = nodes.iter().filter(|node| node.kind == kind);
            named.filter_map(|node| node.event_number).collect()
        };
        (of_kind(Opcode::StreamWaitEvent), of_kind(Opcode::EventRecord))
    }

    pub(crate) fn graph_create(&mut self, wanted: GraphCreate) -> Result<(), Failure> {
        let GraphCreate { graph: number, address, size_bytes, .. } = wanted;
        if number >= MAX_GRAPHS || self.graphs.graphs.contains_key(&number) {
            return Err(Failure::Protocol(format!(
                "graph {number} cannot be made: in use, or beyond {MAX_GRAPHS}"
            )));
        }
        let bytes = self.memory.read_region(address, size_bytes, MAX_DESCRIPTION_BYTES)?;
        self.make_graph(wanted, &bytes)?;
        self.keep_bytes(&bytes)
    }

    /// Makes an executable graph of its descriptions.
    pub(crate) fn make_graph(&mut self, wanted: GraphCreate, bytes: &[u8]) -> Result<(), Failure> {
        let GraphCreate { graph: number, flags, home, bodies, .. } = wanted;
        let sections = Description::parse_all(bytes, bodies.saturating_add(1))?;
        let nodes: usize = sections.iter().map(|section| section.nodes.len()).sum();
        if self.graphs.nodes + nodes > MAX_SESSION_NODES {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let home = (home != 0).then_some(home);
        let template = match home {
            Some(home) => self.take_home(home)?,
            None => self.empty_graph()?,
        };
        let mut graph = Graph {
            template,
            executable: CUgraphExec::NULL,
            flags: flags & FLAGS,
            home,
            nodes: Vec::new(),
            checked_at: self.memory.addressable.removals(),
            remaking: None,
            spoiled: None,
        };
        let given =
            sections.iter().flat_map(|it| &it.nodes).try_for_each(|node| self.give_to_node(node));
        if let Err(failure) = given.and_then(|()| self.fill_in(&mut graph, &sections)) {
            self.drop_graph(graph);
            return Err(failure);
        }
        self.put_graph(number, graph);
        Ok(())
    }

    pub(super) fn empty_graph(&self) -> Result<CUgraph, Failure> {
        let mut graph = CUgraph::NULL;
        // SAFETY: the result is written.
        self.check(unsafe { self.driver().cuGraphCreate(&mut graph, 0) })?;
        Ok(graph)
    }

    fn fill_in(&self, graph: &mut Graph, sections: &[Description<'_>]) -> Result<(), Failure> {
        let conditions = graph.home.map(|home| self.graphs.homes.conditions(home));
        let mut targets = vec![None; sections.len()];
        targets[0] = Some(graph.template);
        for (number, section) in sections.iter().enumerate() {
            let target = targets[number].ok_or_else(|| misplaced(number))?;
            let first = graph.nodes.len();
            let mut before = vec![Vec::new(); section.nodes.len()];
            for edge in &section.edges {
                before[edge.after as usize].push(first + edge.before as usize);
            }
            for (described, before) in section.nodes.iter().zip(&before) {
                let after: Vec<CUgraphNode> =
                    before.iter().map(|&place| graph.nodes[place].handle).collect();
                let (node, bodies) =
                    self.add_node(target, &after, described, conditions.unwrap_or_default())?;
                graph.nodes.push(node);
                for (inner, body) in bodies {
                    // Each graph is described once, after the one that it is in.
                    match targets.get_mut(inner).filter(|_| inner > number) {
                        Some(free @ None) => *free = Some(body),
                        _ => return Err(misplaced(inner)),
                    }
                }
            }
        }
        let executable = self.instantiate(graph)?;
        graph.was_made(executable);
        Ok(())
    }

    pub(super) fn instantiate(&self, graph: &Graph) -> Result<CUgraphExec, Failure> {
        let mut executable = CUgraphExec::NULL;
        let driver = self.driver();
        // SAFETY: a live graph of this session; the result is written.
        let make = || unsafe {
            driver.cuGraphInstantiateWithFlags(&mut executable, graph.template, graph.flags.into())
        };
        self.check(self.context().gate.between(make))?;
        let mut disabled = graph.nodes.iter().filter(|node| !node.is_enabled);
        // SAFETY: live handles of this session.
        let left_out = disabled.try_for_each(|node| unsafe {
            self.check(driver.cuGraphNodeSetEnabled(executable, node.handle, 0))
        });
        if left_out.is_err() {
            // SAFETY: just made, known to nobody.
            let _ = unsafe { driver.cuGraphExecDestroy(executable) };
        }
        left_out.map(|()| executable)
    }

    pub(crate) fn graph_destroy(&mut self, wanted: GraphDestroy) -> Result<(), Failure> {
        let graph = self.take_graph(wanted.graph)?;
        self.drop_graph(graph);
        Ok(())
    }

    fn take_graph(&mut self, number: u32) -> Result<Graph, Failure> {
        below("graph", number, MAX_GRAPHS)?;
        self.finish_remaking(number)?;
        let graph = self.graphs.graphs.remove(&number);
        let graph = graph.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
        self.graphs.nodes -= graph.nodes.len();
        Ok(graph)
    }

    fn put_graph(&mut self, number: u32, graph: Graph) {
        self.graphs.nodes += graph.nodes.len();
        self.graphs.graphs.insert(number, graph);
    }

    fn drop_graph(&mut self, mut graph: Graph) {
        self.drop_executable(&mut graph);
        if !graph.home.is_some_and(|home| self.give_home_back(home, graph.template)) {
            // SAFETY: a live handle of this session, which nothing names any more.
            let _ = unsafe { self.driver().cuGraphDestroy(graph.template) };
        }
        for node in graph.nodes {
            node.release(self);
        }
    }

    /// Nothing names a graph's executable any more. Of a home there is one at a time, so it is
    /// waited for.
    pub(super) fn drop_executable(&mut self, graph: &mut Graph) {
        let executable = std::mem::replace(&mut graph.executable, CUgraphExec::NULL);
        if executable != CUgraphExec::NULL && graph.home.is_some() {
            self.await_end_of_work();
        }
        self.retire_executable(executable);
    }

    /// Destroys all graphs; their launches have ended.
    pub(crate) fn clear_graphs(&mut self) {
        self.finish_all_remaking();
        let graphs = std::mem::take(&mut self.graphs);
        self.clear_homes(graphs.homes);
        for graph in graphs.graphs.into_values() {
            self.drop_graph(graph);
        }
        self.end_retired();
    }

    pub(crate) fn graph_launch(&mut self, wanted: GraphLaunch) -> Result<(), Failure> {
        let graph = self.graph(wanted.graph)?;
        if let Some(code) = graph.spoiled {
            return Err(Failure::Cuda(code));
        }
        let (executable, load) = (graph.executable, graph.load());
        self.check_ranges_again(wanted.graph)?;
        self.touch_variables(Touch::All);
        let launched = Launched::Graph { kernels: load.kernels };
        let (slot, submitted) =
            (wanted.stream, Submitted::Piece(Piece::Graph(wanted.graph), launched));
        let Load { prints, frame_bytes, .. } = load;
        let submission =
            Submission { slot, submitted, prints, frame_bytes, waited: None, signal: None };
        self.submit(&submission, |state, stream| {
            state.note_graph_launch(slot, load.last_function);
            // SAFETY: live handles of this session; what its nodes name is kept alive.
            unsafe { state.driver().cuGraphLaunch(executable, stream) }
        })?;
        self.last_function = load.last_function.or(self.last_function);
        self.counters().count_kernels(load.kernels.into());
        self.counters().count_copy(load.copied_bytes);
        Ok(())
    }

    /// Notes a graph that is about to be launched, by the name of a kernel of it.
    fn note_graph_launch(&self, stream: u32, function: Option<u32>) {
        let function = function.and_then(|number| self.modules.function(number).ok());
        let kernel = function.map_or("(no kernel)", |function| &function.name);
        let launch = NotedLaunch { kernel, grid: [0; 3], block: [0; 3], shared_bytes: 0 };
        self.history().launch(Opcode::GraphLaunch, stream, &launch);
    }

    /// Memory that nodes name may have been given back since they were checked.
    fn check_ranges_again(&mut self, number: u32) -> Result<(), Failure> {
        let removals = self.memory.addressable.removals();
        let graph = self.graph(number)?;
        if graph.checked_at == removals {
            return Ok(());
        }
        let ranges: Vec<(u64, u64)> =
            graph.nodes.iter().flat_map(|node| node.touches.clone()).collect();
        for (at, size_bytes) in ranges {
            self.reach(at, size_bytes)?;
        }
        self.graph(number)?.checked_at = removals;
        Ok(())
    }

    pub(crate) fn graph_upload(&mut self, wanted: GraphUpload) -> Result<(), Failure> {
        let executable = self.graph(wanted.graph)?.executable;
        let stream = self.stream_for_work(wanted.stream)?;
        // SAFETY: live handles of this session.
        self.check(unsafe { self.driver().cuGraphUpload(executable, stream) })
    }

    pub(crate) fn graph_set(&mut self, wanted: GraphSet, rest: &[u8]) -> Result<(), Failure> {
        let GraphSet { graph: number, node: place } = wanted;
        self.finish_remaking(number)?;
        let (described, _) = link::wire::graph::Node::parse(rest)?;
        self.give_to_node(&described)?;
        let place = place as usize;
        let old = self.graph(number)?.nodes.get(place);
        let kind = old.ok_or_else(|| no_node(place))?.kind;
        let (mut node, work) = self.check_change(kind, &described)?;
        node.takes_place_of(&self.graph(number)?.nodes[place]);
        if let Err(failure) = self.change_template(&node, &work) {
            // As the driver left it: as it was.
            node.release(self);
            return Err(failure);
        }
        let mut graph = self.take_graph(number)?;
        let old = std::mem::replace(&mut graph.nodes[place], node);
        let changed = self.change_executable(&mut graph, place, &work);
        match changed {
            Ok(()) => self.put_graph(number, graph),
            // Half changed, it could name what is gone.
            Err(_) => self.drop_graph(graph),
        }
        old.release(self);
        changed
    }

    /// Brings an executable graph to what a node of its template does now: in place where that can
    /// be, else by a new one.
    fn change_executable(
        &mut self,
        graph: &mut Graph,
        place: usize,
        work: &node::Work<'_>,
    ) -> Result<(), Failure> {
        let node = &graph.nodes[place];
        self.set_attributes(node.handle, work)?;
        if self.change_in_place(graph.executable, node, work) {
            return Ok(());
        }
        if graph.home.is_some() {
            // There may be one at a time.
            self.drop_executable(graph);
        }
        let next = self.instantiate(graph)?;
        self.drop_executable(graph);
        graph.was_made(next);
        Ok(())
    }

    pub(crate) fn graph_enable(&mut self, wanted: GraphEnable) -> Result<(), Failure> {
        self.finish_remaking(wanted.graph)?;
        let graph = self.graph(wanted.graph)?;
        let (executable, place) = (graph.executable, wanted.node as usize);
        let handle = graph.nodes.get(place).ok_or_else(|| no_node(place))?.handle;
        let enabled = wanted.enabled.min(1);
        // SAFETY: live handles of this session.
        self.check(unsafe { self.driver().cuGraphNodeSetEnabled(executable, handle, enabled) })?;
        self.graph(wanted.graph)?.nodes[place].is_enabled = enabled != 0;
        Ok(())
    }
}

fn misplaced(section: usize) -> Failure {
    Failure::Protocol(format!(
        "section {section} of a graph belongs to no node before it, or to two"
    ))
}

fn no_node(place: usize) -> Failure {
    Failure::Protocol(format!("a graph has no node {place}"))
}
