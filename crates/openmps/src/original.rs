//! The original's control utility: `nvidia-cuda-mps-control [options] [command]`, and
//! `openmps control` alike.
//!
//! Options, their odd spellings included, are those that driver 580's help prints. Exit codes: the
//! alias ends as the original does (0 even after a bad command, as long as the daemon could be
//! spoken to); `openmps control` ends with 1 if a command complained.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use control::daemon::{self, BackgroundStart, Options, ServerCommand, StartError};
use control::directories::Directories;
use control::frontend::{Frontend, FrontendError, Outcome, run_arguments, run_stdin};
use control::log::Echo;
use control::prepared::{self, PrepareError};

use link::inheritance::OWN_EXECUTABLE;
use link::wire::daemon::DeviceSnapshot;
use server::probe::DeviceFacts;
use settings::{Address, Provisioning, ValueError, Variables};

use crate::FAILURE;
use crate::doctor::{Visible, ask_driver};
use crate::installation::{NATIVE_DRIVER_VARIABLE, ORIGINAL_NAME, daemon_driver};

const FAULTS_DEVICE: &str = "/dev/userfaultfd";

/// Of newer releases of the original.
const PROTOCOL_VARIABLE: &str = "CUDA_MPS_PROTOCOL_VERSION";

/// What failure of a command means for the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// Nothing.
    AsTheOriginal,
    /// 1.
    Honest,
}

pub(crate) const HELP: &str = "\
OpenMPS control daemon and its front end; stands in for nvidia-cuda-mps-control.

nvidia-cuda-mps-control [options] [command]
Without options: runs the command, or commands from standard input, one per line.

OPTIONS:
  -h, --help               Print this text
  -v                       Print the version
  -d, --daemon             Start the daemon in the background
  -f, --foreground         Start the daemon in the foreground, log on standard output (also --forground)
  -M, --multiuser-server   One server for all users, who give up their isolation (also -multiuser-server)
      --concurrent         A server per user at the same time, instead of one user after the other
      --metrics <address>  Serve Prometheus metrics at ADDRESS:PORT or unix:/PATH
  -q, --ready-devices      Look at the devices at the start, so that device_query shows them before there is a server

COMMANDS:
  start_server -uid <user id>                           Start a server for a user
  shutdown_server <PID> [-f]                            Stop a server once its clients have left; -f: at once
  quit [-t <seconds>]                                   Stop the daemon once all clients have left; -t: or after that time
  get_server_list                                       PIDs of the servers
  get_server_status <PID>                               INITIALIZING, ACTIVE or FAULT
  get_client_list <PID>                                 PIDs of a server's clients
  get_device_client_list [<PID>]                        Devices and their clients
  ps [-p <PID>]                                         Table of client processes
  set_default_active_thread_percentage <percentage>     Portion of threads, for servers to come
  get_default_active_thread_percentage                  Print it
  set_active_thread_percentage <PID> <percentage>       Portion of threads, for a server's clients to come
  get_active_thread_percentage <PID>                    Print it
  set_default_device_pinned_mem_limit <device> <limit>  Device memory per client, for servers to come (10G, 512M; 0: none)
  get_default_device_pinned_mem_limit <device>          Print it
  set_device_pinned_mem_limit <PID> <device> <limit>    Device memory per client, for a server's clients to come
  get_device_pinned_mem_limit <PID> <device>            Print it
  set_default_client_priority <priority>                0 (normal) or 1 (below normal), for clients to come
  get_default_client_priority                           Print it
  terminate_client <server PID> <client PID>            End a client's work on the GPU
  device_query [<PID>] [--csv]                          Table of devices

ENVIRONMENT:
  CUDA_MPS_PIPE_DIRECTORY  Where the daemon's socket is [/tmp/nvidia-mps]
  CUDA_MPS_LOG_DIRECTORY   Where control.log and server.log are [/var/log/nvidia-mps]
and, for a daemon that is being started:
  CUDA_VISIBLE_DEVICES               Its devices: indices, UUIDs or their beginnings; clients count anew from 0
  CUDA_DEVICE_MAX_CONNECTIONS        Hardware queues of a server's context, 1 to 32 [32]
  CUDA_MPS_ACTIVE_THREAD_PERCENTAGE  Default portion of threads [100]
  CUDA_MPS_PINNED_DEVICE_MEM_LIMIT   Default device memory per client: 0=4G,1=512M
  CUDA_MPS_CLIENT_PRIORITY           Default priority, 0 or 1 [0]
