//! Where a peer comes from: whose namespaces it lives in, its control group. The files are the kernel's; what they mean is
//! [`crate::core::origin`].
//!
//! A process id can be another process's by the time that its files are read. So the process is held by a descriptor first (the one that the
//! socket gives, on kernels from 6.5 on), and what was read counts only if it still lives afterwards.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use link::socket::Connection as Socket;
use link::wire::daemon::{Namespaces, Origin, Peer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

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

    /// The peer with its namespaces, and where it comes from. What cannot be seen is none of ours.
    pub(super) fn look(&self, socket: &Socket, peer: Peer) -> (Peer, Origin) {
        let unknown = (Peer { namespaces: Namespaces::Own, ..peer }, Origin::default());
        if peer.pid == 0 || !self.proc_is_ours {
            return unknown;
        }
        let Some(process) = process(socket, peer.pid) else { return unknown };
        let read = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", peer.pid));
        let (status, uid_map) = (read("status"), read("uid_map"));
        let group = read("cgroup").ok().and_then(|text| ControlGroup::parse(&text));
        if has_ended(&process) {
            return unknown;
        }
        let ours = status.is_ok_and(|status| !is_in_nested_pid_namespace(&status))
            && uid_map.is_ok_and(|map| is_same_uid_map(&map, &self.uid_map));
        let namespaces = if ours { Namespaces::Shared } else { Namespaces::Own };
        let owner = |at: &std::path::Path| fs::metadata(at).ok().map(|found| found.uid());
        let bounding = group.as_ref().map(|group| group.bounding(&self.trusted, owner).to_owned());
        let origin =
            Origin { control_group: group.map(|group| group.path), bounding_group: bounding };
        (Peer { namespaces, ..peer }, origin)
    }
}

fn process(socket: &Socket, pid: u32) -> Option<OwnedFd> {
    link::peer::process(socket.as_fd()).or_else(|| {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    })
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
        let (peer, origin) = Home::new().look(&one, other.peer().unwrap());
        assert_eq!(peer.namespaces, Namespaces::Shared);
        assert!(origin.control_group.is_some_and(|group| group.starts_with('/')));
        let nobody = Peer { pid: 0, ..peer };
        let (nobody, origin) = Home::new().look(&one, nobody);
        assert_eq!((nobody.namespaces, origin), (Namespaces::Own, Origin::default()));
    }
}
