//! Values that administrators type and read back: percentages, memory limits, priorities, devices.
//!
//! How each is parsed and printed follows the original's control utility, driver 580 (and driver
//! 535 where 580 was not recorded). Deviations: text that NVIDIA MPS half-reads is an error here
//! (`3X` as `3M`, `x` as priority 0) or read as it is meant (`5.5G`, there `5M`).

use std::fmt;
use std::str::FromStr;

pub use link::memory_limits::DeviceRef;
use link::memory_limits::{self, LimitError};

/// Why a value was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a number in (0, 100].
    #[error("`{0}` is no percentage: give a number above 0 and at most 100")]
    Percentage(String),
    /// No limit of memory, or no device.
    #[error(transparent)]
    Memory(#[from] LimitError),
    /// Neither 0 nor 1.
    #[error("`{0}` is no client priority: give 0 (normal) or 1 (below normal)")]
    Priority(String),
}

/// Portion of a device's threads, in (0, 100] percent; printed with one decimal as the original
/// does.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Percentage(f64);

impl Percentage {
    /// All threads: the default.
    pub const ALL: Percentage = Percentage(100.0);

    /// The portion in percent.
    pub fn percent(self) -> f64 {
        self.0
    }
}

impl FromStr for Percentage {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // As outputs write it.
        let number = text.strip_suffix('%').map_or(text, str::trim_end);
        match number.parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(Percentage(percent)),
            _ => Err(ValueError::Percentage(text.to_owned())),
        }
    }
}

impl fmt::Display for Percentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1}", self.0)
    }
}

/// Limit of device memory for one client, in MiB; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemoryLimit {
    mebibytes: u64,
}

impl MemoryLimit {
    /// So many bytes, a part of a mebibyte counted as one.
    pub fn from_bytes(bytes: u64) -> Self {
        MemoryLimit { mebibytes: bytes.div_ceil(1 << 20) }
    }

    /// The limit in bytes.
    pub fn bytes(self) -> u64 {
        self.mebibytes.saturating_mul(1 << 20)
    }

    /// Whether this removes a limit rather than setting one.
    pub fn is_none(self) -> bool {
        self.mebibytes == 0
    }
}

impl FromStr for MemoryLimit {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::from_bytes(memory_limits::parse_size_bytes(text)?))
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mebibytes.is_multiple_of(1024) {
            write!(f, "{}G", self.mebibytes / 1024)
        } else {
            write!(f, "{}M", self.mebibytes)
        }
    }
}

/// Client priority: a hint to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// 0: the default.
    #[default]
    Normal,
    /// 1.
    BelowNormal,
}

impl Priority {
    /// The number by which commands, environment and wire name it.
    pub fn number(self) -> u32 {
        match self {
            Priority::Normal => 0,
            Priority::BelowNormal => 1,
        }
    }
}

impl FromStr for Priority {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // As a number: the original takes `01` too.
        match text.parse::<u8>() {
            Ok(0) => Ok(Priority::Normal),
            Ok(1) => Ok(Priority::BelowNormal),
            _ => Err(ValueError::Priority(text.to_owned())),
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}

/// Parses `0=1G,GPU-1234=512MB`, the form of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`.
///
/// # Errors
/// [`ValueError`] of the first pair that cannot be read.
pub fn parse_limit_list(text: &str) -> Result<Vec<(DeviceRef, MemoryLimit)>, ValueError> {
    let list = memory_limits::parse_limit_list(text)?;
    Ok(list.into_iter().map(|(device, bytes)| (device, MemoryLimit::from_bytes(bytes))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_back_as_the_original_prints_them() {
        for (typed, printed) in [
            ("2G", "2G"),
            ("2048M", "2G"),
            ("300MB", "300M"),
            ("5g", "5G"),
            ("5", "5M"),
            ("5GB", "5G"),
            ("4GiB", "4G"),
            ("0.5G", "512M"),
            ("1.5 TiB", "1536G"),
            ("0.0000001G", "1M"),
        ] {
            assert_eq!(typed.parse::<MemoryLimit>().unwrap().to_string(), printed, "{typed}");
        }
    }

    #[test]
    fn limits_that_the_original_half_reads_are_refused() {
        for typed in [
            "3X",
            "5.5.5G",
            "5.G",
            ".",
            "-5G",
            "GG",
            "",
            "5GX",
            "99999999999999999999G",
            "18446744073709551615G",
        ] {
            assert!(typed.parse::<MemoryLimit>().is_err(), "{typed}");
        }
    }

    #[test]
    fn percentages_have_one_decimal_and_a_range() {
        assert_eq!("33.33333".parse::<Percentage>().unwrap().to_string(), "33.3");
        assert_eq!("0.05".parse::<Percentage>().unwrap().to_string(), "0.1");
        assert_eq!("50%".parse::<Percentage>().unwrap().to_string(), "50.0");
        assert_eq!("33.3 %".parse::<Percentage>().unwrap().to_string(), "33.3");
        for typed in ["0", "-1", "%", "50%%", "100.1", "NaN", "inf", "x", ""] {
            assert!(typed.parse::<Percentage>().is_err(), "{typed}");
        }
    }

    #[test]
    fn limit_lists_follow_the_guide() {
        let list = parse_limit_list("'0=1G,1=512MB'").unwrap();
        assert_eq!(list.len(), 2);
        assert_eq!(list[1].1.to_string(), "512M");
        assert!(parse_limit_list("0:1G").is_err());
        assert!(parse_limit_list("0=1X").is_err());
    }
}
