//! Shares that an administrator changes while clients run: of one client, a group or a server; and
//! SMs reserved for some.
//!
//! A front end asks the daemon ([`super::ui::UiRequest`]), which tells the servers concerned
//! ([`ServerChange`]); each answers with a [`ChangeReport`] once the change is in force, or when it
//! has waited for it long enough.

use crate::is_printable;
use serde::{Deserialize, Serialize};
pub use settings::{MOST_WEIGHT, Total};

/// Longest name of a group or a reservation, in bytes; a cgroup's path is a name.
pub const MAX_NAME_BYTES: usize = 512;
/// Groups with limits, at most.
pub const MAX_GROUPS: usize = 256;
/// Reservations, at most.
pub const MAX_RESERVATIONS: usize = 64;

/// Why a name cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It has no characters.
    #[error("a name must not be empty")]
    Empty,
    /// It has too many.
    #[error("a name of {0} bytes is too long: give at most {MAX_NAME_BYTES}")]
    TooLong(usize),
    /// It has one that separates names.
    #[error("`{0}` is no name: spaces, semicolons and control characters are not allowed")]
    Character(String),
    /// It cannot be a profile's.
    #[error(
        "`{0}` is no name of a profile: give up to {MAX_PROFILE_NAME_BYTES} letters, digits, `.`, `_` and `-`, letters or digits first and last, and not `{PROFILE_OF_ALL}`"
    )]
    Profile(String),
    /// It is the daemon's to give.
    #[error(
        "`{0}`: names that begin with `{PROFILE_GROUP_PREFIX}` are for clients of that profile's socket"
    )]
    Reserved(String),
}

/// Whether this can name a group or a reservation.
///
/// # Errors
/// [`NameError`].
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong(name.len()));
    }
    if name.chars().any(|c| c.is_whitespace() || !is_printable(c) || c == ';') {
        let shown = name.chars().map(|c| if is_printable(c) { c } else { '?' }).collect();
        return Err(NameError::Character(shown));
    }
    Ok(())
}

/// Whose share is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The client process of this id in the daemon's namespace.
    Client(u32),
    /// A group, with the clients that it has and will have.
    Group(String),
    /// All clients of the server of this process id, and those to come.
    Server(u32),
    /// All clients of this user, and those to come.
    User(u32),
}

/// How much device memory; a later one of the same device replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// The server's number of the device; absent: each device.
    pub device: Option<u32>,
    /// Absent: no limit.
    pub limit_bytes: Option<u64>,
}

/// The limit that a list of [`MemoryLimit`] sets on a device; the outer `None`: it says nothing.
pub fn memory_limit_of(limits: &[MemoryLimit], device: u32) -> Option<Option<u64>> {
    let of_device = limits.iter().rev().find(|limit| limit.device.is_none_or(|of| of == device));
    of_device.map(|limit| limit.limit_bytes)
}

/// What is to be another than it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NewLimits {
    /// Per cent of the SMs, 0 < x <= 100; absent: as it is.
    pub percentage: Option<f64>,
    /// Absent: as it is.
    pub memory: Option<MemoryLimit>,
    /// A client's share of a device that others want, too, is to theirs as their weights are, 1 to
    /// [`MOST_WEIGHT`]; absent: as it is.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// A change of running shares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitChange {
    /// Whose.
    pub target: Target,
    /// To what.
    pub limits: NewLimits,
}

/// What the clients of a group may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupLimits {
    /// The group's name. One that ends in `*` is for every group without limits of its own whose
    /// name begins so.
    pub name: String,
    /// Per cent of the SMs, the same SMs for all of its clients; absent: no limit.
    pub percentage: Option<f64>,
    /// Device memory that all of its clients have together.
    pub memory: Vec<MemoryLimit>,
    /// The weight of each of its clients, whatever they ask for; absent: what they ask for.
    #[serde(default)]
    pub weight: Option<u32>,
}

/// The limits of the group of this name: its own, else those of the longest pattern that fits.
pub fn limits_of_group<'a>(groups: &'a [GroupLimits], name: &str) -> Option<&'a GroupLimits> {
    let own = groups.iter().find(|group| group.name == name);
    let fits = |group: &&GroupLimits| {
        group.name.strip_suffix('*').is_some_and(|prefix| name.starts_with(prefix))
    };
    own.or_else(|| groups.iter().filter(fits).max_by_key(|group| group.name.len()))
}

/// Whether this can name a profile: it is a directory's name and a device's in a container device
/// specification (CDI), so it has up to 63 letters, digits, `.`, `_` and `-`, and begins and ends
/// with a letter or digit.
///
/// # Errors
/// [`NameError`].
pub fn check_profile_name(name: &str) -> Result<(), NameError> {
    check_name(name)?;
    let inner = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fine =
        name.chars().all(inner) && outer(name.chars().next()) && outer(name.chars().next_back());
    if !fine || name.len() > MAX_PROFILE_NAME_BYTES || name == PROFILE_OF_ALL {
        return Err(NameError::Profile(name.chars().take(MAX_PROFILE_NAME_BYTES).collect()));
    }
    Ok(())
}

