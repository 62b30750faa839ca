//! Does with a server's log, which is its standard output, what a user who has the server's
//! descriptor can do: `log_thief ORDER`.
//!
//! | order | does |
//! |---|---|
//! | `truncate` | shortens it to nothing and writes over its beginning |
//! | `forge` | writes lines in others' names, with escape sequences, carriage returns and no end |
//! | `fill BYTES` | writes so many bytes of lines |
//! | `stuff` | writes until there is no room, 16 MiB at most |
//!
//! What is refused is no error. The last line, on standard error, says how many bytes were taken.

use std::io::{Write, stderr};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::stdio::stdout;

const MOST_BYTES: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let taken = match words.as_slice() {
        ["truncate"] => {
            let shortened = rustix::fs::ftruncate(stdout(), 0);
            let written = rustix::io::pwrite(stdout(), b"OVERWRITTEN\n", 0);
            usize::from(shortened.is_ok()) + written.unwrap_or(0)
        }
        ["forge"] => {
            let lines = [
                "[2026-11-22 00:00:00.000 Control     1] FORGED by Control\n",
                "[2026-11-22 00:00:00.000 Server     1] FORGED by Server\n",
                "[2026-11-22 00:00:00.000 Other     1] FORGED by Other\n",
                "FORGED with \x1b[31mcolours\x1b]0;pwned\x07 and \r[2026-11-22 00:00:00.000 Server     1] FORGED behind a return\n",
            ];
            // Longer than any line may be, so that it is cut: what follows must not look like a
            // line's beginning.
            let long = "x".repeat(20_000)
                + "[2026-11-22 00:00:00.000 Server     1] FORGED in the middle\n";
            let all = lines.concat() + &long + "FORGED without an end";
            post(all.as_bytes(), all.len(), Full::Wait)?
        }
        ["fill", size] => {
            let line = format!("{}\n", "filled ".repeat(16));
            post(line.as_bytes(), size.parse()?, Full::Wait)?
        }
        ["stuff"] => post(b"stuffed until there is no more room\n", MOST_BYTES, Full::Stop)?,
        _ => bail!("orders: truncate, forge, fill BYTES, stuff"),
    };
    Ok(writeln!(stderr(), "{taken}")?)
}

/// What to do where there is no room.
#[derive(Clone, Copy)]
enum Full {
    Wait,
    Stop,
}

/// Writes `text` again and again until so many bytes were taken.
fn post(text: &[u8], bytes: usize, full: Full) -> Result<usize> {
    let (mut taken, deadline) = (0, Instant::now() + PATIENCE);
    while taken < bytes {
        let rest = &text[taken % text.len()..];
        match (rustix::io::write(stdout(), &rest[..rest.len().min(4096)]), full) {
            (Ok(count), _) => taken += count,
            (Err(Errno::INTR), _) => {}
            (Err(Errno::AGAIN), Full::Wait) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            (Err(Errno::AGAIN), Full::Stop) => {
                // A whole line has no room: what has?
                while rustix::io::write(stdout(), b"x").is_ok() {}
                break;
            }
            (Err(error), _) => bail!("{taken} bytes were taken, then: {error}"),
        }
    }
    Ok(taken)
}
