//! `openmps run`: a program as a client, with all that it needs started before.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use control::daemon::{BackgroundStart, StartError, start_in_background};
use control::directories::Directories;
use control::frontend::{Frontend, FrontendError};
use link::wire::shares::{LimitChange, NewLimits, Target};
use link::wire::ui::UiRequest;
use settings::{Kind, MemoryPolicy, SETTINGS, Scope, Words};

use crate::cli::{Priority, Run};
use crate::environment::client_variables;
use crate::installation::{
    DriverWish, NATIVE_DRIVER_VARIABLE, NativeDriver, ORIGINAL_NAME, library_directory,
    native_driver,
};
use crate::program;
use crate::wanted;

/// A pipe directory that there cannot be: our library, and NVIDIA's, find no daemon.
const NOWHERE: &str = "/proc/openmps-native";
/// As shells do: found, but not executable.
const CANNOT_EXECUTE: u8 = 126;
/// As shells do.
const NOT_FOUND: u8 = 127;

/// Runs the program in this process's place; returns only when that could not be done.
///
/// # Errors
/// No libraries, no driver, no daemon.
pub(crate) fn run(options: Run) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = options.command.split_first() else {
        bail!("no program was named")
    };
    // Before a daemon is started for it.
    if let Err(error) = program::find_servable(program) {
        return Ok(cannot_run(program, &error));
    }
    let prepared = prepare(&options)?;
    let error = Command::new(program).args(arguments).envs(prepared.all).exec();
    Ok(cannot_run(program, &error))
}

/// Says why a program does not run; what a shell would exit with.
pub(crate) fn cannot_run(program: &OsStr, error: &io::Error) -> ExitCode {
    eprintln!("openmps: cannot run {}: {error}", program.to_string_lossy());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_EXECUTE })
}

/// What a program needs that is to be a client.
pub(crate) struct Prepared {
    /// The directory of our libraries.
    pub(crate) library: PathBuf,
    /// Variables of its environment.
    pub(crate) all: Vec<(&'static str, OsString)>,
}

/// Starts the daemon if there is none.
///
/// # Errors
/// No libraries, no driver, no daemon.
pub(crate) fn prepare(options: &Run) -> anyhow::Result<Prepared> {
    let libraries = library_directory()?;
    let wish = match (options.softcuda, &options.native_driver) {
        (true, _) => DriverWish::Software,
        (false, Some(path)) => DriverWish::Path(path.clone()),
        (false, None) => DriverWish::None,
    };
    let driver = native_driver(wish, &libraries)?;
    let directories = Directories::from_environment();
    if options.native {
        announce_software(&driver);
        let mut all = client_variables(&libraries, &driver, &directories)?;
        all.extend([("CUDA_MPS_PIPE_DIRECTORY", NOWHERE.into())]);
        all.extend(options.gpu.clone().map(|gpu| ("CUDA_VISIBLE_DEVICES", gpu.into())));
        return Ok(Prepared { library: libraries, all });
    }
    wanted::check(options, &directories, driver.path())?;
    ensure_daemon(&directories, &libraries, &driver, options.memory_policy)?;
    set_group_limits(options, &directories)?;
    let mut all = client_variables(&libraries, &driver, &directories)?;
    all.extend(limits(options).into_iter().map(|(name, value)| (name, value.into())));
    Ok(Prepared { library: libraries, all })
}

/// Says that the software GPU was chosen for want of a driver: to whoever starts a daemon with it,
/// or runs natively. A daemon that runs already has a driver of its own.
fn announce_software(driver: &NativeDriver) {
    if let NativeDriver::SoftwareForWant(path) = driver {
        eprintln!(
            "openmps: no NVIDIA driver on this system: running on the software GPU ({})",
            path.display()
        );
    }
}

/// Sets the limits of the program's group; looks whether its reservation is there.
fn set_group_limits(options: &Run, directories: &Directories) -> anyhow::Result<()> {
    if let Some(name) = &options.reservation {
        let state = Frontend::connect(directories)?.state()?;
        if !state.reservations.iter().any(|known| known.name == *name) {
            bail!(
                "there is no reservation {name}: `openmps reserve {name} --sms NUMBER` makes it, `openmps reserve` lists those that there are"
            );
        }
    }
    let (percentage, memory) = (options.group_sm_percent, options.group_memory);
    let Some(name) = options.group.as_ref().filter(|_| percentage.is_some() || memory.is_some())
    else {
        return Ok(());
    };
    let change = LimitChange {
        target: Target::Group(name.clone()),
        limits: NewLimits {
            percentage: percentage.map(|share| share.percent()),
            memory: memory.map(|size| crate::shares::memory_limit(None, size)),
            weight: None,
        },
    };
    let done = Frontend::connect(directories)?.change_shares(&UiRequest::Limit(change))?;
    let report = done.map_err(anyhow::Error::msg)?;
    match report.refused.first() {
        Some(refused) => bail!("the limits of group {name} cannot be set: {refused}"),
        None => Ok(()),
    }
}

/// The options as the client's variables.
fn limits(options: &Run) -> Vec<(&'static str, String)> {
    let priority = options.priority.map(|priority| match priority {
        Priority::Normal => "0".to_owned(),
        Priority::BelowNormal => "1".to_owned(),
    });
    let variables = [
        (settings::VISIBLE_DEVICES, options.gpu.clone()),
        (settings::MEMORY_LIMIT, options.memory.clone()),
        (settings::ACTIVE_THREAD_PERCENTAGE, options.sm_percent.clone()),
        (settings::CLIENT_PRIORITY, priority),
        (settings::ISOLATE, options.isolate.as_deref().map(isolation_name)),
        (settings::GROUP, options.group.clone()),
        (settings::RESERVATION, options.reservation.clone()),
        (settings::WEIGHT, options.weight.map(|weight| weight.to_string())),
        (settings::LATENCY, options.latency.then(|| "1".to_owned())),
        (settings::GUARD, options.guard.clone()),
    ];
    variables.into_iter().filter_map(|(name, value)| Some((name.variable, value?))).collect()
}

/// The name that was given, or one that no other run has: the program gets this process's number,
/// which its children inherit with the name.
fn isolation_name(given: &str) -> String {
    match given {
        "" => format!("run-{}", std::process::id()),
        name => name.to_owned(),
    }
}

/// What limits the program that is run, and would limit all later clients as the daemon's.
fn limits_of_one_program() -> impl Iterator<Item = &'static str> {
    let limits = |kind| matches!(kind, Kind::Percentage | Kind::Priority | Kind::MemoryList);
    let limits = SETTINGS.iter().filter(move |it| it.scope == Scope::Both && limits(it.kind));
    limits.map(|setting| setting.variable)
}

