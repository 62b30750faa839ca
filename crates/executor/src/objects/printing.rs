//! What kernels print.
//!
//! A driver keeps the text of device `printf` in one buffer for the whole context and writes it, at
//! synchronisation points, to the standard output of the process that owns the context: here. So
//! the executor's standard output is a file in memory, and the sessions take turns: while kernels
//! of one that can print are in flight, or their text has not been fetched from the driver, no
//! other session launches such kernels. Kernels of modules without `printf` are not held up. The
//! text goes to the session's client when it asks, which it does where a native driver would write
//! it.

use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use executor_link::captured::Captured;
use executor_link::log::log_server;
use link::wire::command::OutputReply;
use link::wire::layout::CALL_REPLY_BYTES;
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the compiler makes of `printf` in device code.
const PRINT_FUNCTION: &[u8] = b"vprintf";
/// A session whose printing kernels run longer than this loses its turn; both outputs may then be
/// mixed.
const LONGEST_TURN: Duration = Duration::from_secs(10);
const FETCH_POLL: Duration = Duration::from_micros(100);
const TURN_POLL: Duration = Duration::from_millis(20);
/// Text kept for a client that does not fetch it; more is lost, as it is when a driver's buffer is
/// full.
const MOST_TEXT_BYTES: usize = 16 << 20;
const EVENT_DISABLE_TIMING: u32 = 2;

/// Whether kernels of this code can print.
pub(crate) fn can_print(image: &[u8]) -> bool {
    image.windows(PRINT_FUNCTION.len()).any(|window| window == PRINT_FUNCTION)
}

/// This process's standard output, and whose turn it is.
pub(crate) struct Console {
    captured: Mutex<Captured>,
    turns: Mutex<Turns>,
    turn_ended: Condvar,
}

#[derive(Default)]
struct Turns {
    /// The session whose kernels may print.
    holder: Option<u64>,
    /// Those that wait, the next one first.
    waiting: VecDeque<u64>,
}

impl Console {
    /// Makes standard output a file in memory.
    pub(crate) fn capture() -> io::Result<Self> {
        let captured = Captured::create("openmps-device-printf")?;
        captured.become_stdout()?;
        let captured = Mutex::new(captured);
        Ok(Self { captured, turns: Mutex::default(), turn_ended: Condvar::new() })
    }

    /// A file in memory that is nobody's standard output.
    #[cfg(test)]
    pub(crate) fn apart() -> io::Result<Self> {
        let captured = Mutex::new(Captured::create("openmps-device-printf")?);
        Ok(Self { captured, turns: Mutex::default(), turn_ended: Condvar::new() })
    }

