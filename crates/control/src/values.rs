//! Values that administrators type and read back: percentages, memory limits, priorities, devices.
//!
//! How each is parsed and printed follows the original's control utility, driver 580 (and driver 535 where 580
//! was not recorded). Deviation: text that the original half-reads (`3X` as `3M`, `5.5G` as `5M`, `x` as
//! priority 0) is an error here.

use std::fmt;
use std::str::FromStr;

/// Why a value was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a number in (0, 100].
    #[error("`{0}` is no percentage: give a number above 0 and at most 100")]
    Percentage(String),
    /// Not an integer with a unit.
    #[error(
        "`{0}` is no memory limit: give an integer and G or M, such as 10G or 512M (0 removes the limit)"
    )]
    MemoryLimit(String),
    /// Neither 0 nor 1.
    #[error("`{0}` is no client priority: give 0 (normal) or 1 (below normal)")]
    Priority(String),
    /// Neither an ordinal nor a UUID.
    #[error(
        "`{0}` is no device: give an ordinal from 0 to 31 or a UUID that starts with GPU- or MIG-"
    )]
    Device(String),
    /// Not `device=limit` pairs.
    #[error("`{0}` is no list of limits: give device=limit pairs, such as 0=1G,1=512MB")]
    LimitList(String),
}

/// Portion of a device's threads, in (0, 100] percent; printed with one decimal as the original does.
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
        match text.parse::<f64>() {
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
        self.mebibytes << 20
    }

    /// Whether this removes a limit rather than setting one.
    pub fn is_none(self) -> bool {
        self.mebibytes == 0
    }
}

impl FromStr for MemoryLimit {
    type Err = ValueError;

    /// An integer and G, GB, M or MB in either case; a bare integer is MiB, as in the original.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ValueError::MemoryLimit(text.to_owned());
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let number: u64 = digits.parse().map_err(|_| refuse())?;
        let scale = match unit.to_ascii_uppercase().as_str() {
            "G" | "GB" => 1024,
            "" | "M" | "MB" => 1,
            _ => return Err(refuse()),
        };
        // More than 2^43 MiB does not fit a byte count.
        let mebibytes = number.checked_mul(scale).filter(|m| *m < 1 << 43).ok_or_else(refuse)?;
        Ok(MemoryLimit { mebibytes })
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

/// A device as an administrator names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceRef {
    /// Position among the devices that the daemon shows.
    Ordinal(u32),
    /// UUID or the first characters of one, `GPU-` or `MIG-` included.
    Uuid(String),
}

impl DeviceRef {
    /// Ordinals from here on are refused, as by the original.
    pub const MAX_ORDINALS: u32 = 32;

    /// Whether this names the device with that ordinal and UUID.
    pub fn names(&self, ordinal: u32, uuid: &str) -> bool {
        match self {
            DeviceRef::Ordinal(wanted) => *wanted == ordinal,
            DeviceRef::Uuid(prefix) => {
                uuid.get(..prefix.len()).is_some_and(|head| head.eq_ignore_ascii_case(prefix))
            }
        }
    }
}

impl FromStr for DeviceRef {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_uuid =
            ["GPU-", "MIG-"].iter().any(|kind| text.starts_with(kind) && text.len() > kind.len());
        match text.parse::<u32>() {
            Ok(ordinal) if ordinal < Self::MAX_ORDINALS => Ok(DeviceRef::Ordinal(ordinal)),
            Err(_) if is_uuid && text.len() <= 64 => Ok(DeviceRef::Uuid(text.to_owned())),
            _ => Err(ValueError::Device(text.to_owned())),
        }
    }
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceRef::Ordinal(ordinal) => write!(f, "{ordinal}"),
            DeviceRef::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

/// Parses `0=1G,GPU-1234=512MB`, the form of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`.
///
/// # Errors
/// [`ValueError`] of the first pair that cannot be read.
pub fn parse_limit_list(text: &str) -> Result<Vec<(DeviceRef, MemoryLimit)>, ValueError> {
    // The original's guide shows the value in quotes inside quotes; users copy that.
    let text = text.trim().trim_matches(['\'', '"']);
    text.split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (device, limit) =
                pair.split_once('=').ok_or_else(|| ValueError::LimitList(text.to_owned()))?;
            Ok((device.trim().parse()?, limit.trim().parse()?))
        })
        .collect()
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
        ] {
            assert_eq!(typed.parse::<MemoryLimit>().unwrap().to_string(), printed, "{typed}");
        }
    }

    #[test]
    fn limits_that_the_original_half_reads_are_refused() {
        for typed in
            ["3X", "5.5G", "-5G", "GG", "", "5GX", "99999999999999999999G", "18446744073709551615G"]
        {
            assert!(typed.parse::<MemoryLimit>().is_err(), "{typed}");
        }
    }

    #[test]
    fn percentages_have_one_decimal_and_a_range() {
        assert_eq!("33.33333".parse::<Percentage>().unwrap().to_string(), "33.3");
        assert_eq!("0.05".parse::<Percentage>().unwrap().to_string(), "0.1");
        for typed in ["0", "-1", "100.1", "NaN", "inf", "x", ""] {
            assert!(typed.parse::<Percentage>().is_err(), "{typed}");
        }
    }

    #[test]
    fn devices_are_ordinals_or_uuid_prefixes() {
        assert_eq!("31".parse(), Ok(DeviceRef::Ordinal(31)));
        for typed in ["32", "-1", "x", "GPU-", ""] {
            assert!(typed.parse::<DeviceRef>().is_err(), "{typed}");
        }
        let prefix: DeviceRef = "GPU-d123".parse().unwrap();
        assert!(prefix.names(4, "GPU-D123c540-3d02-b0d8-c638-e90011910307"));
        assert!(!prefix.names(4, "GPU-d1"));
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
