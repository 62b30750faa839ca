//! Sockets of groups: whoever comes in by one is of its group, whatever else the process says of
//! itself.
//!
//! The daemon's own socket believes a client its group. A container is given a directory with a
//! socket that was opened for it alone instead; it reaches no other, so that what holds for the
//! container does not depend on variables that its programs can change. A front end ([`super::ui`])
//! asks for such sockets; the daemon tells the server of each client how it came in
//! ([`Admission`]).

use serde::{Deserialize, Serialize};
use std::path::Path;

use super::attach::RequestedLimits;
use super::shares::{MOST_WEIGHT, NameError, check_name};
use crate::{is_printable, printable_prefix};

/// Sockets of groups of one daemon, at most.
pub const MAX_GROUP_SOCKETS: usize = 1024;
/// Longest path of a directory for a socket, in bytes: the kernel takes 107 for the socket itself.
pub const MAX_DIRECTORY_BYTES: usize = 107 - 1 - super::DAEMON_SOCKET.len();
/// Longest name of a pod, its namespace or its container: as Kubernetes has it.
const MAX_HOLDER_BYTES: usize = 253;
/// Devices that one socket can name, at most.
const MAX_DEVICES: usize = 64;

/// A socket in a directory of its own, named as the daemon's, for the clients of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSocket {
    /// Where; made if need be. What `CUDA_MPS_PIPE_DIRECTORY` is for those who use it.
    pub directory: String,
    /// Their group, whose limits they share. One that ends in `*` stands for many, as where limits
    /// are set: the clients of each control group are one, named by what is before the `*` and the
    /// control group.
    pub group: String,
    /// UUIDs of the devices that they may use (`GPU-...`); empty: all.
    pub devices: Vec<String>,
    /// With whom they share executors.
    pub domain: SocketDomain,
    /// The weight of each; absent: 1.
    pub weight: Option<u32>,
}

/// With whom the clients of a group's socket share executors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketDomain {
    /// With all clients of the server that nothing sets apart.
    Server,
    /// With clients of other such sockets that are the same user's.
    #[default]
    User,
    /// With clients of their group.
    Group,
}

/// How a client came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admission {
    /// See [`GroupSocket::group`].
    pub group: String,
    /// See [`GroupSocket::devices`].
    pub devices: Vec<String>,
    /// See [`GroupSocket::domain`].
    pub domain: SocketDomain,
}

/// Which container has a group, by Kubernetes' names. It changes nothing but what metrics say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHolder {
    /// The group: one of a socket that is open.
    pub group: String,
    /// The namespace of the container's pod.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The container in it.
    pub container: String,
}

impl GroupHolder {
    /// Checks what a front end says.
    ///
    /// # Errors
    /// [`GroupSocketError::Holder`].
    pub fn check(&self) -> Result<(), GroupSocketError> {
        let names = [&self.namespace, &self.pod, &self.container];
        let is_name = |name: &str| {
            !name.is_empty() && name.len() <= MAX_HOLDER_BYTES && name.chars().all(is_printable)
        };
        match names.into_iter().find(|name| !is_name(name)) {
            Some(wrong) => Err(GroupSocketError::Holder(printable_prefix(wrong, 128))),
            None => Ok(()),
        }
    }
}

/// Why a socket cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupSocketError {
    /// The directory is not absolute, or too long.
    #[error(
        "`{0}` cannot hold a socket: give an absolute path of at most {MAX_DIRECTORY_BYTES} bytes"
    )]
    Directory(String),
    /// The group's name.
    #[error(transparent)]
    Group(#[from] NameError),
    /// The weight.
    #[error("a weight of {0} is none: give 1 to {MOST_WEIGHT}")]
    Weight(u32),
    /// Not visible.
    #[error(
        "the daemon does not see the control group of this process: start the daemon in the host's PID namespace, with /proc mounted"
    )]
    Unknown,
    /// A name of a holder.
    #[error("`{0}` is no name of a pod: give 1 to {MAX_HOLDER_BYTES} printable bytes")]
    Holder(String),
    /// Too many devices.
    #[error("{0} devices are too many: name at most {MAX_DEVICES}")]
    Devices(usize),
}

