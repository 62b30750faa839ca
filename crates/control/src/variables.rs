//! Variables of the environment that look like settings and are none: mistyped, or of another
//! version. Commands and the daemon's log name them; the library in somebody's program says
//! nothing.

use crate::values::{Percentage, Priority, parse_limit_list};

/// All variables of ours that anything reads.
const OURS: &[&str] = &[
    "OPENMPS_ALLOCATION",
    "OPENMPS_BACKGROUND_START",
    "OPENMPS_BATCHING",
    "OPENMPS_CONFIG",
    "OPENMPS_CONTEXTS_PER_DEVICE",
    "OPENMPS_CUDA_TOOLCHAIN",
    "OPENMPS_DEBUGGABLE",
    "OPENMPS_DURING_FAULT",
    "OPENMPS_GROUP",
    "OPENMPS_GROUPS",
    "OPENMPS_GROUP_BY_CGROUP",
    "OPENMPS_GUARD",
    "OPENMPS_ISOLATE",
    "OPENMPS_ISOLATION",
    "OPENMPS_KILL_PATIENCE_MS",
    "OPENMPS_LANES",
    "OPENMPS_LATENCY",
    "OPENMPS_LATENCY_SMS",
    "OPENMPS_LIB_DIR",
    "OPENMPS_LOG",
    "OPENMPS_LONGEST_KERNEL_MS",
    "OPENMPS_MANAGED_FAULTS",
    "OPENMPS_MANAGED_SEQUENCES",
    "OPENMPS_MEMORY",
    "OPENMPS_MEMORY_LIMIT",
    "OPENMPS_MEMORY_POLICY",
    "OPENMPS_MEMORY_SPILL_LIMIT",
    "OPENMPS_MEMORY_TOTAL",
    "OPENMPS_MEMORY_TURN_MS",
    "OPENMPS_MEMORY_WAIT_MS",
    "OPENMPS_METRICS",
    "OPENMPS_NATIVE_DRIVER",
    "OPENMPS_PINNED_LIMIT",
    "OPENMPS_PREWARM",
    "OPENMPS_PROFILES",
    "OPENMPS_PROVISIONING",
    "OPENMPS_QUARANTINE",
    "OPENMPS_QUARANTINE_MS",
    "OPENMPS_RECORD_CALLS",
    "OPENMPS_REPEATABLE",
    "OPENMPS_RESERVATION",
    "OPENMPS_SAVED_ARRAYS_MIB",
    "OPENMPS_SECOND_CONTEXT",
    "OPENMPS_SLURM_VERSION",
    "OPENMPS_SM",
    "OPENMPS_SOFT_CLOCK",
    "OPENMPS_SOFT_COMPUTE_CAPABILITY",
    "OPENMPS_SOFT_COMPUTE_MODE",
    "OPENMPS_SOFT_DEVICES",
    "OPENMPS_SOFT_KERNEL_LIMIT_S",
    "OPENMPS_SOFT_LEVELS",
    "OPENMPS_SOFT_LOG",
    "OPENMPS_SOFT_MACHINE",
    "OPENMPS_SOFT_MEMCHECK",
    "OPENMPS_SOFT_MEMORY_MIB",
    "OPENMPS_SOFT_SIMD",
    "OPENMPS_SOFT_SMS",
    "OPENMPS_SOFT_STALLS",
    "OPENMPS_SOFT_WORKERS",
    "OPENMPS_SPIN_CLIENTS",
    "OPENMPS_STANDBY",
    "OPENMPS_TEST_BUS_ERROR",
    "OPENMPS_TEST_RELOCATE_EVERY",
    "OPENMPS_TRACE",
    "OPENMPS_UPDATE_PICTURES",
    "OPENMPS_UPDATE_SCREENS",
    "OPENMPS_WEIGHT",
];

/// Those of NVIDIA MPS.
const NVIDIAS: &[&str] = &[
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_CLIENT_PRIORITY",
    "CUDA_MPS_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_PROTOCOL_VERSION",
    "CUDA_MPS_SM_PARTITION",
];

/// A name with more mistakes than these is another name.
const MOST_MISTAKES: usize = 3;

/// What is to be said of variables that nothing reads: a line each.
pub fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut unknown: Vec<String> = names.filter(|name| is_unknown(name)).collect();
    unknown.sort_unstable();
    unknown
        .into_iter()
        .map(|name| {
            let shown = link::printable(&name);
            match nearest(&name) {
                Some(meant) => format!("{shown} is not a variable: did you mean {meant}?"),
                None => format!("{shown} is not a variable of OpenMPS or NVIDIA MPS"),
            }
        })
        .collect()
}

