//! A process that speaks the wire and has no CUDA: it does what its standard input says, line by
//! line, and answers each line with one. The daemon is that of `CUDA_MPS_PIPE_DIRECTORY`.
//!
//! | line | what |
//! |---|---|
//! | `attach COUNT LENGTH` | attaches so many clients, one after the other, whose command lines have so many characters |
//! | `leave` | all of its clients leave |
//! | `debugged` | says that it runs under a debugger, and waits for nothing |

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use link::socket::Connection;
use link::wire::DAEMON_SOCKET;
use link::wire::attach::{ClientHello, Hello, HelloReply, RequestedLimits};
use link::wire::version::Versions;

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let mut open = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let said = obey(&line?, &mut open);
        let mut out = std::io::stdout().lock();
        match said {
            Ok(()) => writeln!(out, "ok")?,
            Err(error) => writeln!(out, "error {error:#}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn obey(line: &str, open: &mut Vec<Connection>) -> Result<()> {
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        ["attach", count, length] => {
            let (count, length): (usize, usize) = (count.parse()?, length.parse()?);
            for _ in 0..count {
                open.push(attach("x".repeat(length))?);
            }
        }
        ["leave"] => open.clear(),
        ["debugged"] => {
            let daemon = connect()?;
            let debugger = "a test".to_owned();
            daemon.send(
                &Hello::Debugged { versions: Versions::ours(), debugger },
                &[],
                PATIENCE,
            )?;
            open.push(daemon);
        }
        _ => bail!("unknown: {line}"),
    }
    Ok(())
}

fn connect() -> Result<Connection> {
    let directory = std::env::var("CUDA_MPS_PIPE_DIRECTORY").context("no pipe directory")?;
    Ok(Connection::connect(&Path::new(&directory).join(DAEMON_SOCKET), PATIENCE)?)
}

fn attach(command: String) -> Result<Connection> {
    let daemon = connect()?;
    let hello = ClientHello {
        versions: Versions::ours(),
        pid: std::process::id(),
        pid_namespace: 0,
        command,
        limits: RequestedLimits::default(),
    };
    daemon.send(&Hello::Client(hello), &[], PATIENCE)?;
    let reply: HelloReply = daemon.receive(PATIENCE)?.message;
    ensure!(matches!(reply, HelloReply::Welcome(_)), "{reply:?}");
    Ok(daemon)
}
