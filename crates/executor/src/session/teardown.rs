//! The end of a session: its work ends by itself, then everything that was its own is given back.
//!
//! Memory must stay mapped while a kernel could still use it: an access to unmapped memory would
//! end the context for all.

use super::state::State;
use cuda_abi::types::CUresult;
use executor_link::log::log_server;
use executor_link::messages::FromExecutor;
use std::time::{Duration, Instant};

/// After so long the log says whose work does not end.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL_LONGEST: Duration = Duration::from_millis(10);

impl State {
    /// Waits for all work of a session whose client has left; `false`: the context is lost. Then
    /// the keeper looks for who did it, and may find this one.
    pub(crate) fn has_come_to_rest(&self) -> bool {
        self.standing.note_asked();
        self.wait_for_work();
        if let Some(code) = self.context().lost() {
            self.name_suspect(code);
            return false;
        }
        // What is left to do takes nobody's patience.
        self.standing.note_rest();
        true
    }

    /// Gives back what the session had, once it has come to rest, and tells the keeper by its last
    /// word.
    pub(crate) fn tear_down(mut self, last_word: FromExecutor) {
        if self.context().lost().is_none() {
            self.end_tracing();
            self.end_printing();
            self.end_metering();
            self.end_pacing();
            self.end_probing();
            self.forget_fence();
            self.clear_graphs();
            self.end_chains();
            self.end_sharing();
            self.shared.context.end_events(self.events.drain().map(|(_, event)| *event));
            self.clear_past_times();
            self.clear_objects();
            // Nobody uses its device memory any more. It goes before all that waits for other
            // clients' kernels, which may run for hours.
            self.clear_virtual_memory();
            self.clear_moved();
            self.return_all_kept();
            self.clear_peers();
            self.return_grants();
            self.clear_holding();
            let mut libraries = self.renew_leaving();
            for (library, origin) in self.modules.take_libraries() {
                libraries.extend(self.give_up_code(library, origin));
            }
            self.quietly_each(libraries, |library| drop(self.unload(library)));
            if let Some(stream) = self.side_stream.take() {
                // The driver lets its copies end.
                let _ = self.context().end_stream(stream);
            }
            self.clear_arrays();
            self.clear_repeating();
            self.unregister_memory();
            self.give_back_limits();
            self.streams.clear(&self.shared.context);
            self.partitions = Default::default();
        }
        self.handle.allowance.end();
        let shared = self.shared.clone();
        shared.flights.close(&self.flight);
        shared.context.gate.leave(self.streams.turnstile());
        // Files and mappings go before the keeper hears of it.
        drop(self);
        shared.tell(&last_word);
    }

    /// Whether the driver says that something of the session has not ended.
    pub(crate) fn has_work_in_driver(&self) -> bool {
        self.streams.handles().chain(self.side_stream).any(|stream| {
            // SAFETY: a live stream of this session.
            let result = unsafe { self.driver().cuStreamQuery(stream) };
            // In a lost context nothing has ended.
            result == CUresult::ERROR_NOT_READY || self.context().check(result).is_err()
        })
    }

    fn wait_for_work(&self) {
        let (started, mut poll, mut complained) =
            (Instant::now(), Duration::from_micros(20), false);
        for stream in self.streams.handles().chain(self.side_stream) {
            loop {
                // SAFETY: a live stream of this session.
                let result = unsafe { self.driver().cuStreamQuery(stream) };
                if result != CUresult::ERROR_NOT_READY {
                    let _ = self.context().check(result);
                    break;
                }
                if started.elapsed() > PATIENCE && !std::mem::replace(&mut complained, true) {
                    log_server!(
                        "{} has left, but its work on the device does not end: {}",
                        self.handle.label,
                        self.last_kernel()
                    );
                }
                std::thread::sleep(poll);
                poll = (poll * 2).min(POLL_LONGEST);
            }
        }
    }

    /// Says in the log what this session had in flight when the context was lost.
    fn name_suspect(&self, code: CUresult) {
        if self.may_work() {
            log_server!(
                "{} had work in flight when the device failed with {code}: {}",
                self.handle.label,
                self.last_kernel()
            );
        }
    }

    fn last_kernel(&self) -> String {
        let function = self.last_function.and_then(|number| self.modules.function(number).ok());
        function
            .map_or_else(|| "no kernel".into(), |function| format!("last kernel {}", function.name))
    }
}
