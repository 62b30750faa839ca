//! Whether a process has ended that nobody can wait for.
//!
//! What ends stays until whoever traces it has seen that, and is not there to be waited for by its
//! parent before. A debugger may never look. It may also trace one thread alone, and then not even
//! a descriptor of the process tells of its end.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

/// Whether no thread of a process runs any more. Only of one that has been killed this is the last
/// word: another may start a thread while this looks.
pub fn is_zombie(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let mut states = threads.flatten().map(|thread| has_ended(&thread.path()));
    states.all(|has_ended| has_ended)
}

fn has_ended(thread: &Path) -> bool {
    let stat = match fs::read(thread.join("stat")) {
        Ok(stat) => stat,
        // Gone meanwhile: the kernel says the one or the other.
        Err(error) => {
            let error = Errno::from_io_error(&error);
            return matches!(error, Some(Errno::NOENT | Errno::SRCH));
        }
    };
    is_of_one_that_has_ended(&String::from_utf8_lossy(&stat))
}

/// Of `PID (NAME) STATE ...`, proc(5); a name may have anything in it.
fn is_of_one_that_has_ended(stat: &str) -> bool {
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    matches!(state, Some("Z" | "X"))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_has_ended_and_was_not_waited_for_is_a_zombie() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(!is_zombie(child.id()));
        child.kill().unwrap();
        let start = Instant::now();
        while !is_zombie(child.id()) {
            assert!(start.elapsed() < Duration::from_secs(60), "never a zombie");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_zombie(child.id()), "it is no process at all");
    }

    #[test]
    fn a_state_is_read_whatever_the_name() {
        assert!(is_of_one_that_has_ended("7 (a) S 1 (b) Z 1 11 12 0\n"));
        assert!(is_of_one_that_has_ended("7 (a) X 1 11 12 0\n"));
        assert!(!is_of_one_that_has_ended("7 (a) Z 1 (b) S 1 11 12 0\n"));
        assert!(!is_of_one_that_has_ended("7 (a"));
    }
}
