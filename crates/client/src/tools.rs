//! Tools that look into CUDA programs: debuggers, memory checkers, profilers. They know NVIDIA's driver, not this library, so a program
//! in their hands runs natively.
//!
//! - A *debugger* stops the whole device with its program. The program's `cuInit` waits until no client is left and then goes on without a server
//!   (MPS guide, 2.3.6.1).
//! - A tool that *injects* a library into the driver (`CUDA_INJECTION64_PATH`: compute-sanitizer, profilers on CUPTI) works
//!   beside a server; the program runs natively at once.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Names a library that NVIDIA's driver loads when it is initialised.
const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";

/// What looks into this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// A CUDA debugger traces it; its name.
    Debugger(String),
    /// A library is to be loaded into the driver.
    Injection(PathBuf),
}

/// The tool that has this process in its hands, if any.
pub(crate) fn present() -> Option<Tool> {
    if let Some(name) = tracer().filter(|name| is_cuda_debugger(name)) {
        return Some(Tool::Debugger(name));
    }
    let library = std::env::var_os(INJECTION_VARIABLE).filter(|path| !path.is_empty())?;
    Some(Tool::Injection(library.into()))
}

/// cuda-gdb under all the names that it is installed as, its server, and TotalView's. Linaro DDT and the IDEs start cuda-gdb.
fn is_cuda_debugger(name: &str) -> bool {
    name.contains("cuda-gdb") || name.starts_with("tvdsvr") || name.starts_with("totalview")
}

/// The name of the executable that traces this process.
fn tracer() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let tracer = tracer_in(&status)?;
    let process = Path::new("/proc").join(tracer.to_string());
    let executable = std::fs::read_link(process.join("exe")).ok();
    let name = executable.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    // Another user's executable cannot be read, but what it calls itself can.
    let called = || Some(std::fs::read_to_string(process.join("comm")).ok()?.trim().to_owned());
    name.map(str::to_owned).or_else(called)
}

/// `TracerPid` of a `/proc/PID/status`; `None` for 0, which is nobody or a process outside of this PID namespace.
fn tracer_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|&pid| pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_debuggers_are_known_by_their_names_and_others_are_not() {
        for name in ["cuda-gdb", "cuda-gdb-python3.11-tui", "cuda-gdbserver", "tvdsvrmain"] {
            assert!(is_cuda_debugger(name), "{name}");
        }
        for name in ["gdb", "strace", "lldb-server", "perf", ""] {
            assert!(!is_cuda_debugger(name), "{name}");
        }
    }

    #[test]
    fn the_tracer_is_read_from_the_status() {
        assert_eq!(tracer_in("Name:\tx\nTracerPid:\t4711\nUid:\t0\n"), Some(4711));
        assert_eq!(tracer_in("Name:\tx\nTracerPid:\t0\n"), None);
        assert_eq!(tracer_in(""), None);
    }
}
