//! `openmps move` and `openmps drain`: running programs go on on another GPU, and are not told.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use link::wire::daemon::ClientDeviceSnapshot;
use link::wire::shares::ChangeReport;
use openmps_tests::process::{self, Finished, Running};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

const TWO: [(&str, &str); 1] = [("OPENMPS_SOFT_DEVICES", "2")];
const MIB: u64 = 1 << 20;

fn openmps(daemon: &Daemon, arguments: &[&str]) -> Result<Finished> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.args(arguments), PATIENCE)
}

fn move_to(daemon: &Daemon, pid: u32, to: usize) -> Result<()> {
    let (pid, to) = (pid.to_string(), to.to_string());
    let finished = openmps(daemon, &["move", "--pid", &pid, "--to", &to])?;
    let said = finished.success().with_context(|| daemon.sandbox().last_log_lines())?;
    ensure!(said.contains(&format!("client {pid}: there")), "{said}");
    Ok(())
}

/// What the command says when it does not do it.
fn refusal(daemon: &Daemon, arguments: &[&str]) -> Result<String> {
    let finished = openmps(daemon, arguments)?;
    ensure!(finished.status.code() == Some(1), "{finished:?}");
    Ok(finished.stderr)
}

fn refusal_of_move(daemon: &Daemon, pid: u32, to: &str) -> Result<String> {
    refusal(daemon, &["move", "--pid", &pid.to_string(), "--to", to])
}

/// The client's one session.
fn session(daemon: &Daemon, pid: u32) -> Result<ClientDeviceSnapshot> {
    let clients = daemon.snapshot()?.clients;
    let client = clients.into_iter().find(|client| client.pid == pid);
    client.and_then(|client| client.devices.into_iter().next()).context("it has no session")
}

fn kernels_on(daemon: &Daemon, device: usize) -> Result<u64> {
    Ok(daemon.snapshot()?.devices[device].kernels_ever)
}

fn wait_for_kernels_on(daemon: &Daemon, device: usize, more: u64) -> Result<()> {
    let before = kernels_on(daemon, device)?;
    wait::until("kernels run there", PATIENCE, || {
        kernels_on(daemon, device).is_ok_and(|kernels| kernels >= before + more)
    })
}

fn wait_for_nothing_granted(daemon: &Daemon, device: usize) -> Result<()> {
    wait::until("the memory has come back", PATIENCE, || {
        daemon.snapshot().is_ok_and(|it| it.devices[device].granted_bytes == 0)
    })
}

fn opened(daemon: &Daemon, device: usize) -> Result<Puppet> {
    let mut puppet = daemon.puppet()?;
    puppet.must(&format!("open {device}"))?;
    Ok(puppet)
}

fn free_bytes(puppet: &mut Puppet) -> Result<u64> {
    Ok(puppet.ask("free-bytes")?.parse()?)
}

#[test]
fn a_program_that_checks_its_results_goes_to_and_fro() -> Result<()> {
    const MOVES: usize = 12;
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let sandbox = daemon.sandbox();
    let end = sandbox.directory().join("end");
    let program = sandbox.installation.program("driver-api", "wanderer");
    let mut command = sandbox.command(&program, Runtime::OpenMps);
    let running = Running::start(command.envs(TWO).arg("until").arg(&end))?;
    let pid = running.pid();
    wait::until("it works", PATIENCE, || {
        session(&daemon, pid).is_ok_and(|session| session.kernels > 10)
    })?;
    for number in 1..=MOVES {
        let (from, to) = ((number + 1) % 2, number % 2);
        move_to(&daemon, pid, to)?;
        wait_for_kernels_on(&daemon, to, 5)?;
        let there = session(&daemon, pid)?;
        ensure!((there.device as usize, there.relocations) == (to, number as u64), "{there:?}");
        let idle = kernels_on(&daemon, from)?;
        wait_for_kernels_on(&daemon, to, 5)?;
        ensure!(kernels_on(&daemon, from)? == idle, "kernels still run on device {from}");
        wait_for_nothing_granted(&daemon, from)?;
    }
    std::fs::write(&end, "")?;
    let finished = running.finish(PATIENCE)?;
    let said = finished.success().with_context(|| sandbox.last_log_lines())?;
    ensure!(said.contains("wanderer: ok"), "{said}");
    // What it did counts once, where it was done.
    daemon.wait_gone(pid)?;
    let departed = daemon.departed(pid)?;
    let on_both = kernels_on(&daemon, 0)? + kernels_on(&daemon, 1)?;
    ensure!(departed.kernels == on_both, "{} of {on_both}", departed.kernels);
    wait_for_nothing_granted(&daemon, 0)?;
    wait_for_nothing_granted(&daemon, 1)
}

