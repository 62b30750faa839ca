//! More memory than a device has: who waits for memory, and whose idle memory is moved out to the
//! host for it.
//!
//! One [`Residency`] is kept for each device. It knows what sessions have and where that is; the
//! keeper tells it what has happened, and does what [`Residency::step`] says. Moving out is the
//! executor's: it does so only where a session has nothing in flight, whatever is asked here.
//!
//! A session's memory has all been on the device at once, so it can always come back: who wants
//! more gets back first what was moved out.
//!
//! Who waits is served in order of arrival. The first one has memory of others moved out: of those
//! that have been idle longest first, of these the largest pieces first. Where nobody is idle, a
//! session whose *turn* is over is made to pause: it takes no more commands until its work has
//! ended and its memory is out. So clients that all have work, and do not fit together, take turns.

use super::memory_settings::{MemoryPolicy, MemorySettings};
use std::collections::BTreeMap;

/// A session that has taken no command for so long is idle.
pub const IDLE_MS: u64 = 50;
/// A session that was asked and has not answered for so long is no longer counted on: others are
/// asked too.
const RELUCTANT_MS: u64 = 20;
/// At least so much is asked for at a time, in small pieces.
const ASK_BYTES: u64 = 256 << 20;
/// Pieces of one request.
const MAX_ASKED: usize = 256;
/// After a pause in which a session's work did not end, it is not made to pause for so many turns.
const TURNS_OF_GRACE: u64 = 8;

/// Where an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Device,
    /// On the device, but its session was asked to move it out.
    Leaving,
    Host,
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    size_bytes: u64,
    place: Place,
    /// Never moved out.
    is_fixed: bool,
}

/// What a session was asked to do.
#[derive(Clone, Copy, Debug)]
struct Asked {
    since_ms: u64,
    /// When it was made to pause.
    paused_ms: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Session {
    allocations: BTreeMap<u64, Allocation>,
    /// Since when it has all its memory.
    turn_began_ms: u64,
    turn_ms: u64,
    asked: Option<Asked>,
    no_pause_before_ms: u64,
}

impl Session {
    fn bytes(&self, place: impl Fn(Place) -> bool) -> u64 {
        self.allocations.values().filter(|a| place(a.place)).map(|a| a.size_bytes).sum()
    }
}

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// More memory.
    New {
        /// The length.
        size_bytes: u64,
    },
    /// All that was moved out.
    Return,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    session: u64,
    wish: Wish,
    since_ms: u64,
}

/// How a session is asked to move memory out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// When it is idle.
    WhenIdle,
    /// It takes no command until it has.
    Pause,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a session to move these allocations, (key, length), out. It answers for each:
    /// [`Residency::moved_out`] or [`Residency::stayed`].
    MoveOut {
        /// Which session.
        session: u64,
        /// Keys and lengths.
        allocations: Vec<(u64, u64)>,
        /// How soon.
        urgency: Urgency,
    },
    /// A session that was asked is to pause for it.
    Pause {
        /// Which session.
        session: u64,
    },
    /// What a session was asked for is not wanted any more. It answers all the same.
    CallOff {
        /// Which session.
        session: u64,
    },
    /// A session that waits for new memory gets none.
    Refuse {
        /// Which session.
        session: u64,
        /// Why.
        refusal: Refusal,
    },
}

/// Why an allocation that does not fit is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The policy is to refuse.
    Policy,
    /// Nobody else has memory here that could be freed or moved out.
    NothingToWaitFor,
    /// The host takes no more of what is moved out.
    HostFull,
    /// It has waited as long as the settings say.
    TimedOut,
}

