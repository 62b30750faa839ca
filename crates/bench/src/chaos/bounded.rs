//! Helpers' processes, which may hang in what they are to look at.

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// What a process that is given `input` writes to its standard output. After `limit` it is killed,
/// which is an error.
pub(super) fn output(mut command: Command, input: &str, limit: Duration) -> io::Result<String> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that has ended already takes none.
        let _ = stdin.write_all(input.as_bytes());
    }
    let (sender, text) = channel();
    if let Some(mut output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = output.read_to_end(&mut bytes);
            let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
        });
    }
    let text = text.recv_timeout(limit);
    if text.is_err() {
        child.kill()?;
    }
    child.wait()?;
    text.map_err(|_| io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_returned_and_what_hangs_is_killed() {
        let said = output(Command::new("cat"), "a word", Duration::from_secs(60)).unwrap();
        assert_eq!(said, "a word");
        let mut sleeping = Command::new("sleep");
        sleeping.arg("3600");
        let error = output(sleeping, "", Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
