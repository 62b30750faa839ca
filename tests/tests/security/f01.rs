//! Finding F1: what root writes its logs to, and what a user's server can do with them.

use std::fs::{self, Permissions, metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use link::socket::Connection;
use link::wire::daemon::ToDaemon;
use openmps_tests::installation::publish;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Installation, Puppet, Runtime, Sandbox, process};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f01_logs_are_not_made_through_links", made_through_links),
    Test::new("f01_logs_are_not_appended_through_links", appended_through_links),
    Test::new("f01_links_in_a_directory_for_all_are_not_followed", links_in_a_directory_for_all),
    Test::new("f01_log_directories_in_anothers_directory_are_not_used", anothers_parent),
    Test::new("f01_log_files_with_a_second_name_are_not_used", second_names),
    Test::new("f01_a_server_has_no_file_of_roots", no_file_of_roots),
    Test::new("f01_a_server_cannot_cut_its_log", cut),
    Test::new("f01_a_server_cannot_forge_lines", forged),
    Test::new("f12_a_server_cannot_forge_the_daemons_lines", forged_of_the_daemon),
    Test::new("f01_a_server_cannot_fill_the_disk", filled),
    Test::new("f01_a_server_outlives_its_log", outlives),
    Test::new("f01_a_full_log_holds_nobody_up", full),
];

const SECRET: &str = "root's own words\n";
/// More than a server may write at once, and less than is read of it at once.
const FLOOD_BYTES: u64 = 7 << 20;
/// What may be in the log after that: what may be written at once, and some seconds' worth.
const MOST_BYTES: u64 = 6 << 20;

/// Does as `user` does in a shell.
fn as_user(sandbox: &Sandbox, user: u32, script: &str) -> Result<()> {
    let mut shell = sandbox.command_as(user, "/bin/sh", Runtime::Softcuda);
    shell.args(["-e", "-c", script]).current_dir(sandbox.directory());
    process::run(&mut shell, PATIENCE)?.success().map(drop)
}

/// A directory that root alone may enter, with a file in it that root alone may read.
fn private(sandbox: &Sandbox) -> Result<(PathBuf, PathBuf)> {
    let directory = sandbox.directory().join("private");
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
    let secret = directory.join("secret");
    fs::write(&secret, SECRET)?;
    fs::set_permissions(&secret, Permissions::from_mode(0o440))?;
    Ok((directory, secret))
}

fn client(sandbox: &Sandbox, user: u32) -> Result<Puppet> {
    let puppet = sandbox.installation.puppet()?;
    let mut puppet = Puppet::spawn(&mut sandbox.command_as(user, puppet, Runtime::OpenMps))?;
    puppet.must("open").with_context(|| sandbox.last_log_lines())?;
    Ok(puppet)
}

/// Root's daemon with this log directory, and a client of the attacker's, so that everything is
/// logged that there is.
fn serve_with_logs_in(sandbox: Sandbox, logs: &Path) -> Result<Daemon> {
    let logs = logs.to_str().context("no text")?;
    let daemon = Daemon::start_with(sandbox, &[("CUDA_MPS_LOG_DIRECTORY", logs)])?;
    client(daemon.sandbox(), ATTACKER)?.must("work 1")?;
    Ok(daemon)
}

/// Root's daemon has said why it has no logs.
fn is_warned(daemon: &Daemon, of: &str) -> Result<()> {
    let said = fs::read_to_string(daemon.sandbox().log_directory().join("daemon-output.txt"))?;
    ensure!(said.contains("No logs will be available") && said.contains(of), "{of}: {said}");
    Ok(())
}

fn made_through_links() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let (private, _) = private(&sandbox)?;
    let logs = sandbox.directory_of(ATTACKER, "nvidia-log")?;
    let script = "ln -s $PWD/private/made nvidia-log/control.log
                  ln -s $PWD/private/also-made nvidia-log/server.log";
    as_user(&sandbox, ATTACKER, script)?;
    let daemon = serve_with_logs_in(sandbox, &logs)?;
    let there = fs::read_dir(&private)?.count();
    ensure!(there == 1, "root made {} files in {}", there - 1, private.display());
    is_warned(&daemon, "nvidia-log belongs to user 20002")
}

fn appended_through_links() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let (_, secret) = private(&sandbox)?;
    let logs = sandbox.directory_of(ATTACKER, "nvidia-log")?;
    let script = "ln -s $PWD/private/secret nvidia-log/control.log
                  ln -s $PWD/private/secret nvidia-log/server.log";
    as_user(&sandbox, ATTACKER, script)?;
    let _daemon = serve_with_logs_in(sandbox, &logs)?;
    ensure!(fs::read_to_string(&secret)? == SECRET, "root has written to it");
    Ok(())
}

