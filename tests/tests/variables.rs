//! Variables of code (`programs/process/variables.c`): whoever loads code finds them as the code
//! says, whoever has had it before, and however it ended.

use anyhow::{Context, Result};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};

fn start(sandbox: &Sandbox, runtime: Runtime) -> Result<Puppet> {
    let program = sandbox.installation.program("process", "variables");
    Puppet::spawn(&mut sandbox.command(program, runtime))
}

/// One client by itself.
fn alone(client: &mut Puppet) -> Result<()> {
    for value in ["1", "2", "3"] {
        client.must("load")?;
        client.must("check")?;
        client.must(&format!("write {value}"))?;
        client.must(&format!("check {value}"))?;
        client.must("unload")?;
    }
    for _ in 0..3 {
        client.must("load")?;
        client.must("check")?;
        client.must("unload running")?;
    }
    client.must("churn 20")
}

#[test]
fn code_that_is_loaded_again_has_its_first_values_natively_and_attached() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut native = start(&sandbox, Runtime::Softcuda)?;
    alone(&mut native)?;
    native.dismiss()?;
    let daemon = Daemon::start(sandbox)?;
    let mut client = start(daemon.sandbox(), Runtime::OpenMps)?;
    alone(&mut client)?;
    client.dismiss()
}

#[test]
fn nobody_sees_what_another_client_has_left_in_its_variables() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut spy = start(daemon.sandbox(), Runtime::OpenMps)?;
    let mut other = start(daemon.sandbox(), Runtime::OpenMps)?;
    for round in 0..3 {
        for (way, end) in [("unloads", "unload"), ("unloads at work", "unload running")] {
            let round = || format!("round {round}, after one that {way}");
            other.must("load")?;
            other.must("write 777")?;
            other.must(end)?;
            spy.must("load")?;
            spy.must("check").with_context(round)?;
            // Both have it now, each its own.
            spy.must("write 5")?;
            other.must("load")?;
            other.must("check").with_context(round)?;
            other.must("write 6")?;
            spy.must("check 5").with_context(round)?;
            other.must("check 6").with_context(round)?;
            spy.must("unload")?;
            other.must("unload")?;
        }
    }
    for ends in [Puppet::dismiss, Puppet::kill] {
        let mut gone = start(daemon.sandbox(), Runtime::OpenMps)?;
        gone.must("load")?;
        gone.must("check")?;
        gone.must("write 888")?;
        ends(gone)?;
        spy.must("churn 10")?;
        other.must("churn 10")?;
    }
    spy.dismiss()?;
    other.dismiss()
}
