//! What a peer's processes hold: looked at before and after, the difference is a leak. Processes
//! are found by a mark in their environment.

use super::tally::Leaks;
use crate::peer::MARK;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A driver takes the device's memory for a context in pages of so many bytes, now one more, now
/// one less, by what it was asked for meanwhile: on an H200 2 MiB more after 111 executors. So one
/// page of each executor that is there is no leak; one of each that has gone is.
const DRIVER_PAGE_BYTES: u64 = 2 << 20;
/// As [`role`] calls them.
const EXECUTORS: &str = "openmps executor";

/// What is held at one moment. What it is held by goes by its role, since executors come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Belongings {
    roles: BTreeMap<String, Holding>,
    /// Memory of the device that is free, where it was looked at.
    pub(super) free_device_bytes: Option<u64>,
}

/// What the processes of one role hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Holding {
    processes: u64,
    /// Open files by what they are.
    descriptors: BTreeMap<String, u64>,
}

impl Holding {
    fn descriptor_count(&self) -> u64 {
        self.descriptors.values().sum()
    }
}

impl Belongings {
    /// Of all processes of a peer but those in `known`.
    pub(super) fn of(directory: &Path, known: &[u32]) -> Self {
        let mut found = Self::default();
        for pid in processes(directory).into_iter().filter(|pid| !known.contains(pid)) {
            // One that has ended meanwhile holds nothing.
            let Some(role) = role(pid) else { continue };
            let holding = found.roles.entry(role).or_default();
            holding.processes += 1;
            let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            for target in open.filter_map(|entry| fs::read_link(entry.path()).ok()) {
                *holding.descriptors.entry(kind_of_file(&target)).or_default() += 1;
            }
        }
        found
    }

    /// What there is more of than `before`. Less of one role does not make up for more of another.
    pub(super) fn since(&self, before: &Self) -> Leaks {
        let mut leaks = Leaks { device_bytes: self.taken_since(before), ..Leaks::default() };
        for (holding, known) in self.beside(before) {
            leaks.processes += holding.processes.saturating_sub(known.processes);
            let count = holding.descriptor_count();
            leaks.descriptors += count.saturating_sub(known.descriptor_count());
        }
        leaks
    }

    /// The same in words; empty: nothing.
    pub(super) fn named_since(&self, before: &Self) -> Vec<String> {
        let mut named = Vec::new();
        for (role, holding) in &self.roles {
            let known = before.roles.get(role).cloned().unwrap_or_default();
            if holding.processes > known.processes {
                named.push(format!("{} more of {role}", holding.processes - known.processes));
            }
            let (now, then) = (holding.descriptor_count(), known.descriptor_count());
            if now > then {
                let more = holding.descriptors.iter().filter_map(|(kind, count)| {
                    let more = count.checked_sub(*known.descriptors.get(kind).unwrap_or(&0))?;
                    (more > 0).then(|| format!("{more} {kind}"))
                });
                let more: Vec<String> = more.collect();
                named.push(format!(
                    "{} more open files in {role} ({})",
                    now - then,
                    more.join(", ")
                ));
            }
        }
        let taken = self.taken_since(before);
        if taken > 0 {
            named.push(format!("{taken} B less of the device's memory are free"));
        }
        named
    }

    fn taken_since(&self, before: &Self) -> u64 {
        let both = before.free_device_bytes.zip(self.free_device_bytes);
        let taken = both.map_or(0, |(then, now)| then.saturating_sub(now));
        let executors = self.roles.get(EXECUTORS).map_or(0, |holding| holding.processes);
        if taken > executors * DRIVER_PAGE_BYTES { taken } else { 0 }
    }

    fn beside<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a Holding, Holding)> {
        let known = |role: &String| before.roles.get(role).cloned().unwrap_or_default();
        self.roles.iter().map(move |(role, holding)| (holding, known(role)))
    }
}

impl Display for Belongings {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        for (role, holding) in &self.roles {
            let (processes, descriptors) = (holding.processes, holding.descriptor_count());
            write!(formatter, "{role} x{processes} with {descriptors} open files, ")?;
        }
        match self.free_device_bytes {
            Some(bytes) => write!(formatter, "{bytes} B of the device free"),
            None => write!(formatter, "the device's memory unknown"),
        }
    }
}