impl Refusal {
    /// For the log.
    pub fn text(self) -> &'static str {
        match self {
            Self::Policy => "the device has no more",
            Self::NothingToWaitFor => {
                "the device has no more, and nobody else has memory that could make room"
            }
            Self::HostFull => {
                "the device has no more, and the host may take no more moved-out memory (OPENMPS_MEMORY_SPILL_LIMIT)"
            }
            Self::TimedOut => "none came free in time (OPENMPS_MEMORY_WAIT_MS)",
        }
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Residency {
    settings: MemorySettings,
    sessions: BTreeMap<u64, Session>,
    waiting: Vec<Waiting>,
}

impl Residency {
    /// Nobody yet.
    pub fn new(settings: MemorySettings) -> Self {
        Self { settings, sessions: BTreeMap::new(), waiting: Vec::new() }
    }

    /// A session begins.
    pub fn open(&mut self, session: u64, now_ms: u64) {
        let turn_ms = self.settings.turn_ms;
        let fresh = Session { turn_began_ms: now_ms, turn_ms, ..Session::default() };
        self.sessions.insert(session, fresh);
    }

    /// A session has ended, with all that it had.
    pub fn close(&mut self, session: u64) {
        self.sessions.remove(&session);
        self.give_up(session);
    }

    /// A session has memory of this key on the device.
    pub fn add(&mut self, session: u64, key: u64, size_bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            let allocation = Allocation { size_bytes, place: Place::Device, is_fixed: false };
            session.allocations.insert(key, allocation);
        }
    }

    /// Memory that cannot be moved out: others use it, or its addresses are not known.
    pub fn fix(&mut self, session: u64, key: u64) {
        if let Some(allocation) = self.allocation(session, key) {
            allocation.is_fixed = true;
        }
    }

    /// A session has given memory up.
    pub fn remove(&mut self, session: u64, key: u64) {
        if let Some(found) = self.sessions.get_mut(&session) {
            found.allocations.remove(&key);
        }
        self.end_request(session);
    }

    /// A session has moved memory out.
    pub fn moved_out(&mut self, session: u64, key: u64) {
        if let Some(allocation) = self.allocation(session, key) {
            allocation.place = Place::Host;
        }
        self.end_request(session);
    }

    /// A session has not moved memory out: it has more to do, or cannot.
    pub fn stayed(&mut self, session: u64, key: u64) {
        if let Some(allocation) = self.allocation(session, key)
            && allocation.place == Place::Leaving
        {
            allocation.place = Place::Device;
        }
        self.end_request(session);
    }

    fn allocation(&mut self, session: u64, key: u64) -> Option<&mut Allocation> {
        self.sessions.get_mut(&session)?.allocations.get_mut(&key)
    }

    /// A session has answered when nothing of it is leaving any more.
    fn end_request(&mut self, session: u64) {
        if let Some(found) = self.sessions.get_mut(&session)
            && found.bytes(|place| place == Place::Leaving) == 0
        {
            found.asked = None;
        }
    }

    /// A session waits for memory that the device has not at the moment.
    ///
    /// # Errors
    /// Why it need not wait. What was moved out always comes back.
    pub fn wait(&mut self, session: u64, wish: Wish, now_ms: u64) -> Result<(), Refusal> {
        let waiting = Waiting { session, wish, since_ms: now_ms };
        if let Some(refusal) = self.refuses(&waiting, now_ms) {
            return Err(refusal);
        }
        self.give_up(session);
        self.waiting.push(waiting);
        Ok(())
    }

    /// What a session was asked to move out stays where it is: its executor knows of it no more.
    pub fn forget_orders(&mut self, session: u64) {
        let Some(found) = self.sessions.get_mut(&session) else { return };
        found.asked = None;
        let leaving = found.allocations.values_mut().filter(|it| it.place == Place::Leaving);
        leaving.for_each(|it| it.place = Place::Device);
    }

    /// A session waits no more: it has what it wanted, or is gone.
    pub fn give_up(&mut self, session: u64) {
        self.waiting.retain(|waiting| waiting.session != session);
    }

