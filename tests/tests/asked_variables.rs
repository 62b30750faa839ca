//! Sessions move whose programs have asked where a variable is that is only copied to. The address
//! that they were told stays right (`programs/process/asked_variable.c`).

use anyhow::{Context as _, Result, ensure};
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

const TWO: [(&str, &str); 1] = [("OPENMPS_SOFT_DEVICES", "2")];

fn start(sandbox: &Sandbox, runtime: Runtime) -> Result<Puppet> {
    let program = sandbox.installation.program("process", "asked_variable");
    Puppet::spawn(sandbox.command(program, runtime).envs(TWO))
}

/// A client, and another one of the same code on the second device: so the variable lies elsewhere
/// there.
fn daemon_and_clients() -> Result<(Daemon, Puppet, Puppet)> {
    let daemon = Daemon::start_with(Sandbox::new()?, &TWO)?;
    let mut other = start(daemon.sandbox(), Runtime::OpenMps)?;
    other.must("ask")?;
    move_to(&daemon, &other, 1)?;
    other.must("copies 1")?;
    let client = start(daemon.sandbox(), Runtime::OpenMps)?;
    Ok((daemon, client, other))
}

fn try_move(daemon: &Daemon, client: &Puppet, to: usize) -> Result<Finished> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    let (pid, to) = (client.pid().to_string(), to.to_string());
    process::run(command.args(["move", "--pid", &pid, "--to", &to]), PATIENCE)
}

fn move_to(daemon: &Daemon, client: &Puppet, to: usize) -> Result<()> {
    let finished = try_move(daemon, client, to)?;
    finished.success().map(drop).with_context(|| daemon.sandbox().last_log_lines())
}

/// It is refused, with this reason.
fn stays(daemon: &Daemon, client: &Puppet, to: usize, why: &str) -> Result<()> {
    let refused = try_move(daemon, client, to)?;
    ensure!(refused.status.code() == Some(1) && refused.stderr.contains(why), "{refused:?}");
    Ok(())
}

/// All that the program does with the variable.
fn use_it(client: &mut Puppet) -> Result<()> {
    client.must("ask")?;
    client.must("copies 100")?;
    client.must("graph")?;
    client.must("launch graph")?;
    client.must("give 7")?;
    client.must("store")?;
    client.must("follow 8")?;
    client.expect("place", "here")
}

#[test]
fn the_program_is_right_natively_and_attached() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut native = start(&sandbox, Runtime::Softcuda)?;
    use_it(&mut native)?;
    native.dismiss()?;
    let daemon = Daemon::start(sandbox)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    use_it(&mut client)?;
    client.dismiss()
}

#[test]
fn a_program_that_copies_to_it_moves_again_and_again() -> Result<()> {
    let (daemon, mut client, mut other) = daemon_and_clients()?;
    client.must("ask")?;
    client.must("graph")?;
    client.must("copies 1")?;
    let mut elsewhere = 0;
    for number in 1..=8 {
        move_to(&daemon, &client, number % 2)?;
        // `copies` finds first what it has left there.
        client.must(&format!("copies {}", 100 * number))?;
        client.must("launch graph")?;
        elsewhere += usize::from(client.ask("place")? == "elsewhere");
    }
    ensure!(elsewhere >= 4, "it was where the program was told all along, but {elsewhere} times");
    client.must("unload")?;
    client.must("ask")?;
    client.must("copies 5")?;
    other.must("copies 2")?;
    client.dismiss()
}

#[test]
fn a_program_that_gives_it_to_a_kernel_stays_and_is_right() -> Result<()> {
    let (daemon, mut client, mut other) = daemon_and_clients()?;
    client.must("ask")?;
    client.must("give 3")?;
    stays(&daemon, &client, 1, "kernels were given the address of")?;
    client.must("store")?;
    client.must("follow 4")?;
    client.must("copies 5")?;
    // Code that is loaded again is other code, of which no kernel has anything.
    client.must("unload")?;
    move_to(&daemon, &client, 1)?;
    client.must("ask")?;
    client.must("copies 6")?;
    other.must("copies 2")?;
    client.dismiss()
}

#[test]
fn a_kernel_that_is_given_it_after_a_move_gets_where_it_is() -> Result<()> {
    let (daemon, mut client, mut other) = daemon_and_clients()?;
    client.must("ask")?;
    client.must("copies 1")?;
    move_to(&daemon, &client, 1)?;
    client.expect("place", "elsewhere")?;
    client.must("give 3")?;
    client.must("store")?;
    client.must("follow 4")?;
    client.must("copies 5")?;
    stays(&daemon, &client, 0, "kernels were given the address of")?;
    client.must("follow 6")?;
    other.must("copies 2")?;
    client.dismiss()
}

#[test]
fn a_program_that_asks_for_a_variable_of_its_own_stays() -> Result<()> {
    let (daemon, mut client, mut other) = daemon_and_clients()?;
    client.must("ask")?;
    move_to(&daemon, &client, 1)?;
    client.must("ask other")?;
    stays(&daemon, &client, 0, "the program has asked where other is")?;
    client.must("copies 1")?;
    other.must("copies 2")?;
    client.dismiss()
}

#[test]
fn a_fault_of_another_client_leaves_the_address_right() -> Result<()> {
    let (daemon, mut client, mut other) = daemon_and_clients()?;
    client.must("ask")?;
    client.must("copies 1")?;
    let mut faults = 0;
    let mut fault = || {
        wait::until("the variables are saved", PATIENCE, || {
            daemon.snapshot().is_ok_and(|it| {
                it.clients.iter().flat_map(|one| &one.devices).all(|device| !device.unsaved)
            })
        })?;
        let mut faulty = daemon.puppet()?;
        faulty.must("open")?;
        faulty.expect("fault", "error 700")?;
        faults += 1;
        wait::until("the server remembers the fault", PATIENCE, || {
            daemon.snapshot().is_ok_and(|snapshot| snapshot.faults.len() == faults)
        })
    };
    fault()?;
    client.must("copies 2").with_context(|| daemon.sandbox().last_log_lines())?;
    move_to(&daemon, &client, 1)?;
    move_to(&daemon, &client, 0)?;
    client.must("copies 3")?;
    // A kernel has stored it. Where it would be wrong, the program is told instead.
    client.must("give 4")?;
    client.must("store")?;
    fault()?;
    match client.ask("follow 5") {
        Ok(answer) => ensure!(answer == "ok", "{answer}"),
        Err(_) => daemon.sandbox().wait_for_log("an address that kernels were given came out")?,
    }
    other.must("copies 4")
}
