//! The variables that another user's server is started with.
//!
//! A user can read those of a process of the own, and whoever starts a daemon has more in the
//! environment than is meant for users: passwords of scripts, addresses of agents. So what bears on
//! servers is listed here, and nothing else is handed on.

use std::ffi::{OsStr, OsString};

/// Of CUDA, of NVIDIA's driver, of this program; and of the language of messages.
const PREFIXES: [&str; 4] = ["CUDA_", "NVIDIA_", "OPENMPS_", "LC_"];
/// Where programs and the driver's libraries are; language and time of messages; what Rust says of
/// a failure. No `HOME` and no `TMPDIR`, which are other users' as well.
const NAMES: [&str; 6] = ["PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "RUST_BACKTRACE"];

/// Those of these variables that another user's server is to have.
pub(super) fn for_another_user(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, _)| is_handed_on(name))
}

fn is_handed_on(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let has_prefix = |prefix: &&str| name.starts_with(prefix.as_bytes());
    PREFIXES.iter().any(has_prefix) || NAMES.iter().any(|known| known.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_bears_on_servers_is_handed_on_and_nothing_else_is() {
        for name in
            ["CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "OPENMPS_SOFT_SMS", "PATH", "LC_ALL"]
        {
            assert!(is_handed_on(name.as_ref()), "{name}");
        }
        for name in ["HOME", "SSH_AUTH_SOCK", "DB_PASSWORD", "MY_CUDA_", "PATHS", "LD_PRELOAD", ""]
        {
            assert!(!is_handed_on(name.as_ref()), "{name}");
        }
    }
}
