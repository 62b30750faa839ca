//! Every CUDA program, natively on the software GPU and under OpenMPS: right, and the same output.
//!
//! The tests are made from the sources in `programs`, each linked in up to five ways, the kernel
//! suite of `programs/kernels` in one: `cargo test --test programs scan` runs those of one program.
//! What OpenMPS ran is proved by its server: the very process was attached, and its kernels were
//! counted there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Arguments, Trial};
use openmps_tests::process::{self, Finished};
use openmps_tests::recording::{self, Recording};
use openmps_tests::{Daemon, Installation, Runtime, Sandbox};

/// How CUDA C++ programs are linked with the runtime library; see `xtask/src/programs.rs`.
const LINKAGES: [&str; 5] = [
    "cudart-13.0-static",
    "cudart-13.0-shared",
    "cudart-12.9-static",
    "cudart-12.9-shared",
    CUDA_11,
];
const CUDA_11: &str = "cudart-11.8-shared";

/// Programs whose functions had other parameters in CUDA 11, or did not exist: see
/// `xtask/src/programs.rs`.
const NOT_FOR_CUDA_11: [&str; 4] =
    ["conditional_graphs", "graphs", "mixed_commands", "stream_capture"];

/// How many devices the software GPU has.
const DEVICES: &str = "OPENMPS_SOFT_DEVICES";

/// The kernel suite, whose programs all say themselves how often they launched.
const SUITE: &str = "kernels";

/// Natively the programs take about a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);

/// A program whose kernels print.
const PRINTS: &str = "device_printf";

/// A program that ends with a fault on the device, which takes a server of its own.
const FAULTS: &str = "errors";

/// Programs that do more where there are two devices.
const FOR_TWO_DEVICES: [&str; 2] = ["batch_copies", "peers"];

/// Launches that a program makes, where it makes none that fail: what the server must have counted.
const KERNELS: &[(&str, u64)] = &[
    ("vector_add", 1),
    ("matrix_product", 1),
    ("reduction", 1),
    ("histogram", 2),
    ("n_body", 3),
    ("transpose", 1),
    ("scan", 3),
    ("streams_events", 15),
    ("symbols", 2),
    ("code_variables", 80),
    ("functions", 1),
    ("dynamic_shared", 2),
    ("many_launches", 6000),
    (PRINTS, 3),
    ("per_thread_stream", 4),
    ("blocking_streams", 19),
    ("managed_memory", 3),
    ("managed_variables", 10),
    ("wide_numbers", 2),
    ("host_callbacks", 4),
    // Each launch of a graph counts its kernels that are not left out.
    ("graphs", 43),
    ("stream_capture", 84),
    ("graph_api", 6),
    ("graph_memory", 221),
    ("copies", 6),
    ("ptx_text", 2),
    ("linking", 1),
    ("virtual_memory", 1),
    ("occupancy", 0),
    ("arrays", 0),
    ("batch_copies", 0),
    ("textures", 10),
    ("stream_values", 7),
    ("array_descriptors", 0),
    ("tensor_maps", 5),
    ("function_settings", 26),
    ("per_thread", 22),
    ("without_context", 2),
    ("peers", 0),
    ("ipc", 2),
    ("nvrtc", 1),
    ("cudarc", 2),
    ("several_runtimes", 60),
];

/// A compiled program.
#[derive(Clone)]
struct Program {
    kind: &'static str,
    name: String,
    /// Of the software GPU.
    devices: u32,
}

impl Program {
    fn new(kind: &'static str, name: impl Into<String>) -> Self {
        Self { kind, name: name.into(), devices: 1 }
    }