The last three also limit a program in whose environment they are, and CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=1
there makes portions the contexts' own.
A set_default command without a daemon is kept for the next one.

EXAMPLES:
  nvidia-cuda-mps-control -d                    Start the daemon
  nvidia-cuda-mps-control get_server_list       Ask it
  echo quit | nvidia-cuda-mps-control           Stop it
";

/// What it exits with under NVIDIA's name; `openmps control` exits with 1 also where a command of
/// the shell complains.
pub(crate) const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "all went well, or the shell's complaint is on standard error"),
    ("1", "no daemon answers, or it could not be started; a quit had to use force"),
];

/// What the arguments ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Request {
    Help,
    Version,
    Daemon {
        place: Place,
        /// Where no option says so, the environment does.
        provisioning: Option<Provisioning>,
        metrics: Option<Address>,
        devices: Look,
    },
    /// A command, or with no words those of standard input.
    Command(Vec<String>),
}

/// When devices are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// When a server starts.
    Later,
    /// When the daemon starts.
    AtStart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Background,
    Foreground,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("unknown option `{0}`: --help lists the options")]
    UnknownOption(String),
    #[error("-d and -f exclude each other")]
    BothPlaces,
    #[error(
        "`{0}` beside -d or -f: a daemon that is being started takes no command: give the command by itself, once the daemon runs"
    )]
    CommandOfDaemon(String),
    #[error(
        "CUDA_MPS_PROTOCOL_VERSION={0}: OpenMPS speaks version 2 of the control protocol alone: unset the variable, or set it to 2"
    )]
    UnknownProtocol(String),
    #[error("-M and --concurrent exclude each other")]
    BothProvisionings,
    #[error("{0} is for a daemon that is being started: give -d or -f too")]
    NoDaemon(&'static str),
    #[error("--metrics: {0}")]
    Metrics(#[from] ValueError),
    #[error("--metrics wants an address: ADDRESS:PORT or unix:/PATH")]
    NoMetricsAddress,
    #[error("{0}")]
    Variable(String),
    #[error("the multi-user server must be started by root")]
    MultiuserWithoutRoot,
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Frontend(#[from] FrontendError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("cannot find this executable: {0}")]
    Executable(io::Error),
}

/// Runs as the control utility with these arguments.
pub(crate) fn main(arguments: Vec<OsString>, exit: ExitStatus) -> ExitCode {
    let words: Vec<String> =
        arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let request = check_protocol(std::env::var_os(PROTOCOL_VARIABLE)).and_then(|()| parse(&words));
    match request.and_then(|request| carry_out(request, &arguments)) {
        Ok(Outcome { original_status, complained }) => match exit {
            ExitStatus::Honest if complained => ExitCode::from(FAILURE),
            _ => ExitCode::from(original_status),
        },
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{failure}");
            ExitCode::from(FAILURE)
        }
    }
}

/// Newer releases of the original have another grammar, and sockets of other names, which this
/// variable selects.
fn check_protocol(wanted: Option<OsString>) -> Result<(), Failure> {
    let wanted = wanted.unwrap_or_default().to_string_lossy().trim().to_owned();
    match wanted.as_str() {
        "" | "2" => Ok(()),
        _ => Err(Failure::UnknownProtocol(wanted)),
    }
}

fn parse(words: &[String]) -> Result<Request, Failure> {
    let mut place = None;
    // The option that asked for it, and for what.
    let mut wish: Option<(&'static str, Provisioning)> = None;
    let (mut metrics, mut devices) = (None, Look::Later);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-h" | "--help" => return Ok(Request::Help),
            "-v" | "--version" => return Ok(Request::Version),
            "-d" | "--daemon" => set_place(&mut place, Place::Background)?,
            "-f" | "--forground" | "--foreground" => set_place(&mut place, Place::Foreground)?,
            "-M" | "--multiuser-server" | "-multiuser-server" => {
                set_provisioning(&mut wish, "-M", Provisioning::Multiuser)?;
            }
            "--concurrent" => {
                set_provisioning(&mut wish, "--concurrent", Provisioning::Concurrent)?
            }
            "--metrics" => metrics = Some(rest.next().ok_or(Failure::NoMetricsAddress)?.parse()?),
            "-q" | "--ready-devices" => devices = Look::AtStart,
            option if option.starts_with('-') => {
                return Err(Failure::UnknownOption(option.to_owned()));
            }
            command if place.is_some() => {
                return Err(Failure::CommandOfDaemon(command.to_owned()));
            }
            command => {
                let words = std::iter::once(command.to_owned()).chain(rest.cloned()).collect();
                return Ok(Request::Command(words));
            }
        }
    }
    let provisioning = wish.map(|(_, provisioning)| provisioning);
    match (place, wish, &metrics) {
        (Some(place), ..) => Ok(Request::Daemon { place, provisioning, metrics, devices }),
        (None, Some((option, _)), _) => Err(Failure::NoDaemon(option)),
        (None, None, Some(_)) => Err(Failure::NoDaemon("--metrics")),
        (None, None, None) => Ok(Request::Command(Vec::new())),
    }
}