/// Streams, events, graphs and captures at random; its results are the same on every machine.
#[test]
fn a_mix_of_commands_comes_out_as_if_nothing_had_moved() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.program("cudart-12.9-shared", "mixed_commands");
    let alone = process::run(&mut sandbox.command(&program, Runtime::Softcuda), 2 * PATIENCE)?;
    let expected = alone.success()?.to_owned();
    let mut moves = 0;
    for _ in 0..3 {
        let mut command = sandbox.command(&program, Runtime::OpenMps);
        let mut running = Running::start(command.envs(TWO))?;
        let pid = running.pid();
        while !running.has_ended()? {
            let Ok(session) = session(&daemon, pid) else {
                sleep(Duration::from_millis(2));
                continue;
            };
            let to = (1 - session.device).to_string();
            let finished =
                openmps(&daemon, &["move", "--pid", &pid.to_string(), "--to", &to, "--json"])?;
            // It may have ended meanwhile.
            if let Ok(report) = serde_json::from_str::<ChangeReport>(&finished.stdout) {
                moves += report.clients.len();
            }
        }
        let finished = running.finish(PATIENCE)?;
        let said = finished.success().with_context(|| sandbox.last_log_lines())?;
        ensure!(said == expected, "{said}alone\n{expected}");
    }
    ensure!(moves >= 3, "it went {moves} times only: {}", sandbox.last_log_lines());
    Ok(())
}

#[test]
fn memory_goes_along_and_is_free_where_it_was() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let (mut here, mut there) = (opened(&daemon, 0)?, opened(&daemon, 1)?);
    let (free_here, free_there) = (free_bytes(&mut here)?, free_bytes(&mut there)?);
    let mut client = opened(&daemon, 0)?;
    for _ in 0..3 {
        client.must(&format!("allocate {}", 32 * MIB))?;
    }
    client.must("work 2")?;
    let address = client.ask("address")?;
    ensure!(free_bytes(&mut here)? <= free_here - 96 * MIB);
    move_to(&daemon, client.pid(), 1)?;
    ensure!(client.ask("address")? == address);
    client.must("work 2")?;
    wait::until("the memory is free where it was", PATIENCE, || {
        free_bytes(&mut here).is_ok_and(|free| free >= free_here)
    })?;
    ensure!(free_bytes(&mut there)? <= free_there - 96 * MIB);
    client.must("free")?;
    client.must(&format!("allocate {}", 64 * MIB))?;
    client.must("work 1")?;
    client.dismiss()?;
    wait::until("the memory is free there, too", PATIENCE, || {
        free_bytes(&mut there).is_ok_and(|free| free >= free_there)
    })?;
    here.must("work 1")?;
    there.must("work 1")
}

#[test]
fn who_cannot_go_is_told_why_and_works_on() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let sandbox = daemon.sandbox();
    let end = sandbox.directory().join("end");
    let program = sandbox.installation.program("driver-api", "wanderer");
    let mut command = sandbox.command(&program, Runtime::OpenMps);
    let keeping = Running::start(command.envs(TWO).arg("keeping").arg(&end))?;
    wait::until("it counts", PATIENCE, || {
        session(&daemon, keeping.pid()).is_ok_and(|session| session.kernels > 2)
    })?;
    let why = refusal_of_move(&daemon, keeping.pid(), "1")?;
    ensure!(why.contains("it has variables of its code"), "{why}");
    ensure!(why.contains("the address of ticks"), "{why}");
    std::fs::write(&end, "")?;
    ensure!(keeping.finish(PATIENCE)?.success()?.contains("wanderer: ok"));

    let mut busy = opened(&daemon, 0)?;
    busy.must("hold")?;
    let why = refusal_of_move(&daemon, busy.pid(), "1")?;
    ensure!(why.contains("work of its own that has not ended"), "{why}");
    busy.must("that is enough")?;
    busy.must("work 2")?;
    move_to(&daemon, busy.pid(), 1)?;
    busy.must("work 2")?;

    let mut on_both = opened(&daemon, 0)?;
    on_both.must("open 1")?;
    let why = refusal_of_move(&daemon, on_both.pid(), "1")?;
    ensure!(why.contains("it has another context on GPU 1"), "{why}");
    on_both.must("work 2")
}

