//! A spare executor per device: its context is made, and nobody uses it until an executor is gone.
//!
//! It costs a context's memory on the device, so it is started only once clients have stayed for a while, and not where the driver lets one process have
//! contexts. It belongs to no trust domain before it takes over.

use super::Keeper;
use super::devices::ComputeMode;
use super::executors::{Executor, ExecutorProcess, Place, START_TIMEOUT, Stage};
use super::session::Service;
use crate::executor_link::FromExecutor;
use crate::log::log_server;
use link::socket::{Received, SocketError};
use std::time::{Duration, Instant};

/// `0`: no executor is kept in reserve.
pub(crate) const STANDBY_VARIABLE: &str = "OPENMPS_STANDBY";
/// Sessions last so long before a standby is worth its memory.
const WORTH_A_STANDBY: Duration = Duration::from_secs(2);
/// A standby that ends so often by itself is not started again.
const MOST_FAILURES: u32 = 3;

/// One device's.
#[derive(Default)]
pub(crate) struct Standby {
    pub(crate) executor: Option<Executor>,
    /// Since when the device has had sessions.
    in_use_since: Option<Instant>,
    failures: u32,
}

impl Standby {
    /// The process that could take over now; 0: none.
    pub(super) fn ready_pid(&self) -> u32 {
        let ready = self.executor.as_ref().filter(|executor| executor.stage == Stage::Ready);
        ready.map_or(0, |executor| executor.process.pid())
    }
}

/// Whether executors are kept in reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserve {
    Kept,
    None,
}

impl Reserve {
    pub(super) fn from_environment() -> Self {
        match std::env::var(STANDBY_VARIABLE).as_deref() {
            Ok("0") => Self::None,
            _ => Self::Kept,
        }
    }
}

impl Keeper {
    /// From time to time: starts standbys where they are missed.
    pub(super) fn see_to_standbys(&mut self) {
        if self.reserve == Reserve::None || self.course != super::Course::Serving {
            return;
        }
        for number in 0..self.devices.len() {
            let in_use = self
                .sessions
                .values()
                .any(|session| session.device == number && session.service == Service::Serving);
            let standby = &mut self.devices[number].standby;
            if !in_use {
                standby.in_use_since = None;
                continue;
            }
            let since = *standby.in_use_since.get_or_insert_with(Instant::now);
            if standby.executor.as_ref().is_some_and(|executor| {
                executor.stage == Stage::Starting && executor.started.elapsed() > START_TIMEOUT
            }) {
                self.drop_standby(number, &format!("it has no context after {START_TIMEOUT:?}"));
                continue;
            }
            if standby.executor.is_some()
                || standby.failures >= MOST_FAILURES
                || since.elapsed() < WORTH_A_STANDBY
            {
                continue;
            }
            self.start_standby(number);
        }
    }

    fn start_standby(&mut self, number: usize) {
        let count = self.devices.len() as u32;
        let options = self.options.clone();
        let device = &mut self.devices[number];
        if device.compute_mode(self.driver) != ComputeMode::Default {
            device.standby.failures = MOST_FAILURES;
            return;
        }
        let started = ExecutorProcess::start(&options, device.ordinal, number as u32, count);
        match started {
            Ok(process) => {
                let started = Instant::now();
                device.standby.executor =
                    Some(Executor { process, stage: Stage::Starting, started });
            }
            Err(message) => {
                log_server!("{message}");
                device.standby.failures += 1;
            }
        }
    }

    pub(super) fn hear_standby(&mut self, number: usize) {
        let standby = &mut self.devices[number].standby;
        let Some(executor) = &mut standby.executor else { return };
        match executor.process.connection().try_receive::<FromExecutor>() {
            Ok(None) => {}
            Ok(Some(Received { message: FromExecutor::Ready { .. }, .. })) => {
                executor.stage = Stage::Ready;
                log_server!("Executor {} stands by for device {number}", executor.process.pid());
            }
            Ok(Some(Received { message: FromExecutor::Failed { message }, .. })) => {
                self.drop_standby(number, &message);
            }
            Ok(Some(_)) => {}
            Err(SocketError::Closed) => self.drop_standby(number, "it ended"),
            Err(error) => self.drop_standby(number, &error.to_string()),
        }
    }

    fn drop_standby(&mut self, number: usize, message: &str) {
        let standby = &mut self.devices[number].standby;
        standby.failures += 1;
        if let Some(executor) = standby.executor.take() {
            log_server!("Nobody stands by for device {number}: {message}");
            std::thread::spawn(move || executor.process.stop());
        }
    }

    /// The standby of a device, to be the executor of a place.
    pub(super) fn take_standby(&mut self, place: Place) -> Option<Executor> {
        let standby = &mut self.devices[place.device].standby;
        standby.executor.take_if(|executor| executor.stage == Stage::Ready)
    }
}