/// Starts a daemon in the background unless one answers.
fn ensure_daemon(
    directories: &Directories,
    libraries: &Path,
    driver: &NativeDriver,
    memory_policy: Option<MemoryPolicy>,
) -> anyhow::Result<()> {
    match Frontend::connect(directories) {
        Ok(_) => {
            if memory_policy.is_some() {
                eprintln!(
                    "openmps: a daemon runs already: its memory policy stays what it was started with"
                );
            }
            return Ok(());
        }
        Err(FrontendError::NoDaemon { .. }) => announce_software(driver),
        Err(error) => return Err(error.into()),
    }
    let mut environment: Vec<(String, OsString)> = vec![
        (NATIVE_DRIVER_VARIABLE.to_owned(), driver.path().into()),
        ("OPENMPS_LIB_DIR".to_owned(), libraries.into()),
    ];
    if let Some(policy) = memory_policy {
        environment.push((settings::MEMORY_POLICY.variable.to_owned(), policy.word().into()));
    }
    let no_log_directory =
        std::env::var_os("CUDA_MPS_LOG_DIRECTORY").is_none_or(|value| value.is_empty());
    if no_log_directory && !rustix::process::geteuid().is_root() {
        // The default is for root alone.
        environment.push(("CUDA_MPS_LOG_DIRECTORY".to_owned(), directories.pipe().into()));
    }
    let start = BackgroundStart {
        program: std::env::current_exe().context("cannot find this executable")?,
        name: ORIGINAL_NAME.to_owned(),
        arguments: vec!["-d".into()],
        environment,
        without: limits_of_one_program().map(OsString::from).collect(),
    };
    match start_in_background(&start) {
        Ok(warnings) => {
            eprint!("{warnings}");
            Ok(())
        }
        // Another `run` may have been faster.
        Err(StartError::Background { said }) => match Frontend::connect(directories) {
            Ok(_) => Ok(()),
            Err(_) => bail!("the control daemon did not start: {said}"),
        },
        Err(error) => Err(error).context("the control daemon did not start"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use crate::original;
    use clap::CommandFactory;

    #[test]
    fn options_of_the_table_are_options() {
        let commands = Cli::command();
        let run = commands.find_subcommand("run").unwrap();
        let is_of_run =
            |option: &str| run.get_arguments().any(|it| it.get_long() == option.strip_prefix("--"));
        for option in SETTINGS.iter().filter_map(|setting| setting.option) {
            let is_of_daemon = original::HELP.contains(&format!(" {option} "));
            assert!(is_of_run(option) || is_of_daemon, "{option}");
        }
    }

    #[test]
    fn limits_of_a_program_are_not_the_daemons() {
        let limits: Vec<&str> = limits_of_one_program().collect();
        assert_eq!(
            limits,
            [
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                "CUDA_MPS_DEVICE_MEM_LIMIT",
                "CUDA_MPS_CLIENT_PRIORITY",
            ]
        );
    }
}
