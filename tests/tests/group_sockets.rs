//! Sockets of groups: what holds for who comes in by one, whatever it says of itself.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use link::socket::Connection;
use link::wire::DAEMON_SOCKET;
use link::wire::attach::{
    ClientHello, ClientReply, ClientRequest, Hello, HelloReply, RequestedLimits,
};
use link::wire::daemon::ClientSnapshot;
use link::wire::version::Versions;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

const MIB: u64 = 1 << 20;
const OUT_OF_MEMORY: &str = "error 2";
const NOT_PERMITTED: u32 = 800;

fn openmps(daemon: &Daemon, arguments: &[&str]) -> Result<process::Finished> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(arguments), PATIENCE)
}

/// Opens a socket and returns its directory.
fn open(daemon: &Daemon, name: &str, options: &[&str]) -> Result<PathBuf> {
    let directory = daemon.sandbox().log_directory().join(name);
    let mut arguments = vec!["socket", directory.to_str().context("a path of text")?];
    arguments.extend(["--group", name]);
    arguments.extend(options);
    openmps(daemon, &arguments)?.success()?;
    Ok(directory)
}

fn puppet_at(directory: &Path, daemon: &Daemon, variables: &[(&str, &str)]) -> Result<Puppet> {
    let mut all = vec![("CUDA_MPS_PIPE_DIRECTORY", directory.to_str().context("text")?)];
    all.extend(variables);
    let mut puppet = daemon.puppet_with(&all)?;
    puppet.must("open")?;
    Ok(puppet)
}

fn listed(daemon: &Daemon, puppet: &Puppet) -> Result<ClientSnapshot> {
    let clients = daemon.snapshot()?.clients;
    let found = clients.into_iter().find(|client| client.pid == puppet.pid());
    found.with_context(|| format!("puppet {} is not listed", puppet.pid()))
}

#[test]
fn a_client_cannot_leave_its_group_or_take_others_turns() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let options = ["--memory", "64M", "--sm-percent", "50", "--weight", "7"];
    let directory = open(&daemon, "tenant", &options)?;
    openmps(&daemon, &["limit", "--group", "rich", "--memory", "1G"])?.success()?;
    let wishes = [
        ("OPENMPS_GROUP", "rich"),
        ("OPENMPS_WEIGHT", "1000"),
        ("OPENMPS_LATENCY", "1"),
        ("OPENMPS_ISOLATE", "apart"),
        ("OPENMPS_RESERVATION", "night"),
    ];
    let mut one = puppet_at(&directory, &daemon, &wishes)?;
    let mut other = puppet_at(&directory, &daemon, &[])?;
    let client = listed(&daemon, &one)?;
    ensure!(client.group.as_deref() == Some("tenant"), "{client:?}");
    ensure!(client.weight == 7 && !client.latency_class, "{client:?}");
    ensure!(client.domain == listed(&daemon, &other)?.domain, "{client:?}");
    ensure!(client.reservation.is_none(), "{client:?}");
    // The sum is the group's.
    one.must(&format!("allocate {}", 40 * MIB))?;
    other.expect(&format!("allocate {}", 40 * MIB), OUT_OF_MEMORY)?;
    one.must("work 3")?;
    other.must("work 3")?;
    // The daemon's own clients are none of it.
    let mut own = daemon.puppet()?;
    own.must("open")?;
    own.must(&format!("allocate {}", 80 * MIB))?;
    ensure!(listed(&daemon, &own)?.group.is_none());
    Ok(())
}

#[test]
fn nobody_commands_by_a_groups_socket() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let directory = open(&daemon, "tenant", &[])?;
    let sandbox = daemon.sandbox();
    for arguments in [&["ps"][..], &["limit", "--group", "tenant", "--memory", "9G"], &["status"]] {
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        command.args(arguments).env("CUDA_MPS_PIPE_DIRECTORY", &directory);
        let finished = process::run(&mut command, PATIENCE)?;
        ensure!(!finished.status.success(), "{arguments:?}: {}", finished.stdout);
    }
    ensure!(daemon.state()?.groups.is_empty());
    ensure!(sandbox.logs().contains("came by a group's socket: refused"));
    Ok(())
}

