//! What is kept ready for faults, and what becomes of programs meanwhile: the settings, as their
//! variables say them.

use std::str::FromStr;

/// What becomes of programs that come during a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrivals {
    /// They wait until it is over.
    #[default]
    Wait,
    /// They are told CUDA_ERROR_MPS_SERVER_NOT_READY, as by the original.
    Refuse,
}

impl FromStr for Arrivals {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "wait" => Ok(Self::Wait),
            "refuse" => Ok(Self::Refuse),
            _ => Err(()),
        }
    }
}

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

/// [`FaultSettings::standbys`].
pub const STANDBY_VARIABLE: &str = "OPENMPS_STANDBY";
/// [`FaultSettings::arrivals`]: `wait` or `refuse`.
pub const ARRIVALS_VARIABLE: &str = "OPENMPS_DURING_FAULT";
/// [`FaultSettings::kill_patience_ms`].
pub const KILL_PATIENCE_VARIABLE: &str = "OPENMPS_KILL_PATIENCE_MS";
/// [`FaultSettings::longest_kernel_ms`].
pub const LONGEST_KERNEL_VARIABLE: &str = "OPENMPS_LONGEST_KERNEL_MS";
/// [`FaultSettings::second_context`]: `on` or `off`.
pub const SECOND_CONTEXT_VARIABLE: &str = "OPENMPS_SECOND_CONTEXT";
/// [`FaultSettings::quarantine_contexts`].
pub const QUARANTINE_VARIABLE: &str = "OPENMPS_QUARANTINE";
/// [`FaultSettings::quarantine_ms`].
pub const QUARANTINE_TIME_VARIABLE: &str = "OPENMPS_QUARANTINE_MS";
/// [`FaultSettings::saved_arrays_mib`].
pub const SAVED_ARRAYS_VARIABLE: &str = "OPENMPS_SAVED_ARRAYS_MIB";

const MOST_STANDBYS: usize = 4;
/// A day.
const DAY_MS: u64 = 86_400_000;
/// Each is a process and costs its device as much memory as any context.
const MOST_QUARANTINE_CONTEXTS: usize = 8;
/// A TiB.
const MOST_SAVED_ARRAYS_MIB: u64 = 1 << 20;

impl Default for FaultSettings {
    fn default() -> Self {
        Self {
            standbys: 1,
            arrivals: Arrivals::Wait,
            kill_patience_ms: 10_000,
            longest_kernel_ms: 0,
            second_context: true,
            quarantine_contexts: 2,
            quarantine_ms: 600_000,
            saved_arrays_mib: 256,
        }
    }
}

impl FaultSettings {
    /// What these variables say, and what is wrong with those that count as not set for it.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut settings = Self::default();
        let mut complaints = Vec::new();
        let mut set = |name: &str, takes: &mut dyn FnMut(&str) -> Option<()>, wanted: String| {
            let text = variable(name).filter(|text| !text.trim().is_empty());
            if let Some(text) = text
                && takes(text.trim()).is_none()
            {
                complaints.push(format!("{name}={text} is not {wanted}"));
            }
        };
        set(
            STANDBY_VARIABLE,
            &mut |text| number(text, MOST_STANDBYS, &mut settings.standbys),
            format!("a number of executors, 0 to {MOST_STANDBYS}"),
        );
        set(
            ARRIVALS_VARIABLE,
            &mut |text| text.parse().map(|arrivals| settings.arrivals = arrivals).ok(),
            "wait or refuse".to_owned(),
        );
        set(
            KILL_PATIENCE_VARIABLE,
            &mut |text| number(text, DAY_MS, &mut settings.kill_patience_ms),
            format!("a time in milliseconds, 0 to {DAY_MS}"),
        );
        set(
            LONGEST_KERNEL_VARIABLE,
            &mut |text| number(text, DAY_MS, &mut settings.longest_kernel_ms),
            format!("a time in milliseconds, 0 to {DAY_MS}"),
        );
        set(
            SECOND_CONTEXT_VARIABLE,
            &mut |text| switch(text, &mut settings.second_context),
            "on or off".to_owned(),
        );
        set(
            QUARANTINE_VARIABLE,
            &mut |text| number(text, MOST_QUARANTINE_CONTEXTS, &mut settings.quarantine_contexts),
            format!("a number of contexts, 0 to {MOST_QUARANTINE_CONTEXTS}"),
        );
        set(
            QUARANTINE_TIME_VARIABLE,
            &mut |text| number(text, DAY_MS, &mut settings.quarantine_ms),
            format!("a time in milliseconds, 0 to {DAY_MS}"),
        );
        set(
            SAVED_ARRAYS_VARIABLE,
            &mut |text| number(text, MOST_SAVED_ARRAYS_MIB, &mut settings.saved_arrays_mib),
            format!("a number of MiB, 0 to {MOST_SAVED_ARRAYS_MIB}"),
        );
        (settings, complaints)
    }
}

/// Takes `on` or `off`.
fn switch(text: &str, into: &mut bool) -> Option<()> {
    *into = match text {
        "on" => true,
        "off" => false,
        _ => return None,
    };
    Some(())
}

/// Takes a number up to `most`.
fn number<T: FromStr + PartialOrd>(text: &str, most: T, into: &mut T) -> Option<()> {
    *into = text.parse().ok().filter(|number| *number <= most)?;
    Some(())
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
            (STANDBY_VARIABLE, "0"),
            (ARRIVALS_VARIABLE, "refuse"),
            (KILL_PATIENCE_VARIABLE, " 200 "),
            (SAVED_ARRAYS_VARIABLE, "1024"),
            (SECOND_CONTEXT_VARIABLE, "off"),
            (LONGEST_KERNEL_VARIABLE, "60000"),
            (QUARANTINE_VARIABLE, "1"),
            (QUARANTINE_TIME_VARIABLE, "3000"),
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
        assert_eq!(read(&[(STANDBY_VARIABLE, "")]), (FaultSettings::default(), Vec::new()));
        for (name, wrong) in [
            (STANDBY_VARIABLE, "5"),
            (ARRIVALS_VARIABLE, "refused"),
            (KILL_PATIENCE_VARIABLE, "-1"),
            (QUARANTINE_VARIABLE, "9"),
            (QUARANTINE_TIME_VARIABLE, "10m"),
            (SAVED_ARRAYS_VARIABLE, "1G"),
        ] {
            let (settings, complaints) = read(&[(name, wrong)]);
            assert_eq!(settings, FaultSettings::default());
            let [complaint] = complaints.as_slice() else { panic!("{complaints:?}") };
            assert!(complaint.contains(name) && complaint.contains(wrong), "{complaint}");
        }
    }
}
