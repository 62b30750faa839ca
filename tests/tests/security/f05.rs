//! Finding F5: anybody's process makes root's prolog and epilog drain the node.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use openmps_tests::Runtime;
use openmps_tests::wait::{self, PATIENCE};
use rustix::process::{Pid, Signal, kill_process};

use crate::hooks::Node;
use crate::{ATTACKER, Test, VICTIM};

pub(crate) const TESTS: &[Test] = &[
    Test::new("f05_a_strangers_look_alikes_are_left_alone", look_alikes),
    Test::new("f05_what_a_killed_daemon_left_is_ended", leftovers),
];

/// Processes of a stranger that look like the daemon's: its program, and its directory in their
/// environment. One that is killed gets a successor.
struct LookAlikes {
    stop: Arc<AtomicBool>,
    killed: Arc<AtomicUsize>,
    starts: Option<JoinHandle<()>>,
}

impl LookAlikes {
    const COUNT: usize = 4;

    fn of(node: &Node) -> Result<Self> {
        let one = || -> Result<Child> {
            let openmps = node.sandbox.installation.openmps();
            let mut command = node.sandbox.command_as(ATTACKER, openmps, Runtime::OpenMps);
            command.args(["executor", "--control-fd", "0", "--native-driver", "/nowhere"]);
            command.env("CUDA_MPS_PIPE_DIRECTORY", node.pipe());
            spawn(&mut command)
        };
        let mut children: Vec<Child> = (0..Self::COUNT).map(|_| one()).collect::<Result<_>>()?;
        // The thread needs what makes them, but not the node.
        let program = node.sandbox.installation.openmps();
        let pipe = node.pipe();
        let mut again = node.sandbox.command_as(ATTACKER, program, Runtime::OpenMps);
        again.args(["executor", "--control-fd", "0", "--native-driver", "/nowhere"]);
        again.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
        let (stop, killed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&killed));
        let starts = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for child in &mut children {
                    use std::os::unix::process::ExitStatusExt;
                    let Ok(Some(status)) = child.try_wait() else { continue };
                    counted.fetch_add(usize::from(status.signal().is_some()), Ordering::Relaxed);
                    if let Ok(another) = spawn(&mut again) {
                        *child = another;
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
            for mut child in children {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        Ok(Self { stop, killed, starts: Some(starts) })
    }

    /// How many were killed.
    fn killed(&self) -> usize {
        self.killed.load(Ordering::Relaxed)
    }
}

/// Starts a process with a socket as standard input, on which nobody speaks while the process
/// lives.
fn spawn(command: &mut Command) -> Result<Child> {
    let (ours, theirs) = link::socket::Connection::pair()?;
    let theirs = rustix::fd::OwnedFd::from(theirs);
    // Its other end is its own, too: it is closed by nobody else.
    let ours = rustix::fd::OwnedFd::from(ours);
    Ok(command
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::from(ours))
        .stderr(Stdio::null())
        .spawn()?)
}

impl Drop for LookAlikes {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(starts) = self.starts.take() {
            let _ = starts.join();
        }
    }
}

fn look_alikes() -> Result<()> {
    let node = Node::new()?;
    let strangers = LookAlikes::of(&node)?;
    node.must("prolog", "7", VICTIM)?;
    node.client("7", VICTIM)?.dismiss()?;
    node.must("epilog", "7", VICTIM)?;
    ensure!(strangers.killed() == 0, "{} processes of a stranger were killed", strangers.killed());
    Ok(())
}

fn leftovers() -> Result<()> {
    let node = Node::new()?;
    node.must("prolog", "7", VICTIM)?;
    let client = node.client("7", VICTIM)?;
    let state = node.state()?;
    let server = state.servers.first().context("there is a server")?;
    let devices = server.snapshot.devices.iter();
    let executors: Vec<u32> = devices.map(|device| device.executor_pid).collect();
    ensure!(executors.iter().all(|executor| *executor != 0), "{state:?}");
    let pid = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process");
    // The server must not end by itself when its daemon does.
    kill_process(pid(server.pid)?, Signal::STOP)?;
    let strangers = LookAlikes::of(&node)?;
    kill_process(pid(state.daemon_pid)?, Signal::KILL)?;
    // Those that have no parent are zombies where nobody reaps them.
    let runs = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    wait::until("the daemon is dead", PATIENCE, || !runs(&state.daemon_pid))?;
    node.must("prolog", "8", VICTIM)?;
    let left = || executors.iter().chain([&server.pid]).filter(|pid| runs(pid)).count();
    wait::until("server and executors are gone", PATIENCE, || left() == 0)?;
    ensure!(strangers.killed() == 0, "{} processes of a stranger were killed", strangers.killed());
    client.kill()?;
    for job in ["7", "8"] {
        node.must("epilog", job, VICTIM)?;
    }
    Ok(())
}
