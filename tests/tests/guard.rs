//! Guarded clients: an access beyond what is theirs ends them alone, and correct programs are as
//! they were.

use anyhow::{Context, Result, ensure};
use link::wire::fault::Blame;
use openmps_tests::process;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Runtime, Sandbox};

const GUARDED: (&str, &str) = ("OPENMPS_GUARD", "1");
/// Programs whose kernels read and write in many ways.
const PROGRAMS: [&str; 8] = [
    "matrix_product",
    "scan",
    "histogram",
    "reduction",
    "n_body",
    "transpose",
    "graphs",
    "symbols",
];

#[test]
fn an_overrun_ends_its_client_alone_and_is_told_with_kernel_address_and_allocation() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut bystander = daemon.puppet()?;
    bystander.must("open")?;
    bystander.tell("work 3000")?;
    let restarts = daemon.snapshot()?.devices[0].restarts;
    for overrun in ["fault", "after"] {
        let mut guarded = daemon.puppet_with(&[GUARDED])?;
        guarded.must("open")?;
        guarded.must("work 3")?;
        guarded.must("allocate 4194304")?;
        let address: u64 = guarded.ask("address")?.parse()?;
        guarded.must(&format!("poke {}", address + 4_194_300))?;
        let (order, touched) = match overrun {
            "fault" => ("fault".to_owned(), 0x10),
            _ => (format!("poke {}", address + (1 << 32)), address + (1 << 32)),
        };
        guarded.expect(&order, "error 700")?;
        guarded.expect("work 1", "error 700")?;
        let line = format!("4 bytes at {touched:#x}");
        wait::until("the server tells of it", PATIENCE, || {
            let faults = daemon.snapshot().unwrap_or_default().faults;
            faults.last().is_some_and(|fault| fault.address == Some(touched))
        })
        .with_context(|| daemon.sandbox().last_log_lines())?;
        let snapshot = daemon.snapshot()?;
        let fault = snapshot.faults.last().context("no fault")?;
        ensure!(fault.blame == Blame::Culprit && fault.accused[0].pid == guarded.pid(), "{fault}");
        for part in [line.as_str(), "poke", "st.global.u32", "allocation of"] {
            ensure!(fault.what.contains(part), "{part} is not in {fault}");
        }
    }
    let answer = bystander.answer_within(4 * PATIENCE)?;
    ensure!(answer == "ok", "who had work in flight meanwhile was answered {answer:?}");
    ensure!(daemon.snapshot()?.devices[0].restarts == restarts, "the context was lost");
    bystander.dismiss()
}

#[test]
fn correct_programs_give_the_same_output() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    for program in PROGRAMS {
        let path = sandbox.installation.program("cudart-13.0-static", program);
        let plain = process::run(&mut sandbox.command(&path, Runtime::OpenMps), PATIENCE)?;
        let mut command = sandbox.command(&path, Runtime::OpenMps);
        let guarded = process::run(command.envs([GUARDED]), PATIENCE)?;
        ensure!(plain.success()? == guarded.success()?, "{program} differs");
    }
    ensure!(!sandbox.logs().contains("runs unguarded"), "{}", sandbox.last_log_lines());
    Ok(())
}
