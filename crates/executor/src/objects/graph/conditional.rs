//! Conditions of graphs, and what they are made for.
//!
//! A driver makes a condition for a graph, and its handle goes into kernels' parameters long before
//! that graph is made executable. So a *home*, an empty graph of the driver's, is kept for each
//! graph of a client that has conditions; it becomes the template of that graph's only executable
//! graph, and is emptied when that ends.
//!
//! The next executor must come to the same handles ([`super::super::claims`]). A driver may number
//! the conditions of each graph from 1, as one does on an H200, or all together, as the software
//! GPU does. A condition ends with its graph, not before, so what comes next is tried out with
//! graphs that are destroyed again.

use super::super::claims::{Kind, MOST_CONDITIONS_TRIED, Value, make_until};
use crate::recovery::replay::ReplayError;
use crate::session::failure::{Failure, below};
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::journal::Entry;
use link::wire::command::Opcode;
use link::wire::graph::{GraphCondition, GraphConditionReply, GraphHomeDestroy, MAX_GRAPHS};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ptr;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Conditions of one home.
const MAX_CONDITIONS: usize = 1 << 14;

/// All homes of a session.
#[derive(Debug, Default)]
pub(super) struct Homes(HashMap<u32, Home>);

#[derive(Debug)]
struct Home {
    graph: CUgraph,
    conditions: Vec<CUgraphConditionalHandle>,
    usage: Usage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usage {
    Free,
    /// It is the template of an executable graph.
    Template,
}

impl Homes {
    pub(super) fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// The conditions that were made for a home.
    pub(super) fn conditions(&self, home: u32) -> &[CUgraphConditionalHandle] {
        self.0.get(&home).map(|home| home.conditions.as_slice()).unwrap_or_default()
    }
}

impl State {
    pub(crate) fn graph_condition(&mut self, wanted: GraphCondition) -> Result<(), Failure> {
        let GraphCondition { home: number, value, flags, .. } = wanted;
        below("home", number, MAX_GRAPHS + 1)?;
        let known = self.graphs.homes.0.get(&number);
        if known.is_some_and(|home| home.conditions.len() >= MAX_CONDITIONS) {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        let graph = match known {
            Some(home) => home.graph,
            None => {
                let home =
                    Home { graph: self.empty_graph()?, conditions: Vec::new(), usage: Usage::Free };
                let graph = home.graph;
                self.graphs.homes.0.insert(number, home);
                graph
            }
        };
        let shared = Arc::clone(&self.shared);
        let claims = shared.claims.lock();
        let is_claimed = |handle| claims.contains(&(Kind::Condition, handle));
        let is_any_claimed = claims.iter().any(|(kind, _)| *kind == Kind::Condition);
        let handle = match is_any_claimed && self.are_numbered_together()? {
            false => self.make_condition(graph, value, flags)?,
            true => {
                let make = |state: &Self| state.make_condition(graph, value, flags);
                let handle = self.after_fillers(|next| !is_claimed(next), make)?;
                if is_claimed(handle) {
                    return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
                }
                handle
            }
        };
        drop(claims);
        if let Some(home) = self.graphs.homes.0.get_mut(&number) {
            home.conditions.push(handle);
        }
        self.answer(&GraphConditionReply { handle })
    }

    fn make_condition(
        &self,
        graph: CUgraph,
        value: u32,
        flags: u32,
    ) -> Result<CUgraphConditionalHandle, Failure> {
        let (driver, context, mut handle) = (self.driver(), self.context().handle(), 0);
        // SAFETY: live handles of this session; the result is written.
        self.check(unsafe {
            driver.cuGraphConditionalHandleCreate(&mut handle, graph, context, value, flags)
        })?;
        Ok(handle)
    }

    /// Whether the conditions of different graphs have different handles, so that one may have what
    /// another graph claims.
    fn are_numbered_together(&self) -> Result<bool, Failure> {
        self.with_graph(|state, one| {
            let first = state.make_condition(one, 0, 0)?;
            state.with_graph(|state, other| Ok(state.make_condition(other, 0, 0)? != first))
        })
    }

    /// Does something with a graph that is destroyed afterwards.
    fn with_graph<T>(
        &self,
        then: impl FnOnce(&Self, CUgraph) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let graph = self.empty_graph()?;
        let done = then(self, graph);
        self.destroy_template(graph);
        done
    }

    /// Does something when the handle that comes next, as far as can be told, is accepted.
    fn after_fillers<T>(
        &self,
        accepts: impl Fn(CUgraphConditionalHandle) -> bool,
        then: impl FnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut graphs = Vec::new();
        let tried = make_until(MOST_CONDITIONS_TRIED, accepts, &mut Vec::new(), || {
            let graph = self.empty_graph()?;
            graphs.push(graph);
            self.make_condition(graph, 0, 0)
        });
        // The last one had what is wanted.
        let last = graphs.pop();
        last.into_iter().for_each(|graph| self.destroy_template(graph));
        let done = tried.and_then(|_| then(self));
        graphs.into_iter().for_each(|graph| self.destroy_template(graph));
        done
    }

    fn destroy_template(&self, graph: CUgraph) {
        // SAFETY: a live handle of this session, which nothing names any more.
        let _ = unsafe { self.driver().cuGraphDestroy(graph) };
    }

    /// Makes conditions again that another executor had made, by the entries of the session's
    /// journal.
    pub(crate) fn remake_conditions(
        &mut self,
        entries: &[(u64, Entry)],
    ) -> Result<(), ReplayError> {
        let mut homes: BTreeMap<u32, Vec<(u64, GraphCondition)>> = BTreeMap::new();
        for (_, entry) in entries {
            let body = entry.body.as_slice();
            let unknown = ReplayError::Unknown(entry.opcode);
            let (Ok((wanted, _)), Ok((_, GraphConditionReply { handle }))) = (
                GraphCondition::read_from_prefix(body),
                GraphConditionReply::read_from_suffix(body),
            ) else {
                return Err(unknown);
            };
            homes.entry(wanted.home).or_default().push((handle, wanted));
        }
        let mut homes: Vec<_> = homes.into_iter().collect();
        homes.iter_mut().for_each(|(_, wanted)| wanted.sort_by_key(|(handle, _)| *handle));
        homes.sort_by_key(|(_, wanted)| wanted[0].0);
        let shared = Arc::clone(&self.shared);
        let mut claims = shared.claims.lock();
        for (number, wanted) in homes {
            self.remake_home(number, &wanted, &mut claims)?;
        }
        Ok(())
    }

    fn remake_home(
        &mut self,
        number: u32,
        wanted: &[(u64, GraphCondition)],
        claims: &mut HashSet<Value>,
    ) -> Result<(), ReplayError> {
        let failed = |failure| ReplayError::Failed { opcode: Opcode::GraphCondition, failure };
        let make = |state: &Self, graph, asked: &GraphCondition| {
            state.make_condition(graph, asked.value, asked.flags)
        };
        let plainly = self.graph_with(wanted, |state, graph, _, asked| make(state, graph, asked));
        let graph = match plainly.map_err(failed)? {
            Some(graph) => Some(graph),
            None => {
                let steered = self.graph_with(wanted, |state, graph, handle, asked| {
                    state.after_fillers(|next| next == handle, |state| make(state, graph, asked))
                });
                steered.map_err(failed)?
            }
        };
        let Some(graph) = graph else {
            return Err(ReplayError::Different("the handle of a graph's condition"));
        };
        let conditions = wanted.iter().map(|(handle, _)| *handle).collect();
        for (handle, _) in wanted {
            self.claimed.settle(claims, (Kind::Condition, *handle));
        }
        self.graphs.homes.0.insert(number, Home { graph, conditions, usage: Usage::Free });
        Ok(())
    }

    /// A graph with conditions of these handles, each of which `make` makes; `None` if one comes
    /// out otherwise.
    fn graph_with(
        &self,
        wanted: &[(u64, GraphCondition)],
        make: impl Fn(&Self, CUgraph, u64, &GraphCondition) -> Result<u64, Failure>,
    ) -> Result<Option<CUgraph>, Failure> {
        let graph = self.empty_graph()?;
        for (handle, asked) in wanted {
            let made = make(self, graph, *handle, asked);
            if !matches!(made, Ok(made) if made == *handle) {
                self.destroy_template(graph);
                return made.map(|_| None);
            }
        }
        Ok(Some(graph))
    }

    pub(crate) fn graph_home_destroy(&mut self, wanted: GraphHomeDestroy) -> Result<(), Failure> {
        let home = self.graphs.homes.0.remove(&wanted.home);
        if let Some(home) = home.filter(|home| home.usage == Usage::Free) {
            // SAFETY: a live handle of this session, which nothing names any more.
            let _ = unsafe { self.driver().cuGraphDestroy(home.graph) };
        }
        Ok(())
    }

    /// A home's graph, empty, to be a template.
    pub(super) fn take_home(&mut self, number: u32) -> Result<CUgraph, Failure> {
        match self.graphs.homes.0.get_mut(&number) {
            Some(home) if home.usage == Usage::Free => {
                home.usage = Usage::Template;
                Ok(home.graph)
            }
            Some(_) => Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED)),
            None => Err(Failure::Protocol(format!("home {number} does not exist"))),
        }
    }

