//! The environment, read by the table: a variable that cannot be read counts as not set, and is
//! told.

use crate::values::parse_switch;
use crate::{Memory, OTHER_VARIABLES, SETTINGS, Setting, ValueError, Words};

/// A name with more mistakes than these is another name.
const MOST_MISTAKES: usize = 3;

/// Reads variables, and keeps what is wrong with those that count as not set for it.
#[derive(Debug)]
pub struct Variables<F> {
    read: F,
    /// A line each.
    pub complaints: Vec<String>,
}

/// The environment of this process.
pub type Environment = Variables<fn(&str) -> Option<String>>;

impl Environment {
    /// Of this process.
    pub fn of_environment() -> Self {
        Self::new(|name| Some(std::env::var_os(name)?.to_string_lossy().into_owned()))
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Of an environment that says so of a variable.
    pub fn new(read: F) -> Self {
        Self { read, complaints: Vec::new() }
    }

    /// What a variable is set to; empty ones are not set.
    pub fn text(&self, setting: &Setting) -> Option<String> {
        let text = (self.read)(setting.variable)?;
        (!text.trim().is_empty()).then(|| text.trim().to_owned())
    }

    /// What a variable is set to, as this reads it.
    pub fn value<T>(
        &mut self,
        setting: &Setting,
        parse: impl FnOnce(&str) -> Result<T, ValueError>,
    ) -> Option<T> {
        let read = parse(&self.text(setting)?);
        read.map_err(|error| self.complaints.push(format!("{}: {error}", setting.variable))).ok()
    }

    /// A number, or its default.
    pub fn number<T: TryFrom<u64> + Default>(&mut self, setting: &Setting) -> T {
        let set = self.value(setting, |text| setting.number(text));
        let number = set.or_else(|| setting.number(setting.default).ok()).unwrap_or_default();
        number.try_into().unwrap_or_default()
    }

    /// A word, or its default.
    pub fn word<T: Words>(&mut self, setting: &Setting) -> T {
        self.value(setting, T::parse_word).unwrap_or_default()
    }

    /// Whether a switch is on.
    pub fn is_on(&mut self, setting: &Setting) -> bool {
        self.value(setting, parse_switch).unwrap_or(setting.default == "on")
    }

    /// An amount of memory.
    pub fn memory_bytes(&mut self, setting: &Setting) -> Option<u64> {
        self.value(setting, str::parse::<Memory>).map(Memory::bytes)
    }
}

/// What is to be said of variables that nothing reads: a line each.
pub fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut unknown: Vec<String> = names.filter(|name| is_unknown(name)).collect();
    unknown.sort_unstable();
    unknown
        .into_iter()
        .map(|name| match nearest(&name, known()) {
            Some(meant) => format!("{name} is not a variable: did you mean {meant}?"),
            None => format!("{name} is not a variable of OpenMPS or NVIDIA MPS"),
        })
        .collect()
}

/// What is to be said of variables whose values cannot be read: a line each.
pub fn malformed(read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut variables = Variables::new(read);
    for setting in SETTINGS {
        variables.value(setting, |text| setting.check(text));
    }
    variables.complaints
}

fn known() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|setting| setting.variable).chain(OTHER_VARIABLES.iter().copied())
}

fn is_unknown(name: &str) -> bool {
    // Kubernetes tells every container where the services of its namespace are, whatever they are
    // called.
    let is_of_a_service = name.contains("_SERVICE_") || name.contains("_PORT");
    let is_ours = ["OPENMPS_", "CUDA_MPS_"].iter().any(|prefix| name.starts_with(prefix));
    is_ours && !is_of_a_service && !known().any(|known| known == name)
}

/// The name that was meant.
pub fn nearest(name: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let distances = known.map(|known| (strsim::osa_distance(name, known), known));
    let (distance, nearest) = distances.min_by_key(|(distance, _)| *distance)?;
    // What all names begin with says nothing.
    let own = name.split_once("MPS_").map_or(name, |(_, own)| own);
    (distance <= MOST_MISTAKES && 2 * distance < own.len()).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BATCHING, MEMORY_POLICY, MEMORY_SPILL_LIMIT, MemoryPolicy, STANDBY};

    fn said(names: &[&str]) -> Vec<String> {
        unknown(names.iter().map(|&name| name.to_owned()))
    }

    #[test]
    fn variables_are_read_by_their_rows_and_what_is_wrong_is_told() {
        let set = |value: &'static str| Variables::new(move |_| Some(value.to_owned()));
        assert_eq!(set(" 3 ").number::<usize>(&STANDBY), 3);
        assert_eq!(set("").number::<usize>(&STANDBY), 1);
        assert!(!set(" off").is_on(&BATCHING) && set(" ").is_on(&BATCHING));
        assert_eq!(set("spill").word::<MemoryPolicy>(&MEMORY_POLICY), MemoryPolicy::Spill);
        assert_eq!(set("64G").memory_bytes(&MEMORY_SPILL_LIMIT), Some(64 << 30));
        let mut wrong = set("5");
        assert_eq!(wrong.number::<usize>(&STANDBY), 1);
        assert!(wrong.is_on(&BATCHING));
        assert_eq!(
            wrong.complaints,
            [
                "OPENMPS_STANDBY: `5` cannot be used: give a number from 0 to 4",
                "OPENMPS_BATCHING: `5` cannot be used: give on or off",
            ]
        );
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
        // Nothing reads these, and they are like no other.
        let unread = said(&["OPENMPS_SM", "OPENMPS_MEMORY"]);
        assert!(unread.len() == 2 && unread.iter().all(|line| line.ends_with("NVIDIA MPS")));
        assert!(said(&["OPENMPS_LGO"])[0].ends_with("did you mean OPENMPS_LOG?"));
    }

    #[test]
    fn values_that_cannot_be_read_are_named() {
        for (name, wrong, right) in [
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "half", "50%"),
            ("CUDA_MPS_CLIENT_PRIORITY", "2", "1"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "4X", "0=1G,1=512M"),
            ("OPENMPS_MEMORY_LIMIT", "4X", "4G,1=2G"),
            ("OPENMPS_WEIGHT", "0", "1000"),
            ("OPENMPS_GUARD", "yes", "on"),
            ("OPENMPS_LATENCY", "yes", "1"),
            ("OPENMPS_LOG", "all", "off"),
            ("OPENMPS_METRICS", "9400", "unix:/m"),
            ("OPENMPS_PREWARM", "me", "1000, self"),
        ] {
            let read = |value: &'static str| {
                malformed(move |asked| (asked == name).then(|| value.to_owned()))
            };
            assert_eq!(read(wrong).len(), 1, "{name}={wrong}");
            assert!(read(wrong)[0].starts_with(name));
            assert!(read(right).is_empty() && read("").is_empty(), "{name}={right}");
        }
    }
}
