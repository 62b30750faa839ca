//! Executable graphs made anew for other SMs.
//!
//! A driver changes the context of a node in a graph, but not in an executable one (observed on an
//! H200). So the template's kernel nodes are given the new partitions' contexts at once, and a
//! thread beside the session's instantiates it; until that is done the old executable graph is
//! launched. What touches a template meanwhile waits for the thread.

use super::Graph;
use super::node::Node;
use crate::context::Context;
use crate::session::failure::Failure;
use crate::session::state::State;
use crate::sms::partition::Partition;
use crate::sms::resharing::Mail;
use cuda_abi::types::*;
use executor_link::driver::Driver;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for a graph that is being made anew.
const REMAKING_LIMIT: Duration = Duration::from_secs(60);

/// A template, and what its executable graph is to be.
struct Job {
    graph: u32,
    serial: u64,
    template: CUgraph,
    flags: u32,
    disabled: Vec<CUgraphNode>,
}

impl State {
    /// Whether graphs are being made anew.
    pub(crate) fn is_remaking(&self) -> bool {
        self.graphs.graphs.values().any(|graph| graph.remaking.is_some())
    }

    /// Brings all graphs to where the partitions of these numbers are now.
    pub(crate) fn remake_graphs(&mut self, moved: &[u32]) {
        if self.moved.is_any() {
            // What a graph copies must be there when it is made: it is made anew when the memory is
            // back.
            return self.graphs.stale.extend(moved);
        }
        let concerned = |node: &Node| node.function.is_some() && moved.contains(&node.place);
        let graphs = self.graphs.graphs.iter();
        let numbers: Vec<u32> = graphs
            .filter(|(_, graph)| graph.nodes.iter().any(concerned))
            .map(|(&number, _)| number)
            .collect();
        let mut jobs = Vec::new();
        for number in numbers {
            // What is half made is of no use.
            let _ = self.finish_remaking(number);
            if let Some(job) = self.prepare_remaking(number, moved) {
                jobs.push(job);
            }
        }
        if jobs.is_empty() {
            return;
        }
        let (shared, handle) = (Arc::clone(&self.shared), Arc::clone(&self.handle));
        let jobs = Arc::new(jobs);
        let beside = Arc::clone(&jobs);
        let run = move || {
            let current = shared.context.make_current();
            for job in beside.iter() {
                let made = current.and_then(|()| job.carry_out(&shared.context));
                handle.deliver(Mail::Graph { graph: job.graph, serial: job.serial, made });
            }
        };
        let thread = std::thread::Builder::new().name("graphs".into());
        if thread.spawn(run).is_err() {
            for job in jobs.iter() {
                let made = job.carry_out(self.context());
                self.graph_remade(job.graph, job.serial, made);
            }
        }
    }

    /// Makes graphs anew whose memory was moved out when their partitions changed.
    pub(crate) fn remake_stale_graphs(&mut self) {
        if self.graphs.stale.is_empty() {
            return;
        }
        let stale = std::mem::take(&mut self.graphs.stale);
        self.remake_graphs(&stale);
        self.finish_all_remaking();
    }

    /// Moves a template's nodes. Graphs of conditions have one executable graph at a time: theirs
    /// is replaced at once.
    fn prepare_remaking(&mut self, number: u32, moved: &[u32]) -> Option<Job> {
        let mut graph = self.graphs.graphs.remove(&number)?;
        let prepared = self.move_nodes(&mut graph, moved);
        let job = match prepared {
            Ok(false) => None,
            Err(failure) => {
                self.spoil(&mut graph, failure);
                None
            }
            Ok(true) if graph.home.is_some() => {
                self.drop_executable(&mut graph);
                match self.instantiate(&graph) {
                    Ok(executable) => graph.was_made(executable),
                    Err(failure) => self.spoil(&mut graph, failure),
                }
                None
            }
            Ok(true) => {
                self.graphs.serial += 1;
                graph.remaking = Some(self.graphs.serial);
                let disabled = graph.nodes.iter().filter(|node| !node.is_enabled);
                Some(Job {
                    graph: number,
                    serial: self.graphs.serial,
                    template: graph.template,
                    flags: graph.flags,
                    disabled: disabled.map(|node| node.handle).collect(),
                })
            }
        };
        self.graphs.graphs.insert(number, graph);
        job
    }

