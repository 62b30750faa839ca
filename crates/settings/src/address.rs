//! Where somebody listens.

use crate::ValueError;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A place to listen at: `127.0.0.1:9400`, `[::1]:9400`, or `unix:/run/openmps/metrics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError::Address(text.to_owned());
        match text.trim().strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(wrong()),
            None => text.trim().parse().map(Self::Tcp).map_err(|_| wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed_alike() {
        for text in ["127.0.0.1:9400", "[::1]:0", "unix:/run/openmps/metrics"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for wrong in ["", "9400", "localhost", "unix:relative", "127.0.0.1:99999"] {
            assert!(wrong.parse::<Address>().unwrap_err().to_string().contains(wrong));
        }
    }
}
