//! Finding N9: clients of a job that its epilog does not see.

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Puppet, Runtime, process};
use std::fs;

use crate::hooks::Node;
use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("n09_a_client_that_waits_is_none_after_its_job", waiting),
    Test::new("n09_a_job_has_no_clients_under_other_numbers", other_numbers),
];

/// Its server is to end, and it waits for the next one.
fn waiting() -> Result<()> {
    let node = Node::new()?;
    node.must("prolog", "7", ATTACKER)?;
    node.must("prolog", "8", ATTACKER)?;
    let holding = node.client("8", ATTACKER)?;
    let server = node.state()?.servers.first().context("no server")?.pid;
    let mut shell = node.sandbox.command(node.sandbox.installation.openmps(), Runtime::OpenMps);
    shell.env("CUDA_MPS_PIPE_DIRECTORY", node.pipe());
    shell.args(["control", "shutdown_server", &server.to_string()]);
    process::run(&mut shell, PATIENCE)?.success()?;
    let mut waiting = Puppet::spawn(&mut node.job_command("puppet", "7", ATTACKER)?)?;
    waiting.tell("open")?;
    let log = node.sandbox.log_directory().join("gpu-0/control.log");
    let line = format!("NEW CLIENT {} from user {ATTACKER}: Server is not ready", waiting.pid());
    wait::until("it waits for a server", PATIENCE, || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains(&line))
    })?;
    node.must("epilog", "7", ATTACKER)?;
    holding.dismiss()?;
    let answer = waiting.answer_within(PATIENCE)?;
    ensure!(answer.starts_with("error "), "it was attached: {answer}");
    node.must("epilog", "8", ATTACKER)?;
    Ok(())
}

/// A user may have more numbers than one (`subuid(5)`), and friends: the job's socket is the user's
/// own.
fn other_numbers() -> Result<()> {
    let node = Node::new()?;
    node.must("prolog", "7", ATTACKER)?;
    node.must("prolog", "8", VICTIM)?;
    let mut innocent = node.client("8", VICTIM)?;
    let socket = node.socket_of("7");
    let mut open = node.sandbox.command_as(ATTACKER, "chmod", Runtime::Softcuda);
    process::run(open.arg("0666").arg(socket), PATIENCE)?.success()?;
    let mut other = node.client("7", VICTIM)?;
    let finished = node.must("epilog", "7", ATTACKER)?;
    ensure!(finished.stderr.contains(&format!("process {} ", other.pid())), "{finished:?}");
    wait::until("the job's client is gone", PATIENCE, || other.ask("work 1").is_err())?;
    innocent.must("work 1")?;
    innocent.dismiss()?;
    node.must("epilog", "8", VICTIM)?;
    Ok(())
}