    /// As it is called in the list of tests, and where its calls are recorded.
    fn variant(&self) -> String {
        match self.devices {
            1 => self.kind.to_owned(),
            count => format!("{}-{count}-devices", self.kind),
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for program in programs(&Installation::find()?)? {
        for (mode, run) in MODES {
            if mode == RELOCATED && !is_relocated(&program) {
                continue;
            }
            let (name, program) =
                (format!("{}::{}::{mode}", program.name, program.variant()), program.clone());
            trials.push(Trial::test(name, move || {
                Ok(run(&program).map_err(|error| format!("{error:#}"))?)
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // `exit` runs no destructors, and a static has none.
    drop(SHARED.lock().unwrap_or_else(PoisonError::into_inner).take());
    conclusion.exit()
}

type Mode = (&'static str, fn(&Program) -> Result<()>);
const MODES: [Mode; 4] = [
    ("softcuda", natively),
    ("no_daemon", without_daemon),
    ("openmps", under_openmps),
    (RELOCATED, relocated),
];

/// Under a server whose sessions go to the device's other context after every few commands.
const RELOCATED: &str = "relocated";
const RELOCATE_EVERY: (&str, &str) = ("OPENMPS_TEST_RELOCATE_EVERY", "3");
/// A program that nothing keeps in a context while it works, and how often it goes at least.
const GOES_ON: (&str, usize) = ("code_variables", 20);

fn programs(installation: &Installation) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for name in sources(installation, "cuda", "cu")? {
        let kinds = LINKAGES
            .into_iter()
            .filter(|kind| *kind != CUDA_11 || !NOT_FOR_CUDA_11.contains(&name.as_str()));
        programs.extend(kinds.map(|kind| Program::new(kind, name.clone())));
    }
    for name in sources(installation, SUITE, "cu")? {
        programs.push(Program::new(SUITE, name));
    }
    for name in sources(installation, "driver_api", "c")? {
        programs.push(Program::new("driver-api", name));
    }
    for name in FOR_TWO_DEVICES {
        programs.push(Program { devices: 2, ..Program::new("driver-api", name) });
    }
    programs.push(Program::new("nvrtc-12.9", "nvrtc"));
    programs.push(Program::new("runtimes", "several_runtimes"));
    programs.push(Program::new("rust", "cudarc"));
    Ok(programs)
}

fn sources(installation: &Installation, directory: &str, extension: &str) -> Result<Vec<String>> {
    let directory = installation.sources().join(directory);
    let mut names = Vec::new();
    for entry in directory.read_dir().with_context(|| format!("{}", directory.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    ensure!(!names.is_empty(), "{} holds no program", directory.display());
    names.sort();
    Ok(names)
}

/// The software GPU's driver alone.
fn natively(program: &Program) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let recording = Recording::start(recorded_as(program), &program.variant())?;
    run(&sandbox, program, Runtime::Softcuda, Some(&recording))?;
    recording.keep()
}

/// The client library where no daemon runs: the program must not notice.
fn without_daemon(program: &Program) -> Result<()> {
    let sandbox = Sandbox::new()?;
    run(&sandbox, program, Runtime::OpenMps, None).map(drop)
}

/// The client library and a server.
fn under_openmps(program: &Program) -> Result<()> {
    let is_alone = program.name == FAULTS || program.devices != 1;
    let daemon = if is_alone { Arc::new(start_daemon(program.devices)?) } else { shared_daemon()? };
    let native = run(daemon.sandbox(), program, Runtime::Softcuda, None)?;
    let recording = Recording::start(recorded_as(program), &program.variant())?;
    let attached = run(daemon.sandbox(), program, Runtime::OpenMps, Some(&recording))
        .with_context(|| daemon.sandbox().last_log_lines())?;
    ensure!(
        attached.stdout == native.stdout,
        "under OpenMPS it printed\n{}natively\n{}",
        attached.stdout,
        native.stdout
    );
    let counted = daemon.departed(attached.pid)?;
    ensure!(
        counted.commands > 0,
        "process {} was attached but nothing of it ran: {counted:?}",
        attached.pid
    );
    if let Some(launches) = launches(program, &native.stdout)? {
        ensure!(
            counted.kernels == launches,
            "{} kernels counted, {launches} launched",
            counted.kernels
        );
    }
    recording.keep()
}

/// Programs of one linkage, as the executor sees the same of all, and of one device.
fn is_relocated(program: &Program) -> bool {
    program.devices == 1 && [LINKAGES[0], "driver-api", SUITE].contains(&program.kind)
}

/// The client library and a server, in one context and then the other.
fn relocated(program: &Program) -> Result<()> {
    let daemon = Daemon::start_with(Sandbox::new()?, &[RELOCATE_EVERY])?;
    let sandbox = daemon.sandbox();
    let native = run(sandbox, program, Runtime::Softcuda, None)?;
    let attached =
        run(sandbox, program, Runtime::OpenMps, None).with_context(|| sandbox.last_log_lines())?;
    ensure!(
        attached.stdout == native.stdout,
        "between contexts it printed\n{}natively\n{}",
        attached.stdout,
        native.stdout
    );
    let of_it = format!("Client {{PID: {}, ", attached.pid);
    let logs = sandbox.logs();
    let relocations = logs
        .lines()
        .filter(|it| it.contains(&of_it) && it.contains("goes on in the other context"));
    let fewest = if program.name == GOES_ON.0 { GOES_ON.1 } else { 1 };
    let relocations = relocations.count();
    ensure!(relocations >= fewest, "it went {relocations} times to the other context\n{logs}");
    Ok(())
}

/// The name by which the table of proofs knows a program.
fn recorded_as(program: &Program) -> String {
    match program.kind {
        SUITE => format!("{SUITE}/{}", program.name),
        "driver-api" => format!("driver_api/{}", program.name),
        "rust" => program.name.clone(),
        _ => format!("cuda/{}", program.name),
    }
}

/// How many kernels a program launches, where that is known.
fn launches(program: &Program, printed: &str) -> Result<Option<u64>> {
    match printed.trim_end().rsplit_once(" launches=") {
        Some((_, count)) => Ok(Some(count.parse()?)),
        None if program.kind == SUITE => bail!("no launches printed"),
        None => Ok(KERNELS.iter().find(|(name, _)| *name == program.name).map(|(_, count)| *count)),
    }
}

fn run(
    sandbox: &Sandbox,
    program: &Program,
    runtime: Runtime,
    recording: Option<&Recording>,
) -> Result<Finished> {
    let path = sandbox.installation.program(program.kind, &program.name);
    let mut command = sandbox.command(path, runtime);
    command.env(DEVICES, program.devices.to_string());
    command.envs(recording.map(Recording::variable));
    let finished = process::run(&mut command, LIMIT)?;
    let printed = finished.success()?;
    let line = printed.lines().last().unwrap_or_default();
    if !line.starts_with(&format!("{}: ok checksum=", program.name)) {
        bail!("it exited with 0 but printed {printed:?}");
    }
    if program.name == PRINTS && runtime == Runtime::Softcuda {
        let greetings =
            printed.lines().filter(|line| line.contains("thread 31 of block 0")).count();
        ensure!(greetings == 3, "three kernels should have printed one line each:\n{printed}");
    }
    Ok(finished)
}

/// The daemon that all programs share, a few at a time, as in life; the text says why there is
/// none.
static SHARED: Mutex<Option<Result<Arc<Daemon>, String>>> = Mutex::new(None);

fn shared_daemon() -> Result<Arc<Daemon>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let started = shared.get_or_insert_with(|| match start_daemon(1) {
        Ok(daemon) => Ok(Arc::new(daemon)),
        Err(error) => Err(format!("{error:#}")),
    });
    started.clone().map_err(anyhow::Error::msg)
}

fn start_daemon(devices: u32) -> Result<Daemon> {
    let mut environment = vec![(DEVICES, devices.to_string())];
    environment.extend(recording::executor()?);
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Daemon::start_with(Sandbox::new()?, &environment)
}