    /// Empties a template and makes it a home again; `false` if there is no such home any more.
    pub(super) fn give_home_back(&mut self, number: u32, template: CUgraph) -> bool {
        let Some(home) = self.graphs.homes.0.get_mut(&number) else { return false };
        home.usage = Usage::Free;
        if self.empty(template).is_err() {
            // Nothing can be made of it any more; it goes with what is in it.
            self.graphs.homes.0.remove(&number);
            return false;
        }
        true
    }

    fn empty(&self, graph: CUgraph) -> Result<(), Failure> {
        let (driver, mut count) = (self.driver(), 0);
        // SAFETY: a live graph of this session; the count is written.
        self.check(unsafe { driver.cuGraphGetNodes(graph, ptr::null_mut(), &mut count) })?;
        let mut nodes = vec![CUgraphNode::NULL; count];
        // SAFETY: as above; the array has room for the count.
        self.check(unsafe { driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) })?;
        for node in nodes.into_iter().take(count) {
            // SAFETY: a live node, which nothing names any more.
            self.check(unsafe { driver.cuGraphDestroyNode(node) })?;
        }
        Ok(())
    }

    /// Destroys homes; those that are templates go with their graphs.
    pub(super) fn clear_homes(&self, homes: Homes) {
        for home in homes.0.into_values().filter(|home| home.usage == Usage::Free) {
            // SAFETY: a live handle of this session, which nothing names any more.
            let _ = unsafe { self.driver().cuGraphDestroy(home.graph) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Bed;
    use zerocopy::IntoBytes;

    fn asked(home: u32) -> GraphCondition {
        GraphCondition { home, ..Default::default() }
    }

    fn entry(home: u32, handle: u64) -> (u64, Entry) {
        let body = [asked(home).as_bytes(), GraphConditionReply { handle }.as_bytes()].concat();
        (0, Entry { opcode: Opcode::GraphCondition as u16, file: 0, body })
    }

    #[test]
    fn where_each_graph_numbers_its_conditions_nobody_is_refused_for_anothers_claim() {
        let bed = Bed::new();
        let mut client = bed.open();
        bed.shared.claims.lock().insert((Kind::Condition, 1));
        let state = client.session.state();
        assert!(!state.are_numbered_together().unwrap());
        for (home, handle) in [(0, 1), (0, 2), (1, 1)] {
            state.reply.clear();
            state.graph_condition(asked(home)).unwrap();
            assert_eq!(state.reply, GraphConditionReply { handle }.as_bytes());
        }
    }

    #[test]
    fn graphs_come_to_the_conditions_that_they_had_or_the_session_is_told() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        state.remake_conditions(&[entry(0, 1), entry(5, 1), entry(0, 2)]).unwrap();
        assert_eq!(state.graphs.homes.conditions(0), [1, 2]);
        assert_eq!(state.graphs.homes.conditions(5), [1]);
        let refused = state.remake_conditions(&[entry(6, 3)]);
        assert!(matches!(refused, Err(ReplayError::Different(_))), "{refused:?}");
    }
}