    /// Whether anybody waits.
    pub fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether this session waits.
    pub fn has_waiting(&self, session: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.session == session)
    }

    /// Who waits for what, in the order in which they are served.
    pub fn waiting(&self) -> Vec<(u64, Wish)> {
        self.waiting.iter().map(|waiting| (waiting.session, waiting.wish)).collect()
    }

    /// What of a session is to come back next: key and length.
    pub fn next_to_return(&self, session: u64) -> Option<(u64, u64)> {
        let found = self.sessions.get(&session)?;
        let out = found.allocations.iter().find(|(_, a)| a.place == Place::Host);
        out.map(|(&key, allocation)| (key, allocation.size_bytes))
    }

    /// Memory is on the device again. Says whether that was the last: the session's turn begins
    /// then.
    pub fn returned(&mut self, session: u64, key: u64, now_ms: u64) -> bool {
        if let Some(allocation) = self.allocation(session, key) {
            allocation.place = Place::Device;
        }
        if self.next_to_return(session).is_some() {
            return false;
        }
        let waited = self.waiting.iter().find(|waiting| waiting.session == session);
        let took_ms = waited.map_or(0, |waiting| now_ms.saturating_sub(waiting.since_ms));
        self.waiting.retain(|it| it.session != session || it.wish != Wish::Return);
        if let Some(found) = self.sessions.get_mut(&session) {
            found.turn_began_ms = now_ms;
            // Who has waited long for its memory works with it as long.
            found.turn_ms = self.settings.turn_ms.max(took_ms);
        }
        true
    }

    /// Bytes of a session that are in host memory.
    pub fn moved_out_bytes(&self, session: u64) -> u64 {
        self.sessions.get(&session).map_or(0, |found| found.bytes(|place| place == Place::Host))
    }

    /// Bytes of all sessions that are in host memory.
    pub fn spilled_bytes(&self) -> u64 {
        self.sessions.values().map(|found| found.bytes(|place| place == Place::Host)).sum()
    }

    /// Bytes that all sessions have on the device.
    pub fn resident_bytes(&self) -> u64 {
        self.sessions.values().map(|found| found.bytes(|place| place != Place::Host)).sum()
    }

    /// Bytes in host memory, those included that are on the way there.
    pub fn host_bytes(&self) -> u64 {
        self.sessions.values().map(|found| found.bytes(|place| place != Place::Device)).sum()
    }

    /// How much more may be moved out for a session: what comes back may change places with as much
    /// again.
    fn host_room_bytes(&self, session: u64) -> u64 {
        let limit_bytes = match self.next_to_return(session) {
            None => self.settings.host_limit_bytes,
            Some(_) => self.settings.host_limit_bytes.saturating_mul(2),
        };
        limit_bytes.saturating_sub(self.host_bytes())
    }

    /// Why new memory is not waited for (any longer).
    fn refuses(&self, waiting: &Waiting, now_ms: u64) -> Option<Refusal> {
        if waiting.wish == Wish::Return {
            return None;
        }
        let others = || self.sessions.iter().filter(|(id, _)| **id != waiting.session);
        match self.settings.policy {
            MemoryPolicy::Fail => return Some(Refusal::Policy),
            MemoryPolicy::Queue => {
                if others().all(|(_, other)| other.allocations.is_empty()) {
                    return Some(Refusal::NothingToWaitFor);
                }
            }
            // Others have what was its own: it is to come back first.
            MemoryPolicy::Spill if self.next_to_return(waiting.session).is_some() => {}
            MemoryPolicy::Spill => {
                // What was asked of the session itself, before it had to wait, is not settled yet.
                let own = self.sessions.get(&waiting.session);
                let own_bytes = own.map_or(0, |own| own.bytes(|place| place == Place::Leaving));
                let room_bytes = self.host_room_bytes(waiting.session).saturating_add(own_bytes);
                let movable = || {
                    others().flat_map(|(_, other)| other.allocations.values()).filter(|a| {
                        a.place == Place::Leaving || (a.place == Place::Device && !a.is_fixed)
                    })
                };
                if movable().next().is_none() {
                    return Some(Refusal::NothingToWaitFor);
                }
                let fits = |a: &Allocation| a.place == Place::Leaving || a.size_bytes <= room_bytes;
                if !movable().any(fits) {
                    return Some(Refusal::HostFull);
                }
            }
        }
        let waited_ms = now_ms.saturating_sub(waiting.since_ms);
        (waited_ms >= self.settings.wait_ms && waited_ms > 0).then_some(Refusal::TimedOut)
    }

    /// What to do now, after everything that waits was tried in vain. `idle_since_ms` says since
    /// when a session has taken no command; `None`: it has commands to take.
    pub fn step(&mut self, now_ms: u64, idle_since_ms: impl Fn(u64) -> Option<u64>) -> Vec<Action> {
        let mut actions = Vec::new();
        for waiting in self.waiting.clone() {
            if let Some(refusal) = self.refuses(&waiting, now_ms) {
                self.give_up(waiting.session);
                actions.push(Action::Refuse { session: waiting.session, refusal });
            }
        }
        let Some(&head) = self.waiting.first() else {
            let asked = self.sessions.iter().filter(|(_, found)| found.asked.is_some());
            actions.extend(asked.map(|(&session, _)| Action::CallOff { session }));
            return actions;
        };
        if self.settings.policy != MemoryPolicy::Spill {
            return actions;
        }
        self.end_vain_pauses(now_ms, &mut actions);
        let wanted_bytes = match (self.next_to_return(head.session), head.wish) {
            (Some((_, size_bytes)), _) | (None, Wish::New { size_bytes }) => size_bytes,
            (None, Wish::Return) => 0,
        };
        let mut open_bytes = wanted_bytes.saturating_sub(self.counted_on_bytes(now_ms));
        for session in self.idle_sessions(&head, now_ms, &idle_since_ms) {
            if open_bytes == 0 {
                break;
            }
            let asked_bytes =
                self.ask(session, open_bytes, &head, Urgency::WhenIdle, now_ms, &mut actions);
            open_bytes = open_bytes.saturating_sub(asked_bytes);
        }
        if open_bytes > 0 && now_ms.saturating_sub(head.since_ms) >= self.settings.turn_ms {
            self.pause_one(&head, open_bytes, now_ms, &mut actions);
        }
        actions
    }

    /// What will soon be free.
    fn counted_on_bytes(&self, now_ms: u64) -> u64 {
        let willing = |found: &&Session| {
            found.asked.is_some_and(|asked| {
                asked.paused_ms.is_some() || now_ms.saturating_sub(asked.since_ms) < RELUCTANT_MS
            })
        };
        let leaving = |found: &Session| found.bytes(|place| place == Place::Leaving);
        self.sessions.values().filter(willing).map(leaving).sum()
    }

    /// Whose memory can be had without anybody's noticing: those that were idle longest first,
    /// those that wait for memory themselves last.
    fn idle_sessions(
        &self,
        head: &Waiting,
        now_ms: u64,
        idle_since_ms: &impl Fn(u64) -> Option<u64>,
    ) -> Vec<u64> {
        let candidate = |(&session, found): (&u64, &Session)| {
            if session == head.session || found.asked.is_some() {
                return None;
            }
            if let Some(waiting) = self.waiting.iter().find(|waiting| waiting.session == session) {
                return Some((true, waiting.since_ms, session));
            }
            let since_ms = idle_since_ms(session)?;
            (now_ms.saturating_sub(since_ms) >= IDLE_MS).then_some((false, since_ms, session))
        };
        let mut found: Vec<_> = self.sessions.iter().filter_map(candidate).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, _, session)| session).collect()
    }

    /// Asks a session for about so much; returns how much it was asked for.
    fn ask(
        &mut self,
        session: u64,
        open_bytes: u64,
        head: &Waiting,
        urgency: Urgency,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) -> u64 {
        let room_bytes = self.host_room_bytes(head.session);
        let Some(found) = self.sessions.get_mut(&session) else { return 0 };
        let chosen = choose(found, open_bytes, room_bytes);
        if chosen.is_empty() {
            return 0;
        }
        for (key, _) in &chosen {
            if let Some(allocation) = found.allocations.get_mut(key) {
                allocation.place = Place::Leaving;
            }
        }
        let paused_ms = (urgency == Urgency::Pause).then_some(now_ms);
        found.asked = Some(Asked { since_ms: now_ms, paused_ms });
        let asked_bytes = chosen.iter().map(|(_, bytes)| bytes).sum();
        actions.push(Action::MoveOut { session, allocations: chosen, urgency });
        asked_bytes
    }

    /// Makes one session pause whose turn is over.
    fn pause_one(
        &mut self,
        head: &Waiting,
        open_bytes: u64,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        if self.sessions.values().any(|found| found.asked.is_some_and(|a| a.paused_ms.is_some())) {
            return;
        }
        let is_over = |&(session, found): &(&u64, &Session)| {
            *session != head.session
                && now_ms >= found.no_pause_before_ms
                && now_ms.saturating_sub(found.turn_began_ms) >= found.turn_ms
        };
        let mut over: Vec<(u64, u64)> = self
            .sessions
            .iter()
            .filter(is_over)
            .map(|(&session, found)| (found.turn_began_ms, session))
            .collect();
        over.sort_unstable();
        for (_, session) in over {
            let asked = self.sessions.get_mut(&session).and_then(|found| found.asked.as_mut());
            if let Some(asked) = asked {
                asked.paused_ms = Some(now_ms);
                return actions.push(Action::Pause { session });
            }
            if self.ask(session, open_bytes, head, Urgency::Pause, now_ms, actions) > 0 {
                return;
            }
        }
    }

    /// Lets sessions go on whose work has not ended: it may wait for what they have not been able
    /// to say.
    fn end_vain_pauses(&mut self, now_ms: u64, actions: &mut Vec<Action>) {
        let turn_ms = self.settings.turn_ms.max(1);
        for (&session, found) in &mut self.sessions {
            let paused_ms = found.asked.and_then(|asked| asked.paused_ms);
            if paused_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= turn_ms)
                && now_ms >= found.no_pause_before_ms
            {
                found.no_pause_before_ms = now_ms + TURNS_OF_GRACE * turn_ms;
                actions.push(Action::CallOff { session });
            }
        }
    }
}

