//! The container images, run by crun as the manifests in `deploy/kubernetes` have it. What an
//! engine would read is read from the archives alone.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::command::run_quietly;
use crate::debian::{self, Unpacked};
use crate::dist::Dist;
use crate::fresh::{self, Fresh};
use crate::images::IMAGES;
use crate::paths::Paths;
use crate::tree::fresh_directory;

/// For people.
pub(crate) const TRIED: &str = "container images, by crun";
/// What must come about comes about within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// As the manifest has it, inside and outside.
const PLUGIN_DIRECTORY: &str = "/var/lib/kubelet/device-plugins";
/// What a client of HTTP/2 says first.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Where control groups of version 1 are mounted, crun wants version 2, for this process alone.
const WITH_GROUPS: &str = "if grep -q ' /sys/fs/cgroup tmpfs' /proc/mounts; then
    mount -t cgroup2 cgroup2 /sys/fs/cgroup; fi; exec \"$@\"";
/// What the daemon's container may do, since it is privileged, as far as OpenMPS needs it.
const POWERS: [&str; 4] = ["CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_SYS_PTRACE"];

/// Runs both: a program outside uses the daemon, and the plugin calls a kubelet.
///
/// # Errors
/// What did not work.
pub(crate) fn check(paths: &Paths, images: &[PathBuf]) -> Result<Fresh> {
    if let Some(why) = fresh::obstacle(paths) {
        return Fresh::not_permitted(why);
    }
    let tools = match debian::ensure(paths, "containers", &["crun"])? {
        Unpacked::At(tools) => tools,
        Unpacked::Skipped(why) => return Ok(Fresh::Skipped(why)),
    };
    let [daemon, plugin] = images else { bail!("{} images", images.len()) };
    let folder = paths.target.join("images/check");
    fresh_directory(&folder)?;
    for inside in ["run", "log", "plugins", "resources", "state"] {
        fs::create_dir(folder.join(inside))?;
    }
    let engine = Engine { tools, folder };
    let mut daemon = engine.daemon(daemon)?;
    let served = serves_a_program(paths, &engine.folder, &mut daemon);
    let called = served.and_then(|()| engine.plugin(plugin).and_then(calls_the_kubelet));
    let ended = daemon.end();
    called.and(ended)?;
    fs::remove_dir_all(&engine.folder)?;
    Ok(Fresh::Checked(
        "  the daemon served a program outside, the device plugin called the kubelet\n".to_owned(),
    ))
}

struct Engine {
    /// crun and its libraries, as under `/`.
    tools: PathBuf,
    folder: PathBuf,
}

impl Engine {
    fn daemon(&self, image: &Path) -> Result<Container> {
        let mounts = [
            self.bind("run", "/run/openmps"),
            self.bind("log", "/var/log/openmps"),
            // The node's processes, as with `hostPID`.
            json!({"destination": "/proc", "source": "/proc", "options": ["rbind"]}),
        ];
        let variables = [
            "CUDA_MPS_PIPE_DIRECTORY=/run/openmps/control",
            "CUDA_MPS_LOG_DIRECTORY=/var/log/openmps",
            "OPENMPS_PROVISIONING=multiuser",
            "OPENMPS_NATIVE_DRIVER=/usr/lib/openmps/libsoftcuda.so",
        ];
        self.start(IMAGES[0].part, image, &mounts, &variables, &POWERS)
    }

    fn plugin(&self, image: &Path) -> Result<(Container, UnixListener)> {
        let kubelet = UnixListener::bind(self.folder.join("plugins/kubelet.sock"))?;
        kubelet.set_nonblocking(true)?;
        let manifests = self.folder.join("config");
        fs::create_dir(&manifests)?;
        fs::write(
            manifests.join("plugin.toml"),
            include_str!("../../deploy/kubernetes/base/plugin.toml"),
        )?;
        let mounts = [
            self.bind("run", "/run/openmps"),
            self.bind("config", "/etc/openmps"),
            self.bind("state", "/var/lib/openmps/kubernetes"),
            self.bind("plugins", PLUGIN_DIRECTORY),
            self.bind("resources", "/var/lib/kubelet/pod-resources"),
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        ];
        let variables = ["CUDA_MPS_PIPE_DIRECTORY=/run/openmps/control"];
        Ok((self.start(IMAGES[1].part, image, &mounts, &variables, &[])?, kubelet))
    }

