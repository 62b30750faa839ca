//! Work that can be done again ([`executor_link::redo`]): noted before it is submitted, for
//! sessions that have declared kernels repeatable, and done again by the next executor.
//!
//! Whose kernel faulted nobody knows when several clients had work in flight, and a declared kernel
//! may have. So what is done again is done on *trial*: one session at a time, while nobody else
//! submits anything. A second fault then has one culprit. A trial that does not end in [`PATIENCE`]
//! is over all the same.
//!
//! Launches of such a session go one by one: the word behind each of them says that it has ended.

mod trial;

use crate::Shared;
use crate::context::Context;
use crate::memory::Registered;
use crate::objects::stream::Streams;
use cuda_abi::types::*;
use executor_link::redo::{Kind, PROGRESS_BYTES, Redo};
use policy::turns::repeatable::Repeatable;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Counts a session whose work is to be done again, until it is done.
struct Trial(Arc<Shared>);

impl Trial {
    fn announce(shared: &Arc<Shared>) -> Self {
        // SeqCst: partner of the look in `Shared::has_trials`.
        shared.trials.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(shared))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        self.0.trials.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Whether work of some session is still to be done again, so that no other submits any.
    pub(crate) fn has_trials(&self) -> bool {
        // SeqCst: partner of `Trial`.
        self.trials.load(Ordering::SeqCst) > 0
    }
}

/// What of a session can be done again.
#[derive(Default)]
pub(crate) struct Repeating {
    declared: Repeatable,
    redo: Option<Redo>,
    /// Where the device finds the progress words.
    progress_base: CUdeviceptr,
    /// The command in hand: its stream and number.
    current: Option<(u32, u64)>,
    /// Work of the command in hand that cannot be done again.
    others: Vec<(u32, u64)>,
    trial: Option<Trial>,
}

impl Repeating {
    /// Whether the client has declared kernels.
    pub(crate) fn are_any_declared(&self) -> bool {
        !self.declared.is_empty()
    }

    /// Goes on in the session's file, if it has one. From now on until its trial nobody else
    /// submits anything, if something is to be done again.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        declared: Repeatable,
        file: Option<OwnedFd>,
    ) -> Result<Self, (CUresult, String)> {
        let Some(file) = file else { return Ok(Self::default()) };
        let redo = Redo::map(file.as_fd())
            .map_err(|error| (CUresult::ERROR_OUT_OF_MEMORY, error.to_string()))?;
        let words = (redo.progress_address(), PROGRESS_BYTES);
        let progress_base = Registered::new(&shared.context, words, "progress words")?.device_base;
        let trial = (!redo.unfinished().is_empty()).then(|| Trial::announce(shared));
        let (current, others) = (None, Vec::new());
        Ok(Self { declared, redo: Some(redo), progress_base, current, others, trial })
    }

    /// Whether anything is noted.
    pub(crate) fn is_on(&self) -> bool {
        self.redo.is_some()
    }

    /// Whether kernels of this name may be run again.
    pub(crate) fn has(&self, kernel: &str) -> bool {
        self.redo.is_some() && self.declared.has(kernel)
    }

    /// Work is about to be submitted that no noted command stands for.
    pub(crate) fn note_other(&mut self, stream: u32, position: u64) {
        let Some(redo) = &mut self.redo else { return };
        if self.current.is_none()
            && let Some(number) = redo.note(Kind::Once, stream, position, (0, &[]))
        {
            self.others.push((stream, number));
        }
    }

    /// All work has ended.
    pub(crate) fn settle(&mut self, position: u64) {
        if let Some(redo) = &mut self.redo
            && redo.is_unsettled()
            && self.trial.is_none()
            && !redo.has_any(position)
        {
            redo.settle();
        }
    }

    /// Takes the words out of the driver. Returns where they were.
    pub(crate) fn take_registered(&self) -> Option<u64> {
        self.redo.as_ref().map(Redo::progress_address)
    }

    fn write_progress(&self, context: &Context, streams: &Streams, (slot, number): (u32, u64)) {
        let Some(stream) = streams.handle(slot) else { return };
        let at = self.progress_base + u64::from(slot) * 8;
        // SAFETY: a live stream of this session and a registered word. What fails leaves the
        // command unfinished.
        let _ = context
            .check(unsafe { context.driver().cuStreamWriteValue64_v2(stream, at, number, 0) });
    }
}
