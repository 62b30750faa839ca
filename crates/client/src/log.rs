//! What the library says to its user: lines on standard error, only when `OPENMPS_LOG` asks for
//! them.
//!
//! A driver library must stay silent by default: its host program owns standard error. A few things
//! are said all the same ([`tell`], [`tell_unless_off`], [`tell_failure`]). `OPENMPS_LOG` is
//! `error`, `warn`, `info`, `debug` or `trace`; each level includes the ones before it.

use cuda_abi::types::CUresult;
use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// How important a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Something asked for cannot be done.
    Error,
    /// Something is done in another way than asked for, or not supported.
    Warn,
    /// What was decided.
    Info,
    /// Which calls fail.
    Debug,
    /// All calls.
    Trace,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "error" => Some(Self::Error),
            "warn" => Some(Self::Warn),
            "info" => Some(Self::Info),
            "debug" => Some(Self::Debug),
            "trace" => Some(Self::Trace),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Whether lines of this level are printed.
pub(crate) fn enabled(level: Level) -> bool {
    static LIMIT: OnceLock<Option<Level>> = OnceLock::new();
    let limit = LIMIT.get_or_init(|| Level::parse(&std::env::var("OPENMPS_LOG").ok()?));
    limit.is_some_and(|limit| level <= limit)
}

/// Prints one line; use the macros [`error!`](crate::error), [`warn!`](crate::warn) and
/// [`info!`](crate::info).
pub(crate) fn write(level: Level, message: Arguments<'_>) {
    if enabled(level) {
        say(level, message);
    }
}

/// Prints one line whatever `OPENMPS_LOG` says: what the program's user must know to be safe.
pub(crate) fn tell(message: Arguments<'_>) {
    say(Level::Error, message);
}

/// The same, but `OPENMPS_LOG=off` silences it.
pub(crate) fn tell_unless_off(message: Arguments<'_>) {
    if !std::env::var("OPENMPS_LOG").is_ok_and(|text| text.trim() == "off") {
        tell(message);
    }
}

/// Says, once in a process, that its work on a GPU has failed: of its own error a program may print
/// a number, and of another client's fault it knows nothing. `OPENMPS_LOG=off` silences it.
#[cold]
#[inline(never)]
pub(crate) fn tell_failure(code: CUresult) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Relaxed: nothing else is published by it.
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let name = code.name().map_or("an unknown error".into(), |name| name.to_string_lossy());
    tell_unless_off(format_args!(
        "the work of this process on the GPU has failed with {name} ({}): `openmps ps --faults` and `openmps logs` say more",
        code.0
    ));
}

fn say(level: Level, message: Arguments<'_>) {
    let line = format!("openmps[{}] {}: {message}\n", std::process::id(), level.name());
    // Nobody is left to tell when standard error is closed.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Logs an error.
#[macro_export]
macro_rules! error { ($($text:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!($($text)*)) }; }
/// Logs a warning.
#[macro_export]
macro_rules! warn { ($($text:tt)*) => { $crate::log::write($crate::log::Level::Warn, format_args!($($text)*)) }; }
/// Logs a decision.
#[macro_export]
macro_rules! info { ($($text:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!($($text)*)) }; }
/// Logs a call that fails.
#[macro_export]
macro_rules! debug { ($($text:tt)*) => { $crate::log::write($crate::log::Level::Debug, format_args!($($text)*)) }; }
/// Logs any call.
#[macro_export]
macro_rules! trace { ($($text:tt)*) => { $crate::log::write($crate::log::Level::Trace, format_args!($($text)*)) }; }

#[cfg(test)]
mod tests {
    use super::Level;

    #[test]
    fn levels_are_parsed_and_ordered() {
        assert_eq!(Level::parse(" warn\n"), Some(Level::Warn));
        assert_eq!(Level::parse("loud"), None);
        assert!(Level::Error < Level::Info);
    }
}
