//! What files of the kernel say of where a process comes from: `/proc/PID/status`, `uid_map`,
//! `cgroup` (proc(5), user_namespaces(7), cgroups(7)). [`crate::daemon`] reads them; a process's
//! own word counts nowhere.

use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// The user that stands for all whom a user namespace does not map: `/proc/sys/kernel/overflowuid`,
/// unless somebody changed that.
const OVERFLOW_UID: u32 = 65534;

/// A control group of one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    /// From the hierarchy's root; begins with `/`.
    pub path: String,
    /// Directories at which the hierarchy may be mounted.
    mounts: Vec<PathBuf>,
}

impl ControlGroup {
    /// The group of a process with this `/proc/PID/cgroup`: the unified hierarchy's, or, where that
    /// is not in use, the first that is not the root of its hierarchy.
    pub fn parse(text: &str) -> Option<Self> {
        let groups: Vec<(bool, Self)> = text.lines().filter_map(Self::parse_line).collect();
        let below_root = |group: &&(bool, Self)| group.1.path != "/";
        let unified = groups.iter().find(|(unified, _)| *unified);
        let chosen = unified
            .filter(below_root)
            .or_else(|| groups.iter().find(below_root))
            .or(unified)
            .or_else(|| groups.first());
        chosen.map(|(_, group)| group.clone())
    }

    /// `NUMBER:CONTROLLERS:PATH`; the unified hierarchy has number 0 and names no controllers.
    fn parse_line(line: &str) -> Option<(bool, Self)> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if !path.starts_with('/') {
            return None;
        }
        let unified = number == "0" && controllers.is_empty();
        let mount = Path::new(MOUNT);
        let mounts = if unified {
            // Beside older hierarchies it has a directory of its own.
            vec![mount.join("unified"), mount.to_owned()]
        } else {
            let named = controllers.strip_prefix("name=").unwrap_or(controllers);
            vec![mount.join(named)]
        };
        Some((unified, Self { path: path.to_owned(), mounts }))
    }

    /// The lowest group, from this one up, that a process in it cannot leave by its own power.
    /// Whoever owns a group may move processes among those below it, so only groups of trusted
    /// users bind; `owner` tells the user of a directory.
    pub fn bounding(&self, trusted: &[u32], owner: impl Fn(&Path) -> Option<u32>) -> &str {
        let path = self.path.as_str();
        // As seen from the reader's own group, which is no place in the mounted tree.
        if path.split('/').any(|part| part == "..") {
            return path;
        }
        let ends = path.char_indices().skip(1).filter(|(_, c)| *c == '/').map(|(at, _)| at);
        let from_the_top = ends.chain([path.len()]).map(|end| &path[..end]);
        let is_free = |group: &&str| {
            let directories = self.mounts.iter().map(|mount| mount.join(&group[1..]));
            directories
                .filter_map(|at| owner(&at))
                .next()
                .is_some_and(|uid| !trusted.contains(&uid))
        };
        from_the_top.into_iter().find(is_free).unwrap_or(path)
    }
}

/// Whether a process with this `/proc/PID/status` is in a PID namespace below the reader's.
pub fn is_in_nested_pid_namespace(status: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    ids.is_some_and(|ids| ids.split_whitespace().count() > 1)
}

/// Whether two `uid_map`s are of user namespaces in which the same numbers are the same users.
pub fn is_same_uid_map(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// Whether a process with this `uid_map`, told a user by the kernel, knows who that is: all users
/// whom its namespace does not map have one number.
pub fn can_tell_user(own_uid_map: &str, uid: u32) -> bool {
    const ALL: [&str; 3] = ["0", "0", "4294967295"];
    uid != OVERFLOW_UID || own_uid_map.split_whitespace().eq(ALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Option<String> {
        ControlGroup::parse(text).map(|group| group.path)
    }

    #[test]
    fn the_unified_hierarchy_names_the_group_where_it_is_in_use() {
        let mixed = "12:cpu:/old\n0::/user.slice/job:1\n";
        assert_eq!(path(mixed).as_deref(), Some("/user.slice/job:1"));
        assert_eq!(path("0::/\n").as_deref(), Some("/"));
        let hybrid = "9:name=systemd:/\n4:memory:/docker/x\n1:cpu:/docker/x\n0::/\n";
        assert_eq!(path(hybrid).as_deref(), Some("/docker/x"));
        assert_eq!(path("3:memory:/docker/x\n").as_deref(), Some("/docker/x"));
        assert_eq!(path("3:memory:/\n2:cpu:/\n").as_deref(), Some("/"));
        for nothing in ["", "0::\n", "nonsense", "0:"] {
            assert_eq!(path(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn who_owns_a_group_is_not_bound_by_those_below() {
        let owners = |owned: &'static [(&str, u32)]| {
            move |at: &Path| {
                let at = at.strip_prefix(MOUNT).ok()?;
                owned.iter().find(|(group, _)| Path::new(group) == at).map(|(_, uid)| *uid)
            }
        };
        let group = ControlGroup::parse("0::/user/1000/box").unwrap();
        let bound = |owned| group.bounding(&[0], owners(owned)).to_owned();
        const ROOTLESS: &[(&str, u32)] =
            &[("user", 0), ("user/1000", 1000), ("user/1000/box", 1000)];
        const ROOT: &[(&str, u32)] = &[("user", 0), ("user/1000", 0), ("user/1000/box", 0)];
        const LEAF: &[(&str, u32)] = &[("user", 0), ("user/1000", 0), ("user/1000/box", 7)];
        const GAP: &[(&str, u32)] = &[("user", 5), ("user/1000", 0), ("user/1000/box", 7)];
        assert_eq!(bound(ROOTLESS), "/user/1000");
        assert_eq!(bound(ROOT), "/user/1000/box");
        assert_eq!(bound(LEAF), "/user/1000/box");
        assert_eq!(bound(GAP), "/user");
        assert_eq!(bound(&[]), "/user/1000/box", "nothing is mounted");
        // The user's own daemon takes its user's groups as they are.
        assert_eq!(group.bounding(&[0, 1000], owners(ROOTLESS)), "/user/1000/box");
        let elsewhere = ControlGroup::parse("0::/../box").unwrap();
        assert_eq!(elsewhere.bounding(&[0], |_| Some(7)), "/../box");
        let root = ControlGroup::parse("0::/").unwrap();
        assert_eq!(root.bounding(&[0], |_| Some(0)), "/");
    }

    #[test]
    fn namespaces_are_told_apart() {
        assert!(!is_in_nested_pid_namespace("Name:\ta\nNSpid:\t12\n"));
        assert!(is_in_nested_pid_namespace("Name:\ta\nNSpid:\t12\t1\nNSsid:\t1\n"));
        assert!(!is_in_nested_pid_namespace("Name:\ta\n"));
        let whole = "         0          0 4294967295\n";
        assert!(is_same_uid_map(whole, "0 0 4294967295"));
        assert!(!is_same_uid_map(whole, "0 1000 1"));
        assert!(can_tell_user(whole, OVERFLOW_UID) && can_tell_user("0 1000 1", 0));
        assert!(!can_tell_user("0 1000 1\n1 100000 65536", OVERFLOW_UID));
    }
}