/// `/tmp` itself is a log directory that some have.
fn links_in_a_directory_for_all() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let (_, secret) = private(&sandbox)?;
    let logs = sandbox.directory().join("for-all");
    fs::create_dir(&logs)?;
    fs::set_permissions(&logs, Permissions::from_mode(0o1777))?;
    as_user(&sandbox, ATTACKER, "ln -s $PWD/private/secret for-all/server.log")?;
    let daemon = serve_with_logs_in(sandbox, &logs)?;
    ensure!(fs::read_to_string(&secret)? == SECRET, "root has written to it");
    is_warned(&daemon, "server.log is a symbolic link")
}

/// A directory of root's that others can put another one in the place of.
fn anothers_parent() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let logs = sandbox.directory_of(ATTACKER, "attackers")?.join("nvidia-log");
    fs::create_dir(&logs)?;
    let daemon = serve_with_logs_in(sandbox, &logs)?;
    ensure!(fs::read_dir(&logs)?.count() == 0, "root has written there");
    is_warned(&daemon, "attackers belongs to user 20002")
}

fn second_names() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let logs = sandbox.directory().join("for-all");
    fs::create_dir(&logs)?;
    fs::set_permissions(&logs, Permissions::from_mode(0o1777))?;
    // Anybody can make such a name where `fs.protected_hardlinks` is off.
    let (_, secret) = private(&sandbox)?;
    fs::hard_link(&secret, logs.join("control.log"))?;
    let daemon = serve_with_logs_in(sandbox, &logs)?;
    ensure!(fs::read_to_string(&secret)? == SECRET, "root has written to it");
    is_warned(&daemon, "has 2 names")
}

/// A descriptor of a process, as a debugger gets it. Taken by root: that the attacker may be kept
/// from that is another wall.
fn taken(pid: u32, number: i32) -> Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}

/// A daemon whose logs are where they should be, and a server of the attacker's that it can do with
/// as it likes.
struct Own {
    daemon: Daemon,
    client: Puppet,
    server: u32,
    thief: PathBuf,
}

impl Own {
    fn start() -> Result<Self> {
        let daemon = Daemon::start(Sandbox::of_several_users()?)?;
        let sandbox = daemon.sandbox();
        let thief = sandbox.directory().join("programs/log_thief");
        publish(&Installation::find()?.own_program("log_thief")?, &thief)?;
        let client = client(sandbox, ATTACKER)?;
        let server = daemon.server()?.pid;
        let own = Self { daemon, client, server, thief };
        wait::until("the server has logged", PATIENCE, || {
            own.log().is_ok_and(|log| log.contains("connected"))
        })?;
        Ok(own)
    }

    fn log(&self) -> Result<String> {
        let path = self.daemon.sandbox().log_directory().join("server.log");
        Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
    }

    /// Does with the server's standard output what the attacker orders; how many bytes were taken.
    fn abuse(&self, order: &[&str]) -> Result<u64> {
        let sandbox = self.daemon.sandbox();
        let mut command = sandbox.command_as(ATTACKER, &self.thief, Runtime::Softcuda);
        let said = sandbox.directory().join("thief-said");
        let mut child = command
            .args(order)
            .stdin(Stdio::null())
            .stdout(taken(self.server, 1)?)
            .stderr(fs::File::create(&said)?)
            .spawn()?;
        let mut status = None;
        let ended = wait::until("the thief ends", 2 * PATIENCE, || {
            status = child.try_wait().ok().flatten();
            status.is_some()
        });
        if ended.is_err() {
            child.kill()?;
            child.wait()?;
        }
        ended?;
        let said = fs::read_to_string(said)?;
        ensure!(status.is_some_and(|status| status.success()), "{order:?}: {said}");
        said.trim().parse().with_context(|| said)
    }
}

fn no_file_of_roots() -> Result<()> {
    let own = Own::start()?;
    let snapshot = own.daemon.snapshot()?;
    let executor = snapshot.devices.first().context("no device")?.executor_pid;
    for (pid, number) in [(own.server, 1), (own.server, 2), (executor, 2)] {
        let shown = fs::read_link(format!("/proc/{pid}/fd/{number}"))?;
        let shown = shown.to_string_lossy();
        // An executor's standard error is memory that its own server made.
        let is_harmless =
            shown.starts_with("pipe:") || (pid == executor && shown.starts_with("/memfd:"));
        ensure!(is_harmless, "descriptor {number} of {pid}: {shown}");
    }
    // By its place under /proc a file can be opened anew, for what the descriptor itself does not
    // allow.
    let script = format!("! (: > /proc/{}/fd/1) 2> /dev/null", own.server);
    let before = own.log()?;
    as_user(own.daemon.sandbox(), ATTACKER, &script)?;
    ensure!(own.log()?.starts_with(&before), "it was cut");
    Ok(())
}

fn cut() -> Result<()> {
    let own = Own::start()?;
    let before = own.log()?;
    own.abuse(&["truncate"])?;
    let after = own.log()?;
    ensure!(after.starts_with(&before), "what was there has gone: {after}");
    Ok(())
}

