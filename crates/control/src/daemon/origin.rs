//! Where a peer comes from: whose namespaces it lives in, its control group. The files are the kernel's; what they mean is
//! [`crate::core::origin`].
//!
//! A process id can be another process's by the time that its files are read. So the process is held by a descriptor first (the one that the
//! socket gives, on kernels from 6.5 on), and what was read counts only if it still lives afterwards.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use link::peer::PeerProcess;
use link::socket::Connection as Socket;
use link::wire::daemon::{Namespaces, Origin, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

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
}

impl Home {
    pub(super) fn new() -> Self {
        let own = std::process::id().to_string();
        let shown = fs::read_link("/proc/self").ok();
        Self {
            proc_is_ours: shown.is_some_and(|shown| shown.as_os_str() == own.as_str()),
            uid_map: fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
            trusted: vec![0, rustix::process::geteuid().as_raw()],
        }
    }

    /// Whether a user's number says who it is.
    pub(super) fn can_tell(&self, uid: u32) -> bool {
        can_tell_user(&self.uid_map, uid)
    }

    /// Whether a user of this number, outside of containers, may command the daemon.
    pub(super) fn trusts(&self, uid: u32) -> bool {
        self.trusted.contains(&uid)
    }

    /// Who the peer is, with its namespaces, and where it comes from. What cannot be seen is none of ours; nobody, if the process has been reaped.
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
        if has_ended(&process) {
            unknown.process = Some(Arc::new(process));
            return Some(unknown);
        }
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

/// The peer's process. Where the kernel does not tell, whoever has its number now and is its user's.
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
}
