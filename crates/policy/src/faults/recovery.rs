//! What becomes of the sessions of an executor that is gone; plain, without I/O. Who is to blame is
//! [`super::blame`].
//!
//! A session that has nothing in flight goes on in the next executor. One whose work was in flight
//! has lost it, and is told. A fault says not which kernel made it, so all that had work in flight
//! get the fault's own error; except those whose kernels are declared repeatable, which are run
//! again, each client's by itself, so that a second fault has one culprit.

use cuda_abi::types::CUresult;

/// What ended an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A fault on the device, with the driver's error.
    Fault(CUresult),
    /// The process ended by itself.
    Died,
    /// The keeper ended it, to be rid of this session's work.
    Killed {
        /// Whose.
        session: u64,
    },
}

/// How a session stood when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// Which.
    pub session: u64,
    /// Work was submitted that is not known to have ended.
    pub in_flight: bool,
    /// The executor was doing a command of it that is answered: only such commands reach into a
    /// driver far enough to end the process.
    pub in_call: bool,
    /// It had something in the executor's own memory, or in variables of its code, that nobody has
    /// saved.
    pub unsaved: bool,
    /// Its client has declared repeatable all that it has in flight.
    pub repeatable: bool,
}

/// What becomes of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on in the next executor.
    GoesOn,
    /// It goes on, and what it had in flight is done again, unless that has been tried
    /// [`MOST_ATTEMPTS`] times.
    Repeats {
        /// What its calls return else.
        code: CUresult,
    },
    /// It is told, and can only end, or begin anew.
    Ends {
        /// What its calls return.
        code: CUresult,
    },
}

/// What those get whose work was lost by another's fault, or by nobody's.
pub const LOST_WORK: CUresult = CUresult::ERROR_LAUNCH_FAILED;

/// So often is work done again that does not end for the faults that come meanwhile.
pub const MOST_ATTEMPTS: u32 = 5;

/// Says what becomes of each session, in their order.
pub fn judge(cause: Cause, stands: &[Stand]) -> Vec<Fate> {
    let in_flight = stands.iter().filter(|stand| stand.in_flight).count();
    let can_repeat = |stand: &Stand| stand.in_flight && stand.repeatable && !stand.unsaved;
    let lost = |stand: &Stand| match stand.in_flight || stand.unsaved {
        true if can_repeat(stand) => Fate::Repeats { code: LOST_WORK },
        true => Fate::Ends { code: LOST_WORK },
        false => Fate::GoesOn,
    };
    let fate = |stand: &Stand| match cause {
        // Alone it is the culprit, and would do it again.
        Cause::Fault(code) if in_flight > 1 && can_repeat(stand) => Fate::Repeats { code },
        Cause::Fault(code) if stand.in_flight => Fate::Ends { code },
        Cause::Died if stand.in_call => Fate::Ends { code: LOST_WORK },
        Cause::Killed { session } if stand.session == session => {
            Fate::Ends { code: CUresult::ERROR_MPS_CLIENT_TERMINATED }
        }
        _ => lost(stand),
    };
    stands.iter().map(fate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Stand =
        Stand { session: 1, in_flight: false, in_call: false, unsaved: false, repeatable: false };
    const BUSY: Stand = Stand { session: 2, in_flight: true, ..IDLE };
    const FAULT: CUresult = CUresult::ERROR_ILLEGAL_ADDRESS;

    fn ends(code: CUresult) -> Fate {
        Fate::Ends { code }
    }

    #[test]
    fn who_had_work_in_flight_is_told_and_the_idle_go_on() {
        let fates = judge(Cause::Fault(FAULT), &[IDLE, BUSY]);
        assert_eq!(fates, [Fate::GoesOn, ends(FAULT)]);
        assert_eq!(judge(Cause::Fault(FAULT), &[IDLE]), [Fate::GoesOn], "who did it has left");
    }

    #[test]
    fn several_in_flight_are_all_told() {
        let other = Stand { session: 3, ..BUSY };
        let fates = judge(Cause::Fault(FAULT), &[BUSY, IDLE, other]);
        let told = ends(FAULT);
        assert_eq!(fates, [told, Fate::GoesOn, told]);
    }

    #[test]
    fn a_process_that_dies_in_a_call_ends_its_caller() {
        let caller = Stand { in_call: true, ..IDLE };
        let fates = judge(Cause::Died, &[caller, BUSY, Stand { session: 4, ..IDLE }]);
        let lost = ends(LOST_WORK);
        assert_eq!(fates, [ends(LOST_WORK), lost, Fate::GoesOn]);
        assert_eq!(judge(Cause::Died, &[IDLE]), [Fate::GoesOn], "somebody killed it");
    }

    #[test]
    fn who_is_killed_is_told_so_and_others_lose_what_was_in_flight() {
        let victim = Stand { session: 9, ..BUSY };
        let fates = judge(Cause::Killed { session: 9 }, &[victim, IDLE, BUSY]);
        let terminated = ends(CUresult::ERROR_MPS_CLIENT_TERMINATED);
        assert_eq!(fates, [terminated, Fate::GoesOn, ends(LOST_WORK)]);
    }

    #[test]
    fn what_is_repeatable_is_done_again_unless_nobody_else_can_have_faulted() {
        let declared = Stand { session: 5, repeatable: true, ..BUSY };
        let told = ends(FAULT);
        let again = Fate::Repeats { code: FAULT };
        assert_eq!(judge(Cause::Fault(FAULT), &[BUSY, declared]), [told, again]);
        assert_eq!(judge(Cause::Fault(FAULT), &[declared]), [ends(FAULT)]);
        assert_eq!(judge(Cause::Died, &[declared]), [Fate::Repeats { code: LOST_WORK }]);
        let unsaved = Stand { unsaved: true, ..declared };
        assert_eq!(judge(Cause::Fault(FAULT), &[BUSY, unsaved]), [told, told]);
        assert_eq!(judge(Cause::Died, &[Stand { in_flight: false, ..declared }]), [Fate::GoesOn]);
    }

    #[test]
    fn what_only_a_dead_process_had_is_lost() {
        let unsaved = Stand { unsaved: true, ..IDLE };
        assert_eq!(judge(Cause::Fault(FAULT), &[unsaved]), [ends(LOST_WORK)]);
    }
}