#[test]
fn what_is_not_there_is_named() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let mut client = opened(&daemon, 0)?;
    let pid = client.pid();
    let none = refusal_of_move(&daemon, 1, "1")?;
    ensure!(none.contains("there is no client 1"), "{none}");
    let none = refusal_of_move(&daemon, pid, "2")?;
    ensure!(none.contains("there is no device 2"), "{none}");
    let none = refusal_of_move(&daemon, pid, "GPU-nothing")?;
    ensure!(none.contains("there is no GPU GPU-nothing"), "{none}");
    let same = refusal_of_move(&daemon, pid, "0")?;
    ensure!(same.contains("it is on GPU 0 already"), "{same}");
    let none = refusal(&daemon, &["move", "--group", "nobody", "--to", "1"])?;
    ensure!(none.contains("group nobody has no clients"), "{none}");
    let none = refusal(&daemon, &["drain", "7"])?;
    ensure!(none.contains("there is no device 7"), "{none}");
    let none = refusal(&daemon, &["drain", "--undo", "0"])?;
    ensure!(none.contains("device 0 is not drained"), "{none}");
    client.must("work 1")
}

#[test]
fn a_server_with_one_gpu_says_so() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = opened(&daemon, 0)?;
    let none = refusal(&daemon, &["drain", "0"])?;
    ensure!(none.contains("the server has no other GPU"), "{none}");
    openmps(&daemon, &["drain", "--undo", "0"])?.success()?;
    client.must("work 1")
}

#[test]
fn groups_go_together_and_jobs_stay() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let mut members = Vec::new();
    for _ in 0..3 {
        let mut member = daemon.puppet_with(&[("OPENMPS_GROUP", "jobs")])?;
        member.must("open")?;
        member.must("work 1")?;
        members.push(member);
    }
    let mut other = opened(&daemon, 0)?;
    let finished = openmps(&daemon, &["move", "--group", "jobs", "--to", "1", "--json"])?;
    let report: ChangeReport = serde_json::from_str(finished.success()?)?;
    ensure!(report.clients.len() == 3 && report.refused.is_empty(), "{report:?}");
    for member in &mut members {
        ensure!(session(&daemon, member.pid())?.device == 1);
        member.must("work 1")?;
    }
    ensure!(session(&daemon, other.pid())?.device == 0);
    other.must("work 1")?;

    let directory = daemon.sandbox().log_directory().join("socket");
    let directory = directory.to_str().context("a path of text")?;
    openmps(&daemon, &["socket", directory, "--group", "job", "--share", "server"])?.success()?;
    let mut job = daemon.puppet_with(&[("CUDA_MPS_PIPE_DIRECTORY", directory)])?;
    job.must("open")?;
    let why = refusal_of_move(&daemon, job.pid(), "1")?;
    ensure!(why.contains("it came by the socket of group job"), "{why}");
    job.must("work 1")
}

#[test]
fn a_client_that_is_killed_on_its_way_leaves_nothing() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let (mut here, mut there) = (opened(&daemon, 0)?, opened(&daemon, 1)?);
    let free = |here: &mut Puppet, there: &mut Puppet| {
        Ok::<_, anyhow::Error>((free_bytes(here)?, free_bytes(there)?))
    };
    let before = free(&mut here, &mut there)?;
    for delay_ms in [0, 2, 5, 10, 15, 20, 30, 40, 60, 90] {
        let mut client = opened(&daemon, 0)?;
        for _ in 0..8 {
            client.must(&format!("allocate {}", 64 * MIB))?;
        }
        client.must("work 1")?;
        let pid = client.pid().to_string();
        let sandbox = daemon.sandbox();
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let moving = Running::start(command.args(["move", "--pid", &pid, "--to", "1"]))?;
        sleep(Duration::from_millis(delay_ms));
        client.kill()?;
        // Moved, refused or too late: it answers.
        moving.finish(PATIENCE)?;
        wait::until("all memory has come back", PATIENCE, || {
            free(&mut here, &mut there).is_ok_and(|now| now.0 >= before.0 && now.1 >= before.1)
        })
        .with_context(|| sandbox.last_log_lines())?;
    }
    here.must("work 1")?;
    there.must("work 1")
}