    fn bind(&self, directory: &str, inside: &str) -> Value {
        let outside = self.folder.join(directory);
        json!({"destination": inside, "source": outside, "options": ["bind", "rw"]})
    }

    /// Unpacks an image and starts what it says, with a read-only root.
    fn start(
        &self,
        name: &str,
        image: &Path,
        mounts: &[Value],
        variables: &[&str],
        powers: &[&str],
    ) -> Result<Container> {
        let bundle = self.folder.join(name);
        let root = bundle.join("root");
        let configuration = unpack(image, &bundle.join("image"), &root)?;
        let words =
            |list: &str| configuration["config"][list].as_array().cloned().unwrap_or_default();
        let mut env = words("Env");
        env.extend(variables.iter().map(|&variable| variable.into()));
        let mut mounts = mounts.to_vec();
        mounts.push(json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}));
        let mut namespaces = vec![json!({"type": "mount"}), json!({"type": "ipc"})];
        if powers.is_empty() {
            namespaces.push(json!({"type": "pid"}));
        }
        let args = [words("Entrypoint"), words("Cmd")].concat();
        let specification = json!({
            "ociVersion": "1.0.0",
            "process": {
                "terminal": false, "user": {"uid": 0, "gid": 0}, "cwd": "/", "env": env,
                "args": args, "noNewPrivileges": true,
                "capabilities": {"bounding": powers, "effective": powers, "permitted": powers},
            },
            "root": {"path": root, "readonly": true},
            "mounts": mounts, "linux": {"namespaces": namespaces},
        });
        fs::write(bundle.join("config.json"), specification.to_string())?;
        let id = format!("openmps-{name}-{}", std::process::id());
        let said = bundle.join("said");
        let output = fs::File::create(&said)?;
        let mut run = self.crun();
        run.args(["run", "--bundle"]).arg(&bundle).arg(&id).stdin(Stdio::null());
        let child = run.stdout(output.try_clone()?).stderr(output).spawn()?;
        let mut kill = self.crun();
        kill.arg("kill").arg(&id).arg("TERM");
        let mut delete = self.crun();
        delete.args(["delete", "--force"]).arg(&id);
        Ok(Container { child, kill, delete, said })
    }

    fn crun(&self) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", WITH_GROUPS, "sh"])
            .arg(self.tools.join("usr/bin/crun"));
        command.arg("--cgroup-manager=disabled").arg("--root").arg(self.folder.join("containers"));
        let libraries = self.tools.join("usr/lib/x86_64-linux-gnu");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("LD_LIBRARY_PATH", libraries);
        command
    }
}

/// Unpacks an archive as an engine does; returns the image's configuration.
fn unpack(image: &Path, layout: &Path, root: &Path) -> Result<Value> {
    let untar = |archive: &Path, to: &Path| {
        fs::create_dir_all(to)?;
        run_quietly(Command::new("tar").arg("-C").arg(to).arg("-xpf").arg(archive)).map(drop)
    };
    untar(image, layout)?;
    let blob = |descriptor: &Value| -> Result<PathBuf> {
        let digest = descriptor["digest"].as_str().and_then(|text| text.strip_prefix("sha256:"));
        let digest = digest.context("a descriptor without a digest")?;
        let file = layout.join("blobs/sha256").join(digest);
        let sum = run_quietly(Command::new("sha256sum").arg(&file))?.stdout;
        ensure!(sum.starts_with(digest.as_bytes()), "{} has another digest", file.display());
        let size = fs::metadata(&file)?.len();
        ensure!(descriptor["size"].as_u64() == Some(size), "{descriptor}: it has {size} bytes");
        Ok(file)
    };
    let read = |file: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(file)?)?) };
    let index = read(&layout.join("index.json"))?;
    let manifest = read(&blob(&index["manifests"][0])?)?;
    let configuration = read(&blob(&manifest["config"])?)?;
    let layers = manifest["layers"].as_array().context("a manifest without layers")?;
    let contents = configuration["rootfs"]["diff_ids"].as_array().context("no contents")?;
    ensure!(layers.len() == contents.len(), "{} layers, {} contents", layers.len(), contents.len());
    for layer in layers {
        untar(&blob(layer)?, root)?;
    }
    Ok(configuration)
}

