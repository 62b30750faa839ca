//! Limits of device memory as people write them: `4G`, `0=1G,GPU-12ab=512MB`. Daemon, server and
//! commands read them here, so that all read the same.

use std::fmt;
use std::str::FromStr;

/// Why a limit was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Not a number with a unit.
    #[error(
        "`{0}` is no memory limit: give a number and K, M, G or T, such as 10G, 0.5G or 512MiB (0 removes the limit)"
    )]
    Size(String),
    /// Neither an ordinal nor a UUID.
    #[error(
        "`{0}` is no device: give an ordinal from 0 to 31 or a UUID that starts with GPU- or MIG-"
    )]
    Device(String),
    /// Not `device=limit` pairs.
    #[error("`{0}` is no list of limits: give device=limit pairs, such as 0=1G,1=512MB")]
    List(String),
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
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_uuid =
            ["GPU-", "MIG-"].iter().any(|kind| text.starts_with(kind) && text.len() > kind.len());
        match text.parse::<u32>() {
            Ok(ordinal) if ordinal < Self::MAX_ORDINALS => Ok(DeviceRef::Ordinal(ordinal)),
            Err(_) if is_uuid && text.len() <= 64 => Ok(DeviceRef::Uuid(text.to_owned())),
            _ => Err(LimitError::Device(text.to_owned())),
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

/// Digits after the point of a size; more say nothing that a person means.
const MOST_DECIMALS: usize = 9;

/// Reads `512M`, `4G`, `4 gb`, `4GiB`, `0.5G`: a number and K, M, G or T in either case, which
/// count by 1024 and may be followed by B or iB. A bare number is MiB, as in NVIDIA MPS. 0 is no
/// limit, where a limit is meant. A part of a byte is left out.
///
/// # Errors
/// [`LimitError::Size`].
pub fn parse_size_bytes(text: &str) -> Result<u64, LimitError> {
    let refuse = || LimitError::Size(text.to_owned());
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
    whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(of_part)).ok_or_else(refuse)
}

/// Reads `0=1G,GPU-1234=512MB`, the form of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT`, as (device, bytes).
///
/// # Errors
/// [`LimitError`] of the first pair that cannot be read.
pub fn parse_limit_list(text: &str) -> Result<Vec<(DeviceRef, u64)>, LimitError> {
    pairs(text)
        .map(|pair| {
            let (device, size) =
                pair.split_once('=').ok_or_else(|| LimitError::List(text.to_owned()))?;
            Ok((device.trim().parse()?, parse_size_bytes(size)?))
        })
        .collect()
}

/// Reads the form of `OPENMPS_MEMORY_LIMIT`: [`parse_limit_list`]'s, and `4G` alone for each
/// device, which has no [`DeviceRef`].
///
/// # Errors
/// [`LimitError`] of the first part that cannot be read.
pub fn parse_limits_of_each(text: &str) -> Result<Vec<(Option<DeviceRef>, u64)>, LimitError> {
    let mut limits = Vec::new();
    for part in pairs(text) {
        if part.contains('=') {
            limits.extend(parse_limit_list(part)?.into_iter().map(|(of, size)| (Some(of), size)));
        } else {
            limits.push((None, parse_size_bytes(part)?));
        }
    }
    Ok(limits)
}

/// The parts of a list. The original's guide shows values in quotes inside quotes, and users copy
/// that: quotes around the whole or a part do not count.
fn pairs(text: &str) -> impl Iterator<Item = &str> {
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
            assert_eq!(parse_size_bytes(text), Ok(bytes), "{text}");
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
            assert_eq!(parse_size_bytes(text), Err(LimitError::Size(text.into())));
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
        let list = parse_limit_list("'0=1G, GPU-ab = 512MB',\"2=100\",").unwrap();
        let uuid = DeviceRef::Uuid("GPU-ab".into());
        assert_eq!(list, [(ordinal(0), 1 << 30), (uuid, 512 << 20), (ordinal(2), 100 << 20)]);
        assert_eq!(parse_limit_list(""), Ok(vec![]));
        for wrong in ["1G", "0=", "0=3X", "x=1G", "0=-1", "GPU-=1G", "32=1G", "0=99999999999G"] {
            assert!(parse_limit_list(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_alone_is_each_devices() {
        let limits = parse_limits_of_each("4G,1=2G").unwrap();
        assert_eq!(limits, [(None, 4 << 30), (Some(DeviceRef::Ordinal(1)), 2 << 30)]);
        assert!(parse_limits_of_each("much").is_err());
    }
}
