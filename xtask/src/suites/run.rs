//! Running one test module in a process of its own.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cuda_abi::record::VARIABLE;

use super::daemon::Daemon;
use super::install::Libraries;
use super::lists::{Module, Proof, Suite};
use super::outcome::{Outcomes, parse};
use crate::dist::Dist;
use crate::paths::Paths;
use crate::proofs;

/// Every module of the lists takes less than a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(600);
const INTERVAL: Duration = Duration::from_millis(20);

/// Where modules run.
pub(super) struct Place<'a> {
    pub(super) paths: &'a Paths,
    pub(super) dist: &'a Dist,
    pub(super) libraries: &'a Libraries,
}

/// What is to be run on.
#[derive(Clone, Copy)]
pub(super) enum Mode<'a> {
    /// The software GPU's driver alone.
    Native,
    /// The client library under a daemon.
    Attached(&'a Daemon),
}

impl Mode<'_> {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Attached(_) => "openmps",
        }
    }
}

/// Runs a module and says what came of its tests; under OpenMPS also proves that it was there.
///
/// # Errors
/// When it cannot be run, does not end, or was not where it should have been. The message names the
/// log.
pub(super) fn module(place: &Place<'_>, module: &Module, mode: Mode<'_>) -> Result<Outcomes> {
    let stem = module.name.replace(['/', '.'], "-");
    let directory = place.libraries.logs().join(mode.name());
    fs::create_dir_all(&directory)?;
    let (log, report) =
        (directory.join(format!("{stem}.log")), directory.join(format!("{stem}.report")));
    fs::write(&report, "")?;
    let output = File::create(&log)?;
    let mut command = command(place, module, mode);
    let calls = calls_directory(place, module);
    fs::create_dir_all(&calls)?;
    command
        .env(VARIABLE, &calls)
        .env("OPENMPS_SUITE_REPORT", &report)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    let mut child = command.spawn().context("cannot start Python")?;
    let pid = child.id();
    wait(&mut child).with_context(|| format!("see {}", log.display()))?;
    if let Mode::Attached(daemon) = mode {
        let counted = daemon.departed(pid)?;
        if module.proof == Proof::Kernels && counted.kernels == 0 {
            bail!(
                "no kernel of process {pid} ran under OpenMPS: {counted:?}; see {}",
                log.display()
            );
        }
    }
    Ok(parse(&fs::read_to_string(&report)?))
}

/// Where a module's calls are recorded, for the table of proofs: `cupy/core_tests/test_scan`,
/// `numba/cudapy.test_scan`.
pub(super) fn calls_directory(place: &Place<'_>, module: &Module) -> PathBuf {
    let name = module.name.trim_start_matches("tests/").trim_start_matches("cupy_tests/");
    let name = name.trim_start_matches("numba.cuda.tests.").trim_end_matches(".py");
    proofs::directory(place.paths).join(module.suite.name()).join(name)
}

fn command(place: &Place<'_>, module: &Module, mode: Mode<'_>) -> Command {
    let scripts = place.paths.root.join("tests/suites");
    let excluded: Vec<&str> = module.excluded.iter().map(String::as_str).collect();
    let mut command = Command::new(place.libraries.python());
    command.env_clear();
    let kept = ["PATH", "HOME", "LANG", "TMPDIR"];
    command.envs(kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
        .env("PYTHONPATH", &scripts)
        .env("PYTHONHASHSEED", "0")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OPENMPS_SUITE_EXCLUDED", excluded.join(" "))
        // There is no machine code on the software GPU.
        .env("CUPY_COMPILE_WITH_PTX", "1")
        .env("CUPY_CACHE_DIR", place.libraries.cupy_cache())
        .args(["-X", "faulthandler"]);
    match mode {
        Mode::Native => command.env("LD_LIBRARY_PATH", place.dist.softcuda_directory()),
        Mode::Attached(daemon) => command.envs(daemon.environment().iter().cloned()),
    };
    match module.suite {
        Suite::Cupy => command
            .current_dir(place.libraries.cupy_source())
            .args(["-m", "pytest", "-p", "openmps_pytest_report", "-p", "no:cacheprovider"])
            .args(["-q", "--tb=short", "-W", "ignore", "-m", "not slow and not multi_gpu"]),
        Suite::Numba | Suite::Triton => command
            .env("TRITON_CACHE_DIR", place.libraries.triton_cache())
            .env("TRITON_DEFAULT_FP_FUSION", "1")
            .current_dir(place.libraries.logs())
            .arg(PathBuf::from(&scripts).join("run_unittest.py")),
    };
    command.arg(&module.name);
    command
}

/// Waits for its end; then nothing of its process group is left.
fn wait(child: &mut Child) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let ended = loop {
        if child.try_wait()?.is_some() {
            break true;
        }
        if Instant::now() >= deadline {
            break false;
        }
        sleep(INTERVAL);
    };
    if let Ok(group) = libc::pid_t::try_from(child.id()) {
        // SAFETY: kill has no memory to do with; the group is the child's own, made for it above.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    child.wait()?;
    if !ended {
        bail!("it did not end within {LIMIT:?}");
    }
    Ok(())
}