fn forged() -> Result<()> {
    let own = Own::start()?;
    own.abuse(&["forge"])?;
    wait::until("all has come", PATIENCE, || {
        own.log().is_ok_and(|log| log.contains("FORGED in the middle"))
    })?;
    let log = own.log()?;
    for line in log.lines() {
        let head = line.strip_prefix('[').and_then(|line| line.split_once("] "));
        let (head, _) = head.with_context(|| format!("{line:?} is nobody's"))?;
        let words: Vec<&str> = head.split_whitespace().collect();
        let ours = own.server.to_string();
        let is_marked = matches!(words.as_slice(), [_, _, "Server" | "Other", pid] if *pid == ours);
        ensure!(is_marked && !line.starts_with("[2026-11-22 00:00:00.000"), "{line:?}");
        ensure!(!line.contains(char::is_control), "{line:?}");
    }
    // Nothing is lost by that.
    for text in ["by Control", "by Server", "by Other", "behind a return"] {
        ensure!(log.contains(&format!("FORGED {text}")), "{text}: {log}");
    }
    Ok(())
}

/// A server that lies, or its user with the server's socket.
fn forged_of_the_daemon() -> Result<()> {
    let own = Own::start()?;
    let line = fs::read(format!("/proc/{}/cmdline", own.server))?;
    let mut words = line.split(|byte| *byte == 0).skip_while(|word| *word != b"--control-fd");
    let number = words.nth(1).context("no --control-fd")?;
    let number = std::str::from_utf8(number)?.parse()?;
    let socket = Connection::from_socket(taken(own.server, number)?)?;
    let message = "it lies\n[2026-11-22 00:00:00.000 Control     1] FORGED \x1b[31m".to_owned();
    socket.send(&ToDaemon::Failed { message }, &[], PATIENCE)?;
    own.daemon.sandbox().wait_for_log("FORGED")?;
    let log = own.daemon.sandbox().log_directory().join("control.log");
    for line in fs::read_to_string(log)?.lines() {
        ensure!(!line.starts_with("[2026-11-22 00:00:00.000"), "{line:?}");
        ensure!(!line.contains(char::is_control), "{line:?}");
    }
    Ok(())
}

fn filled() -> Result<()> {
    let own = Own::start()?;
    let path = own.daemon.sandbox().log_directory().join("server.log");
    let taken = own.abuse(&["fill", &FLOOD_BYTES.to_string()])?;
    ensure!(taken >= FLOOD_BYTES, "{taken} bytes were taken: it waits for its log");
    let has_grown_to = metadata(&path)?.len();
    ensure!(has_grown_to < MOST_BYTES, "the log has {has_grown_to} bytes");
    // The number is said with the next line that there is room for.
    wait::until("what was left out is counted", PATIENCE, || {
        own.abuse(&["fill", "100"]).is_ok()
            && own.log().is_ok_and(|log| log.contains("were left out"))
    })?;
    let has_grown_to = metadata(&path)?.len();
    ensure!(has_grown_to < MOST_BYTES, "the log has {has_grown_to} bytes");
    Ok(())
}

/// The server goes on without its daemon, and without a place for its lines.
fn outlives() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let mut witness = client(daemon.sandbox(), VICTIM)?;
    let mut faulty = client(daemon.sandbox(), VICTIM)?;
    let leaving = client(daemon.sandbox(), VICTIM)?;
    let server = daemon.server()?.pid;
    daemon.kill()?;
    // Each of these is logged by the server, the fault by an executor, too.
    leaving.dismiss()?;
    ensure!(faulty.ask("fault")?.starts_with("error "), "it went well");
    faulty.kill()?;
    witness.must("work 5")?;
    daemon.start_again()?;
    witness.must("work 5")?;
    let mut next = client(daemon.sandbox(), VICTIM)?;
    next.must("work 1")?;
    ensure!(daemon.server()?.pid != server, "the old server is not the new daemon's");
    witness.must("work 5")?;
    witness.dismiss()
}

/// A daemon that takes no lines holds no server up; what was lost is counted.
fn full() -> Result<()> {
    let mut own = Own::start()?;
    let mut faulty = client(own.daemon.sandbox(), ATTACKER)?;
    let daemon = Pid::from_raw(own.daemon.pid().cast_signed()).context("no process id")?;
    kill_process(daemon, Signal::STOP)?;
    let stuffed = own.abuse(&["stuff"])?;
    let answers = faulty.ask("fault").and_then(|fault| {
        own.client.must("work 5")?;
        Ok(fault)
    });
    kill_process(daemon, Signal::CONT)?;
    let fault = answers.context("with a full log")?;
    ensure!(fault.starts_with("error ") && stuffed > 0, "{fault}, {stuffed} bytes");
    faulty.kill()?;
    wait::until("what was lost is counted", PATIENCE, || {
        own.log().is_ok_and(|log| log.contains("were lost"))
    })
    .with_context(|| own.daemon.sandbox().last_log_lines())?;
    own.client.must("work 5")?;
    own.client.dismiss()
}
