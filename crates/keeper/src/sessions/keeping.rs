//! Memory that sessions keep though their clients have given it up (the executor's
//! `kept.rs`): who needs memory gets it first.
//!
//! When a device has no more, its executors are told to give back what they keep, and to keep
//! nothing; who wanted memory waits until all have answered, and is served then, or treated as if
//! nothing had ever been kept. Those that stand by are told as well, for what they have mapped
//! ahead. They may keep again when memory has not been short for a while.

use super::memory::now_ms;
use super::session::Session;
use crate::Keeper;
use crate::executors::place::{Place, Stage};
use executor_link::messages::{Keeping, ToExecutor};
use policy::memory::residency::Wish;
use std::collections::BTreeSet;
use std::time::Instant;

/// Executors that have not answered for so long are not waited for.
const ANSWER_MS: u64 = 2000;
/// So long after memory was short nothing is kept.
const SHORT_MS: u64 = 1000;

/// Whether a device's executors keep what clients have given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceKeeping {
    #[default]
    Allowed,
    /// They were told to give it back.
    Ending {
        since_ms: u64,
        /// Processes that have not answered yet, those included that stand by.
        asked: BTreeSet<u32>,
        /// Who is to be served afterwards.
        wishes: Vec<(u64, Wish)>,
    },
    Forbidden {
        since_ms: u64,
    },
}

impl Keeper {
    /// What a session's client holds.
    pub(crate) fn held_bytes(&self, session: &Session) -> u64 {
        let kept = session.counters.slot(session.counter_slot).kept_bytes();
        session.grants.granted_bytes().saturating_sub(kept)
    }

    /// Memory is short: has kept memory given back, if there may be some. Says whether `wish` is
    /// tried again when that is done.
    pub(crate) fn reclaim_kept(&mut self, device: usize, id: u64, wish: Wish) -> bool {
        match &mut self.devices[device].keeping {
            DeviceKeeping::Forbidden { since_ms } => {
                *since_ms = now_ms();
                false
            }
            DeviceKeeping::Ending { wishes, .. } => {
                wishes.push((id, wish));
                true
            }
            DeviceKeeping::Allowed => {
                let asked = self.tell_all_keeping(device, Keeping::Forbidden);
                let wishes = vec![(id, wish)];
                self.devices[device].keeping =
                    DeviceKeeping::Ending { since_ms: now_ms(), asked, wishes };
                true
            }
        }
    }

    /// Those that stand by are told as well, and map nothing ahead any more when it is forbidden.
    /// Returns who was told.
    fn tell_all_keeping(&mut self, device: usize, keeping: Keeping) -> BTreeSet<u32> {
        let device = &mut self.devices[device];
        if keeping == Keeping::Forbidden {
            device.standby.short_since = Some(Instant::now());
            device.standby.executors.iter_mut().for_each(|standby| drop(standby.ahead.clear()));
        }
        let executors = device.executors.values().chain(&device.standby.executors);
        let ready = executors.filter(|executor| executor.stage == Stage::Ready);
        ready
            .map(|executor| {
                executor.process.tell(&ToExecutor::SetKeeping(keeping), &[]);
                executor.process.pid()
            })
            .collect()
    }

    /// A new executor is told how it is.
    pub(crate) fn tell_keeping(&mut self, place: Place) {
        if let Some(executor) = self.executor(place) {
            self.tell_of_quarantine(executor);
        }
        if self.devices[place.device].keeping != DeviceKeeping::Allowed
            && let Some(executor) = self.executor(place)
        {
            executor.tell(&ToExecutor::SetKeeping(Keeping::Forbidden), &[]);
        }
    }

    /// An executor has given all back that it kept.
    pub(crate) fn nothing_kept(&mut self, device: usize, pid: u32) {
        if let DeviceKeeping::Ending { asked, .. } = &mut self.devices[device].keeping {
            asked.remove(&pid);
        }
        self.see_to_keeping(device);
    }

    /// Whether somebody waits for kept memory.
    pub(crate) fn is_reclaiming(&self) -> bool {
        let is_ending = |keeping: &DeviceKeeping| matches!(keeping, DeviceKeeping::Ending { .. });
        self.devices.iter().any(|device| is_ending(&device.keeping))
    }

    /// Goes on when all have answered, or need not any more.
    pub(crate) fn see_to_keeping(&mut self, device: usize) {
        let now_ms = now_ms();
        let slot = &mut self.devices[device];
        match &mut slot.keeping {
            DeviceKeeping::Allowed => {}
            DeviceKeeping::Ending { since_ms, asked, wishes } => {
                let there = || slot.executors.values().chain(&slot.standby.executors);
                asked.retain(|pid| there().any(|executor| executor.process.pid() == *pid));
                if !asked.is_empty() && now_ms.saturating_sub(*since_ms) < ANSWER_MS {
                    return;
                }
                let wishes = std::mem::take(wishes);
                slot.keeping = DeviceKeeping::Forbidden { since_ms: now_ms };
                for (id, wish) in wishes {
                    let tried = match wish {
                        Wish::New { .. } => self.try_grant(id),
                        Wish::Return => self.try_return(id),
                    };
                    self.see_to_outcome(device, id, wish, tried);
                }
            }
            DeviceKeeping::Forbidden { since_ms } => {
                if now_ms.saturating_sub(*since_ms) >= SHORT_MS
                    && !self.residencies[device].is_waited_for()
                {
                    slot.keeping = DeviceKeeping::Allowed;
                    self.tell_all_keeping(device, Keeping::Allowed);
                }
            }
        }
    }
}
