//! Findings N1 to N3: what a user's server has of whoever started the daemon.
//!
//! In the moments after its start a server can be traced by its user, as it is here by root: that a
//! user may be kept from that is another wall.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] = &[
    Test::new("n01_a_server_cannot_type_into_the_daemons_terminal", terminal),
    Test::new("n02_a_server_has_no_descriptor_that_the_daemon_was_given", descriptor),
    Test::new("n03_a_server_has_no_key_and_no_variable_of_roots", secrets),
];

const SECRET: &str = "root's own words\n";
const PASSWORD: &str = "correct horse";

/// Root's daemon, started carelessly, and a server of the attacker's.
struct Own {
    daemon: Daemon,
    attacker: Puppet,
    _client: Puppet,
    server: u32,
    secret: PathBuf,
}

impl Own {
    fn start() -> Result<Self> {
        let sandbox = Sandbox::of_several_users()?;
        let secret = sandbox.directory().join("secret");
        fs::write(&secret, SECRET)?;
        fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
        let careless = sandbox.installation.own_program("attacker")?;
        let words = [careless.as_os_str(), OsStr::new("careless"), secret.as_os_str()];
        let daemon = Daemon::start_by(sandbox, &words, &[("BACKUP_PASSWORD", PASSWORD)])?;
        let sandbox = daemon.sandbox();
        let program = |name| sandbox.installation.own_program(name);
        let attacker = Puppet::spawn(&mut sandbox.command(program("attacker")?, Runtime::OpenMps))?;
        let client = program("puppet")?;
        let mut client =
            Puppet::spawn(&mut sandbox.command_as(ATTACKER, client, Runtime::OpenMps))?;
        client.must("open").with_context(|| daemon.sandbox().last_log_lines())?;
        let server = daemon.server()?;
        ensure!(server.uid == ATTACKER, "{server:?}");
        Ok(Self { daemon, attacker, _client: client, server: server.pid, secret })
    }

    fn does(&mut self, what: &str) -> Result<String> {
        self.attacker.ask(&format!("{what} {}", self.server))
    }
}

fn terminal() -> Result<()> {
    let mut own = Own::start()?;
    let said = own.does("type")?;
    ensure!(said == format!("no terminal: error {}", libc::ENXIO), "{said}");
    // The daemon has it still, and its servers end with it: a signal of the terminal's is the
    // daemon's alone.
    let stat = fs::read_to_string(format!("/proc/{}/stat", own.daemon.pid()))?;
    let (_, fields) = stat.rsplit_once(')').context("no name")?;
    let terminal: i64 = fields.split_whitespace().nth(4).context("no terminal")?.parse()?;
    ensure!(terminal != 0, "the daemon has lost its terminal: {stat}");
    let signal = rustix::process::Signal::INT;
    let daemon = rustix::process::Pid::from_raw(own.daemon.pid().cast_signed());
    drop(own._client);
    rustix::process::kill_process(daemon.context("no process id")?, signal)?;
    own.daemon.wait_for_exit(PATIENCE)?;
    let server = PathBuf::from(format!("/proc/{}", own.server));
    ensure!(!server.exists(), "the server stays");
    Ok(())
}

fn descriptor() -> Result<()> {
    let mut own = Own::start()?;
    let said = own.does("write")?;
    ensure!(fs::read_to_string(&own.secret)? == SECRET, "root's file was written: {said}");
    ensure!(said.starts_with("wrote to "), "{said}");
    Ok(())
}

fn secrets() -> Result<()> {
    let mut own = Own::start()?;
    let said = own.does("keys")?;
    ensure!(said == "no key", "{said}");
    let environment = fs::read(format!("/proc/{}/environ", own.server))?;
    let environment = String::from_utf8_lossy(&environment);
    ensure!(!environment.contains(PASSWORD), "the server has root's password: {environment}");
    // What it is to have it has.
    for name in ["CUDA_MPS_PIPE_DIRECTORY", "OPENMPS_NATIVE_DRIVER", "PATH"] {
        ensure!(environment.contains(&format!("{name}=")), "{name}: {environment}");
    }
    Ok(())
}
