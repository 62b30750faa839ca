//! `openmps top` on a real terminal, beside a real daemon: what its keys say is what happens.

use anyhow::{Context, Result, ensure};
use link::wire::daemon::ClientDeviceSnapshot;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, Terminal};

const SIZE: (u16, u16) = (120, 30);
const ENTER: &str = "\r";
const ESCAPE: &str = "\u{1b}";

fn top(daemon: &Daemon, environment: &[(&str, &str)]) -> Result<Terminal> {
    let sandbox = daemon.sandbox();
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    command.args(["top", "--interval", "0.2"]).envs(environment.iter().copied());
    Terminal::start(&mut command, SIZE)
}

fn share(daemon: &Daemon, of: &Puppet) -> Result<ClientDeviceSnapshot> {
    let clients = daemon.snapshot()?.clients;
    let client = clients.into_iter().find(|client| client.pid == of.pid()).context("no client")?;
    client.devices.into_iter().next().context("no context")
}

#[test]
fn keys_do_what_the_help_says() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let mut calm = daemon.puppet_with(&[("OPENMPS_GROUP", "calm-ones")])?;
    let mut eager = daemon.puppet()?;
    calm.must("open")?;
    calm.must("work 3")?;
    eager.must("open")?;
    eager.must("churn")?;
    let (calm_pid, eager_pid) = (calm.pid().to_string(), eager.pid().to_string());
    let mut top = top(&daemon, &[])?;
    top.wait_until("both clients are listed, and one works", |screen| {
        screen.contains(&calm_pid) && screen.contains(&eager_pid) && screen.contains("calm-ones")
    })?;
    top.press("?")?;
    top.wait_for("since the running kernel was submitted")?;
    // A key that follows at once would be taken for one with Alt.
    top.press(ESCAPE)?;
    top.wait_for("COMMAND")?;
    top.press("s")?;
    top.wait_for("by kernels")?;
    top.press("/CALM")?;
    top.press(ENTER)?;
    top.wait_until("the other client is not shown", |screen| {
        screen.contains("1 client with `CALM`") && !screen.contains(&eager_pid)
    })?;
    top.press(ENTER)?;
    top.wait_until("the client's last kernel is shown", |screen| {
        screen.contains("LAST KERNELS") && screen.contains(" step") && screen.contains(&calm_pid)
    })?;
    top.press(ESCAPE)?;
    top.wait_for("COMMAND")?;
    // A no does nothing, and a yes what was asked.
    top.press("lmemory=64M")?;
    top.press(ENTER)?;
    top.wait_for(&format!("client {calm_pid}: memory 64.0M? y: yes"))?;
    top.press("n")?;
    top.wait_for("nothing was done")?;
    ensure!(share(&daemon, &calm)?.memory_limit_bytes.is_none(), "it was done");
    top.press("lmemory=64M")?;
    top.press(ENTER)?;
    top.wait_for("y: yes")?;
    top.press("y")?;
    top.wait_for(&format!("client {calm_pid}: in force"))?;
    ensure!(share(&daemon, &calm)?.memory_limit_bytes == Some(64 << 20));
    top.press("t")?;
    top.wait_for(&format!("terminate client {calm_pid}"))?;
    top.press("n")?;
    top.wait_for("nothing was done")?;
    calm.must("work 1")?;
    top.press("t")?;
    top.wait_for("y: yes")?;
    top.press("y")?;
    top.wait_for(&format!("client {calm_pid} was terminated"))?;
    let answer = calm.ask("work 1")?;
    ensure!(answer.starts_with("error"), "it goes on: {answer}");
    top.press("p")?;
    top.wait_for("PAUSED")?;
    top.press("q")?;
    ensure!(top.written().contains("\u{1b}[38;5;"), "there are no colours");
    let status = top.finish()?;
    ensure!(status.success(), "{status:?}");
    eager.kill()
}

#[test]
fn without_colours_there_are_none_and_a_daemon_that_comes_back_is_found() -> Result<()> {
    let mut daemon = Daemon::start(Sandbox::new()?)?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    let mut top = top(&daemon, &[("NO_COLOR", "1")])?;
    top.wait_for(&client.pid().to_string())?;
    client.dismiss()?;
    daemon.quit(PATIENCE)?;
    top.wait_for("trying again")?;
    daemon.start_again()?;
    let mut client = daemon.puppet()?;
    client.must("open")?;
    top.wait_until("the new client is listed", |screen| {
        screen.contains(&client.pid().to_string()) && !screen.contains("trying again")
    })?;
    top.press("q")?;
    ensure!(!top.written().contains("\u{1b}[38;5;"), "there are colours");
    ensure!(top.finish()?.success());
    client.dismiss()
}

#[test]
fn a_kernel_that_runs_is_named_until_it_has_ended() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let (mut calm, mut eager) = (daemon.puppet()?, daemon.puppet()?);
    for client in [&mut calm, &mut eager] {
        client.must("open")?;
    }
    calm.must("work 3")?;
    eager.must("churn")?;
    wait::until("the eager client is seen at work", PATIENCE, || {
        let launch = share(&daemon, &eager).ok().and_then(|share| share.running?.launch);
        launch.is_some_and(|launch| launch.kernel == "step")
    })?;
    wait::until("the calm client is known to have ended its kernels", PATIENCE, || {
        share(&daemon, &calm).is_ok_and(|share| share.running.is_none())
    })?;
    let launches = share(&daemon, &calm)?.launches;
    ensure!(launches.len() == 3, "{launches:?}");
    ensure!(launches.iter().all(|call| call.launch.as_ref().is_some_and(|it| it.kernel == "step")));
    eager.kill()?;
    calm.dismiss()
}
