//! The pages that show what to type: their blocks marked `tried` are run, page by page, by a new
//! user in an empty directory, on the software GPU.
//!
//! `nvidia-smi` and `sudo` stand for what a test may not do: they say what they were called with,
//! and `sudo` runs it. Paths under `/tmp` and `/var/log` are the test's own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use openmps_tests::Sandbox;
use openmps_tests::batching;
use openmps_tests::executable;
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::{self, PATIENCE};

const LIMIT: Duration = Duration::from_secs(240);
/// What marks a block that is run.
const TRIED: &str = "```sh tried\n";

fn page(name: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    fs::read_to_string(&path).with_context(|| format!("{}", path.display()))
}

/// The page's blocks that are run.
fn blocks(page: &str) -> Vec<&str> {
    page.split(TRIED).skip(1).filter_map(|rest| rest.split_once("\n```")).map(|(b, _)| b).collect()
}

/// A user who has only installed OpenMPS: an own home, an own place for temporary files, two
/// programs.
struct User {
    sandbox: Sandbox,
    home: PathBuf,
}

impl User {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        // Beside the sandbox's directories, so that it goes with them.
        let home = sandbox.log_directory().with_file_name("home");
        let tools = home.join("tools");
        fs::create_dir_all(&tools)?;
        // The smallest systems have no `ps`.
        let ps = "#!/bin/sh\nfor file in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $file; echo; done 2> /dev/null; true\n";
        let ps = (!Path::new("/usr/bin/ps").exists()).then_some(("ps", ps));
        let stand_ins = [
            ("nvidia-smi", "#!/bin/sh\necho \"nvidia-smi $*\"\n"),
            ("sudo", "#!/bin/sh\nexec \"$@\"\n"),
        ];
        for (name, text) in stand_ins.into_iter().chain(ps) {
            executable::write(&tools.join(name), text)?;
        }
        for program in ["process1", "process2"] {
            symlink(sandbox.installation.program("recipes", program), home.join(program))?;
        }
        Ok(Self { sandbox, home })
    }

    /// Runs a script as a shell that stops at the first failure.
    fn types(&self, script: &str) -> Result<Finished> {
        let own = |place: &str| self.home.join(place).display().to_string();
        let script = script
            .replace("/tmp/nvidia-", &own("nvidia-"))
            .replace("/var/log/nvidia-mps", &own("var-log"));
        let bin = self.sandbox.installation.openmps();
        let bin = bin.parent().context("a directory")?.display().to_string();
        let mut command = Command::new("sh");
        command
            .args(["-e", "-c", &script])
            .current_dir(&self.home)
            .env_clear()
            .env("HOME", &self.home)
            .env("PATH", format!("{bin}:{}:/usr/bin:/bin", own("tools")))
            // What the pages leave to the defaults must not meet another test's.
            .env("CUDA_MPS_PIPE_DIRECTORY", self.sandbox.pipe_directory())
            .env("CUDA_MPS_LOG_DIRECTORY", self.sandbox.log_directory())
            // Stands for NVIDIA's driver, which is found without a variable.
            .env("OPENMPS_NATIVE_DRIVER", self.sandbox.installation.softcuda())
            .envs(batching::of_this_run());
        process::run(&mut command, LIMIT)
    }
}

/// Runs all blocks of a page, each in a shell of its own; what they print.
fn try_page(user: &User, name: &str) -> Result<String> {
    let text = page(name)?;
    let mut printed = String::new();
    let blocks = blocks(&text);
    ensure!(!blocks.is_empty(), "{name} has no block that is tried");
    for block in blocks {
        let finished = user.types(block)?;
        finished.success().with_context(|| format!("docs/{name}:\n{block}"))?;
        printed.push_str(&finished.stdout);
        printed.push_str(&finished.stderr);
    }
    Ok(printed)
}

fn must_have(printed: &str, lines: &[&str]) -> Result<()> {
    for line in lines {
        ensure!(printed.contains(line), "{line:?} is not in what was printed:\n{printed}");
    }
    ensure!(!printed.contains("is wrong"), "{printed}");
    Ok(())
}

#[test]
fn recipes() -> Result<()> {
    let user = User::new()?;
    let printed = try_page(&user, "recipes.md")?;
    must_have(
        &printed,
        &[
            "Process 1 done.",
            "Process 2 done.",
            "nvidia-smi -i 0 -c EXCLUSIVE_PROCESS",
            "nvidia-cuda-mps-control -d",
            "NEW CLIENT",
            // The limit that was set before the daemon ran.
            "3G\n",
        ],
    )?;
    // Each recipe ends with `quit`.
    wait::until("nothing is left", PATIENCE, || user.sandbox.processes().is_empty())
}

#[test]
fn a_workstation() -> Result<()> {
    let user = User::new()?;
    let printed = try_page(&user, "workstation.md")?;
    must_have(
        &printed,
        &["Process 1 done.", "Process 2 done.", "1 client(s)", "OpenMPS Software GPU"],
    )?;
    let trace = fs::metadata(user.home.join("trace.json.gz"))?;
    ensure!(trace.len() > 100, "the trace is empty");
    wait::until("nothing is left", PATIENCE, || user.sandbox.processes().is_empty())
}

#[test]
fn ci_without_a_gpu() -> Result<()> {
    let user = User::new()?;
    let printed = try_page(&user, "ci-without-gpu.md")?;
    must_have(&printed, &["Process 1 done.", "Process 2 done."])?;
    let status = fs::read_to_string(user.home.join("status.json"))?;
    ensure!(status.contains("process1"), "{status}");
    Ok(())
}
