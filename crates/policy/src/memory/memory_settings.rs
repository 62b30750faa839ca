//! What is done when a device has no more memory: the settings, as their variables say them.

pub use settings::MemoryPolicy;
use settings::{Total, Variables};

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

impl MemorySettings {
    /// CUDA's own behaviour, and the times and the quarter of the host's memory that hold where
    /// nothing is set.
    pub fn new(host_memory_bytes: u64) -> Self {
        Self::read(host_memory_bytes, |_| None).0
    }

    /// What these variables say, and what is wrong with those that count as not set for it.
    pub fn read(
        host_memory_bytes: u64,
        variable: impl Fn(&str) -> Option<String>,
    ) -> (Self, Vec<String>) {
        let mut variables = Variables::new(variable);
        let host_limit_bytes = variables.memory_bytes(&settings::MEMORY_SPILL_LIMIT);
        let settings = Self {
            policy: variables.word(&settings::MEMORY_POLICY),
            wait_ms: variables.number(&settings::MEMORY_WAIT_MS),
            turn_ms: variables.number(&settings::MEMORY_TURN_MS),
            host_limit_bytes: host_limit_bytes.unwrap_or(host_memory_bytes / 4),
            total: variables.word(&settings::MEMORY_TOTAL),
        };
        (settings, variables.complaints)
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
            ("OPENMPS_MEMORY_POLICY", "spill"),
            ("OPENMPS_MEMORY_WAIT_MS", "500"),
            ("OPENMPS_MEMORY_TURN_MS", "10"),
            ("OPENMPS_MEMORY_SPILL_LIMIT", "64G"),
            ("OPENMPS_MEMORY_TOTAL", "limit"),
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
        assert_eq!(read(&[("OPENMPS_MEMORY_POLICY", "")]).1, Vec::<String>::new());
        for (name, wrong) in [
            ("OPENMPS_MEMORY_POLICY", "swap"),
            ("OPENMPS_MEMORY_WAIT_MS", "-1"),
            ("OPENMPS_MEMORY_TURN_MS", "99999999999"),
            ("OPENMPS_MEMORY_SPILL_LIMIT", "many"),
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