/// What a process is: its program and, of ours, what it is told to be.
pub(super) fn role(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let program = Path::new(std::ffi::OsStr::from_bytes(words.next()?)).file_name()?;
    let program = program.to_string_lossy().into_owned();
    let told = words.next().map(String::from_utf8_lossy).filter(|word| !word.starts_with('-'));
    Some(match told {
        Some(told) if program == "openmps" => format!("{program} {told}"),
        _ => program,
    })
}

/// `socket` for `socket:[4711]`, `memfd:ring` for `/memfd:ring (deleted)`; paths without numbers of
/// processes.
fn kind_of_file(target: &Path) -> String {
    let target = target.to_string_lossy();
    if let Some((kind, _)) = target.split_once(":[") {
        return kind.to_owned();
    }
    let path = target.trim_end_matches(" (deleted)").trim_start_matches("/memfd:");
    let mut words = path.split('/').map(|word| match word.parse::<u64>() {
        Ok(_) => "N",
        Err(_) => word,
    });
    let mut kind = words.next().unwrap_or_default().to_owned();
    words.for_each(|word| {
        kind.push('/');
        kind.push_str(word);
    });
    kind
}

/// The processes of the peer in a directory, executors and clients included.
pub(super) fn processes(directory: &Path) -> Vec<u32> {
    let mark = [MARK.as_bytes(), b"=", directory.as_os_str().as_bytes()].concat();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // What has ended meanwhile, or is another user's, cannot be read and is not ours.
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(role: &str, processes: u64, sockets: u64, files: u64) -> (String, Holding) {
        let descriptors = [("socket".to_owned(), sockets), ("ring".to_owned(), files)].into();
        (role.to_owned(), Holding { processes, descriptors })
    }

    #[test]
    fn a_leak_is_named_and_nothing_makes_up_for_it() {
        let before = Belongings {
            roles: [holding("server", 1, 4, 9), holding("executor", 2, 8, 2)].into(),
            free_device_bytes: Some(1000),
        };
        assert_eq!(before.since(&before), Leaks::default());
        assert!(before.named_since(&before).is_empty());
        let after = Belongings {
            roles: [holding("server", 1, 4, 12), holding("executor", 1, 2, 2)].into(),
            free_device_bytes: Some(900),
        };
        let leaks = Leaks { device_bytes: 100, descriptors: 3, processes: 0 };
        assert_eq!(after.since(&before), leaks);
        let named = after.named_since(&before).join("; ");
        assert!(named.contains("3 more open files in server (3 ring)"), "{named}");
        assert!(named.contains("100 B"), "{named}");
        // Less is no leak, in memory neither.
        assert_eq!(before.since(&after).device_bytes, 0);
        let page_less = |executors: u64, pages: u64| Belongings {
            roles: [holding(EXECUTORS, executors, 0, 0)].into(),
            free_device_bytes: Some((10 - pages) * DRIVER_PAGE_BYTES),
        };
        assert_eq!(page_less(2, 2).since(&page_less(2, 0)).device_bytes, 0, "the driver's own");
        let leaked = page_less(2, 3).since(&page_less(2, 0)).device_bytes;
        assert_eq!(leaked, 3 * DRIVER_PAGE_BYTES);
        let unknown = Belongings { free_device_bytes: None, ..after };
        assert_eq!(unknown.since(&before).device_bytes, 0);
    }

    #[test]
    fn files_are_counted_by_kind() {
        for (target, kind) in [
            ("socket:[4711]", "socket"),
            ("/memfd:openmps-ring (deleted)", "openmps-ring"),
            ("/proc/17/environ", "/proc/N/environ"),
            ("/dev/nvidia0", "/dev/nvidia0"),
            ("anon_inode:[eventfd]", "anon_inode"),
        ] {
            assert_eq!(kind_of_file(Path::new(target)), kind);
        }
    }

    #[test]
    fn a_process_is_known_by_its_program() {
        assert!(role(std::process::id()).is_some());
        assert_eq!(role(u32::MAX), None);
    }
}
