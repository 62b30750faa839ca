//! Finding N11: a message of a user's server takes a hundred times its length of the daemon's
//! memory.

use std::fs;

use anyhow::{Context, Result, ensure};
use link::pieces::Piece;
use link::wire::daemon::{MAX_SERVER_MESSAGE_BYTES, ServerSnapshot, ToDaemon};
use openmps_tests::{Daemon, Liar, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] =
    &[Test::new("n11_a_long_message_takes_little_memory_of_the_daemon", long)];

/// Above what the daemon has had: the message's text, while it comes in pieces and grows, and what
/// it says.
const MOST_BYTES: u64 = 16 * MAX_SERVER_MESSAGE_BYTES as u64;

/// The most memory that a process has ever had.
fn peak_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes << 10)
}

/// As long a snapshot as there may be, with so many of these in a list.
fn snapshot_with(list: &str, element: &str) -> String {
    let head = format!(
        r#"{{"snapshot":{{"id":1,"snapshot":{{"devices":[],"clients":[],"clients_ever":0,"{list}":["#
    );
    let tail = format!("{element}]}}}}}}");
    let room = MAX_SERVER_MESSAGE_BYTES - head.len() - tail.len();
    let element = format!("{element},");
    head + &element.repeat(room / element.len()) + &tail
}

fn long() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let mut command =
        sandbox.command_as(ATTACKER, sandbox.installation.puppet()?, Runtime::OpenMps);
    let mut client = Puppet::spawn(&mut command)?;
    client.must("open")?;
    let liar = Liar::in_place_of(daemon.server()?.pid, ServerSnapshot::default())?;
    daemon.state()?;
    let before = peak_bytes(daemon.pid())?;
    let refused = format!(
        r#"{{"changed":{{"id":1,"report":{{"clients":[],"waiting":[],"refused":[{}""]}}}}}}"#,
        r#""","#.repeat(2_700_000)
    );
    let texts = [snapshot_with("junk", r#"{"":0}"#), refused];
    for text in texts {
        for piece in Piece::all(&text) {
            liar.say(&ToDaemon::Piece(piece))?;
        }
    }
    // It was understood, or this would not be heard.
    liar.say(&ToDaemon::Failed { message: "the last word".to_owned() })?;
    sandbox.wait_for_log("the last word")?;
    let more = peak_bytes(daemon.pid())?.saturating_sub(before);
    ensure!(more < MOST_BYTES, "{} MiB more", more >> 20);
    drop(liar);
    client.kill()
}
