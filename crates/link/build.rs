//! Makes the version of the protocol of what the protocol is: nobody need think of raising it.
//!
//! It is a digest of the sources that say what goes between processes, without comments and tests.
//! Front ends and daemons talk to each other only if these are the same. Client libraries have
//! versions that are raised by hand (`src/wire/version.rs`).

use std::fs;
use std::path::{Path, PathBuf};

/// Messages, and what lies in memory that processes share.
const SOURCES: [&str; 9] = [
    "src/wire",
    "src/call.rs",
    "src/completion.rs",
    "src/doorbell.rs",
    "src/pages.rs",
    "src/pieces.rs",
    "src/ring.rs",
    "src/session_memory.rs",
    "src/trace",
];

fn main() {
    let mut files = Vec::new();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        collect(Path::new(source), &mut files);
    }
    files.sort();
    let mut digest = Digest::new();
    for file in files {
        digest.add(file.to_string_lossy().as_bytes());
        let text = fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        // A file ends with its tests. What stands before them counts, also if it is for tests.
        let mut lines = text.lines().collect::<Vec<_>>();
        let tests = lines.windows(2).position(|two| two == ["#[cfg(test)]", "mod tests {"]);
        lines.truncate(tests.unwrap_or(lines.len()));
        let code = lines.into_iter().map(str::trim);
        for line in code.filter(|line| !line.is_empty() && !line.starts_with("//")) {
            digest.add(line.as_bytes());
        }
    }
    println!("cargo::rustc-env=WIRE_DIGEST={}", digest.version());
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() {
        return files.push(path.to_owned());
    }
    let entries = fs::read_dir(path)
        .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    for entry in entries.flatten() {
        if !["tests.rs", "described.rs"].contains(&&*entry.file_name().to_string_lossy()) {
            collect(&entry.path(), files);
        }
    }
}

/// FNV-1a. Nobody wants to find two protocols with the same version.
struct Digest(u64);

impl Digest {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        // A zero byte between two parts: none has one.
        for &byte in bytes.iter().chain(&[0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn version(&self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}
