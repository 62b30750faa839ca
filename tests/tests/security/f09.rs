//! Finding F9: monitoring goes blind by long names or many attachments.

use anyhow::{Result, ensure};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox, process};

use crate::{ATTACKER, Test};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f09_long_names_blind_nobody", long_names),
    Test::new("f09_a_thousand_attachments_are_listed", many),
];

fn wire(daemon: &Daemon, uid: u32) -> Result<Puppet> {
    let sandbox = daemon.sandbox();
    let program = sandbox.installation.own_program("wire")?;
    Puppet::spawn(&mut sandbox.command_as(uid, program, Runtime::OpenMps))
}

fn long_names() -> Result<()> {
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    let mut client = wire(&daemon, ATTACKER)?;
    client.must("attach 1 1")?;
    for _ in 0..2 {
        client.must("attach 1 130000")?;
    }
    client.must("leave")?;
    wait::until("those that left are listed as such", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.departed.len() == 3)
    })?;
    client.must("attach 1 130000")?;
    let snapshot = daemon.snapshot()?;
    ensure!(snapshot.clients.len() == 1, "{snapshot:?}");
    let all = snapshot.clients.iter().chain(&snapshot.departed);
    let longest = all.map(|client| client.command.len()).max();
    ensure!(longest == Some(200), "{longest:?}");
    client.dismiss()
}

fn many() -> Result<()> {
    const MANY: usize = 1024;
    let daemon = Daemon::start(Sandbox::of_several_users()?)?;
    // Root, whom no limit of users keeps out.
    let mut client = wire(&daemon, 0)?;
    client.must(&format!("attach {MANY} 150"))?;
    let server = daemon.server()?;
    ensure!(server.snapshot.clients.len() == MANY, "{}", server.snapshot.clients.len());
    let listed = daemon.shell(&format!("get_client_list {}", server.pid))?;
    ensure!(listed.lines().count() == MANY, "{listed}");
    let openmps = daemon.sandbox().installation.openmps();
    for words in [&["ps"][..], &["status"], &["top", "--once"]] {
        let mut command = daemon.sandbox().command(&openmps, Runtime::OpenMps);
        let finished = process::run(command.args(words), PATIENCE)?;
        let shown = finished.success()?;
        ensure!(finished.stderr.is_empty(), "{words:?}: {}", finished.stderr);
        let rows = shown.matches(&client.pid().to_string()).count();
        // `top` shows clients with a context.
        ensure!(words != ["ps"] || rows > 0, "{words:?}: {rows} of {MANY}");
    }
    client.must("leave")?;
    wait::until("all have left", PATIENCE, || {
        daemon.snapshot().is_ok_and(|snapshot| snapshot.clients.is_empty())
    })?;
    client.dismiss()
}
