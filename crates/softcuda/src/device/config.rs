//! Configuration of the software GPU by environment variables, read once at `cuInit`.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `OPENMPS_SOFT_DEVICES` | number of devices, 0 to 16 | 1 |
//! | `OPENMPS_SOFT_SMS` | SMs per device, 1 to 256 | 84 |
//! | `OPENMPS_SOFT_MEMORY_MIB` | memory per device in MiB | 8192 |
//! | `OPENMPS_SOFT_COMPUTE_CAPABILITY` | as `12.0` | 12.0 |
//! | `OPENMPS_SOFT_WORKERS` | worker threads, 1 to 256 | the host's cores |
//! | `OPENMPS_SOFT_SIMD` | instruction set that kernels use at most: `baseline`, `avx2`, `avx512` | the best of the host's |
//! | `OPENMPS_SOFT_MEMCHECK` | `1`: device accesses are checked to the byte | 0 |
//! | `OPENMPS_SOFT_LOG` | `off`, `error`, `info` on standard error | error |
//! | `OPENMPS_SOFT_MACHINE` | name or path: processes that give the same one share the devices' memory and compute mode | none: a machine of its own |
//! | `OPENMPS_SOFT_KERNEL_LIMIT_S` | seconds after which a kernel is ended with CUDA_ERROR_LAUNCH_TIMEOUT, 0 to 86400; 0: never | 0 |
//! | `OPENMPS_SOFT_CLOCK` | `host`: the host's time; `virtual`: time is work done, see `clock` | host |
//! | `OPENMPS_SOFT_STALLS` | `1`: loads, unloads and releases keep other threads from submitting while they wait for kernels, as on a GPU | 0 |
//! | `OPENMPS_SOFT_COMPUTE_MODE` | `default`, `exclusive_process`, `prohibited` | default |
//!
//! `CUDA_VISIBLE_DEVICES` and `CUDA_LAUNCH_BLOCKING` mean what they mean to NVIDIA's driver.

use std::time::Duration;

use thiserror::Error;

use super::clock::ClockMode;
use crate::exec::SimdLevel;

/// What goes to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Info,
}

/// Who may open contexts, as `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComputeMode {
    Default,
    Prohibited,
    ExclusiveProcess,
}

/// Whether a launch returns before its kernel has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaunchMode {
    Asynchronous,
    Blocking,
}

/// Whether calls that wait for kernels keep other threads from submitting meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StallMode {
    None,
    AsHardware,
}

/// The whole configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Physical indices of the visible devices, in the order in which the program sees them.
    pub(crate) visible: Vec<u32>,
    pub(crate) sm_count: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) compute_capability: (u32, u32),
    pub(crate) workers: usize,
    /// The best level to use of those that the host has.
    pub(crate) simd: SimdLevel,
    pub(crate) precision: super::memory::ranges::Precision,
    pub(crate) log: LogLevel,
    pub(crate) compute_mode: ComputeMode,
    pub(crate) launch_mode: LaunchMode,
    pub(crate) stalls: StallMode,
    /// Name of the machine that is shared, if any.
    pub(crate) machine: Option<String>,
    pub(crate) clock: ClockMode,
    /// The longest that a kernel may run, by the host's clock.
    pub(crate) kernel_limit: Option<Duration>,
}

