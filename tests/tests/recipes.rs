//! What others send to the control utility: NVIDIA's Kubernetes device plugin and DRA driver, and
//! the prolog that comes with Slurm. Command by command as they send it, with the environment that
//! they give it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use openmps_tests::batching;
use openmps_tests::process::{self, Finished};
use openmps_tests::wait::{self, PATIENCE};
use openmps_tests::{Runtime, Sandbox};

/// The original's front end, with no variables but those given.
struct Utility<'a> {
    sandbox: &'a Sandbox,
    variables: Vec<(&'static str, String)>,
}

impl Utility<'_> {
    fn command(&self) -> Command {
        let openmps = self.sandbox.installation.openmps();
        let mut command = Command::new(openmps.with_file_name("nvidia-cuda-mps-control"));
        command
            .env_clear()
            .env("CUDA_MPS_PIPE_DIRECTORY", self.sandbox.pipe_directory())
            .env("CUDA_MPS_LOG_DIRECTORY", self.sandbox.log_directory())
            // Stands for NVIDIA's driver, which is found without a variable.
            .env("OPENMPS_NATIVE_DRIVER", self.sandbox.installation.softcuda())
            .envs(batching::of_this_run())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// With the command as arguments.
    fn arguments(&self, words: &[&str]) -> Result<Finished> {
        process::run(self.command().args(words), PATIENCE)
    }

    /// With the command on standard input, with no newline at its end.
    fn piped(&self, line: &str) -> Result<Output> {
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start the front end")?;
        child.stdin.take().context("no standard input")?.write_all(line.as_bytes())?;
        Ok(child.wait_with_output()?)
    }

    fn answer(&self, line: &str) -> Result<String> {
        let output = self.piped(line)?;
        ensure!(output.status.success(), "`{line}` ended with {}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }
}

#[test]
fn the_kubernetes_device_plugin_starts_shares_and_stops() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let utility = Utility { sandbox: &sandbox, variables: Vec::new() };
    utility.arguments(&["-d"])?.success()?;
    for line in [
        "set_default_device_pinned_mem_limit 0 2048M",
        "set_default_device_pinned_mem_limit GPU-4f70656e-4d50-432d-b36f-66742d677000 2048M",
    ] {
        ensure!(utility.answer(line)?.is_empty(), "{line}");
    }
    ensure!(utility.answer("set_default_active_thread_percentage 25")? == "25.0\n");
    // The plugin's probe of health.
    ensure!(utility.answer("get_default_active_thread_percentage")? == "25.0\n");
    ensure!(utility.answer("get_default_device_pinned_mem_limit 0")? == "2G\n");
    // A pod's program, with the limits of its resource.
    let program = sandbox.installation.program("cudart-13.0-static", "vector_add");
    process::run(&mut sandbox.command(program, Runtime::OpenMps), PATIENCE)?.success()?;
    let server = utility.answer("get_server_list")?;
    let limit = format!("get_device_pinned_mem_limit {} 0", server.trim());
    ensure!(utility.answer(&limit)? == "2G\n", "{limit}");
    utility.piped("quit")?;
    wait::until("the daemon's files are gone", PATIENCE, || {
        std::fs::read_dir(sandbox.pipe_directory()).is_ok_and(|mut files| files.next().is_none())
    })
}

#[test]
fn slurms_prolog_starts_a_server_for_the_jobs_user() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let utility =
        Utility { sandbox: &sandbox, variables: vec![("CUDA_VISIBLE_DEVICES", "0".to_owned())] };
    utility.arguments(&["-d"])?.success()?;
    let uid = rustix::process::geteuid().as_raw().to_string();
    utility.arguments(&["start_server", "-uid", &uid])?.success()?;
    let mut server = String::new();
    wait::until("the server is there", PATIENCE, || {
        server = utility.answer("get_server_list").unwrap_or_default().trim().to_owned();
        let status = utility.answer(&format!("get_server_status {server}"));
        !server.is_empty() && status.is_ok_and(|status| status == "ACTIVE\n")
    })?;
    // The job: the share that Slurm computed is in its environment.
    let program = sandbox.installation.program("cudart-13.0-static", "vector_add");
    let mut job = sandbox.command(program, Runtime::OpenMps);
    job.env("CUDA_VISIBLE_DEVICES", "0").env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50");
    process::run(&mut job, PATIENCE)?.success()?;
    // The epilog, as the guide has it.
    ensure!(utility.answer("get_client_list ".to_owned().as_str())?.contains("Server 0 not found"));
    utility.piped("quit\n")?;
    wait::until("the server has ended", PATIENCE, || sandbox.processes().is_empty())
}

#[test]
fn a_daemon_started_with_q_knows_its_devices_before_any_server() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let utility = Utility { sandbox: &sandbox, variables: Vec::new() };
    utility.arguments(&["-d", "-q"])?.success()?;
    let devices = utility.answer("device_query --csv")?;
    ensure!(devices.contains("OpenMPS Software GPU"), "{devices}");
    utility.piped("quit")?;
    Ok(())
}
