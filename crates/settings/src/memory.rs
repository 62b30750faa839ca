//! Amounts of device memory as people write them: `4G`, `0=1G,GPU-12ab=512MB`. How they are printed
//! follows NVIDIA's control utility. What that one half-reads is an error here (`3X` as `3M`) or
//! read as it is meant (`5.5G`, there `5M`).

use crate::ValueError;
use std::fmt;
use std::str::FromStr;

/// A device as an administrator names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceRef {
    /// Position among the devices that the daemon shows.
    Ordinal(u32),
    /// UUID or the first characters of one, `GPU-` or `MIG-` included.
    Uuid(String),
}

impl DeviceRef {
    /// Ordinals from here on are refused, as by NVIDIA MPS.
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

/// An amount of memory, in bytes; as a limit, 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Memory(u64);

impl Memory {
    /// So many bytes.
    pub fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// In bytes, as a limit; absent: it removes a limit rather than setting one.
    pub fn limit_bytes(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

/// Digits after the point of an amount; more say nothing that a person means.
const MOST_DECIMALS: usize = 9;

impl FromStr for Memory {
    type Err = ValueError;

    /// Reads `512M`, `4G`, `4 gb`, `4GiB`, `0.5G`: a number and K, M, G or T in either case, which
    /// count by 1024 and may be followed by B or iB. A bare number is MiB, as in NVIDIA MPS. A part
    /// of a byte is left out.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let refuse = || ValueError::Memory(text.to_owned());
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let unit: u64 = match unit.trim_start().to_ascii_uppercase().as_str() {
            "K" | "KB" | "KIB" => 1 << 10,
            "" | "M" | "MB" | "MIB" => 1 << 20,
            "G" | "GB" | "GIB" => 1 << 30,
            "T" | "TB" | "TIB" => 1 << 40,
            _ => return Err(refuse()),
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        if decimals.is_empty() || decimals.len() > MOST_DECIMALS {
            return Err(refuse());
        }
        // Neither has a sign: both consist of digits, or of more points, which are refused here.
        let whole: u64 = whole.parse().map_err(|_| refuse())?;
        let part: u128 = decimals.parse().map_err(|_| refuse())?;
        let part = part * u128::from(unit) / 10_u128.pow(decimals.len() as u32);
        let of_part = u64::try_from(part).map_err(|_| refuse())?;
        let bytes = whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(of_part));
        bytes.map(Self).ok_or_else(refuse)
    }
}

impl fmt::Display for Memory {
    /// In G or M, a part of a mebibyte counted as one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.div_ceil(1 << 20) {
            mebibytes if mebibytes.is_multiple_of(1024) => write!(f, "{}G", mebibytes / 1024),
            mebibytes => write!(f, "{mebibytes}M"),
        }
    }
}

/// Reads `0=1G,GPU-1234=512MB`, the form of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`.
///
/// # Errors
/// [`ValueError`] of the first pair that cannot be read.
pub fn parse_memory_list(text: &str) -> Result<Vec<(DeviceRef, Memory)>, ValueError> {
    let pair = |pair: &str| match pair.split_once('=') {
        Some((device, size)) => Ok((device.trim().parse()?, size.parse()?)),
        None => Err(ValueError::List(text.to_owned())),
    };
    parts(text).map(pair).collect()
}

/// Reads the form of `OPENMPS_MEMORY_LIMIT`: [`parse_memory_list`]'s, and `4G` alone for each
/// device, which has no [`DeviceRef`].
///
/// # Errors
/// [`ValueError`] of the first part that cannot be read.
pub fn parse_memory_of_each(text: &str) -> Result<Vec<(Option<DeviceRef>, Memory)>, ValueError> {
    let part = |part: &str| match part.split_once('=') {
        Some((device, size)) => Ok((Some(device.trim().parse()?), size.parse()?)),
        None => Ok((None, part.parse()?)),
    };
    parts(text).map(part).collect()
}

/// The parts of a list. NVIDIA's guide shows values in quotes inside quotes, and users copy
/// that: quotes around the whole or a part do not count.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(unquoted).filter(|part| !part.is_empty())
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || c == '\'' || c == '"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in [
            ("2G", 2 << 30),
            ("2048M", 2 << 30),
            ("300MB", 300 << 20),
            ("5g", 5 << 30),
            ("5", 5 << 20),
            ("512K", 512 << 10),
            ("1 tb", 1 << 40),
            (" 4 G ", 4 << 30),
            ("4GiB", 4 << 30),
            ("0.5G", 512 << 20),
            ("1.5 KiB", 1536),
            ("0.0001K", 0),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Memory(bytes)), "{text}");
        }
        for text in [
            "3X",
            "5.5.5G",
            "5.G",
            ".5G",
            "1.0000000001G",
            "17179869184.5G",
            "-5G",
            "GG",
            "B",
            "",
            "5GX",
            "5 5",
            "99999999999999999999G",
            "18446744073709551615G",
        ] {
            assert_eq!(text.parse::<Memory>(), Err(ValueError::Memory(text.into())));
        }
    }

    #[test]
    fn amounts_read_back_as_nvidia_prints_them() {
        for (typed, printed) in [
            ("2G", "2G"),
            ("2048M", "2G"),
            ("300MB", "300M"),
            ("5", "5M"),
            ("0.5G", "512M"),
            ("1.5 TiB", "1536G"),
            ("0.0000001G", "1M"),
        ] {
            assert_eq!(typed.parse::<Memory>().unwrap().to_string(), printed, "{typed}");
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
    fn lists_follow_the_guide() {
        let ordinal = DeviceRef::Ordinal;
        let list = parse_memory_list("'0=1G, GPU-ab = 512MB',\"2=100\",").unwrap();
        let uuid = DeviceRef::Uuid("GPU-ab".into());
        let list: Vec<_> = list.into_iter().map(|(of, size)| (of, size.bytes())).collect();
        assert_eq!(list, [(ordinal(0), 1 << 30), (uuid, 512 << 20), (ordinal(2), 100 << 20)]);
        assert_eq!(parse_memory_list(""), Ok(vec![]));
        for wrong in ["1G", "0=", "0=3X", "x=1G", "0=-1", "GPU-=1G", "32=1G", "0=99999999999G"] {
            assert!(parse_memory_list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_alone_is_each_devices() {
        let limits = parse_memory_of_each("4G,1=2G").unwrap();
        assert_eq!(
            limits,
            [(None, Memory(4 << 30)), (Some(DeviceRef::Ordinal(1)), Memory(2 << 30))]
        );
        assert!(parse_memory_of_each("much").is_err());
    }
}