impl GroupSocket {
    /// Checks what a front end asks for.
    ///
    /// # Errors
    /// [`GroupSocketError`].
    pub fn check(&self) -> Result<(), GroupSocketError> {
        let directory = Path::new(&self.directory);
        if !directory.is_absolute()
            || self.directory.len() > MAX_DIRECTORY_BYTES
            || !self.directory.chars().all(is_printable)
        {
            let shown = printable_prefix(&self.directory, 128);
            return Err(GroupSocketError::Directory(shown));
        }
        check_name(&self.group)?;
        if let Some(weight) = self.weight.filter(|weight| !(1..=MOST_WEIGHT).contains(weight)) {
            return Err(GroupSocketError::Weight(weight));
        }
        if self.devices.len() > MAX_DEVICES {
            return Err(GroupSocketError::Devices(self.devices.len()));
        }
        Ok(())
    }

    /// How a client comes in that is in this control group, as far as anybody knows, and cannot
    /// leave it.
    ///
    /// # Errors
    /// [`GroupSocketError::Unknown`] and what makes its name no group's, where groups go by control
    /// groups.
    pub fn admission(&self, control_group: Option<&str>) -> Result<Admission, GroupSocketError> {
        let group = match self.group.strip_suffix('*') {
            None => self.group.clone(),
            Some(prefix) => {
                let group = control_group.ok_or(GroupSocketError::Unknown)?;
                format!("{prefix}{group}")
            }
        };
        // Who could make a control group of such a name would have no limits.
        check_name(&group)?;
        Ok(Admission { group, devices: self.devices.clone(), domain: self.domain })
    }

    /// What such a client asks for becomes what it may ask for: less than its group has, and
    /// nothing at the cost of other groups.
    pub fn restrict(&self, limits: &mut RequestedLimits) {
        limits.weight = self.weight.map(|weight| weight.to_string());
        // The group is in the admission; the others are for the administrator's own clients.
        limits.group = None;
        limits.latency = None;
        limits.isolation = None;
        limits.reservation = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> GroupSocket {
        GroupSocket {
            directory: "/run/openmps/pods/1".into(),
            group: "pod-1".into(),
            devices: Vec::new(),
            domain: SocketDomain::User,
            weight: Some(25),
        }
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        assert_eq!(socket().check(), Ok(()));
        let long = format!("/{}", "x".repeat(MAX_DIRECTORY_BYTES));
        for directory in ["relative", "", "/a\nb", &long] {
            let wrong = GroupSocket { directory: directory.into(), ..socket() };
            assert!(matches!(wrong.check(), Err(GroupSocketError::Directory(_))), "{directory:?}");
        }
        let wrong = GroupSocket { group: "a b".into(), ..socket() };
        assert!(matches!(wrong.check(), Err(GroupSocketError::Group(_))));
        for weight in [0, 1001] {
            let wrong = GroupSocket { weight: Some(weight), ..socket() };
            assert_eq!(wrong.check(), Err(GroupSocketError::Weight(weight)));
        }
    }

    #[test]
    fn one_socket_can_serve_many_groups() {
        let group =
            |socket: &GroupSocket, of| socket.admission(of).map(|admission| admission.group);
        assert_eq!(group(&socket(), None).unwrap(), "pod-1");
        let each = GroupSocket { group: "quarter@*".into(), ..socket() };
        assert_eq!(group(&each, Some("/docker/a")).unwrap(), "quarter@/docker/a");
        assert_eq!(group(&each, None), Err(GroupSocketError::Unknown));
        assert!(group(&each, Some("/docker/a b")).is_err());
    }

    #[test]
    fn a_client_cannot_ask_for_what_is_others() {
        let some = |text: &str| Some(text.to_owned());
        let mut limits = RequestedLimits {
            active_thread_percentage: some("10"),
            weight: some("1000"),
            latency: some("1"),
            isolation: some("mine"),
            group: some("other"),
            reservation: some("night"),
            ..Default::default()
        };
        socket().restrict(&mut limits);
        assert_eq!((limits.weight, limits.active_thread_percentage), (some("25"), some("10")));
        assert_eq!((limits.latency, limits.isolation), (None, None));
        assert_eq!((limits.group, limits.reservation), (None, None));
    }
}