/// A container that runs.
struct Container {
    child: Child,
    kill: Command,
    delete: Command,
    said: PathBuf,
}

impl Container {
    fn said(&self) -> String {
        format!("it said:\n{}", fs::read_to_string(&self.said).unwrap_or_default())
    }

    /// Tells it to end, which it must do well.
    fn end(mut self) -> Result<()> {
        let told = run_quietly(&mut self.kill);
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break Some(status),
                None if Instant::now() > deadline => break None,
                None => sleep(Duration::from_millis(50)),
            }
        };
        let said = self.said();
        drop(self);
        told.with_context(|| said.clone())?;
        let status = status.with_context(|| format!("a container does not end; {said}"))?;
        ensure!(status.success(), "a container ended with {status}; {said}");
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Gone already where all went well.
        let _ = self.delete.output();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program outside computes under the daemon, which counts its kernels.
fn serves_a_program(paths: &Paths, folder: &Path, daemon: &mut Container) -> Result<()> {
    let dist = Dist::at(paths);
    let outside = |program: PathBuf| {
        let mut command = Command::new(program);
        command.env("CUDA_MPS_PIPE_DIRECTORY", folder.join("run/control"));
        command.env("LD_LIBRARY_PATH", dist.client_directory());
        command
    };
    let status = || {
        let mut status = outside(dist.root.join("bin/openmps"));
        let said = run_quietly(status.args(["status", "--json"]))?.stdout;
        Ok::<Value, anyhow::Error>(serde_json::from_slice(&said)?)
    };
    let deadline = Instant::now() + PATIENCE;
    while status().is_err() {
        let is_over = daemon.child.try_wait()?.is_some() || Instant::now() > deadline;
        ensure!(!is_over, "the daemon does not answer; {}", daemon.said());
        sleep(Duration::from_millis(50));
    }
    let program = paths.target.join("programs/cudart-13.0-static/vector_add");
    let mut run = Command::new("timeout");
    run.args(["--kill-after=5", "60"]).arg(&program);
    run.env("CUDA_MPS_PIPE_DIRECTORY", folder.join("run/control"));
    run.env("LD_LIBRARY_PATH", dist.client_directory());
    let ran = run_quietly(&mut run).with_context(|| daemon.said())?;
    ensure!(String::from_utf8_lossy(&ran.stdout).contains("vector_add: ok"), "{ran:?}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = status()?;
        let departed = status["servers"][0]["snapshot"]["departed"].as_array().cloned();
        let mut departed = departed.unwrap_or_default().into_iter();
        if departed.any(|client| client["kernels"].as_u64() > Some(0)) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the daemon counted no kernels: {status:#}");
        sleep(Duration::from_millis(50));
    }
}

/// The plugin comes to the kubelet's socket to register, and ends when it is told to.
fn calls_the_kubelet((mut plugin, kubelet): (Container, UnixListener)) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut caller = loop {
        match kubelet.accept() {
            Ok((caller, _)) => break caller,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                return Err(error.into());
            }
            Err(_) => {
                let is_over = plugin.child.try_wait()?.is_some() || Instant::now() > deadline;
                ensure!(!is_over, "the device plugin does not call the kubelet; {}", plugin.said());
                sleep(Duration::from_millis(50));
            }
        }
    };
    caller.set_nonblocking(false)?;
    caller.set_read_timeout(Some(PATIENCE))?;
    let mut first = vec![0; HTTP_2.len()];
    caller.read_exact(&mut first)?;
    ensure!(first == HTTP_2, "the device plugin said {:?}", String::from_utf8_lossy(&first));
    drop(caller);
    plugin.end()
}