/// A variable whose value cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{variable}={value}: expected {expected}")]
pub(crate) struct ConfigError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl Config {
    /// Reads the process's environment.
    pub(crate) fn from_environment() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads from any source of variables.
    pub(crate) fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let number = |variable, default, low, high, expected| match get(variable) {
            None => Ok(default),
            Some(value) => match value.trim().parse::<u64>() {
                Ok(number) if (low..=high).contains(&number) => Ok(number),
                _ => Err(ConfigError { variable, value, expected }),
            },
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let devices =
            number("OPENMPS_SOFT_DEVICES", 1, 0, 16, "a number of devices, 0 to 16")? as u32;
        let memory_mib =
            number("OPENMPS_SOFT_MEMORY_MIB", 8192, 64, 1 << 20, "MiB, 64 to 1048576")?;
        let visible = match get("CUDA_VISIBLE_DEVICES") {
            None => (0..devices).collect(),
            Some(list) => visible_devices(&list, devices),
        };
        Ok(Config {
            visible,
            sm_count: number("OPENMPS_SOFT_SMS", 84, 1, 256, "a number of SMs, 1 to 256")? as u32,
            memory_bytes: memory_mib << 20,
            compute_capability: choice(
                &get,
                "OPENMPS_SOFT_COMPUTE_CAPABILITY",
                (12, 0),
                "major.minor, 3.0 to 12.9",
                |text| {
                    let (major, minor) = text.split_once('.')?;
                    let pair = (major.parse().ok()?, minor.parse().ok()?);
                    ((3, 0)..=(12, 9)).contains(&pair).then_some(pair)
                },
            )?,
            workers: number("OPENMPS_SOFT_WORKERS", cores, 1, 256, "a number of threads, 1 to 256")?
                as usize,
            simd: choice(
                &get,
                "OPENMPS_SOFT_SIMD",
                SimdLevel::detect(),
                "baseline, avx2 or avx512",
                |text| match text {
                    "baseline" => Some(SimdLevel::Baseline),
                    "avx2" => Some(SimdLevel::Avx2),
                    "avx512" => Some(SimdLevel::Avx512),
                    _ => None,
                },
            )?,
            precision: choice(
                &get,
                "OPENMPS_SOFT_MEMCHECK",
                super::memory::ranges::Precision::Mapping,
                "0 or 1",
                |text| match text {
                    "0" | "" => Some(super::memory::ranges::Precision::Mapping),
                    "1" => Some(super::memory::ranges::Precision::Exact),
                    _ => None,
                },
            )?,
            log: choice(&get, "OPENMPS_SOFT_LOG", LogLevel::Error, "off, error or info", |text| {
                match text {
                    "off" => Some(LogLevel::Off),
                    "error" => Some(LogLevel::Error),
                    "info" => Some(LogLevel::Info),
                    _ => None,
                }
            })?,
            compute_mode: choice(
                &get,
                "OPENMPS_SOFT_COMPUTE_MODE",
                ComputeMode::Default,
                "default, exclusive_process or prohibited",
                |text| match text {
                    "default" => Some(ComputeMode::Default),
                    "exclusive_process" => Some(ComputeMode::ExclusiveProcess),
                    "prohibited" => Some(ComputeMode::Prohibited),
                    _ => None,
                },
            )?,
            stalls: choice(
                &get,
                "OPENMPS_SOFT_STALLS",
                StallMode::None,
                "0 or 1",
                |text| match text {
                    "0" | "" => Some(StallMode::None),
                    "1" => Some(StallMode::AsHardware),
                    _ => None,
                },
            )?,
            machine: get("OPENMPS_SOFT_MACHINE").filter(|name| !name.trim().is_empty()),
            clock: choice(
                &get,
                "OPENMPS_SOFT_CLOCK",
                ClockMode::Host,
                "host or virtual",
                |text| match text {
                    "host" => Some(ClockMode::Host),
                    "virtual" => Some(ClockMode::Virtual),
                    _ => None,
                },
            )?,
            kernel_limit: Some(number(
                "OPENMPS_SOFT_KERNEL_LIMIT_S",
                0,
                0,
                86_400,
                "seconds, 0 to 86400; 0 for no limit",
            )?)
            .filter(|limit_s| *limit_s > 0)
            .map(Duration::from_secs),
            launch_mode: match get("CUDA_LAUNCH_BLOCKING").as_deref() {
                None | Some("0" | "") => LaunchMode::Asynchronous,
                Some(_) => LaunchMode::Blocking,
            },
        })
    }
}

fn choice<T>(
    get: impl Fn(&str) -> Option<String>,
    variable: &'static str,
    default: T,
    expected: &'static str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, ConfigError> {
    match get(variable) {
        None => Ok(default),
        Some(value) => parse(value.trim()).ok_or(ConfigError { variable, value, expected }),
    }
}

/// Devices that `CUDA_VISIBLE_DEVICES` names: numbers or `GPU-` uuid prefixes, up to the first that
/// names none.
fn visible_devices(list: &str, devices: u32) -> Vec<u32> {
    let mut visible = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let by_uuid = |index: &u32| super::properties::uuid_text(*index).starts_with(entry);
        let index = match entry.parse::<u32>() {
            Ok(index) => (index < devices).then_some(index),
            Err(_) if entry.starts_with("GPU-") => (0..devices).find(by_uuid),
            Err(_) => None,
        };
        match index {
            Some(index) if !visible.contains(&index) => visible.push(index),
            _ => break,
        }
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn defaults_are_one_mid_size_device() {
        let config = read(&[]).expect("defaults are valid");
        assert_eq!((config.visible.as_slice(), config.sm_count), ([0].as_slice(), 84));
        assert_eq!(config.memory_bytes, 8 << 30);
    }

    #[test]
    fn a_bad_value_is_named_with_what_was_expected() {
        let error = read(&[("OPENMPS_SOFT_SMS", "many")]).expect_err("refused").to_string();
        assert_eq!(error, "OPENMPS_SOFT_SMS=many: expected a number of SMs, 1 to 256");
        assert!(read(&[("OPENMPS_SOFT_LOG", "loud")]).is_err());
        assert!(read(&[("OPENMPS_SOFT_DEVICES", "17")]).is_err());
    }

    #[test]
    fn visible_devices_stop_at_the_first_unknown_one() {
        let visible = |list| {
            read(&[("OPENMPS_SOFT_DEVICES", "3"), ("CUDA_VISIBLE_DEVICES", list)])
                .expect("valid")
                .visible
        };
        assert_eq!(visible("2,0"), [2, 0]);
        assert_eq!(visible("1,7,0"), [1]);
        assert_eq!(visible(""), [0u32; 0]);
        let uuid = crate::device::properties::uuid_text(1);
        assert_eq!(visible(&uuid), [1]);
    }
}
