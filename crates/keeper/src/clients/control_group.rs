//! The memory limit of a client's control group, where it can be seen.

use std::fs;
use std::path::Path;

/// Where the kernel shows control groups.
const ROOT: &str = "/sys/fs/cgroup";

/// The least `memory.max` of a process's control group and those above it; `None`: there is none,
/// or it cannot be seen.
pub(crate) fn memory_limit_bytes(pid: u32) -> Option<u64> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    // Of the unified hierarchy, whose number is 0.
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    least_limit(Path::new(ROOT), group)
}

fn least_limit(root: &Path, group: &str) -> Option<u64> {
    // From another namespace a group can be outside of what is seen here.
    if group.split('/').any(|part| part == "..") {
        return None;
    }
    let limits = Path::new(group).ancestors().filter_map(|above| {
        let text = fs::read_to_string(root.join(above).join("memory.max")).ok()?;
        text.trim().parse::<u64>().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_above_a_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let make = |group: &str, limit: &str| {
            fs::create_dir_all(root.path().join(group)).unwrap();
            fs::write(root.path().join(group).join("memory.max"), limit).unwrap();
        };
        make("job/step", "max\n");
        assert_eq!(least_limit(root.path(), "job/step"), None);
        make("job", "4096\n");
        make("job/other", "8192\n");
        assert_eq!(least_limit(root.path(), "job/step"), Some(4096));
        assert_eq!(least_limit(root.path(), "job/other"), Some(4096));
        make("job/other", "1024\n");
        assert_eq!(least_limit(root.path(), "job/other"), Some(1024));
        assert_eq!(least_limit(root.path(), "../job"), None);
        assert_eq!(least_limit(root.path(), ""), None);
    }
}
