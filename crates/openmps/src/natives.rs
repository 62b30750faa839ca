//! Processes that have our library and are no clients: their calls go to the native driver, where
//! no limit holds and nothing is counted.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use control::directories::Directories;
use control::frontend::Frontend;
use serde::Serialize;

use crate::installation::library_directory;

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Native {
    /// Its process id.
    pub(crate) pid: u32,
    /// User id.
    pub(crate) uid: u32,
    /// Its command line.
    pub(crate) command: String,
}

/// Those that this user may look into, root into all. Where no daemon answers, nobody is a client.
///
/// # Errors
/// No libraries; no /proc.
pub(crate) fn natives(directories: &Directories) -> anyhow::Result<Vec<Native>> {
    let library = library_directory()?.join("libcuda.so.1");
    let library = library.canonicalize().unwrap_or(library);
    let mapped = with_library(Path::new("/proc"), &library)?;
    // After the look at them: who attaches meanwhile is a client.
    let state = Frontend::connect(directories).ok().and_then(|mut daemon| daemon.state().ok());
    let servers = state.map(|state| state.servers).unwrap_or_default();
    let clients: BTreeSet<u32> = servers
        .iter()
        .flat_map(|server| &server.snapshot.clients)
        .map(|client| client.pid)
        .collect();
    Ok(mapped.into_iter().filter(|native| !clients.contains(&native.pid)).collect())
}

fn with_library(processes: &Path, library: &Path) -> anyhow::Result<Vec<Native>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(processes)?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        // What has ended meanwhile, or is another user's, is passed over.
        let Some(pid) = pid else { continue };
        let Ok(maps) = fs::read_to_string(entry.path().join("maps")) else { continue };
        if !maps.lines().any(|line| is_of(line, library)) {
            continue;
        }
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let uid = entry.metadata().map_or(0, |status| status.uid());
        found.push(Native { pid, uid, command: link::printable(command.trim_end()) });
    }
    found.sort_by_key(|native| native.pid);
    Ok(found)
}

/// Whether a line of `/proc/PID/maps` is of this file, which may have been replaced since.
fn is_of(line: &str, library: &Path) -> bool {
    let path = line.splitn(6, ' ').nth(5).unwrap_or_default().trim_start();
    Path::new(path.strip_suffix(" (deleted)").unwrap_or(path)) == library
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_with_the_library_are_found() {
        let place = tempfile::tempdir().unwrap();
        let process = |pid: &str, maps: &str| {
            let directory = place.path().join(pid);
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("maps"), maps).unwrap();
            fs::write(directory.join("cmdline"), "./a\0b\u{1b}\0").unwrap();
        };
        let line =
            |path: &str| format!("7f00-7f01 r-xp 0000 08:01 77                         {path}\n");
        process("12", &(line("/usr/lib/libc.so") + &line("/o p/libcuda.so.1")));
        process("9", &line("/o p/libcuda.so.1 (deleted)"));
        process("7", &line("/elsewhere/libcuda.so.1"));
        process("self", &line("/o p/libcuda.so.1"));
        let found = with_library(place.path(), Path::new("/o p/libcuda.so.1")).unwrap();
        let pids: Vec<u32> = found.iter().map(|native| native.pid).collect();
        assert_eq!((pids, found[0].command.as_str()), (vec![9, 12], "./a b"));
    }
}
