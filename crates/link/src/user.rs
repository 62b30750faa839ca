//! How a process that root starts becomes another user's, with nothing that its user could do
//! meanwhile.
//!
//! A process that changes its user before it begins its program can be stopped in between, by that
//! user, and whoever started it waits for the program to begin: for ever. And between the beginning
//! and the program's first words it can be traced. So the program begins as root's, and becomes its
//! user's itself: no program begins after that.

use std::ffi::{OsStr, OsString};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::inheritance::leave_keys;

const USER: &str = "--user";

/// The user that a process is to become, with no group but this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Not root.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Why a process did not become a user's.
#[derive(Debug, thiserror::Error)]
pub enum BecomeError {
    /// The command line says no user.
    #[error(
        "{USER} UID:GID is wrong: both are numbers, and the user is not root; this is started by the daemon, not by hand"
    )]
    NoUser,
    /// It is not root's.
    #[error(
        "{USER} is for processes that root's daemon starts, and this one is user {0}'s: leave it out"
    )]
    NotRoot(u32),
    /// The kernel refuses.
    #[error("cannot become user {} of group {}: {step}: {source}", user.uid, user.gid)]
    Kernel {
        /// Whom.
        user: User,
        /// The system call.
        step: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

impl User {
    /// The arguments that tell a program to become this user.
    pub fn arguments(self) -> [OsString; 2] {
        let Self { uid, gid } = self;
        [USER.into(), format!("{uid}:{gid}").into()]
    }

    /// The user that a program's arguments tell it to become, if they do.
    ///
    /// # Errors
    /// [`BecomeError::NoUser`].
    pub fn of_arguments(arguments: &[OsString]) -> Result<Option<Self>, BecomeError> {
        let Some(at) = arguments.iter().position(|word| word == OsStr::new(USER)) else {
            return Ok(None);
        };
        let user = arguments.get(at + 1).and_then(|word| Self::parse(word.to_str()?));
        user.map(Some).ok_or(BecomeError::NoUser)
    }

    fn parse(text: &str) -> Option<Self> {
        let (uid, gid) = text.split_once(':')?;
        let user = Self { uid: uid.parse().ok()?, gid: gid.parse().ok()? };
        // The greatest is no number of anybody's: it tells the kernel to change nothing.
        (user.uid != 0 && ![user.uid, user.gid].contains(&u32::MAX)).then_some(user)
    }

    /// Makes this process that user's, without privileges, without root's keys, and shut to
    /// debuggers. It is to have one thread, which has read nothing yet.
    ///
    /// # Errors
    /// [`BecomeError`]; the process must end then.
    pub fn become_it(self) -> Result<(), BecomeError> {
        let caller = geteuid();
        if !caller.is_root() {
            return Err(BecomeError::NotRoot(caller.as_raw()));
        }
        let step = |step: &'static str, result: rustix::io::Result<()>| {
            result.map_err(|error| BecomeError::Kernel { user: self, step, source: error.into() })
        };
        let shut = || set_dumpable_behavior(DumpableBehavior::NotDumpable);
        step("PR_SET_DUMPABLE", shut())?;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        match set_thread_groups(&[]) {
            // A user namespace may let nobody leave groups.
            Ok(()) | Err(Errno::PERM) => {}
            refused => step("setgroups", refused)?,
        }
        step("setresgid", set_thread_res_gid(gid, gid, gid))?;
        // The new keys count for the real user; for that user's debuggers the process is still
        // root's.
        step("setresuid", set_thread_res_uid(uid, None, None))?;
        leave_keys().map_err(|source| BecomeError::Kernel {
            user: self,
            step: "keyctl",
            source,
        })?;
        step("setresuid", set_thread_res_uid(uid, uid, uid))?;
        // The kernel has set it to what the machine's administrator wants.
        step("PR_SET_DUMPABLE", shut())?;
        // Gone already, unless whoever started the daemon had them kept (`SECBIT_NO_SETUID_FIXUP`).
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        // What can be inherited stays in any case, for programs that files give capabilities.
        if capabilities(None)
            .is_ok_and(|left| left.permitted.is_empty() && left.inheritable.is_empty())
        {
            return Ok(());
        }
        step("capset", set_capabilities(None, none))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Result<Option<User>, BecomeError> {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        User::of_arguments(&words)
    }

    #[test]
    fn a_user_is_what_the_arguments_say() {
        let user = User { uid: 12, gid: 34 };
        assert_eq!(User::of_arguments(&user.arguments()).unwrap(), Some(user));
        assert_eq!(of("server --user 12:34 --control-fd 5").unwrap(), Some(user));
        assert_eq!(of("server --control-fd 5").unwrap(), None);
        for wrong in [
            "--user",
            "--user 12",
            "--user 12:",
            "--user 0:12",
            "--user -1:12",
            "--user 4294967295:12",
            "--user 12:4294967295",
            "--user me:12",
        ] {
            assert!(matches!(of(wrong), Err(BecomeError::NoUser)), "{wrong}");
        }
    }
}
