//! The options: what is typed, what it means for the job and for a task.

use std::ffi::{CStr, c_int};
use std::sync::Mutex;

use settings::{Memory, Percentage};

use crate::host::SpankOption;
use crate::option;

/// Of each process.
pub(crate) const PERCENTAGE_VARIABLE: &CStr = c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MEMORY_VARIABLE: &CStr = c"OPENMPS_MEMORY_LIMIT";

const MEMORY: c_int = 0;
const SM_PERCENT: c_int = 1;

/// The options, by the numbers that Slurm gives back.
pub(crate) static OPTIONS: [SpankOption; 3] = [
    option(
        c"openmps-memory",
        c"SIZE",
        c"device memory of a job that shares a GPU, or of each process of a step: 512M, 4G",
        MEMORY,
    ),
    option(
        c"openmps-sm-percent",
        c"PERCENT",
        c"share of the GPU's multiprocessors, in per cent: of a job, or of each process of a step",
        SM_PERCENT,
    ),
    // Slurm has no hidden options.
    option(c"openmps-sm", c"PERCENT", c"as --openmps-sm-percent", SM_PERCENT),
];

/// What was given.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Asked {
    memory: Option<String>,
    percentage: Option<f64>,
}

/// Slurm gives callbacks nothing to keep it in.
static ASKED: Mutex<Asked> = Mutex::new(Asked { memory: None, percentage: None });

/// What was given.
pub(crate) fn asked() -> Asked {
    ASKED.lock().map(|asked| asked.clone()).unwrap_or_default()
}

impl Asked {
    /// Takes an option of this place; the error says what is wrong with its value.
    pub(crate) fn note(place: c_int, value: &str) -> Result<(), String> {
        let mut asked = ASKED.lock().map_err(|_| "an earlier option failed".to_owned())?;
        asked.set(place, value)
    }

    fn set(&mut self, place: c_int, value: &str) -> Result<(), String> {
        match place {
            MEMORY => match value.parse::<Memory>() {
                Ok(limit) if limit.bytes() == 0 => {
                    return Err("--openmps-memory: give more than nothing".to_owned());
                }
                Ok(limit) => self.memory = Some(limit.to_string()),
                Err(error) => return Err(format!("--openmps-memory: {error}")),
            },
            SM_PERCENT => match value.parse::<Percentage>() {
                Ok(share) => self.percentage = Some(share.percent()),
                Err(error) => return Err(format!("--openmps-sm-percent: {error}")),
            },
            other => return Err(format!("option {other} is none of ours")),
        }
        Ok(())
    }

    /// Variables for the job's prolog.
    pub(crate) fn for_job(&self) -> Vec<(&'static CStr, String)> {
        let memory = self.memory.clone().map(|memory| (c"OPENMPS_MEMORY", memory));
        let share = self.percentage.map(|share| (c"OPENMPS_SM", share.to_string()));
        memory.into_iter().chain(share).collect()
    }

    /// Variables of a task, which has this share already.
    pub(crate) fn for_task(&self, share: Option<&str>) -> Vec<(&'static CStr, String)> {
        let has = share.and_then(|text| text.parse::<Percentage>().ok());
        let least = |wanted: f64| has.map_or(wanted, |has| wanted.min(has.percent()));
        let share = self.percentage.map(|wanted| (PERCENTAGE_VARIABLE, least(wanted).to_string()));
        let memory = self.memory.clone().map(|size| (MEMORY_VARIABLE, size));
        share.into_iter().chain(memory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_reaches_job_and_task() {
        let mut asked = Asked::default();
        assert!(asked.for_job().is_empty() && asked.for_task(Some("50")).is_empty());
        asked.set(MEMORY, "4g").unwrap();
        asked.set(SM_PERCENT, "30").unwrap();
        let job = [(c"OPENMPS_MEMORY", "4G".to_owned()), (c"OPENMPS_SM", "30".to_owned())];
        assert_eq!(asked.for_job(), job);
        let share = |has: Option<&str>| asked.for_task(has)[0].clone();
        assert_eq!(share(None), (PERCENTAGE_VARIABLE, "30".to_owned()));
        assert_eq!(share(Some("50")).1, "30");
        assert_eq!(share(Some("20")).1, "20");
        assert_eq!(share(Some("nonsense")).1, "30");
        assert_eq!(asked.for_task(None)[1], (MEMORY_VARIABLE, "4G".to_owned()));
    }

    #[test]
    fn nonsense_is_named() {
        let mut asked = Asked::default();
        for (place, value) in
            [(MEMORY, "much"), (MEMORY, "0"), (SM_PERCENT, "0"), (SM_PERCENT, "101"), (7, "1")]
        {
            assert!(asked.set(place, value).is_err(), "{place} {value}");
        }
        assert_eq!(asked, Asked::default());
    }
}
