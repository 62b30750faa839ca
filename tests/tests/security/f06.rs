//! Finding F6: a program takes only a daemon of root's or of its own user; where a user namespace
//! hides who that is, the place must vouch for it.
//!
//! The attacker listens where a daemon would and hands all packets on to a daemon of its own, which
//! serves the program well and reads its memory.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use link::wire::DAEMON_SOCKET;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f06_a_rogue_daemon_gets_no_program", no_program),
    Test::new("f06_a_rogue_daemon_gets_no_front_end", no_front_end),
    Test::new("f06_another_users_own_daemon_is_no_reason_to_run_natively", not_natively),
    Test::new("f06_the_next_place_is_tried", next_place),
    Test::new("f06_in_a_user_namespace_the_place_must_vouch", user_namespace),
];

const CONNECTION_FAILED: &str = "error 805";

/// A process that listens in a directory of its own, and the daemon of the same user behind it.
/// Ends with it.
struct Rogue {
    place: PathBuf,
    stranger: Puppet,
    daemon: Child,
}

impl Rogue {
    fn start(sandbox: &Sandbox, place: PathBuf) -> Result<Self> {
        let own = sandbox.directory_of(ATTACKER, "own")?;
        let mut daemon =
            sandbox.command_as(ATTACKER, sandbox.installation.openmps(), Runtime::OpenMps);
        let daemon = daemon
            .args(["control", "-f"])
            .envs([("CUDA_MPS_PIPE_DIRECTORY", &own), ("CUDA_MPS_LOG_DIRECTORY", &own)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let program = sandbox.installation.own_program("stranger")?;
        let mut stranger = sandbox.command_as(ATTACKER, program, Runtime::OpenMps);
        let stranger = Puppet::spawn(stranger.arg("relay").args([&place, &own]))?;
        let mut rogue = Self { place, stranger, daemon };
        wait::until("the attacker's daemon listens", PATIENCE, || {
            own.join(DAEMON_SOCKET).exists()
        })?;
        let said = rogue.stranger.answer_within(PATIENCE)?;
        ensure!(said == "listening", "{said}");
        Ok(rogue)
    }

    /// Fails if any program has spoken to it. Those that did were answered by now.
    fn heard_nothing(mut self) -> Result<()> {
        let said = self.stranger.answer_within(Duration::from_millis(100));
        ensure!(said.is_err(), "a program spoke to the attacker: {said:?}");
        Ok(())
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        // Its servers end with its clients, or when it does not answer any more.
        let pid = rustix::process::Pid::from_child(&self.daemon);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let ended = wait::until("the attacker's daemon ends", PATIENCE, || {
            self.daemon.try_wait().is_ok_and(|status| status.is_some())
        });
        if ended.is_err() {
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
    }
}

/// A puppet, and the file of what it says on standard error.
fn puppet_of(sandbox: &Sandbox, command: &mut Command, name: &str) -> Result<(Puppet, PathBuf)> {
    let said = sandbox.directory().join(format!("{name}.stderr"));
    let puppet = Puppet::spawn(command.stderr(File::create(&said)?))?;
    Ok((puppet, said))
}

fn victims_puppet(sandbox: &Sandbox) -> Result<Command> {
    Ok(sandbox.command_as(VICTIM, sandbox.installation.puppet()?, Runtime::OpenMps))
}

fn is_refused(puppet: &mut Puppet, said: &Path, place: &Path, why: &str) -> Result<()> {
    puppet.expect("open", CONNECTION_FAILED)?;
    // Still the one choice of the process, and said once.
    puppet.expect("open", CONNECTION_FAILED)?;
    let said = fs::read_to_string(said)?;
    let named = said.matches(&*place.join(DAEMON_SOCKET).to_string_lossy()).count();
    ensure!(named == 1 && said.contains(why), "standard error: {said:?}");
    Ok(())
}

fn no_program() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let rogue = Rogue::start(&sandbox, sandbox.directory_of(ATTACKER, "nvidia-mps")?)?;
    let mut command = victims_puppet(&sandbox)?;
    command.env("CUDA_MPS_PIPE_DIRECTORY", &rogue.place);
    let (mut puppet, said) = puppet_of(&sandbox, &mut command, "victim")?;
    is_refused(&mut puppet, &said, &rogue.place, &format!("user {ATTACKER}"))?;
    rogue.heard_nothing()
}

fn no_front_end() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let rogue = Rogue::start(&sandbox, sandbox.directory_of(ATTACKER, "nvidia-mps")?)?;
    let openmps = sandbox.installation.openmps();
    let original = openmps.with_file_name("nvidia-cuda-mps-control");
    let mut lines = Vec::new();
    for words in [
        "ps",
        "status",
        "top --once",
        "limit",
        "socket",
        "trace --client 1",
        "doctor",
        "run -- true",
        "control get_server_list",
    ] {
        lines.push((&openmps, words));
    }
    lines.push((&original, "get_server_list"));
    for uid in [VICTIM, 0] {
        for (program, words) in &lines {
            let mut command = sandbox.command_as(uid, program, Runtime::OpenMps);
            command.args(words.split(' ')).env("CUDA_MPS_PIPE_DIRECTORY", &rogue.place);
            let finished = process::run(&mut command, PATIENCE)?;
            let said = format!("{}{}", finished.stdout, finished.stderr);
            ensure!(
                !finished.status.success() && said.contains(&format!("user {ATTACKER}")),
                "user {uid}: {words}: {finished:?}"
            );
        }
    }
    rogue.heard_nothing()
}

fn not_natively() -> Result<()> {
    let sandbox = Sandbox::of_several_users()?;
    let rogue = Rogue::start(&sandbox, sandbox.directory_of(ATTACKER, "nvidia-mps")?)?;
    let own = sandbox.directory().join("own");
    let mut command = victims_puppet(&sandbox)?;
    command.env("CUDA_MPS_PIPE_DIRECTORY", &own);
    let (mut puppet, said) = puppet_of(&sandbox, &mut command, "victim")?;
    is_refused(&mut puppet, &said, &own, &format!("user {ATTACKER}"))?;
    rogue.heard_nothing()
}

/// Makes the two places that need no variable, for what is started in a mount namespace of its own:
/// PLACE and PIPE are bound there.
const DEFAULT_PLACES: &str = r#"
set -e
sandbox=$1 place=$2 pipe=$3 uid=$4 program=$5
mount -t tmpfs none /mnt
mkdir /mnt/sandbox
mount --bind "$sandbox" /mnt/sandbox
mount -t tmpfs none /tmp
mkdir -p "$sandbox" /tmp/nvidia-mps
mount --move /mnt/sandbox "$sandbox"
mount --bind "$place" /tmp/nvidia-mps
mount -t tmpfs -o mode=755 none /run
mkdir /run/openmps
mount --bind "$pipe" /run/openmps
unset CUDA_MPS_PIPE_DIRECTORY
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups "$program"
"#;

fn next_place() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let sandbox = daemon.sandbox();
    let rogue = Rogue::start(sandbox, sandbox.directory_of(ATTACKER, "nvidia-mps")?)?;
    let empty = sandbox.directory_of(VICTIM, "empty")?;
    let puppet = sandbox.installation.puppet()?;
    let start = |name: &str, pipe: &Path| {
        let mut command = sandbox.command("unshare", Runtime::OpenMps);
        command.args(["--mount", "--propagation", "private", "sh", "-c", DEFAULT_PLACES, "sh"]);
        command.args([sandbox.directory(), &rogue.place, pipe]);
        command.arg(VICTIM.to_string()).arg(&puppet);
        puppet_of(sandbox, &mut command, name)
    };
    let (mut puppet, said) = start("both", &sandbox.pipe_directory())?;
    puppet.must("open")?;
    puppet.must("work 3")?;
    let clients = daemon.snapshot()?.clients;
    ensure!(clients.iter().any(|client| client.pid == puppet.pid()), "{clients:?}");
    let said = fs::read_to_string(said)?;
    ensure!(
        said.contains("/tmp/nvidia-mps") && said.contains(&format!("user {ATTACKER}")),
        "{said}"
    );
    ensure!(said.lines().count() == 1, "{said}");
    puppet.dismiss()?;
    // Nothing is left that it may use.
    let (mut puppet, said) = start("rogue", &empty)?;
    is_refused(&mut puppet, &said, Path::new("/tmp/nvidia-mps"), &format!("user {ATTACKER}"))?;
    rogue.heard_nothing()
}

