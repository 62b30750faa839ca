//! Chains: executable graphs of kernels in a row that are kept and used again ([`super::batch`]
//! says for what).
//!
//! A chain is made of the executor's own kernels, and its nodes are set to launches when it is
//! submitted: so it is made before anybody knows for whom, and goes from one session to another.
//! Its nodes are made with as many parameters as they will ever have. NVIDIA's driver 580 takes
//! other memory for a node's parameters when it is given more than it had; some kernel, of any
//! client, then runs with parameters of another one (`tests/gpu/probes/set_while_waiting.cu`).
//! Which chains a session has is [`super::lengths`], who makes them [`super::chain_stock`].

use super::own_kernels::{OwnKernels, ROOM, ROOM_SHAPE, WORD_SHAPE, WordParameters};
use crate::context::Context;
use crate::objects::graph::{Code, with_kernel};
use crate::sms::partition::Partition;
use cuda_abi::types::*;
use executor_link::driver::Driver;
use link::wire::command::Launch;
use std::ptr;
use zerocopy::{FromBytes, IntoBytes};

/// What comes after the launches of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing.
    Open,
    /// Its stream's completion word is written.
    Signalled,
}

/// Which launches a chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// How many: to switch a node off costs ten times what it spares.
    pub(crate) length: usize,
    pub(crate) ending: Ending,
}

/// A node of a chain, and the launch that it was set to: as it came, parameters included.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) node: CUgraphNode,
    pub(super) set_to: Vec<u8>,
}

impl Link {
    /// The function that it was set to.
    fn function(&self) -> Option<u32> {
        Launch::read_from_prefix(&self.set_to).ok().map(|(launch, _)| launch.function)
    }
}

/// An executable graph of kernels in a row.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) kind: Kind,
    graph: CUgraph,
    pub(crate) executable: CUgraphExec,
    pub(crate) links: Vec<Link>,
    /// The node that signals, in a chain that does.
    pub(super) signal: Option<CUgraphNode>,
    /// What the completion word of its stream is when it has ended, if it was submitted.
    ends_with: Option<u64>,
    /// The number of its last submission, among those of chains on its stream.
    pub(crate) submission: u64,
}

impl Chain {
    /// A chain for launches on the whole device, or on a part of it.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn make(
        context: &Context,
        own_kernels: &OwnKernels,
        partition: Option<&Partition>,
        kind: Kind,
    ) -> Result<Self, CUresult> {
        let driver = context.driver();
        let mut graph = CUgraph::NULL;
        // SAFETY: the result is written.
        context.check(unsafe { driver.cuGraphCreate(&mut graph, 0) })?;
        let (executable, links) = (CUgraphExec::NULL, Vec::new());
        let mut chain =
            Self { kind, graph, executable, links, signal: None, ends_with: None, submission: 0 };
        match chain.fill(context, own_kernels, partition) {
            Ok(()) => Ok(chain),
            Err(error) => {
                chain.destroy(driver);
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        context: &Context,
        own_kernels: &OwnKernels,
        partition: Option<&Partition>,
    ) -> Result<(), CUresult> {
        let driver = context.driver();
        let room_maker = own_kernels.room_maker.code(partition);
        let word_writer = own_kernels.word_writer.code(partition);
        let mut last = CUgraphNode::NULL;
        let nodes = self.kind.length + usize::from(self.kind.ending == Ending::Signalled);
        for index in 0..nodes {
            let mut node = CUgraphNode::NULL;
            let (before, count) = if index > 0 { (&raw const last, 1) } else { (ptr::null(), 0) };
            // SAFETY: live handles, and parameters as long as the kernel's; the result is written.
            let mut add = |kernel: &CUDA_KERNEL_NODE_PARAMS| unsafe {
                driver.cuGraphAddKernelNode_v2(&mut node, self.graph, before, count, kernel)
            };
            if index < self.kind.length {
                context.check(with_kernel(&ROOM_SHAPE, room_maker, &ROOM, &mut add))?;
                self.links.push(Link { node, set_to: Vec::new() });
            } else {
                context.check(with_nothing(word_writer, &mut add))?;
                self.signal = Some(node);
            }
            last = node;
        }
        let (executable, graph) = (&mut self.executable, self.graph);
        // SAFETY: a live graph; the result is written.
        let make = || unsafe { driver.cuGraphInstantiateWithFlags(executable, graph, 0) };
        context.check(context.gate.between(make))
    }

    /// One that names nothing of a driver's.
    #[cfg(test)]
    pub(crate) fn of_nothing(kind: Kind) -> Self {
        let (graph, executable) = (CUgraph::NULL, CUgraphExec::NULL);
        Self {
            kind,
            graph,
            executable,
            links: Vec::new(),
            signal: None,
            ends_with: None,
            submission: 0,
        }
    }

    /// Destroys one that does not run.
    pub(crate) fn destroy(self, driver: Driver) {
        let executable = self.into_executable(driver);
        if executable != CUgraphExec::NULL {
            // SAFETY: a live handle that nothing else names.
            let _ = unsafe { driver.cuGraphExecDestroy(executable) };
        }
    }

    /// What is left of one that may run.
    pub(crate) fn into_executable(self, driver: Driver) -> CUgraphExec {
        // SAFETY: a live handle that nothing else names; what was made of it stays.
        let _ = unsafe { driver.cuGraphDestroy(self.graph) };
        self.executable
    }

    /// It is submitted to a stream whose last signal is this one, its own included.
    pub(crate) fn submitted(&mut self, last_signal: u64) {
        self.ends_with = Some(match self.kind.ending {
            Ending::Open => last_signal + 1,
            Ending::Signalled => last_signal,
        });
    }

    /// All that was submitted has ended.
    pub(crate) fn has_come_to_rest(&mut self) {
        self.ends_with = None;
    }

    /// Whether all its kernels are known to have ended, by its stream's completion word.
    pub(crate) fn has_ended(&self, completed: u64) -> bool {
        self.ends_with.is_none_or(|end| end <= completed)
    }

    /// Makes it a chain that names nothing of a session's, and that nobody has submitted. It does
    /// not run. Says whether the driver did it.
    pub(crate) fn reset(&mut self, driver: Driver, code: Code) -> bool {
        self.ends_with = None;
        self.forget(driver, code, |_| true)
    }

    /// Whether a node is set to such a function.
    pub(crate) fn names(&self, is_such: impl Fn(u32) -> bool) -> bool {
        self.links.iter().filter_map(Link::function).any(is_such)
    }

    /// Makes nodes that were set to such functions name the executor's own kernel. It does not run.
    /// Says whether the driver did it.
    pub(crate) fn forget(
        &mut self,
        driver: Driver,
        code: Code,
        is_gone: impl Fn(u32) -> bool,
    ) -> bool {
        let executable = self.executable;
        let mut named = self.links.iter_mut().filter(|link| link.function().is_some_and(&is_gone));
        named.all(|link| {
            link.set_to.clear();
            with_nothing(code, |kernel| {
                // SAFETY: live handles, and parameters as long as the kernel's, which the driver
                // copies.
                unsafe { driver.cuGraphExecKernelNodeSetParams_v2(executable, link.node, kernel) }
            })
            .is_success()
        })
    }
}

/// Calls `body` with a node of the executor's own that is never submitted as it is.
fn with_nothing<R>(code: Code, body: impl FnOnce(&CUDA_KERNEL_NODE_PARAMS) -> R) -> R {
    with_kernel(&WORD_SHAPE, code, WordParameters { address: 0, value: 0 }.as_bytes(), body)
}