/// Directory of the profiles' own directories, in the pipe directory.
pub const PROFILES_DIRECTORY: &str = "profiles";
/// What containers without a profile use: the daemon's own socket.
pub const PROFILE_OF_ALL: &str = "all";
/// Longest name of a profile.
pub const MAX_PROFILE_NAME_BYTES: usize = 63;
/// Profiles, at most: each is a listening socket.
pub const MAX_PROFILES: usize = 64;
/// Names of groups that only the daemon makes begin so.
pub const PROFILE_GROUP_PREFIX: &str = "profile:";

/// The group of the clients that came by a profile's socket from one control group; `*` for the
/// pattern of all of them.
pub fn profile_group(profile: &str, control_group: &str) -> String {
    format!("{PROFILE_GROUP_PREFIX}{profile}@{control_group}")
}

/// SMs of a device that only the clients of the reservation use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Its name.
    pub name: String,
    /// The server's number of the device.
    pub device: u32,
    /// How many; a device sets them apart in pairs.
    pub multiprocessors: u32,
}

/// Which of a server's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// All.
    All,
    /// The process of this id.
    Process(u32),
    /// Those of this user.
    User(u32),
}

/// What the daemon tells a server to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerChange {
    /// Limits of running clients.
    Clients {
        /// Whose.
        who: Who,
        /// To what.
        limits: NewLimits,
    },
    /// The limits of all groups; those that are not named have none.
    Groups(Vec<GroupLimits>),
    /// All reservations; those that are not named are given up.
    Reservations(Vec<Reservation>),
    /// Sessions are to go on on another device. Answered when they do, or when it is known that
    /// they do not.
    Move(DeviceMove),
    /// All drained devices: programs that start do not get to them.
    Drained(Vec<u32>),
}

/// Clients that are to go on on another device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMove {
    /// Which.
    pub whom: Moved,
    /// The server's number of the device; absent: each goes to one that can take it.
    pub to: Option<u32>,
}

/// Which clients are moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moved {
    /// The process of this id.
    Process(u32),
    /// Those of this group.
    Group(String),
    /// All that are on this device.
    Device(u32),
}

/// What came of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// Clients for which it is in force.
    pub clients: Vec<u32>,
    /// Clients for which it comes into force when kernels that run have ended, or memory is copied.
    pub waiting: Vec<u32>,
    /// What could not be done: what was wrong and what to do.
    pub refused: Vec<String>,
}

impl ChangeReport {
    /// Adds another server's.
    pub fn add(&mut self, other: ChangeReport) {
        self.clients.extend(other.clients);
        self.waiting.extend(other.waiting);
        self.refused.extend(other.refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        for name in ["a", "/kubepods.slice/x:y.scope", "tenant-*"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "a b", "a;b", "a\nb", "\u{7f}", "a\u{202e}b", "a\u{2028}"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name(&"x".repeat(MAX_NAME_BYTES + 1)).is_err());
    }

    #[test]
    fn profiles_are_directories_and_devices() {
        for name in ["a", "quarter", "a.b_c-d", "7", &"x".repeat(MAX_PROFILE_NAME_BYTES)] {
            assert_eq!(check_profile_name(name), Ok(()), "{name}");
        }
        let long = "x".repeat(MAX_PROFILE_NAME_BYTES + 1);
        for name in ["", ".", "..", "a/b", "-a", "a-", "a b", "ä", "all", long.as_str()] {
            assert!(check_profile_name(name).is_err(), "{name}");
        }
        let all = [GroupLimits { name: profile_group("half", "*"), ..Default::default() }];
        assert!(limits_of_group(&all, &profile_group("half", "/docker/a")).is_some());
        assert!(limits_of_group(&all, &profile_group("quarter", "/docker/a")).is_none());
    }

    #[test]
    fn the_last_limit_of_a_device_holds() {
        let limit = |device, limit_bytes| MemoryLimit { device, limit_bytes };
        let limits = [limit(None, Some(5)), limit(Some(1), Some(3)), limit(Some(2), None)];
        assert_eq!(memory_limit_of(&limits, 0), Some(Some(5)));
        assert_eq!(memory_limit_of(&limits, 1), Some(Some(3)));
        assert_eq!(memory_limit_of(&limits, 2), Some(None));
        assert_eq!(memory_limit_of(&limits[1..], 0), None);
    }

    #[test]
    fn a_groups_own_limits_come_before_patterns() {
        let named = |name: &str| GroupLimits { name: name.into(), ..Default::default() };
        let groups = [named("/jobs/*"), named("/jobs/a/*"), named("/jobs/a/1")];
        let found = |name| limits_of_group(&groups, name).map(|group| group.name.as_str());
        assert_eq!(found("/jobs/a/1"), Some("/jobs/a/1"));
        assert_eq!(found("/jobs/a/2"), Some("/jobs/a/*"));
        assert_eq!(found("/jobs/b"), Some("/jobs/*"));
        assert_eq!(found("/other"), None);
    }
}
