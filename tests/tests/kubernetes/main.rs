//! The device plugin against a fake kubelet: shares as asked, and what happens to pods and
//! allocations when the kubelet, the plugin, the daemon or an executor ends. Pods are real
//! processes on the software GPU, with the environment and the mounts of the plugin's answer and
//! nothing else.

mod container;
mod kubelet;
mod manifests;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use container::{mount_point, puppet_in};
use kubelet::{Kubelet, Pod};
use link::wire::daemon::ClientSnapshot;
use link::wire::group_socket::GroupHolder;
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Daemon, Puppet, Runtime, Sandbox};
use rustix::process::{Pid, Signal, kill_process};

const PERCENT: &str = "openmps.dev/sm-percent";
const SMALL: &str = "openmps.dev/small";
const MIB: u64 = 1 << 20;
/// Memory of the software GPU in these tests, and what is left to lend.
const GPU_MIB: &str = "1124";
const LENDABLE_MIB: u64 = 1000;
/// Of the daemon: two GPUs, and one server for all.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("OPENMPS_SOFT_DEVICES", "2"),
    ("OPENMPS_SOFT_SMS", "100"),
    ("OPENMPS_SOFT_MEMORY_MIB", GPU_MIB),
    ("OPENMPS_PROVISIONING", "multiuser"),
];
const OUT_OF_MEMORY: &str = "error 2";
/// `CUDA_ERROR_NO_DEVICE`: no daemon, and no driver in the container either.
const NO_DEVICE: &str = "error 100";

/// A node with two GPUs.
struct Node {
    // Dropped in this order: the plugin first, the sandbox with the daemon last.
    plugin: Plugin,
    kubelet: Kubelet,
    daemon: Daemon,
}

