//! Which functions have answered in a process: what COMPATIBILITY.md rests on when it says where a
//! function is proven.
//!
//! Where `OPENMPS_RECORD_CALLS` names a directory, each library appends the symbol of a function
//! that returns `CUDA_SUCCESS` for the first time to the file `LIBRARY.PROGRAM` there.
//! `cargo xtask test` sets it for its programs and reads the files. Otherwise a call costs one load
//! of a flag.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::classes::Library;
use crate::functions::{FUNCTION_COUNT, FUNCTIONS};

/// The variable that names the directory.
pub const VARIABLE: &str = "OPENMPS_RECORD_CALLS";

/// The functions of one library that have answered in this process.
pub struct Record {
    library: Library,
    state: AtomicU8,
    answered: [AtomicBool; FUNCTION_COUNT],
}

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

impl Record {
    /// Nothing has answered yet.
    pub const fn new(library: Library) -> Self {
        Self {
            library,
            state: AtomicU8::new(UNKNOWN),
            answered: [const { AtomicBool::new(false) }; FUNCTION_COUNT],
        }
    }

    /// Whether calls need not be told.
    #[inline(always)]
    pub fn is_off(&self) -> bool {
        // Relaxed: whoever reads an old value asks `success`, which finds out itself.
        self.state.load(Ordering::Relaxed) == OFF
    }

    /// Notes that the function at `index` of [`FUNCTIONS`] has returned `CUDA_SUCCESS`.
    #[cold]
    pub fn success(&self, index: usize) {
        let Some(directory) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
            // Relaxed: the value says all; also below.
            self.state.store(OFF, Ordering::Relaxed);
            return;
        };
        self.state.store(ON, Ordering::Relaxed);
        let (Some(function), Some(answered)) = (FUNCTIONS.get(index), self.answered.get(index))
        else {
            return;
        };
        // Relaxed: the flag guards nothing but a second line.
        if !answered.swap(true, Ordering::Relaxed) {
            let path = PathBuf::from(directory).join(file_name(self.library));
            // Opened anew for each line: programs close descriptors that are not theirs, and the
            // file of a process is whole however it ends. A line that cannot be written is missed
            // by whoever reads the file.
            if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
                let _ = file.write_all(format!("{}\n", function.symbol).as_bytes());
            }
        }
    }
}

/// `LIBRARY.PROGRAM`.
fn file_name(library: Library) -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default();
    format!("{}.{}", library.name(), program.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_variable_a_record_turns_itself_off() {
        // The test runner's own environment may have it.
        if std::env::var_os(VARIABLE).is_none() {
            let record = Record::new(Library::Software);
            assert!(!record.is_off());
            record.success(0);
            assert!(record.is_off());
        }
        assert!(file_name(Library::Client).starts_with("client.cuda_abi"));
    }
}
