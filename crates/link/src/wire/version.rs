//! The *client wire*: what a client library and a server have in common, and its version.
//!
//! It is the client's hello and the packets after it ([`super::attach`], [`super::trace`]), the
//! session file and the completion file ([`super::layout`]), the commands with their bodies and
//! answers ([`super::command`]), and the rings of a trace ([`crate::trace`]). A container may have
//! a library that is older, or newer, than the host's daemon. So it has a number that is raised by
//! hand, and each build speaks all versions from one to another.
//!
//! `crates/link/client_wire/N.txt` says what version N is; `version/tests.rs` compares the code
//! with it, and says what to do where they differ.
//!
//! In every version, the first packet names the versions and the refusal has the form that they
//! have now: [`super::attach::Hello`]'s kind and `versions`, and [`super::attach::HelloReply`]'s
//! `refused`. Nothing else is read before both sides have agreed.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Oldest version that this build speaks. Raise it only to drop what nobody has any more.
const OLDEST: u32 = 1;
/// Newest version that this build speaks. Raise it for each change of the client wire.
const NEWEST: u32 = 1;

/// The versions as they lie in the files of this build.
#[repr(C)]
struct Mark {
    text: [u8; 24],
    oldest: u32,
    newest: u32,
}

/// What stands before the versions in the files of a build: whoever asks which versions a library
/// speaks need not run it.
pub const MARK: &[u8; 24] = b"OpenMPS client wire from";

#[used]
static SPOKEN: Mark = Mark { text: *MARK, oldest: OLDEST, newest: NEWEST };

/// All versions from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The first.
    pub oldest: u32,
    /// The last.
    pub newest: u32,
}

impl Versions {
    /// Those that this build speaks.
    pub fn ours() -> Self {
        // SAFETY: a field of a static that nobody writes. Volatile: what this process speaks is
        // what its file says.
        let (oldest, newest) = unsafe {
            let (oldest, newest) = (&raw const SPOKEN.oldest, &raw const SPOKEN.newest);
            (oldest.read_volatile(), newest.read_volatile())
        };
        Self { oldest, newest }
    }

    /// Whether there are none: a peer's word for them may be anything.
    fn is_empty(self) -> bool {
        self.oldest == 0 || self.oldest > self.newest
    }

    /// As a range.
    pub fn range(self) -> RangeInclusive<u32> {
        self.oldest..=self.newest
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(formatter, "version {}", self.oldest),
            false => write!(formatter, "versions {} to {}", self.oldest, self.newest),
        }
    }
}

/// Why a client library and a server do not understand each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum VersionError {
    /// The library is from before all versions, or is none of ours.
    #[error(
        "the program's OpenMPS library names no version of the client wire, and the daemon speaks {server}: update the library that the program loads, in a container that of the container, and start the program again"
    )]
    Unnamed {
        /// The server's.
        server: Versions,
    },
    /// The server has dropped what the library speaks.
    #[error(
        "the program's OpenMPS library speaks {library} of the client wire, and the daemon {server}: update the library that the program loads, in a container that of the container, and start the program again"
    )]
    OldLibrary {
        /// The library's.
        library: Versions,
        /// The server's.
        server: Versions,
    },
    /// The library has dropped what the server speaks.
    #[error(
        "the program's OpenMPS library speaks {library} of the client wire, and the daemon {server}: update OpenMPS where the daemon runs, and restart the daemon (systemctl restart openmps)"
    )]
    OldServer {
        /// The library's.
        library: Versions,
        /// The server's.
        server: Versions,
    },
}

/// The version that a library and a server use: the newest that both speak.
///
/// # Errors
/// [`VersionError`]; no number of the library's is believed.
pub fn agree(library: Versions, server: Versions) -> Result<u32, VersionError> {
    if library.is_empty() {
        return Err(VersionError::Unnamed { server });
    }
    if library.newest < server.oldest {
        return Err(VersionError::OldLibrary { library, server });
    }
    if library.oldest > server.newest {
        return Err(VersionError::OldServer { library, server });
    }
    Ok(library.newest.min(server.newest))
}

#[cfg(test)]
pub(crate) mod described;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
