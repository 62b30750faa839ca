//! Tools that look into CUDA programs: debuggers, memory checkers, profilers. They know NVIDIA's
//! driver, not this library, so a program in their hands runs natively.
//!
//! - A *debugger* stops the whole device with its program. The program's `cuInit` waits until no
//!   client is left and then goes on without a server (MPS guide, 2.3.6.1).
//! - What a debugged process starts for the debugger's sake, or its own, is native at once: it
//!   would wait for its parent's end.
//! - A tool that *injects* a library into the driver or the process (compute-sanitizer, profilers
//!   on CUPTI) works beside a server; the program runs natively at once.

use std::ffi::OsStr;
use std::path::Path;

/// Variables with which tools find themselves again in the programs that they start: NVIDIA's
/// driver loads the library that the first names; the others were seen with compute-sanitizer of
/// CUDA 13.0, the last is that of the launcher that several tools share.
const INJECTION_VARIABLES: [&str; 3] = [
    "CUDA_INJECTION64_PATH",
    "NV_SANITIZER_INJECTION_TRANSPORT_TYPE",
    "NVIDIA-PROCESS-TRACKING-CONFIGURATION",
];

/// What looks into this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// A CUDA debugger traces it; its name.
    Debugger(String),
    /// A CUDA debugger traces its parent; its name.
    ParentsDebugger(String),
    /// A tool is in the process, or about to be; the variable that says so.
    Injection(&'static str),
}

/// The tool that has this process in its hands, if any.
pub(crate) fn present() -> Option<Tool> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(name) = debugger(&status) {
        return Some(Tool::Debugger(name));
    }
    let parent = number_in(&status, "PPid:").and_then(|parent| {
        std::fs::read_to_string(Path::new("/proc").join(parent.to_string()).join("status")).ok()
    });
    if let Some(name) = parent.and_then(|status| debugger(&status)) {
        return Some(Tool::ParentsDebugger(name));
    }
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    INJECTION_VARIABLES.into_iter().find(is_set).map(Tool::Injection)
}

/// cuda-gdb under all the names that it is installed as, its server, and TotalView's. Linaro DDT
/// and the IDEs start cuda-gdb.
fn is_cuda_debugger(name: &str) -> bool {
    name.contains("cuda-gdb") || name.starts_with("tvdsvr") || name.starts_with("totalview")
}

/// The name of the CUDA debugger that traces a process with this `/proc/PID/status`.
fn debugger(status: &str) -> Option<String> {
    let tracer = number_in(status, "TracerPid:")?;
    let process = Path::new("/proc").join(tracer.to_string());
    let executable = std::fs::read_link(process.join("exe")).ok();
    let name = executable.as_deref().and_then(Path::file_name).and_then(OsStr::to_str);
    // Another user's executable cannot be read, but what it calls itself can.
    let called = || Some(std::fs::read_to_string(process.join("comm")).ok()?.trim().to_owned());
    name.map(str::to_owned).or_else(called).filter(|name| is_cuda_debugger(name))
}

/// A process id in a `/proc/PID/status`; `None` for 0, which is nobody or a process outside of this
/// PID namespace.
fn number_in(status: &str, key: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
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
    fn processes_are_read_from_the_status() {
        let status = "Name:\tx\nPPid:\t12\nTracerPid:\t4711\nUid:\t0\n";
        assert_eq!(number_in(status, "TracerPid:"), Some(4711));
        assert_eq!(number_in(status, "PPid:"), Some(12));
        assert_eq!(number_in("Name:\tx\nTracerPid:\t0\n", "TracerPid:"), None);
        assert_eq!(number_in("", "TracerPid:"), None);
    }
}