#[test]
fn other_devices_are_out_of_reach() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[("OPENMPS_SOFT_DEVICES", "2")])?;
    let mut first = daemon.puppet()?;
    first.must("open")?;
    let uuid = daemon.snapshot()?.devices[1].uuid.clone();
    let directory = open(&daemon, "tenant", &["--gpu", &uuid])?;
    // It wants all, and sees one.
    let mut puppet = puppet_at(&directory, &daemon, &[("CUDA_VISIBLE_DEVICES", "0,1")])?;
    puppet.must("work 2")?;
    let client = listed(&daemon, &puppet)?;
    let used: Vec<u32> = client.devices.iter().map(|device| device.device).collect();
    ensure!(used == [1], "{client:?}");

    // A client that is not our library and asks for the other one.
    let raw = Connection::connect(&directory.join(DAEMON_SOCKET), PATIENCE)?;
    let hello = ClientHello {
        versions: Versions::ours(),
        pid: 1,
        pid_namespace: 0,
        command: "raw".into(),
        limits: RequestedLimits::default(),
    };
    raw.send(&Hello::Client(hello), &[], PATIENCE)?;
    let HelloReply::Welcome(welcome) = raw.receive(PATIENCE)?.message else {
        anyhow::bail!("not welcome")
    };
    let closed: Vec<bool> = welcome.devices.iter().map(|device| device.closed).collect();
    ensure!(closed == [true, false]);
    let request = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
    raw.send(&request, &[], PATIENCE)?;
    let reply = raw.receive::<ClientReply>(PATIENCE)?.message;
    ensure!(matches!(&reply, ClientReply::Refused(r) if r.code == NOT_PERMITTED), "{reply:?}");
    Ok(())
}

#[test]
fn groups_can_have_executors_of_their_own() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let apart: Vec<PathBuf> = ["one", "two"]
        .iter()
        .map(|name| open(&daemon, name, &["--share", "group"]))
        .collect::<Result<_>>()?;
    let together = open(&daemon, "three", &["--share", "server"])?;
    let puppets = [&apart[0], &apart[0], &apart[1], &together]
        .map(|directory| puppet_at(directory, &daemon, &[]));
    let mut domains = Vec::new();
    for puppet in &puppets {
        let puppet = puppet.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
        domains.push(listed(&daemon, puppet)?.domain);
    }
    let expected = [Some("group one"), Some("group one"), Some("group two"), None];
    ensure!(domains.iter().map(Option::as_deref).eq(expected), "{domains:?}");
    Ok(())
}

#[test]
fn a_closed_socket_takes_nobody_and_its_clients_stay() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let directory = open(&daemon, "tenant", &[])?;
    let text = directory.to_str().context("text")?;
    let mode = directory.join(DAEMON_SOCKET).metadata()?.permissions().mode();
    ensure!(mode & 0o777 == 0o666, "{mode:o}");
    // Opened again alike, it stays; as another group's it does not open.
    open(&daemon, "tenant", &[])?;
    let again = openmps(&daemon, &["socket", text, "--group", "other"])?;
    ensure!(again.stderr.contains("close it first"), "{}", again.stderr);
    let list = openmps(&daemon, &["socket"])?;
    ensure!(list.success()?.contains(text), "{}", list.stdout);
    let mut puppet = puppet_at(&directory, &daemon, &[])?;
    openmps(&daemon, &["socket", "--close", text])?.success()?;
    ensure!(!directory.exists());
    puppet.must("work 2")?;
    // What is no socket of ours is not taken away.
    std::fs::create_dir(&directory)?;
    std::fs::write(directory.join(DAEMON_SOCKET), "mine")?;
    let refused = openmps(&daemon, &["socket", text, "--group", "tenant"])?;
    ensure!(refused.stderr.contains("in the way"), "{}", refused.stderr);
    let own = daemon.sandbox().pipe_directory();
    let own = own.to_str().context("text")?;
    let refused = openmps(&daemon, &["socket", own, "--group", "tenant"])?;
    ensure!(refused.stderr.contains("own directory"), "{}", refused.stderr);

    // A daemon that was killed leaves a socket behind; the next one opens it again when it is
    // asked.
    std::fs::remove_file(directory.join(DAEMON_SOCKET))?;
    open(&daemon, "tenant", &[])?;
    daemon.kill()?;
    puppet.must("work 1")?;
    daemon.start_again()?;
    ensure!(daemon.state()?.sockets.is_empty());
    open(&daemon, "tenant", &[])?;
    let mut next = puppet_at(&directory, &daemon, &[])?;
    next.must("work 1")?;
    // One that ends by itself takes its sockets along, and leaves the directory to those who have
    // it mounted.
    daemon.quit(PATIENCE)?;
    wait::until("the socket is gone", PATIENCE, || !directory.join(DAEMON_SOCKET).exists())?;
    ensure!(directory.exists());
    Ok(())
}