    /// Gives kernel nodes the contexts of their partitions; says whether any has changed.
    fn move_nodes(&self, graph: &mut Graph, moved: &[u32]) -> Result<bool, Failure> {
        let mut changed = graph.spoiled.is_some();
        for node in &mut graph.nodes {
            if node.function.is_none() || !moved.contains(&node.place) {
                continue;
            }
            // A partition that is gone leaves its graphs as they are.
            let Ok(partition) = self.partitions.find(node.place) else { continue };
            let same = |one: &Option<Arc<Partition>>| one.as_ref().map(Arc::as_ptr);
            if same(&partition) != same(&node.partition) {
                let whole = self.context().handle();
                let context = partition.as_ref().map_or(whole, |partition| partition.context());
                self.check(set_context(self.driver(), node, context))?;
                node.partition = partition;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// The answer of the thread that made a graph anew.
    pub(crate) fn graph_remade(
        &mut self,
        number: u32,
        serial: u64,
        made: Result<CUgraphExec, CUresult>,
    ) {
        let graph = self.graphs.graphs.remove(&number);
        let Some(mut graph) = graph else {
            return self.retire_executable(made.unwrap_or(CUgraphExec::NULL));
        };
        if graph.remaking == Some(serial) {
            graph.remaking = None;
            self.drop_executable(&mut graph);
            match made {
                Ok(executable) => graph.was_made(executable),
                Err(code) => self.spoil(&mut graph, code.into()),
            }
        } else {
            self.retire_executable(made.unwrap_or(CUgraphExec::NULL));
        }
        self.graphs.graphs.insert(number, graph);
    }

    /// Waits until a graph is not being made anew.
    pub(super) fn finish_remaking(&mut self, number: u32) -> Result<(), Failure> {
        let remaking = self.graphs.graphs.get(&number).and_then(|graph| graph.remaking);
        let Some(serial) = remaking else { return Ok(()) };
        let is_it = |mail: &Mail| matches!(mail, Mail::Graph { serial: of, .. } if *of == serial);
        match self.handle.mailbox.await_one(REMAKING_LIMIT, is_it) {
            Some(Mail::Graph { graph, serial, made }) => {
                self.graph_remade(graph, serial, made);
                Ok(())
            }
            _ => Err(Failure::Cuda(CUresult::ERROR_NOT_READY)),
        }
    }

    /// Waits until no graph is being made anew.
    pub(super) fn finish_all_remaking(&mut self) {
        let graphs = self.graphs.graphs.iter();
        let numbers: Vec<u32> = graphs
            .filter(|(_, graph)| graph.remaking.is_some())
            .map(|(&number, _)| number)
            .collect();
        for number in numbers {
            // One that never comes is the driver's fault, and ends with it.
            let _ = self.finish_remaking(number);
        }
    }

    /// A graph that cannot be where it must be: its launches fail with the driver's word, until it
    /// can.
    fn spoil(&mut self, graph: &mut Graph, failure: Failure) {
        self.drop_executable(graph);
        graph.spoiled = Some(match failure {
            Failure::Cuda(code) => code,
            Failure::Protocol(_) | Failure::Elsewhere => CUresult::ERROR_UNKNOWN,
        });
    }
}

impl Job {
    fn carry_out(&self, context: &Context) -> Result<CUgraphExec, CUresult> {
        let (driver, mut executable) = (context.driver(), CUgraphExec::NULL);
        // SAFETY: a live graph that its session leaves alone until it has the answer; the result is
        // written.
        let make = || unsafe {
            driver.cuGraphInstantiateWithFlags(&mut executable, self.template, self.flags.into())
        };
        context.gate.between(make).ok()?;
        // SAFETY: live handles of the same graph.
        let left_out = self.disabled.iter().try_for_each(|&node| unsafe {
            driver.cuGraphNodeSetEnabled(executable, node, 0).ok()
        });
        if left_out.is_err() {
            // SAFETY: just made, known to nobody.
            let _ = unsafe { driver.cuGraphExecDestroy(executable) };
        }
        left_out.map(|()| executable)
    }
}

/// Gives a kernel node of a template another context, all else as it is.
fn set_context(driver: Driver, node: &Node, context: CUcontext) -> CUresult {
    let mut parameters = CUDA_KERNEL_NODE_PARAMS::default();
    // SAFETY: a live kernel node; the results are written, and what they point to is the node's
    // until it changes.
    unsafe {
        let got = driver.cuGraphKernelNodeGetParams_v2(node.handle, &mut parameters);
        if !got.is_success() {
            return got;
        }
        let attributes = node.attributes().iter().map(|&id| {
            let mut value = CUlaunchAttributeValue { pad: [0; 64] };
            let got = driver.cuGraphKernelNodeGetAttribute(node.handle, id, &mut value);
            (id, value, got)
        });
        let attributes: Vec<_> = attributes.collect();
        (parameters.func, parameters.ctx) = (CUfunction::NULL, context);
        let set = driver.cuGraphKernelNodeSetParams_v2(node.handle, &parameters);
        if !set.is_success() {
            return set;
        }
        for (id, value, got) in attributes {
            if got.is_success() {
                let set = driver.cuGraphKernelNodeSetAttribute(node.handle, id, &value);
                if !set.is_success() {
                    return set;
                }
            }
        }
    }
    CUresult::SUCCESS
}
