//! Values that are typed and read back: shares, priorities, switches, numbers, and why one was not
//! taken. Each is parsed here alone, so that daemon, server and commands read the same.

use std::fmt;
use std::str::FromStr;

/// Why a value was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Not a number in (0, 100].
    #[error("`{0}` is no percentage: give a number above 0 and at most 100")]
    Percentage(String),
    /// Not a number with a unit.
    #[error(
        "`{0}` is no amount of memory: give a number and K, M, G or T, such as 10G, 0.5G or 512MiB"
    )]
    Memory(String),
    /// Neither an ordinal nor a UUID.
    #[error(
        "`{0}` is no device: give an ordinal from 0 to 31 or a UUID that starts with GPU- or MIG-"
    )]
    Device(String),
    /// Not `device=limit` pairs.
    #[error("`{0}` is no list of limits: give device=limit pairs, such as 0=1G,1=512MB")]
    List(String),
    /// Neither 0 nor 1.
    #[error("`{0}` is no client priority: give 0 (normal) or 1 (below normal)")]
    Priority(String),
    /// None of a few words, or a number that is too large or too small.
    #[error("`{text}` cannot be used: give {expected}")]
    Choice {
        /// What was given.
        text: String,
        /// What can be.
        expected: String,
    },
    /// No address.
    #[error("`{0}` is no place to listen at: give ADDRESS:PORT, as 127.0.0.1:9400, or unix:/PATH")]
    Address(String),
    /// Neither a number nor `self`.
    #[error("`{0}` is no user: give user ids with commas between them, or self")]
    User(String),
}

/// Portion of a device's SMs, in (0, 100] percent; printed with one decimal as NVIDIA MPS does.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Percentage(f64);

impl Percentage {
    /// All SMs: the default.
    pub const ALL: Percentage = Percentage(100.0);

    /// The portion in percent.
    pub fn percent(self) -> f64 {
        self.0
    }
}

impl FromStr for Percentage {
    type Err = ValueError;

    /// Reads `50`, `33.3`, and `50%` as outputs write it.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.trim();
        let number = number.strip_suffix('%').map_or(number, str::trim_end);
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
        // As a number: NVIDIA MPS takes `01` too.
        match text.trim().parse::<u8>() {
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

/// Reads a switch: `on` or `1`, `off` or `0`.
///
/// # Errors
/// [`ValueError::Choice`].
pub fn parse_switch(text: &str) -> Result<bool, ValueError> {
    match text.trim() {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err(ValueError::Choice { text: text.to_owned(), expected: "on or off".to_owned() }),
    }
}

/// A user whose server is to start with the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The daemon's own.
    Own,
    /// The one of this id.
    Id(u32),
}

impl FromStr for User {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.trim() {
            "self" => Ok(User::Own),
            id => id.parse().map(User::Id).map_err(|_| ValueError::User(text.to_owned())),
        }
    }
}

/// Reads a list of users: `1000,1001,self`.
pub fn parse_users(text: &str) -> impl Iterator<Item = Result<User, ValueError>> {
    text.split(',').filter(|user| !user.trim().is_empty()).map(str::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_one_decimal_and_a_range() {
        for (typed, printed) in [
            ("33.33333", "33.3"),
            ("0.05", "0.1"),
            ("50%", "50.0"),
            ("33.3 %", "33.3"),
            (" 50 ", "50.0"),
        ] {
            assert_eq!(typed.parse::<Percentage>().unwrap().to_string(), printed, "{typed}");
        }
        for typed in ["0", "-1", "%", "50%%", "100.1", "NaN", "inf", "x", ""] {
            assert!(typed.parse::<Percentage>().is_err(), "{typed}");
        }
    }

    #[test]
    fn switches_and_users_are_read_and_mistakes_named() {
        assert_eq!(
            ["on", "1", " off", "0"].map(|it| parse_switch(it).unwrap()),
            [true, true, false, false]
        );
        assert!(["yes", "", "2", "true"].iter().all(|text| parse_switch(text).is_err()));
        let users: Vec<_> = parse_users("1000, self,x,").collect();
        let wrong = Err(ValueError::User("x".into()));
        assert_eq!(users, [Ok(User::Id(1000)), Ok(User::Own), wrong]);
    }

    #[test]
    fn priorities_are_numbers() {
        assert_eq!("01 ".parse(), Ok(Priority::BelowNormal));
        for typed in ["2", "-1", "x", ""] {
            assert!(typed.parse::<Priority>().is_err(), "{typed}");
        }
    }
}
