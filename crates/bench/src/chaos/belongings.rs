//! What a peer's processes hold: looked at before and after, the difference is a leak. Processes are found by the directory in their environment.

use super::tally::Leaks;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is held at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Belongings {
    processes: u64,
    descriptors: u64,
    /// Memory of the device that is free, where it was looked at.
    pub(super) free_device_bytes: u64,
}

impl Belongings {
    /// Of all processes whose environment names `directory` but those in `known`.
    pub(super) fn of(directory: &Path, known: &[u32]) -> Self {
        let mut found = Self::default();
        for pid in processes(directory).into_iter().filter(|pid| !known.contains(pid)) {
            found.processes += 1;
            let open = fs::read_dir(format!("/proc/{pid}/fd"));
            found.descriptors += open.map_or(0, |entries| entries.count() as u64);
        }
        found
    }

    /// What there is more of than `before`.
    pub(super) fn since(&self, before: &Self) -> Leaks {
        Leaks {
            device_bytes: before.free_device_bytes.saturating_sub(self.free_device_bytes),
            descriptors: self.descriptors.saturating_sub(before.descriptors),
            processes: self.processes.saturating_sub(before.processes),
        }
    }
}

/// The processes whose environment names a pipe directory.
pub(super) fn processes(directory: &Path) -> Vec<u32> {
    let mark = [b"CUDA_MPS_PIPE_DIRECTORY=", directory.as_os_str().as_bytes()].concat();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // What has ended meanwhile, or is another user's, cannot be read and is not ours.
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == mark)
    })
    .collect()
}