/// Binds a directory in a mount namespace of its own, if one is named, and starts a program in a
/// user namespace that maps its user alone.
const USER_NAMESPACE: &str = r#"
set -e
options=$1 from=$2 at=$3 uid=$4
shift 4
if [ -n "$options" ]; then
    mount --bind "$from" "$at"
    mount -o "remount,bind,$options" "$at"
fi
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups unshare --user --map-root-user "$@"
"#;

fn user_namespace() -> Result<()> {
    let daemon = Daemon::start_with(
        Sandbox::of_several_users()?,
        &[("OPENMPS_PROVISIONING", "concurrent")],
    )?;
    let sandbox = daemon.sandbox();
    let directory = |name: &str, mode: u32| -> Result<PathBuf> {
        let path = sandbox.directory().join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        Ok(path)
    };
    let place = directory("place", 0o755)?;
    let start = |options: &str, from: &Path, pipe: &Path, program: &Path| {
        let mut command = sandbox.command("unshare", Runtime::OpenMps);
        command.args(["--mount", "--propagation", "private", "sh", "-c", USER_NAMESPACE, "sh"]);
        command.arg(options).args([from, &place]).arg(VICTIM.to_string()).arg(program);
        command.env("CUDA_MPS_PIPE_DIRECTORY", pipe).env("HOME", sandbox.directory());
        command
    };
    let pipe = sandbox.pipe_directory();
    let tried = process::run(&mut start("", &pipe, &place, Path::new("true")), PATIENCE)?;
    if !tried.status.success() {
        let why = tried.stderr.trim();
        let _ = writeln!(std::io::stderr(), "f06: NOT TRIED: no user namespaces here: {why}");
        return Ok(());
    }
    let puppet = sandbox.installation.puppet()?;
    // As engines mount it; and one that this user cannot write.
    for options in ["ro", "rw"] {
        let (mut puppet, said) =
            puppet_of(sandbox, &mut start(options, &pipe, &place, &puppet), options)?;
        puppet.must("open").with_context(|| fs::read_to_string(&said).unwrap_or_default())?;
        puppet.must("work 3")?;
        let clients: Vec<_> = daemon
            .state()?
            .servers
            .into_iter()
            .flat_map(|server| server.snapshot.clients)
            .collect();
        ensure!(clients.iter().any(|client| client.pid == puppet.pid()), "{clients:?}");
        ensure!(fs::read_to_string(&said)?.is_empty(), "{}", fs::read_to_string(&said)?);
        puppet.dismiss()?;
    }
    // A directory that everybody can write, as /tmp: the attacker was the first to make the
    // daemon's there.
    let open = directory("open", 0o1777)?;
    let squatted = sandbox.directory_of(ATTACKER, "open/nvidia-mps")?;
    let rogue = Rogue::start(sandbox, squatted.clone())?;
    let why = open.to_string_lossy().into_owned();
    let (mut victim, said) =
        puppet_of(sandbox, &mut start("", &pipe, &squatted, &puppet), "squatted")?;
    is_refused(&mut victim, &said, &squatted, &why)?;
    // The same, where a container has all of the open directory.
    for options in ["ro", "rw"] {
        let at = place.join("nvidia-mps");
        let mut command = start(options, &open, &at, &puppet);
        let (mut victim, said) = puppet_of(sandbox, &mut command, &format!("shared-{options}"))?;
        is_refused(&mut victim, &said, &at, &place.to_string_lossy())?;
    }
    rogue.heard_nothing()
}