/// What is to be said of variables of NVIDIA MPS whose values cannot be read: a line each.
pub fn malformed(read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut said = Vec::new();
    let mut check = |name: &str, check: fn(&str) -> Result<(), String>| {
        let text = read(name).filter(|text| !text.is_empty());
        if let Some(Err(wrong)) = text.as_deref().map(check) {
            said.push(format!("{name}: {}", link::printable(&wrong)));
        }
    };
    check("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", |text| {
        // The library reads a number alone, as NVIDIA's does.
        let number = text.trim().parse::<f64>().map(|number| number.to_string());
        let read = number.unwrap_or_else(|_| text.replace('%', " percent")).parse::<Percentage>();
        read.map(drop).map_err(|error| error.to_string())
    });
    check("CUDA_MPS_CLIENT_PRIORITY", |text| {
        text.parse::<Priority>().map(drop).map_err(|error| error.to_string())
    });
    for name in ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_DEVICE_MEM_LIMIT"] {
        check(name, |text| parse_limit_list(text).map(drop).map_err(|error| error.to_string()));
    }
    said
}

fn is_unknown(name: &str) -> bool {
    // Kubernetes tells every container where the services of its namespace are, whatever they are
    // called.
    let is_of_a_service = name.contains("_SERVICE_") || name.contains("_PORT");
    let is_of = |prefix: &str, known: &[&str]| name.starts_with(prefix) && !known.contains(&name);
    (is_of("OPENMPS_", OURS) || is_of("CUDA_MPS_", NVIDIAS)) && !is_of_a_service
}

/// The variable that was meant.
fn nearest(name: &str) -> Option<&'static str> {
    let known = OURS.iter().chain(NVIDIAS).copied();
    let distances = known.map(|known| (strsim::osa_distance(name, known), known));
    let (distance, nearest) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= MOST_MISTAKES).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn said(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(|&name| name.to_owned()))
    }

    #[test]
    fn what_is_mistyped_is_named_with_what_was_meant() {
        assert_eq!(
            said(&["OPENMPS_MEMROY_LIMIT", "PATH", "CUDA_MPS_PIPE_DIR", "OPENMPS_WEIGHT"]),
            [
                "CUDA_MPS_PIPE_DIR is not a variable of OpenMPS or NVIDIA MPS",
                "OPENMPS_MEMROY_LIMIT is not a variable: did you mean OPENMPS_MEMORY_LIMIT?",
            ]
        );
        assert_eq!(said(&["OPENMPS_SERVICE_HOST", "OPENMPS_PORT_9400_TCP", "CUDA_MPS"]).len(), 0);
        assert_eq!(said(&["OPENMPS_\u{1b}[2J"])[0].find('\u{1b}'), None);
    }

    #[test]
    fn values_that_cannot_be_read_are_named() {
        for (name, wrong, right) in [
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "half", "50"),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50%", "12.5"),
            ("CUDA_MPS_CLIENT_PRIORITY", "2", "1"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "4X", "0=1G,1=512M"),
        ] {
            let read = |value: &'static str| {
                malformed(move |asked| (asked == name).then(|| value.to_owned()))
            };
            assert_eq!(read(wrong).len(), 1, "{name}={wrong}");
            assert!(read(wrong)[0].starts_with(name));
            assert!(read(right).is_empty() && read("").is_empty(), "{name}={right}");
        }
    }

    /// Every variable that the sources or the documents name is known: a new one is added above, or
    /// users are told that there is none.
    #[test]
    fn all_that_is_read_or_written_down_is_known() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = fs::read_to_string(root.join("docs/configuration.md")).unwrap();
        // Its examples have one that is mistyped.
        let tables: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        let mut texts = vec![tables.join("\n")];
        let mut directories: Vec<_> = fs::read_dir(root.join("crates"))
            .unwrap()
            .map(|one| one.unwrap().path().join("src"))
            .collect();
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => directories.push(path),
                    // This file has names that are none.
                    false if path.ends_with("variables.rs") => {}
                    false => texts.push(fs::read_to_string(path).unwrap_or_default()),
                }
            }
        }
        let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let mut count = 0;
        for text in &texts {
            for (at, _) in text.match_indices("OPENMPS_") {
                let end = text[at..].find(|c| !is_part(c)).map_or(text.len(), |end| at + end);
                let (name, before) = (&text[at..end], text[..at].chars().next_back());
                // Parts of other names, prefixes, and the options of Slurm and PBS.
                if !before.is_some_and(is_part) && !name.ends_with('_') {
                    assert!(OURS.contains(&name), "{name} is not in the list");
                    count += 1;
                }
            }
        }
        assert!(count > 100, "{count} were found");
    }
}
