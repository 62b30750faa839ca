//! Finding F12: words of a user's server are believed.

use std::fs;

use anyhow::{Context, Result, ensure};
use link::is_printable;
use link::wire::daemon::{
    ClientSnapshot, ContextSnapshot, DeviceSnapshot, DomainSnapshot, GroupSnapshot, ServerSnapshot,
    ToDaemon,
};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Liar, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f12_no_servers_words_command_a_terminal", terminal),
    Test::new("f12_no_servers_words_forge_the_control_log", control_log),
    Test::new("f12_no_server_says_who_its_clients_are", identity),
];

/// What a terminal obeys, and what turns around the text behind it.
const EVIL: &str = "evil\u{1b}]0;pwned\u{7}\u{1b}[31m\u{202e}\u{2028}\nFORGED";

/// A daemon with a client of the attacker's, and his server, which lies.
struct Scene {
    daemon: Daemon,
    client: Puppet,
    liar: Liar,
}

impl Scene {
    fn new(lie: impl FnOnce(ClientSnapshot) -> ServerSnapshot) -> Result<Self> {
        let daemon = Daemon::start(Sandbox::of_several_users()?)?;
        let program = daemon.sandbox().installation.puppet()?;
        let mut command = daemon.sandbox().command_as(ATTACKER, program, Runtime::OpenMps);
        let mut client = Puppet::spawn(&mut command)?;
        client.must("open")?;
        let server = daemon.server()?;
        let real = server.snapshot.clients.into_iter().next().context("a client")?;
        let liar = Liar::in_place_of(server.pid, lie(real))?;
        Ok(Self { daemon, client, liar })
    }
}

fn forged(client: ClientSnapshot) -> ServerSnapshot {
    let evil = || EVIL.to_owned();
    let context = ContextSnapshot { context_id: 1, serial: 1, ..Default::default() };
    let client = ClientSnapshot {
        domain: Some(evil()),
        group: Some(evil()),
        reservation: Some(evil()),
        command: evil(),
        contexts: vec![context],
        ..client
    };
    let domain = DomainSnapshot { name: evil(), executor_pid: 1, clients: 1 };
    let group = GroupSnapshot { name: evil(), clients: 1, ..Default::default() };
    let device = DeviceSnapshot {
        name: evil(),
        uuid: evil(),
        pci_bus_id: evil(),
        domains: vec![domain],
        groups: vec![group],
        ..Default::default()
    };
    let departed = vec![ClientSnapshot { client_id: 4711, ..client.clone() }];
    ServerSnapshot { devices: vec![device], clients: vec![client], departed, ..Default::default() }
}

fn terminal() -> Result<()> {
    let Scene { daemon, client, liar } = Scene::new(forged)?;
    let openmps = daemon.sandbox().installation.openmps();
    let mut shown = Vec::new();
    for words in [&["ps"][..], &["status"], &["top", "--once"]] {
        let mut command = daemon.sandbox().command(&openmps, Runtime::OpenMps);
        let finished = process::run(command.args(words), PATIENCE)?;
        shown.push((words.join(" "), finished.success()?.to_owned() + &finished.stderr));
    }
    for line in ["ps", "get_device_client_list", "device_query"] {
        shown.push((line.to_owned(), daemon.shell(line)?));
    }
    for (what, shown) in &shown {
        let wrong = shown.chars().find(|c| *c != '\n' && !is_printable(*c));
        ensure!(wrong.is_none(), "{what} prints {wrong:?}: {shown:?}");
        let forged = shown.lines().find(|line| line.starts_with("FORGED"));
        ensure!(forged.is_none(), "{what} prints a line of the server's: {shown:?}");
    }
    // The words themselves are shown, or this proves nothing.
    ensure!(shown.iter().any(|(_, shown)| shown.contains("evil")), "{shown:?}");
    drop(liar);
    client.kill()
}

fn control_log() -> Result<()> {
    let Scene { daemon, client, liar } = Scene::new(forged)?;
    let line = "[2026-11-22 00:00:00.000 Control     1] FORGED";
    let message = format!("a reason\n{line}\u{1b}[2J");
    liar.say(&ToDaemon::Failed { message })?;
    let log = daemon.sandbox().log_directory().join("control.log");
    let text = || fs::read_to_string(&log).unwrap_or_default();
    wait::until("the daemon has written it down", PATIENCE, || text().contains("a reason"))?;
    let text = text();
    ensure!(text.contains("FORGED"), "nothing came: {text}");
    ensure!(!text.lines().any(|written| written.starts_with(line)), "{text}");
    ensure!(text.chars().all(|c| c == '\n' || is_printable(c)), "{text:?}");
    drop(liar);
    client.kill()
}

fn identity() -> Result<()> {
    let Scene { daemon, client, liar } = Scene::new(|real| {
        let root = ClientSnapshot {
            pid: 1,
            uid: 0,
            command: "init".into(),
            group: Some("root".into()),
            ..real.clone()
        };
        let invented = ClientSnapshot { client_id: real.client_id + 100, ..root.clone() };
        ServerSnapshot {
            clients: vec![root, invented.clone()],
            departed: vec![invented],
            ..Default::default()
        }
    })?;
    let snapshot = daemon.snapshot()?;
    let [listed] = snapshot.clients.as_slice() else { anyhow::bail!("{snapshot:?}") };
    ensure!((listed.pid, listed.uid) == (client.pid(), ATTACKER), "{listed:?}");
    ensure!(listed.command.contains("puppet") && listed.group.is_none(), "{listed:?}");
    ensure!(snapshot.departed.is_empty(), "{snapshot:?}");
    drop(liar);
    client.kill()
}
