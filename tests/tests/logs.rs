//! What the daemon logs, and where: state changes and commands in `control.log`, and all lines in
//! systemd's journal where that is its standard output.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};
use rustix::net::sockopt::set_socket_send_buffer_size;

fn openmps(sandbox: &Sandbox, words: &[&str]) -> Result<String> {
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    Ok(process::run(command.args(words), PATIENCE)?.success()?.to_owned())
}

#[test]
fn questions_are_not_logged_and_commands_are() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let mut client = daemon.puppet()?;
    client.must("open")?;
    let log = || fs::read_to_string(sandbox.log_directory().join("control.log"));
    sandbox.wait_for_log("Server has started")?;
    let before = log()?;
    for words in [
        &["ps"][..],
        &["ps", "--json"],
        &["status"],
        &["top", "--once", "--interval", "0.1"],
        &["limit"],
        &["reserve"],
        &["socket"],
        &["logs", "-n", "1"],
    ] {
        openmps(sandbox, words)?;
    }
    // Whatever they caused comes before what a command causes.
    openmps(sandbox, &["limit", "--group", "crew", "--memory", "1G"])?;
    openmps(sandbox, &["control", "get_server_list"])?;
    wait::until("both front ends have gone", PATIENCE, || {
        log().is_ok_and(|log| log.matches("UI closed").count() == 2)
    })
    .with_context(|| sandbox.last_log_lines())?;
    let after = log()?;
    let added = after.strip_prefix(&before).context("the log was begun again")?;
    let texts: Vec<&str> =
        added.lines().filter_map(|line| Some(line.split_once("] ")?.1)).collect();
    ensure!(texts.first() == Some(&"NEW UI"), "{added}");
    ensure!(texts.iter().filter(|text| **text == "NEW UI").count() == 2, "{added}");
    ensure!(texts.contains(&"Cmd:get_server_list"), "{added}");
    client.dismiss()
}

/// All that has come by now.
fn add_what_came(journal: &mut UnixStream, text: &mut String) -> Result<()> {
    let mut bytes = [0; 4096];
    loop {
        match journal.read(&mut bytes) {
            Ok(count) if count > 0 => text.push_str(&String::from_utf8_lossy(&bytes[..count])),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            _ => return Ok(()),
        }
    }
}

#[test]
fn the_journal_gets_all_lines_and_holds_up_nobody() -> Result<()> {
    for is_journal in [true, false] {
        let sandbox = Sandbox::new()?;
        let (mut journal, written) = UnixStream::pair()?;
        journal.set_nonblocking(true)?;
        let journals_end = written.try_clone()?;
        let found = rustix::fs::fstat(&written)?;
        let other = if is_journal { "" } else { "9" };
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        command.args(["control", "-f"]);
        command.env("JOURNAL_STREAM", format!("{}:{}{other}", found.st_dev, found.st_ino));
        command.stdin(Stdio::null()).stdout(OwnedFd::from(written));
        let mut daemon = command.spawn()?;
        drop(command);
        let mut text = String::new();
        let mut wait_for = |words: &str| {
            wait::until(words, PATIENCE, || {
                add_what_came(&mut journal, &mut text).is_err() || text.contains(words)
            })
            .with_context(|| text.clone())?;
            ensure!(text.contains(words), "{text}");
            Ok(())
        };
        wait_for("Starting control daemon")?;
        let mut client = Puppet::start(&sandbox, Runtime::OpenMps)?;
        client.must("open")?;
        wait_for("NEW SERVER")?;
        sandbox.wait_for_log("Server has started")?;
        if is_journal {
            wait_for("Server has started")?;
            // Nobody reads any more, and there is room for some lines.
            set_socket_send_buffer_size(&journals_end, 4096)?;
            let lines = sandbox.directory().join("lines");
            let mut file = fs::File::create(&lines)?;
            (0..100)
                .try_for_each(|number| writeln!(file, "nothing_{number} {}", "x".repeat(200)))?;
            let mut script = sandbox.command("/bin/sh", Runtime::Softcuda);
            script.args(["-c", "exec \"$1\" control < \"$2\"", "sh"]);
            script.arg(sandbox.installation.openmps()).arg(&lines);
            process::run(&mut script, PATIENCE)?;
            sandbox.wait_for_log("Cmd:nothing_99")?;
        } else {
            ensure!(!text.contains("Server has started"), "servers' lines are shown: {text}");
        }
        client.dismiss()?;
        daemon.kill()?;
        daemon.wait()?;
    }
    Ok(())
}