/// What to move out for so much room: the smallest piece that is enough, else the largest ones
/// first.
fn choose(session: &Session, open_bytes: u64, room_bytes: u64) -> Vec<(u64, u64)> {
    let mut movable: Vec<(u64, u64)> = session
        .allocations
        .iter()
        .filter(|(_, a)| a.place == Place::Device && !a.is_fixed && a.size_bytes <= room_bytes)
        .map(|(&key, a)| (a.size_bytes, key))
        .collect();
    movable.sort_unstable_by(|one, other| other.cmp(one));
    // Some of what is wanted may be free already, so not all is asked for at once.
    let goal_bytes = open_bytes.min(ASK_BYTES);
    if let Some(&(size_bytes, key)) =
        movable.iter().rev().find(|(size_bytes, _)| *size_bytes >= goal_bytes)
    {
        return vec![(key, size_bytes)];
    }
    let (mut chosen, mut sum_bytes) = (Vec::new(), 0u64);
    for (size_bytes, key) in movable {
        if sum_bytes >= goal_bytes || chosen.len() >= MAX_ASKED {
            break;
        }
        if sum_bytes.saturating_add(size_bytes) <= room_bytes {
            sum_bytes += size_bytes;
            chosen.push((key, size_bytes));
        }
    }
    chosen
}