struct Plugin {
    child: Child,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Node {
    fn start() -> Result<Self> {
        let daemon = Daemon::start_with(Sandbox::new()?, &ENVIRONMENT)?;
        let kubelet = Kubelet::start(&daemon.sandbox().log_directory().join("kubelet"))?;
        let plugin = start_plugin(daemon.sandbox(), &kubelet)?;
        let node = Node { plugin, kubelet, daemon };
        node.await_all()?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", node.plugin.child.id()))?;
        ensure!(status.contains("CapEff:\t0000000000000000\n"), "the plugin's: {status}");
        Ok(node)
    }

    /// Until all that is free or lent can be lent.
    fn await_all(&self) -> Result<()> {
        let both = self.kubelet.await_allocatable(PERCENT, 200).and_then(|()| {
            wait::until("some small ones", PATIENCE, || self.kubelet.allocatable(SMALL) > 0)
        });
        both.with_context(|| self.daemon.sandbox().last_log_lines())
    }

    fn puppet(&self, pod: &Pod) -> Result<Puppet> {
        puppet_in(pod, self.daemon.sandbox(), &[])
    }

    /// A process in the pod that has its context.
    fn opened(&self, pod: &Pod) -> Result<Puppet> {
        let mut puppet = self.puppet(pod)?;
        puppet.must("open").with_context(|| self.daemon.sandbox().last_log_lines())?;
        Ok(puppet)
    }

    fn client(&self, puppet: &Puppet) -> Result<ClientSnapshot> {
        let clients = self.daemon.snapshot()?.clients;
        let found = clients.into_iter().find(|client| client.pid == puppet.pid());
        found.with_context(|| format!("process {} is not attached", puppet.pid()))
    }

    fn kill_plugin(&mut self) -> Result<()> {
        self.plugin.child.kill()?;
        self.plugin.child.wait()?;
        // Of each resource: what is noticed late would be taken for the end of the next plugin's.
        wait::until("its endpoints are gone", PATIENCE, || {
            self.kubelet.allocatable(PERCENT) + self.kubelet.allocatable(SMALL) == 0
        })
    }

    fn start_plugin_again(&mut self) -> Result<()> {
        self.plugin = start_plugin(self.daemon.sandbox(), &self.kubelet)?;
        Ok(())
    }

    fn records(&self) -> PathBuf {
        state_directory(self.daemon.sandbox()).join("allocations.json")
    }
}

fn state_directory(sandbox: &Sandbox) -> PathBuf {
    sandbox.log_directory().join("state")
}

/// The executable as root of the manifests' container has it: without capabilities, and with
/// nothing to write to but what is mounted.
fn restricted(sandbox: &Sandbox) -> Command {
    const RESTRICT: &str = "\
mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro / || exit 99
shift; exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs \"$@\"";
    let openmps = sandbox.installation.openmps();
    if !rustix::process::geteuid().is_root() {
        return sandbox.command(openmps, Runtime::OpenMps);
    }
    let mut command = sandbox.command("unshare", Runtime::OpenMps);
    command.args(["--mount", "sh", "-c", RESTRICT, "sh"]).arg(sandbox.directory()).arg(openmps);
    command
}

fn start_plugin(sandbox: &Sandbox, kubelet: &Kubelet) -> Result<Plugin> {
    let config = sandbox.log_directory().join("plugin.toml");
    std::fs::write(
        &config,
        format!(
            "memory-reserve = '124M'\nlibrary-directory = '{}'\ncontainer-library-directory = '{}'\ncontainer-socket-directory = '{}'\n\
             [resources.'{PERCENT}']\nsm-percent = 1\nmemory = '1%'\n\
             [resources.'{SMALL}']\nsm-percent = 25\nmemory = '100M'\nmost-per-container = 1\n",
            sandbox.installation.client_directory().display(),
            mount_point(sandbox, "lib"),
            mount_point(sandbox, "run"),
        ),
    )?;
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(sandbox.log_directory().join("plugin.log"))?;
    let child = restricted(sandbox)
        .args(["kubernetes", "device-plugin"])
        .args(["--daemon-interval-ms", "50", "--list-interval-ms", "100"])
        .arg("--config")
        .arg(&config)
        .arg("--plugin-directory")
        .arg(kubelet.plugin_directory())
        .arg("--pod-resources")
        .arg(kubelet.pod_resources())
        .arg("--sockets")
        .arg(sandbox.log_directory().join("pods"))
        .arg("--state")
        .arg(state_directory(sandbox))
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .context("cannot start the plugin")?;
    Ok(Plugin { child })
}

#[test]
fn a_pod_gets_its_share_and_no_more_whatever_it_says() -> Result<()> {
    let mut node = Node::start()?;
    let pod = node.kubelet.admit(PERCENT, 30)?;
    ensure!(pod.given.mounts.iter().all(|mount| mount.read_only), "{:?}", pod.given);
    let mut one = node.opened(&pod)?;
    let variables = [
        ("OPENMPS_GROUP", "another"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
        ("OPENMPS_WEIGHT", "1000"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
    ];
    let mut two = puppet_in(&pod, node.daemon.sandbox(), &variables)?;
    two.must("open")?;
    for puppet in [&mut one, &mut two] {
        puppet.must("work 3")?;
        let client = node.client(puppet)?;
        let share = client.devices.first().context("no device")?;
        ensure!(share.multiprocessors == 30 && client.weight == 30, "{client:?}");
        ensure!(client.devices.len() == 1, "{client:?}");
        ensure!(client.group.is_some_and(|group| group.starts_with("kubernetes/")));
    }
    let free: u64 = one.ask("free-bytes")?.parse()?;
    ensure!(free <= LENDABLE_MIB * 30 / 100 * MIB, "{free}");
    one.must(&format!("allocate {}", 200 * MIB))?;
    two.expect(&format!("allocate {}", 200 * MIB), OUT_OF_MEMORY)?;
    // The kubelet has said whose the group is, and the daemon's metrics can say it.
    let group = node.client(&one)?.group.context("no group")?;
    let holder = GroupHolder {
        group,
        namespace: "default".to_owned(),
        pod: pod.name.clone(),
        container: "main".to_owned(),
    };
    let is_named = || node.daemon.state().is_ok_and(|state| state.holders == [holder.clone()]);
    wait::until("the group's holder is named", PATIENCE, is_named)
        .with_context(|| node.daemon.sandbox().last_log_lines())?;
    // Without its socket it has no GPU at all.
    let elsewhere = [("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")];
    let mut lost = puppet_in(&pod, node.daemon.sandbox(), &elsewhere)?;
    lost.expect("open", NO_DEVICE)?;
    // Without the variable it finds the socket where that is mounted, and has no more than its
    // share.
    let mut bare = puppet_in(&pod, node.daemon.sandbox(), &[("CUDA_MPS_PIPE_DIRECTORY", "")])?;
    if bare.ask("open")? == "ok" {
        let client = node.client(&bare)?;
        ensure!(client.devices[0].multiprocessors == 30, "{client:?}");
        ensure!(client.group.is_some_and(|group| group.starts_with("kubernetes/")));
    }

    // The next share goes to the same GPU while it has room; more than a GPU is refused.
    let next = node.kubelet.admit(PERCENT, 70)?;
    let other = node.kubelet.admit(SMALL, 1)?;
    let gpu = |pod: &Pod| -> Result<String> {
        let id = pod.devices.first().context("no device")?;
        Ok(id.rsplit_once("::").context("an id")?.0.to_owned())
    };
    ensure!(gpu(&pod)? == gpu(&next)? && gpu(&next)? != gpu(&other)?);
    node.opened(&other)?.must("work 1")?;
    // What the small one has is not offered as hundredths, and is not lent.
    node.kubelet.await_allocatable(PERCENT, 175)?;
    node.kubelet.await_allocatable(SMALL, 4)?;
    let refused = format!("{:#}", node.kubelet.admit(PERCENT, 76).unwrap_err());
    ensure!(refused.contains("the scheduler finds 75"), "{refused}");
    node.kubelet.forget(&pod)?;
    node.kubelet.forget(&next)?;
    node.kubelet.forget(&other)?;
    node.await_all()?;
    node.kubelet.await_allocatable(SMALL, 8)?;
    ensure!(node.daemon.state()?.holders.is_empty(), "holders of groups stay");
    let refused = format!("{:#}", node.kubelet.admit(PERCENT, 101).unwrap_err());
    ensure!(refused.contains("more than one GPU has"), "{refused}");
    Ok(())
}

#[test]
fn pods_and_allocations_outlive_the_kubelet() -> Result<()> {
    let mut node = Node::start()?;
    let pod = node.kubelet.admit(PERCENT, 60)?;
    let mut puppet = node.opened(&pod)?;
    node.kubelet.stop()?;
    puppet.must("work 2")?;
    node.kubelet.start_again()?;
    wait::until("both resources are registered again", PATIENCE, || {
        node.kubelet.registered() == 2
    })?;
    node.await_all()?;
    puppet.must("work 2")?;
    node.opened(&pod)?.must("work 1")?;
    // 40 are left there, 100 on the other: 75 do not fit beside it.
    let other = node.kubelet.admit(PERCENT, 75)?;
    ensure!(pod.devices.is_disjoint(&other.devices));
    let refused = format!("{:#}", node.kubelet.admit(PERCENT, 50).unwrap_err());
    ensure!(refused.contains("only several together"), "{refused}");
    node.opened(&other)?.must("work 1")?;
    // When the pod ends, its socket goes.
    let socket = PathBuf::from(&pod.given.mounts[0].host_path);
    ensure!(socket.exists());
    puppet.dismiss()?;
    node.kubelet.forget(&pod)?;
    wait::until("its socket is closed", PATIENCE, || !socket.exists())?;
    let again = node.kubelet.admit(PERCENT, 100)?;
    node.opened(&again)?.must("work 1")
}

#[test]
fn pods_and_allocations_outlive_the_plugin() -> Result<()> {
    let mut node = Node::start()?;
    let pod = node.kubelet.admit(PERCENT, 60)?;
    let mut puppet = node.opened(&pod)?;
    node.kill_plugin()?;
    puppet.must("work 2")?;
    // Nobody asks the plugin for what runs: a container that starts anew, too, has what it had.
    let mut late = node.opened(&pod)?;
    late.must("work 2")?;
    node.start_plugin_again()?;
    node.await_all()?;
    let other = node.kubelet.admit(PERCENT, 100)?;
    ensure!(pod.devices.is_disjoint(&other.devices));

    // Without its records it goes by the kubelet's list.
    node.kill_plugin()?;
    std::fs::remove_file(node.records())?;
    node.start_plugin_again()?;
    node.await_all()?;
    wait::until("what runs is lent", PATIENCE, || node.kubelet.allocatable(SMALL) == 1)?;
    puppet.must("work 2")?;
    node.opened(&other)?.must("work 1")?;
    let refused = format!("{:#}", node.kubelet.admit(PERCENT, 41).unwrap_err());
    ensure!(refused.contains("finds 40"), "{refused}");

    // Asked to end, it leaves all as it is.
    let pid = i32::try_from(node.plugin.child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.context("a process")?, Signal::TERM)?;
    let status = node.plugin.child.wait()?;
    ensure!(status.success(), "{status}");
    puppet.must("work 1")?;
    node.opened(&pod)?.must("work 1")
}

#[test]
fn pods_outlive_the_daemon_or_are_told() -> Result<()> {
    let mut node = Node::start()?;
    let pod = node.kubelet.admit(PERCENT, 60)?;
    let mut puppet = node.opened(&pod)?;
    node.daemon.kill()?;
    puppet.must("work 3")?;
    // A new process has no GPU until the daemon is back, and is told.
    node.puppet(&pod)?.expect("open", NO_DEVICE)?;
    node.kubelet.await_allocatable(PERCENT, 0)?;
    node.daemon.start_again_with(&ENVIRONMENT)?;
    node.await_all()?;
    wait::until("the pod's socket is there again", PATIENCE, || {
        node.daemon.state().is_ok_and(|state| state.sockets.len() == 1)
    })?;
    let mut late = node.opened(&pod)?;
    late.must("work 2")?;
    let client = node.client(&late)?;
    ensure!(client.devices.first().is_some_and(|share| share.multiprocessors == 60), "{client:?}");
    late.expect(&format!("allocate {}", (LENDABLE_MIB * 60 / 100 + 1) * MIB), OUT_OF_MEMORY)?;
    puppet.must("work 3")?;
    let other = node.kubelet.admit(PERCENT, 41)?;
    ensure!(pod.devices.is_disjoint(&other.devices));
    node.opened(&other)?.must("work 1")
}

#[test]
fn after_a_fault_the_gpu_is_healthy_again() -> Result<()> {
    let mut node = Node::start()?;
    let culprit = node.kubelet.admit(PERCENT, 30)?;
    let mut faulty = node.opened(&culprit)?;
    let answer = faulty.ask("fault")?;
    ensure!(answer.starts_with("error "), "{answer}");
    faulty.kill()?;
    // The plugin may see the fault only after the GPU was found healthy here: pods are then tried
    // again, as their controllers do.
    let mut next = None;
    wait::until("the GPU is lent again", PATIENCE, || {
        next = node.kubelet.admit(PERCENT, 30).ok();
        next.is_some()
    })?;
    let next = next.context("a pod")?;
    node.opened(&next)?.must("work 2")
}

#[test]
fn a_second_plugin_is_refused() -> Result<()> {
    let node = Node::start()?;
    let sandbox = node.daemon.sandbox();
    let mut second: Command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    second.args(["kubernetes", "device-plugin", "--state"]).arg(state_directory(sandbox));
    let finished = openmps_tests::process::run(&mut second, PATIENCE)?;
    ensure!(finished.stderr.contains("one plugin per node"), "{}", finished.stderr);
    Ok(())
}
