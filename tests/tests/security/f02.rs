//! Finding F2: root's epilog kills whatever a job's user names.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use link::wire::daemon::{ClientSnapshot, ServerSnapshot, ToDaemon};
use openmps_tests::Liar;
use openmps_tests::wait::{self, PATIENCE};

use crate::hooks::Node;
use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] =
    &[Test::new("f02_the_epilog_kills_only_what_the_daemon_attached", run)];

/// A process that no hook may touch.
struct Bystander(Child);

impl Bystander {
    fn start() -> Result<Self> {
        let mut sleep = Command::new("sleep");
        Ok(Self(sleep.arg("1000").stdin(Stdio::null()).spawn()?))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run() -> Result<()> {
    let node = Node::new()?;
    node.must("prolog", "7", ATTACKER)?;
    // A second job keeps the daemon where it is.
    node.must("prolog", "8", VICTIM)?;
    let mut roots = Bystander::start()?;
    let attached = node.client("7", ATTACKER)?;
    let mut victims = node.client("8", VICTIM)?;
    let state = node.state()?;
    let server = state.servers.iter().find(|server| server.uid == ATTACKER);
    let server = server.context("the attacker has a server")?;
    let real = server.snapshot.clients.first().context("the server has a client")?.client_id;
    // Whoever it is, the server says: a process of root's, and one of another job.
    let named = |client_id, pid| ClientSnapshot {
        client_id,
        pid,
        uid: ATTACKER,
        command: "forged".into(),
        group: Some("slurm-7".into()),
        ..Default::default()
    };
    let clients =
        vec![named(real, roots.0.id()), named(real + 100, roots.0.id()), named(1, victims.pid())];
    let snapshot = ServerSnapshot { clients, clients_ever: 1, ..Default::default() };
    let liar = Liar::in_place_of(server.pid, snapshot)?;
    liar.say(&ToDaemon::Status(link::wire::daemon::ServerStatus::Active))?;
    let finished = node.must("epilog", "7", ATTACKER)?;
    ensure!(roots.0.try_wait()?.is_none(), "root's process was killed: {finished:?}");
    victims.must("work 1")?;
    ensure!(finished.stderr.contains(&format!("process {} ", attached.pid())), "{finished:?}");
    // The real client is killed, whatever its server says.
    let mut attached = attached;
    wait::until("the job's client is gone", PATIENCE, || attached.ask("work 1").is_err())?;
    drop(liar);
    victims.dismiss()?;
    node.must("epilog", "8", VICTIM)?;
    Ok(())
}
