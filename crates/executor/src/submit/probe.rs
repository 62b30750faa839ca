//! Reads values in device memory for streams that wait for them, without waiting: copies to a few
//! pinned words, on a stream for that purpose.

use crate::context::Context;
use crate::session::failure::Failure;
use cuda_abi::types::*;
use link::wire::layout::STREAM_SLOTS;
use policy::turns::holds::Value;
use policy::turns::questions::{Place, Questions};
use std::ptr;

/// Values of one round: each stream waits for one at a time.
const MOST_VALUES: usize = STREAM_SLOTS;

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    questions: Questions,
    made: Option<Made>,
}

/// What it has of the driver.
#[derive(Clone, Copy, Debug)]
struct Made {
    stream: CUstream,
    /// [`MOST_VALUES`] pinned words.
    words: *mut u64,
}

// SAFETY: the words are pinned memory of one session, read by its thread alone.
unsafe impl Send for Made {}

impl Made {
    fn new(context: &Context) -> Result<Self, CUresult> {
        let driver = context.driver();
        let mut words = ptr::null_mut();
        // SAFETY: the result is written.
        let make = || unsafe { driver.cuMemHostAlloc(&mut words, MOST_VALUES * 8, 0) };
        context.check(context.gate.between(make))?;
        let stream = context.new_stream(0).inspect_err(|_| {
            // SAFETY: allocated just now, known to nobody.
            let _ = unsafe { driver.cuMemFreeHost(words) };
        })?;
        Ok(Self { stream, words: words.cast() })
    }
}

impl Probe {
    /// What a value was in the last round; it is looked at again in the next one.
    pub(crate) fn ask(&mut self, value: &Value) -> Option<u64> {
        self.questions.ask(value)
    }

    /// Begins a round of what was asked for and may be read, unless one is under way. `reach` says
    /// where a value lies that may.
    pub(crate) fn begin(
        &mut self,
        context: &Context,
        reach: impl Fn(Place) -> Option<u64>,
    ) -> Result<(), Failure> {
        let places = self.questions.begin(MOST_VALUES, |place| reach(place).is_some());
        if places.is_empty() {
            return Ok(());
        }
        let made = match self.made {
            Some(made) => Ok(made),
            None => Made::new(context).inspect(|made| self.made = Some(*made)),
        };
        let copied = made.and_then(|Made { stream, words }| {
            let copy = |(place, &asked): (usize, &Place)| {
                let (address, width) = (reach(asked).unwrap_or(asked.0), asked.1);
                // SAFETY: the value is the client's memory, the words are ours and read between
                // rounds only.
                context.check(unsafe {
                    let word = words.add(place);
                    word.write_volatile(0);
                    let length = width.bytes() as usize;
                    context.driver().cuMemcpyAsync(word.addr() as u64, address, length, stream)
                })
            };
            places.iter().enumerate().try_for_each(copy)
        });
        if copied.is_err() {
            self.settle(context);
        }
        Ok(copied?)
    }

    /// Ends the round that is under way, if its copies are done.
    pub(crate) fn end(&mut self, context: &Context) {
        let Some(Made { stream, words }) = self.made.filter(|_| self.questions.is_under_way())
        else {
            return;
        };
        // SAFETY: a live stream of this session.
        match context.check(unsafe { context.driver().cuStreamQuery(stream) }) {
            Err(CUresult::ERROR_NOT_READY) => {}
            Err(_) => self.questions.abandon(),
            // SAFETY: the words live as long as the probe; the copies into them have ended.
            Ok(()) => self.questions.end(|place| unsafe { words.add(place).read_volatile() }),
        }
    }

    /// Waits for the copies that are under way: memory that they read is about to go.
    pub(crate) fn settle(&mut self, context: &Context) {
        if let Some(Made { stream, .. }) = self.made.filter(|_| self.questions.is_under_way()) {
            // SAFETY: a live stream of this session.
            let _ = context.check(unsafe { context.driver().cuStreamSynchronize(stream) });
        }
        self.questions.abandon();
    }

    /// Whether it has something of the driver's.
    pub(crate) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// Gives back what it has of the driver; to be called in a quiet moment.
    pub(crate) fn clear(mut self, context: &Context) {
        self.settle(context);
        if let Some(Made { stream, words }) = self.made.take() {
            let driver = context.driver();
            let _ = context.end_stream(stream);
            // SAFETY: the probe's own; no copy is under way.
            let _ = unsafe { driver.cuMemFreeHost(words.cast()) };
        }
    }
}