fn set_provisioning(
    wish: &mut Option<(&'static str, Provisioning)>,
    option: &'static str,
    wanted: Provisioning,
) -> Result<(), Failure> {
    match wish.replace((option, wanted)) {
        Some((_, other)) if other != wanted => Err(Failure::BothProvisionings),
        _ => Ok(()),
    }
}

fn set_place(place: &mut Option<Place>, wanted: Place) -> Result<(), Failure> {
    match place.replace(wanted) {
        Some(other) if other != wanted => Err(Failure::BothPlaces),
        _ => Ok(()),
    }
}

fn carry_out(request: Request, arguments: &[OsString]) -> Result<Outcome, Failure> {
    let done = |original_status| Ok(Outcome { original_status, complained: false });
    match request {
        Request::Help => {
            print!("{HELP}");
            done(0)
        }
        Request::Version => {
            println!("OpenMPS control {}. Binary version: 13000", env!("CARGO_PKG_VERSION"));
            done(0)
        }
        Request::Daemon { place, provisioning, metrics, devices } => {
            let mut variables = Variables::of_environment();
            let provisioning =
                provisioning.unwrap_or_else(|| variables.word(&settings::PROVISIONING));
            let metrics = metrics.or_else(|| variables.value(&settings::METRICS, str::parse));
            if let Some(complaint) = variables.complaints.pop() {
                return Err(Failure::Variable(complaint));
            }
            if provisioning == Provisioning::Multiuser && !rustix::process::geteuid().is_root() {
                return Err(Failure::MultiuserWithoutRoot);
            }
            let settings = Settings { provisioning, metrics, devices };
            start_daemon(place, settings, arguments).and_then(done)
        }
        Request::Command(words) => {
            let directories = Directories::from_environment();
            let mut frontend = match Frontend::connect(&directories) {
                Ok(frontend) => frontend,
                Err(nobody @ FrontendError::NoDaemon { .. }) => {
                    return match keep(&directories, &words.join(" ")) {
                        Some(kept) => kept.map_err(Failure::from).and_then(done),
                        None => Err(nobody.into()),
                    };
                }
                Err(other) => return Err(other.into()),
            };
            Ok(if words.is_empty() {
                run_stdin(&mut frontend)?
            } else {
                run_arguments(&mut frontend, &words)?
            })
        }
    }
}

/// A default that is set while there is no daemon is for the next one, as in the guide's example;
/// other commands are not kept.
fn keep(directories: &Directories, line: &str) -> Option<Result<u8, PrepareError>> {
    let kept = prepared::keep(directories, line)?;
    Some(kept.map(|printed| {
        print!("{printed}");
        let pipe = directories.pipe().display();
        eprintln!("no daemon runs in {pipe}: the next one that starts there takes this setting");
        0
    }))
}

/// What a daemon is started with.
struct Settings {
    provisioning: Provisioning,
    metrics: Option<Address>,
    devices: Look,
}

/// The driver's devices as servers will list them; without a driver there are none.
fn look_at_devices(driver: &Path) -> Vec<DeviceSnapshot> {
    let facts = match ask_driver(driver, Visible::ToThisProcess) {
        Ok(facts) => facts,
        Err(said) => {
            eprintln!("Warning: no devices are known: {said}");
            return Vec::new();
        }
    };
    let known = |device: DeviceFacts| DeviceSnapshot {
        uuid: device.uuid,
        name: device.name,
        pci_bus_id: device.pci_bus_id,
        ..Default::default()
    };
    facts.devices.into_iter().map(known).collect()
}

/// What serves faults in managed memory, where clients are to have it.
fn faults_device() -> Option<Arc<OwnedFd>> {
    if !Variables::of_environment().is_on(&settings::MANAGED_FAULTS) {
        return None;
    }
    let opened = std::fs::File::options().read(true).write(true).open(FAULTS_DEVICE);
    let complain = |error: &io::Error| {
        eprintln!(
            "Warning: clients get no {FAULTS_DEVICE}: {error}; the kernel has it from 6.1 on, for root"
        );
    };
    opened.inspect_err(complain).ok().map(|file| Arc::new(OwnedFd::from(file)))
}

fn start_daemon(place: Place, settings: Settings, arguments: &[OsString]) -> Result<u8, Failure> {
    if place == Place::Background && !daemon::is_background_half() {
        let start = BackgroundStart {
            program: std::env::current_exe().map_err(Failure::Executable)?,
            name: ORIGINAL_NAME.to_owned(),
            arguments: arguments.to_vec(),
            environment: Vec::new(),
            without: Vec::new(),
        };
        let warnings = daemon::start_in_background(&start)?;
        let _ = write!(io::stderr(), "{warnings}");
        return Ok(0);
    }
    daemon::keep_descriptors()?;
    if rustix::process::geteuid().is_root() {
        crate::internal::shut_to_debuggers();
    }
    let echo = match place {
        Place::Foreground => Echo::of_foreground(),
        Place::Background => Echo::None,
    };
    let (mut environment, mut ready_devices) = (Vec::new(), Vec::new());
    match daemon_driver() {
        Ok(driver) => {
            if settings.devices == Look::AtStart {
                ready_devices = look_at_devices(&driver);
            }
            environment.push((NATIVE_DRIVER_VARIABLE.to_owned(), driver.into()));
        }
        // The shell works all the same; what needs a GPU will say so too.
        Err(error) => eprintln!("Warning: no server will start: {error:#}"),
    }
    let arguments = vec!["server".into()];
    let program = OWN_EXECUTABLE.into();
    let server = ServerCommand { program, arguments, environment, faults: faults_device() };
    let Settings { provisioning, metrics, .. } = settings;
    let directories = Directories::from_environment();
    let options = Options { directories, provisioning, metrics, ready_devices, echo, server };
    Ok(daemon::run(options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, Failure> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_have_the_originals_spellings() {
        for line in
            ["-f -multiuser-server", "-M -f", "--multiuser-server --forground", "--foreground -M"]
        {
            let daemon = Request::Daemon {
                place: Place::Foreground,
                provisioning: Some(Provisioning::Multiuser),
                metrics: None,
                devices: Look::Later,
            };
            assert_eq!(parsed(line).unwrap(), daemon, "{line}");
        }
        let daemon = Request::Daemon {
            place: Place::Background,
            provisioning: None,
            metrics: None,
            devices: Look::Later,
        };
        assert_eq!(parsed("--daemon").unwrap(), daemon);
        let daemon = Request::Daemon {
            place: Place::Background,
            provisioning: None,
            metrics: Some("127.0.0.1:9400".parse().unwrap()),
            devices: Look::AtStart,
        };
        assert_eq!(parsed("-d -q --metrics 127.0.0.1:9400").unwrap(), daemon);
    }

    #[test]
    fn the_first_plain_word_begins_a_command() {
        let command = ["ps", "-p", "7"].map(str::to_owned).to_vec();
        assert_eq!(parsed("ps -p 7").unwrap(), Request::Command(command));
        assert_eq!(parsed("").unwrap(), Request::Command(Vec::new()));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(matches!(parsed("-z"), Err(Failure::UnknownOption(_))));
        assert!(matches!(parsed("-d -f"), Err(Failure::BothPlaces)));
        assert!(matches!(parsed("-d get_server_list"), Err(Failure::CommandOfDaemon(_))));
        assert!(matches!(parsed("-f quit -t 1"), Err(Failure::CommandOfDaemon(_))));
        for (wanted, is_spoken) in
            [(None, true), (Some(""), true), (Some("2"), true), (Some("3"), false)]
        {
            assert_eq!(check_protocol(wanted.map(OsString::from)).is_ok(), is_spoken, "{wanted:?}");
        }
        assert!(matches!(parsed("-M"), Err(Failure::NoDaemon(_))));
        assert!(matches!(parsed("--metrics 127.0.0.1:1"), Err(Failure::NoDaemon(_))));
        assert!(matches!(parsed("-d --metrics"), Err(Failure::NoMetricsAddress)));
        assert!(matches!(parsed("-d --metrics 9"), Err(Failure::Metrics(_))));
        assert!(matches!(parsed("-d -M --concurrent"), Err(Failure::BothProvisionings)));
    }
}