#[test]
fn a_fault_of_another_client_meanwhile_costs_the_moved_one_nothing() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let sandbox = daemon.sandbox();
    let mut client = opened(&daemon, 0)?;
    for _ in 0..8 {
        client.must(&format!("allocate {}", 64 * MIB))?;
    }
    client.must("work 1")?;
    let pid = client.pid().to_string();
    for (round, delay_ms) in [0, 5, 10, 20, 40, 60].into_iter().enumerate() {
        let (from, to) = (round % 2, (1 + round) % 2);
        if session(&daemon, client.pid())?.device as usize != from {
            move_to(&daemon, client.pid(), from)?;
        }
        let mut faulty = opened(&daemon, from)?;
        faulty.must("keep poke")?;
        let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
        let moving =
            Running::start(command.args(["move", "--pid", &pid, "--to", &to.to_string()]))?;
        sleep(Duration::from_millis(delay_ms));
        ensure!(faulty.ask("poke kept 16")?.starts_with("error"));
        let finished = moving.finish(PATIENCE)?;
        finished.success().with_context(|| sandbox.last_log_lines())?;
        client.must("work 2").with_context(|| sandbox.last_log_lines())?;
        wait::until("it is there", PATIENCE, || {
            session(&daemon, client.pid()).is_ok_and(|it| it.device as usize == to)
        })?;
    }
    Ok(())
}

#[test]
fn a_drained_gpu_is_left_by_all_and_used_by_nobody() -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = opened(&daemon, 0)?;
        client.must(&format!("allocate {}", 8 * MIB))?;
        client.must("work 1")?;
        clients.push(client);
    }
    openmps(&daemon, &["drain", "0"])?
        .success()
        .with_context(|| daemon.sandbox().last_log_lines())?;
    wait_for_nothing_granted(&daemon, 0)?;
    let before = kernels_on(&daemon, 0)?;
    for client in &mut clients {
        ensure!(session(&daemon, client.pid())?.device == 1);
        client.must("work 2")?;
    }
    // A program that starts takes GPU 1 for the GPU 0 that it wants.
    let mut newcomer = opened(&daemon, 0)?;
    newcomer.must("work 3")?;
    ensure!(session(&daemon, newcomer.pid())?.device == 1);
    ensure!(kernels_on(&daemon, 0)? == before);
    ensure!(daemon.state()?.drained == [0]);
    let back = refusal_of_move(&daemon, newcomer.pid(), "0")?;
    ensure!(back.contains("GPU 0 is drained"), "{back}");
    // One that wants both gets the other only.
    let mut on_both = opened(&daemon, 1)?;
    let refused = on_both.ask("open 0")?;
    ensure!(refused == "error 46", "{refused}");
    on_both.must("work 1")?;

    openmps(&daemon, &["drain", "--undo", "0"])?.success()?;
    let mut later = opened(&daemon, 0)?;
    later.must("work 1")?;
    ensure!(session(&daemon, later.pid())?.device == 0);
    move_to(&daemon, newcomer.pid(), 0)?;
    newcomer.must("work 1")
}

#[test]
fn clients_of_a_drained_gpu_are_spread_over_the_others() -> Result<()> {
    let three = [("OPENMPS_SOFT_DEVICES", "3")];
    let daemon = Daemon::start_with(Sandbox::new()?, &three)?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = opened(&daemon, 0)?;
        client.must("work 1")?;
        clients.push(client);
    }
    openmps(&daemon, &["drain", "0"])?
        .success()
        .with_context(|| daemon.sandbox().last_log_lines())?;
    let mut on = [0; 3];
    for client in &mut clients {
        client.must("work 1")?;
        on[session(&daemon, client.pid())?.device as usize] += 1;
    }
    ensure!(on == [0, 2, 2], "{on:?}");
    Ok(())
}

/// Its thread is in a call that waits for the kernel, and sees no wish meanwhile.
#[test]
fn a_client_that_waits_for_a_strangers_kernel_still_gets_away_from_it() -> Result<()> {
    let settings = [TWO[0], ("OPENMPS_SOFT_STALLS", "1")];
    let daemon = Daemon::start_with(Sandbox::new()?, &settings)?;
    let mut hog = opened(&daemon, 0)?;
    let mut worker = opened(&daemon, 0)?;
    worker.must("work 1")?;
    hog.must("hold")?;
    wait::until("its kernel is on the device", PATIENCE, || {
        session(&daemon, hog.pid()).is_ok_and(|session| session.kernels > 0)
    })?;
    let pid = worker.pid();
    // Another kernel, whose code is to be loaded.
    let working = std::thread::spawn(move || worker.must("meet 1").map(|()| worker));
    sleep(Duration::from_millis(10));
    // Whatever comes of this.
    let moved = openmps(&daemon, &["move", "--pid", &pid.to_string(), "--to", "1"])?;
    let worked = working.join().expect("it does not panic");
    let mut worker = worked.with_context(|| format!("{moved:?}"))?;
    worker.must("work 1")?;
    hog.must("that is enough")?;
    Ok(())
}