    /// All text since the last call.
    fn take(&self) -> io::Result<Vec<u8>> {
        // SAFETY: NULL means all streams of the C library, through which drivers print.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        self.captured.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until it is the session's turn; `false` when the other one's takes too long or
    /// `given_up` says so.
    fn take_turn(&self, session: u64, given_up: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.holder == Some(session) {
            return true;
        }
        turns.waiting.push_back(session);
        let got = loop {
            if turns.holder.is_none() && turns.waiting.front() == Some(&session) {
                turns.holder = Some(session);
                break true;
            }
            if started.elapsed() > LONGEST_TURN || given_up() {
                break false;
            }
            let woken = self.turn_ended.wait_timeout(turns, TURN_POLL);
            turns = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        turns.waiting.retain(|waiting| *waiting != session);
        got
    }

    fn end_turn(&self, session: u64) {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.holder == Some(session) {
            turns.holder = None;
            self.turn_ended.notify_all();
        }
    }

    fn somebody_waits(&self) -> bool {
        !self.turns.lock().unwrap_or_else(PoisonError::into_inner).waiting.is_empty()
    }
}

/// What one session prints.
#[derive(Debug, Default)]
pub(crate) struct Printing {
    /// Recorded after each launch that can print.
    in_flight: Vec<CUevent>,
    /// A stream without work: synchronising with it makes the driver write its buffer out.
    idle_stream: Option<CUstream>,
    /// Not asked for yet; taken from the front, piece by piece.
    text: VecDeque<u8>,
}

impl Printing {
    /// Whether there is something to look after.
    pub(crate) fn is_active(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Whether the client does not have all that its kernels print.
    pub(crate) fn has_output(&self) -> bool {
        self.is_active() || !self.text.is_empty()
    }
}

impl State {
    /// Before a launch that can print: waits for the session's turn.
    pub(crate) fn begin_printing(&mut self) -> Result<(), Failure> {
        if self.printing.is_active() {
            if !self.shared.console.somebody_waits() {
                return Ok(());
            }
            let started = Instant::now();
            while self.printing.is_active() && started.elapsed() < LONGEST_TURN {
                std::thread::sleep(FETCH_POLL);
                self.collect_output()?;
            }
        }
        let handle = &self.handle;
        if !self.shared.console.take_turn(handle.id, || handle.gives_up()) {
            log_server!(
                "{} prints while kernels of another client that print do not end: their texts may be mixed",
                handle.label
            );
        }
        Ok(())
    }

    /// After such a launch on `stream`.
    pub(crate) fn printing_launched(&mut self, stream: CUstream) -> Result<(), Failure> {
        let event = self.context().new_event(EVENT_DISABLE_TIMING)?;
        self.printing.in_flight.push(event);
        // SAFETY: live handles of this session.
        self.check(unsafe { self.driver().cuEventRecord(event, stream) })
    }

    /// Fetches what has been printed; ends the session's turn when all that can print has ended.
    pub(crate) fn collect_output(&mut self) -> Result<(), Failure> {
        if !self.printing.is_active() {
            return Ok(());
        }
        let driver = self.driver();
        // Looked at before the text is fetched: what ends meanwhile is seen next time.
        let ended = |event: &mut CUevent| {
            // SAFETY: a live event of this session.
            let result = unsafe { driver.cuEventQuery(*event) };
            result != CUresult::ERROR_NOT_READY
        };
        let ended: Vec<CUevent> = self.printing.in_flight.extract_if(.., ended).collect();
        self.fetch_output()?;
        for event in ended {
            // SAFETY: as above, and nothing names it any more.
            self.check(unsafe { driver.cuEventDestroy_v2(event) })?;
        }
        if !self.printing.is_active() {
            self.shared.console.end_turn(self.handle.id);
        }
        Ok(())
    }

    fn fetch_output(&mut self) -> Result<(), Failure> {
        let driver = self.driver();
        let idle = match self.printing.idle_stream {
            Some(stream) => stream,
            None => *self.printing.idle_stream.insert(self.shared.context.new_stream(0)?),
        };
        // SAFETY: a live stream of this session.
        self.check(unsafe { driver.cuStreamSynchronize(idle) })?;
        match self.shared.console.take() {
            Ok(text) => {
                let room = MOST_TEXT_BYTES.saturating_sub(self.printing.text.len());
                self.printing.text.extend(&text[..text.len().min(room)]);
            }
            Err(error) => log_server!("What kernels printed cannot be read: {error}"),
        }
        Ok(())
    }

    /// Answers with text, as much as an answer holds.
    pub(crate) fn output_take(&mut self) -> Result<(), Failure> {
        self.collect_output()?;
        let length = self.printing.text.len();
        let size = length.min(CALL_REPLY_BYTES - size_of::<OutputReply>());
        let more = u32::from(size < length || self.printing.is_active());
        self.answer(&OutputReply { size_bytes: size as u32, more })?;
        self.reply.extend(self.printing.text.drain(..size));
        Ok(())
    }

    /// At the session's end, when its work has ended.
    pub(crate) fn end_printing(&mut self) {
        if self.printing.is_active() {
            // Nobody is left to read it, but the next session's text must not begin with it.
            let _ = self.fetch_output();
        }
        self.shared.context.end_events(self.printing.in_flight.drain(..));
        if let Some(stream) = self.printing.idle_stream.take() {
            let _ = self.shared.context.end_stream(stream);
        }
        self.shared.console.end_turn(self.handle.id);
    }
}

#[cfg(test)]
mod tests {
    use crate::testbed::Bed;
    use policy::faults::hindrance::Hindrance;

    #[test]
    fn a_text_that_the_client_has_not_asked_for_keeps_its_session() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        assert_eq!(state.hindrance(), None);
        state.printing.text.extend(b"printed");
        assert_eq!(state.hindrance(), Some(Hindrance::Output));
        state.output_take().unwrap();
        assert_eq!(state.hindrance(), None);
    }
}
