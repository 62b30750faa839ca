//! What is done when a device has no more memory: the settings, as their variables say them.

use link::memory_limits::parse_size_bytes;
use link::wire::shares::Total;
use std::fmt;
use std::str::FromStr;

/// What happens to an allocation that the device has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// It is refused, as CUDA does.
    #[default]
    Fail,
    /// It waits until others free memory.
    Queue,
    /// Idle clients' memory is moved out to the host, and back before they go on.
    Spill,
}

impl FromStr for MemoryPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "fail" => Ok(Self::Fail),
            "queue" => Ok(Self::Queue),
            "spill" => Ok(Self::Spill),
            _ => Err(format!("memory policy '{text}' is not fail, queue or spill")),
        }
    }
}

impl fmt::Display for MemoryPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Fail => "fail",
            Self::Queue => "queue",
            Self::Spill => "spill",
        })
    }
}

/// All of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// See [`MemoryPolicy`].
    pub policy: MemoryPolicy,
    /// Longest wait of an allocation for memory, in milliseconds.
    pub wait_ms: u64,
    /// How long a client that has work keeps its memory at least where others wait for it, in
    /// milliseconds.
    pub turn_ms: u64,
    /// Host memory for what is moved out, in bytes; twice that while clients change places.
    pub host_limit_bytes: u64,
    /// What programs are told as the device's memory where the limit of the original's variables
    /// and commands holds.
    pub total: Total,
}

/// [`MemorySettings::policy`].
pub const POLICY_VARIABLE: &str = "OPENMPS_MEMORY_POLICY";
/// [`MemorySettings::wait_ms`].
pub const WAIT_VARIABLE: &str = "OPENMPS_MEMORY_WAIT_MS";
/// [`MemorySettings::turn_ms`].
pub const TURN_VARIABLE: &str = "OPENMPS_MEMORY_TURN_MS";
/// [`MemorySettings::host_limit_bytes`], as `64G`.
pub const SPILL_LIMIT_VARIABLE: &str = "OPENMPS_MEMORY_SPILL_LIMIT";
/// [`MemorySettings::total`]: `device` or `limit`.
pub const TOTAL_VARIABLE: &str = "OPENMPS_MEMORY_TOTAL";

const DEFAULT_WAIT_MS: u64 = 60_000;
const DEFAULT_TURN_MS: u64 = 2_000;
/// Longest that either time may be: a day.
const MAX_MS: u64 = 86_400_000;

impl MemorySettings {
    /// CUDA's own behaviour, and the times and the quarter of the host's memory that hold where
    /// nothing is set.
    pub fn new(host_memory_bytes: u64) -> Self {
        Self {
            policy: MemoryPolicy::default(),
            wait_ms: DEFAULT_WAIT_MS,
            turn_ms: DEFAULT_TURN_MS,
            host_limit_bytes: host_memory_bytes / 4,
            total: Total::default(),
        }
    }

    /// What these variables say, and what is wrong with those that count as not set for it.
    pub fn read(
        host_memory_bytes: u64,
        variable: impl Fn(&str) -> Option<String>,
    ) -> (Self, Vec<String>) {
        let (mut settings, mut complaints) = (Self::new(host_memory_bytes), Vec::new());
        let set = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        if let Some(text) = set(POLICY_VARIABLE) {
            match text.parse() {
                Ok(policy) => settings.policy = policy,
                Err(wrong) => complaints.push(wrong),
            }
        }
        for (name, place) in
            [(WAIT_VARIABLE, &mut settings.wait_ms), (TURN_VARIABLE, &mut settings.turn_ms)]
        {
            let Some(text) = set(name) else { continue };
            match text.trim().parse() {
                Ok(ms) if ms <= MAX_MS => *place = ms,
                _ => complaints
                    .push(format!("{name}={text} is not a time in milliseconds, 0 to {MAX_MS}")),
            }
        }
        if let Some(text) = set(TOTAL_VARIABLE) {
            match text.trim() {
                "device" => settings.total = Total::Device,
                "limit" => settings.total = Total::Limit,
                _ => complaints.push(format!("{TOTAL_VARIABLE}={text} is not device or limit")),
            }
        }
        if let Some(text) = set(SPILL_LIMIT_VARIABLE) {
            match parse_size_bytes(&text) {
                Ok(bytes) => settings.host_limit_bytes = bytes,
                Err(_) => complaints.push(format!(
                    "{SPILL_LIMIT_VARIABLE}={text} is no amount of memory, as in 64G"
                )),
            }
        }
        (settings, complaints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (MemorySettings, Vec<String>) {
        MemorySettings::read(8 << 30, |wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_set_what_they_name_and_complaints_name_them() {
        let (settings, complaints) = read(&[
            (POLICY_VARIABLE, "spill"),
            (WAIT_VARIABLE, "500"),
            (TURN_VARIABLE, "10"),
            (SPILL_LIMIT_VARIABLE, "64G"),
            (TOTAL_VARIABLE, "limit"),
        ]);
        let expected = MemorySettings {
            policy: MemoryPolicy::Spill,
            wait_ms: 500,
            turn_ms: 10,
            host_limit_bytes: 64 << 30,
            total: Total::Limit,
        };
        assert_eq!((settings, complaints), (expected, Vec::new()));
        assert_eq!(read(&[]), (MemorySettings::new(8 << 30), Vec::new()));
        assert_eq!(read(&[(POLICY_VARIABLE, "")]).1, Vec::<String>::new());
        for (name, wrong) in [
            (POLICY_VARIABLE, "swap"),
            (WAIT_VARIABLE, "-1"),
            (TURN_VARIABLE, "99999999999"),
            (SPILL_LIMIT_VARIABLE, "many"),
        ] {
            let (settings, complaints) = read(&[(name, wrong)]);
            assert_eq!(settings, MemorySettings::new(8 << 30));
            assert!(
                matches!(complaints.as_slice(), [one] if one.contains(wrong)),
                "{complaints:?}"
            );
        }
    }
}
