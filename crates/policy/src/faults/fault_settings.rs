//! What is kept ready for faults, and what becomes of programs meanwhile: the settings, as their
//! variables say them.

pub use settings::Arrivals;
use settings::Variables;

/// All of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSettings {
    /// How many executors each device has in reserve.
    pub standbys: usize,
    /// See [`Arrivals`].
    pub arrivals: Arrivals,
    /// How long work may go on whose client is gone, and then how long that of others may, in
    /// milliseconds.
    pub kill_patience_ms: u64,
    /// For how long a kernel may run, in milliseconds; 0: as long as it takes.
    pub longest_kernel_ms: u64,
    /// Whether clients that would wait for a stranger's kernel go on in a second context.
    pub second_context: bool,
    /// How many contexts of a device may be for code that has faulted; 0: it runs among others.
    pub quarantine_contexts: usize,
    /// How long code runs apart after its last fault, in milliseconds.
    pub quarantine_ms: u64,
    /// How much host memory the copies of a client's arrays may take, in MiB.
    pub saved_arrays_mib: u64,
}

impl Default for FaultSettings {
    fn default() -> Self {
        Self::read(|_| None).0
    }
}

impl FaultSettings {
    /// What these variables say, and what is wrong with those that count as not set for it.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut variables = Variables::new(variable);
        let settings = Self {
            standbys: variables.number(&settings::STANDBY),
            arrivals: variables.word(&settings::DURING_FAULT),
            kill_patience_ms: variables.number(&settings::KILL_PATIENCE_MS),
            longest_kernel_ms: variables.number(&settings::LONGEST_KERNEL_MS),
            second_context: variables.is_on(&settings::SECOND_CONTEXT),
            quarantine_contexts: variables.number(&settings::QUARANTINE),
            quarantine_ms: variables.number(&settings::QUARANTINE_MS),
            saved_arrays_mib: variables.number(&settings::SAVED_ARRAYS_MIB),
        };
        (settings, variables.complaints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (FaultSettings, Vec<String>) {
        FaultSettings::read(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_set_what_they_name_and_complaints_name_them() {
        let (settings, complaints) = read(&[
            ("OPENMPS_STANDBY", "0"),
            ("OPENMPS_DURING_FAULT", "refuse"),
            ("OPENMPS_KILL_PATIENCE_MS", " 200 "),
            ("OPENMPS_SAVED_ARRAYS_MIB", "1024"),
            ("OPENMPS_SECOND_CONTEXT", "off"),
            ("OPENMPS_LONGEST_KERNEL_MS", "60000"),
            ("OPENMPS_QUARANTINE", "1"),
            ("OPENMPS_QUARANTINE_MS", "3000"),
        ]);
        let expected = FaultSettings {
            standbys: 0,
            arrivals: Arrivals::Refuse,
            kill_patience_ms: 200,
            longest_kernel_ms: 60_000,
            saved_arrays_mib: 1024,
            second_context: false,
            quarantine_contexts: 1,
            quarantine_ms: 3000,
        };
        assert_eq!((settings, complaints), (expected, Vec::new()));
        assert_eq!(read(&[]), (FaultSettings::default(), Vec::new()));
        assert_eq!(read(&[("OPENMPS_STANDBY", "")]), (FaultSettings::default(), Vec::new()));
        for (name, wrong) in [
            ("OPENMPS_STANDBY", "5"),
            ("OPENMPS_DURING_FAULT", "refused"),
            ("OPENMPS_KILL_PATIENCE_MS", "-1"),
            ("OPENMPS_QUARANTINE", "9"),
            ("OPENMPS_QUARANTINE_MS", "10m"),
            ("OPENMPS_SAVED_ARRAYS_MIB", "1G"),
        ] {
            let (settings, complaints) = read(&[(name, wrong)]);
            assert_eq!(settings, FaultSettings::default());
            let [complaint] = complaints.as_slice() else { panic!("{complaints:?}") };
            assert!(complaint.contains(name) && complaint.contains(wrong), "{complaint}");
        }
    }
}
