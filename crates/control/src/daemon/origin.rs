//! Where a peer comes from: whose namespaces it lives in, its control group. The files are the
//! kernel's; what they mean is [`crate::core::origin`].
//!
//! A process id can be another process's by the time that its files are read. So the process is
//! held by a descriptor first (the one that the socket gives, on kernels from 6.5 on), and what was
//! read counts only if it still lives afterwards.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use link::peer::PeerProcess;
use link::socket::Connection as Socket;
use link::user_namespace::outermost_owner;
use link::wire::daemon::{Namespaces, Origin, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::accounts::Accounts;
use crate::core::clients::Who;
use crate::core::origin::{
    ControlGroup, can_tell_user, is_in_nested_pid_namespace, is_same_uid_map,
};

/// What the daemon knows of itself.
#[derive(Debug)]
pub(super) struct Home {
    /// Whether `/proc` tells of the processes of this PID namespace.
    proc_is_ours: bool,
    uid_map: String,
    /// Users whose control groups bind what is in them.
    trusted: Vec<u32>,
    user_namespace: Option<File>,
    accounts: Accounts,
}

impl Home {
    pub(super) fn new() -> Self {
        let own = std::process::id().to_string();
        let shown = fs::read_link("/proc/self").ok();
        Self {
            proc_is_ours: shown.is_some_and(|shown| shown.as_os_str() == own.as_str()),
            uid_map: fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
            trusted: vec![0, rustix::process::geteuid().as_raw()],
            user_namespace: File::open("/proc/self/ns/user").ok(),
            accounts: Accounts::default(),
        }
    }

    /// Reads again what the system says of users, if that has changed.
    pub(super) fn refresh(&mut self) {
        self.accounts.refresh();
    }

    /// Whether a user's number says who it is.
    pub(super) fn can_tell(&self, uid: u32) -> bool {
        can_tell_user(&self.uid_map, uid)
    }

    /// Whether a user of this number, outside of containers, may command the daemon.
    pub(super) fn trusts(&self, uid: u32) -> bool {
        self.trusted.contains(&uid)
    }

    /// The peer, and for whom it counts by its id alone.
    pub(super) fn accountable_by_id(&self, peer: Peer) -> Peer {
        let owner = self.accounts.owner(peer.uid).filter(|owner| *owner != peer.uid);
        // Nobody counts for who may command the daemon, or has its rights because of that.
        let is_another = !self.trusts(peer.uid) && !owner.is_some_and(|owner| self.trusts(owner));
        Peer { counts_for: owner.filter(|_| is_another), ..peer }
    }

    /// The same where a process of the peer's lives in another user namespace, which this user has
    /// made, or somebody in one that it has made: the ids in there are that user's doing. Root
    /// makes them for containers of whoever it may be: those are not one user's, and nobody there
    /// counts for root.
    fn accountable_by_namespace(&self, peer: Peer, maker: u32) -> Peer {
        let trusted = [maker, peer.uid].iter().any(|uid| self.trusts(*uid));
        if trusted || !self.can_tell(maker) {
            return Peer { counts_for: None, ..peer };
        }
        let maker = self.accountable_by_id(Peer { uid: maker, ..Peer::default() }).accountable();
        Peer { counts_for: (maker != peer.uid).then_some(maker), ..peer }
    }

    /// Who the peer is, with its namespaces, and where it comes from. What cannot be seen is none
    /// of ours; nobody, if the process has ended.
    pub(super) fn look(&self, socket: &Socket, peer: Peer) -> Option<Who> {
        let mut unknown =
            Who { peer: Peer { namespaces: Namespaces::Own, ..peer }, ..Who::default() };
        let process = match process(socket, peer) {
            PeerProcess::Held(process) => process,
            PeerProcess::Gone => return None,
            PeerProcess::Untold => return Some(unknown),
        };
        if peer.pid == 0 || !self.proc_is_ours {
            unknown.process = Some(Arc::new(process));
            return Some(unknown);
        }
        let read = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", peer.pid));
        let (status, uid_map) = (read("status"), read("uid_map"));
        let pid_namespace =
            fs::metadata(format!("/proc/{}/ns/pid", peer.pid)).map_or(0, |found| found.ino());
        let group = read("cgroup").ok().and_then(|text| ControlGroup::parse(&text));
        // Needs the right to look into other users' processes, which a daemon with few rights has
        // not.
        let user_namespace = File::open(format!("/proc/{}/ns/user", peer.pid)).ok();
        if has_ended(&process) {
            return None;
        }
        let maker = user_namespace
            .zip(self.user_namespace.as_ref())
            .and_then(|(namespace, home)| outermost_owner(namespace, home).ok().flatten());
        let peer = match maker {
            Some(maker) => self.accountable_by_namespace(peer, maker),
            None => peer,
        };
        let ours = status.is_ok_and(|status| !is_in_nested_pid_namespace(&status))
            && uid_map.is_ok_and(|map| is_same_uid_map(&map, &self.uid_map));
        let namespaces = if ours { Namespaces::Shared } else { Namespaces::Own };
        let owner = |at: &std::path::Path| fs::metadata(at).ok().map(|found| found.uid());
        let bounding = group.as_ref().map(|group| group.bounding(&self.trusted, owner).to_owned());
        let origin =
            Origin { control_group: group.map(|group| group.path), bounding_group: bounding };
        Some(Who {
            peer: Peer { namespaces, ..peer },
            origin,
            pid_namespace,
            process: Some(Arc::new(process)),
            entrance: None,
        })
    }
}

/// The peer's process. Where the kernel does not tell, whoever has its number now and is its
/// user's.
fn process(socket: &Socket, peer: Peer) -> PeerProcess {
    let told = link::peer::process(socket.as_fd());
    let (PeerProcess::Untold, Some(pid)) =
        (&told, i32::try_from(peer.pid).ok().and_then(Pid::from_raw))
    else {
        return told;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return PeerProcess::Gone };
    match fs::metadata(format!("/proc/{}", peer.pid)).map(|found| found.uid()) {
        Ok(uid) if uid == peer.uid && !has_ended(&process) => PeerProcess::Held(process),
        _ => PeerProcess::Gone,
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_at_home() {
        let (one, other) = Socket::pair().unwrap();
        let us = Home::new().look(&one, other.peer().unwrap()).unwrap();
        assert_eq!(us.peer.namespaces, Namespaces::Shared);
        assert!(us.origin.control_group.is_some_and(|group| group.starts_with('/')));
        assert!(us.process.is_some() && us.pid_namespace != 0);
        let nobody = Home::new().look(&one, Peer { pid: 0, ..us.peer }).unwrap();
        assert_eq!(nobody.peer.namespaces, Namespaces::Own);
        assert_eq!(nobody.origin, Origin::default());
    }

    #[test]
    fn nobody_counts_for_root_and_subordinate_ids_for_their_user() {
        let subuid = "alice:100000:10\nself:200000:10\n";
        let own = rustix::process::geteuid().as_raw();
        let passwd = format!("alice:x:1000:\nself:x:{own}:\n");
        let mut home = Home::new();
        home.accounts = Accounts::of(subuid, &passwd);
        let peer = |uid| Peer { pid: 1, uid, ..Peer::default() };
        let by_id = |uid| home.accountable_by_id(peer(uid)).accountable();
        assert_eq!([100_003, 1000, 200_003, 7, 0].map(by_id), [1000, 1000, 200_003, 7, 0]);
        let by_maker = |uid, maker| home.accountable_by_namespace(peer(uid), maker).accountable();
        assert_eq!(by_maker(300_000, 1001), 1001);
        assert_eq!(by_maker(1001, 1001), 1001);
        assert_eq!(by_maker(300_000, 100_003), 1000, "in a namespace within one");
        // Root's containers, also where it has the ids from a user's.
        assert_eq!([by_maker(300_000, 0), by_maker(100_003, 0)], [300_000, 100_003]);
        assert_eq!([by_maker(300_000, own), by_maker(own, 1001)], [300_000, own]);
    }
}
