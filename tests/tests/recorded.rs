//! A session like the one that was recorded of the original's driver 580, and the control log that
//! it leaves, line by line.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Sandbox};

/// `PID text` of each recorded line.
const RECORDED: &str = include_str!("../control/control-log-580.txt");

/// Recorded lines that are not ours, by their numbers: the connections of a client library that
/// asks without credentials first, that of the server, which inherits its own here, and marks of
/// what the recording left out.
const NOT_OURS: &[usize] = &[4, 5, 9, 13, 14, 15, 28];

#[test]
fn the_control_log_is_as_recorded() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut first = daemon.puppet()?;
    first.must("open")?;
    let mut second = daemon.puppet()?;
    second.must("open")?;
    let state = daemon.server()?;
    let (server, device) = (state.pid.to_string(), &state.snapshot.devices[0]);
    let status = format!("get_server_status {server}");
    ensure!(daemon.shell(&status)? == "ACTIVE\n");
    let clients = format!("{}\n{}\n", second.pid(), first.pid());
    ensure!(daemon.shell(&format!("get_client_list {server}"))? == clients);
    daemon.shell("get_device_client_list")?;
    let (daemon_pid, first_pid, second_pid) = (daemon.pid(), first.pid(), second.pid());
    first.dismiss()?;
    second.dismiss()?;
    daemon.shell("quit")?;
    daemon.wait_for_exit(PATIENCE)?;

    let pipe = daemon.sandbox().pipe_directory();
    let socket = pipe.join(link::wire::DAEMON_SOCKET);
    let ours = std::fs::read_to_string(daemon.sandbox().log_directory().join("control.log"))?;
    let ours: Vec<String> = ours.lines().filter_map(without_time).collect();
    let uid = rustix::process::geteuid().as_raw();
    let address = device_address(&device.pci_bus_id)?;
    let mut at = 0;
    for (number, line) in (1..).zip(RECORDED.lines()) {
        if NOT_OURS.contains(&number) {
            continue;
        }
        let (pid, text) = line.split_once(' ').context("a line without a process")?;
        let pid = if pid == "975" { server.clone() } else { daemon_pid.to_string() };
        // The recording's second client is the first one's second connection.
        let client = if text.ends_with("Server already exists") { second_pid } else { first_pid };
        let text = text
            .replace("975", "{server}")
            .replace("973", "{client}")
            .replace("1623", "{second}")
            .replace("1622", "{first}")
            .replace("/tmp/mps/control", &socket.display().to_string())
            .replace("/tmp/mps", &pipe.display().to_string())
            // Only now: processes here may have any of the numbers that were recorded, or longer
            // ones.
            .replace("{server}", &server)
            .replace("{client}", &client.to_string())
            .replace("{second}", &second_pid.to_string())
            .replace("{first}", &first_pid.to_string())
            .replace("user 0", &format!("user {uid}"))
            .replace("00:00.0, NVIDIA H200", &format!("{address}, {}", device.name));
        let wanted = format!("{pid} {text}");
        let found = ours[at..].iter().position(|line| *line == wanted);
        let found = found.with_context(|| {
            format!("recorded line {number}, `{wanted}`, does not follow in\n{}", ours.join("\n"))
        })?;
        // What a front end's command says stands together.
        let apart = ["Cmd:", "UI closed", "ACTIVE"].iter().any(|word| text.starts_with(word));
        ensure!(
            !apart || found == 0 || NOT_OURS.contains(&(number - 1)),
            "something stands before `{wanted}`: {:?}",
            &ours[at..][..found]
        );
        at += found + 1;
    }
    ensure!(at == ours.len(), "more is said after the end: {:?}", &ours[at..]);
    Ok(())
}

/// `[2026-11-20 15:27:30.557 Control   969] text` as `969 text`.
fn without_time(line: &str) -> Option<String> {
    let (head, text) = line.split_once("] ")?;
    Some(format!("{} {text}", head.split_whitespace().last()?))
}

/// Domain, bus and function in decimal, as the original prints them.
fn device_address(pci_bus_id: &str) -> Result<String> {
    let wrong = || format!("no PCI address: {pci_bus_id}");
    let (domain, rest) = pci_bus_id.split_once(':').with_context(wrong)?;
    let (bus, rest) = rest.split_once(':').with_context(wrong)?;
    let (_, function) = rest.split_once('.').with_context(wrong)?;
    let number = |text: &str| u32::from_str_radix(text, 16).with_context(wrong);
    Ok(format!("{:02}:{:02}.{}", number(domain)?, number(bus)?, number(function)?))
}

#[test]
fn a_prompt_is_shown_at_a_terminal_only() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let openmps = sandbox.installation.openmps();
    let alias = openmps.with_file_name("nvidia-cuda-mps-control");
    // `script`, of every Linux distribution, makes a terminal.
    let mut command = sandbox.command("script", openmps_tests::Runtime::OpenMps);
    command.args(["-q", "-e", "-c"]).arg(&alias).arg("/dev/null");
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(_) => {
            eprintln!("skipped: there is no `script` here, which makes a terminal");
            return Ok(());
        }
    };
    let mut input = child.stdin.take().context("no standard input")?;
    // The end of input, as a terminal has it.
    std::io::Write::write_all(&mut input, b"get_default_client_priority\n\x04")?;
    let mut status = None;
    wait::until("the shell ends", PATIENCE, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    })?;
    let output = child.wait_with_output()?;
    let shown = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    ensure!(status.is_some_and(|status| status.success()), "{shown}");
    ensure!(shown.contains("> ") && shown.contains("0\n"), "{shown}");
    ensure!(daemon.shell("get_default_client_priority")? == "0\n", "no prompt in scripts");
    Ok(())
}
