//! Command lines of the two server processes. The daemon and the keeper write them; people do not.

use link::inheritance::OWN_EXECUTABLE;
use policy::domains::Grouping;
use rustix::fd::RawFd;
use settings::Variables;
use std::ffi::OsString;
use std::path::PathBuf;

/// What the loader finds when nothing names one.
const DEFAULT_NATIVE_DRIVER: &str = "libcuda.so.1";

/// How a server is started: `--control-fd N [--native-driver PATH] [--executor-program PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Descriptor of the socket to the daemon.
    pub control_fd: RawFd,
    /// Descriptor of `/dev/userfaultfd`, where clients may have it.
    pub faults_fd: Option<RawFd>,
    /// The native driver's library.
    pub native_driver: PathBuf,
    /// What is started as `PROGRAM executor ...`: this very executable, unless named.
    pub executor_program: PathBuf,
    /// Contexts that a device serves at a time.
    pub contexts_per_device: usize,
    /// SMs of each device that are kept for the latency class while a client of it is there; 0:
    /// none.
    pub latency_multiprocessors: u32,
    /// Who shares an executor.
    pub grouping: Grouping,
}

impl Options {
    /// With what the environment and this process say: the driver that `OPENMPS_NATIVE_DRIVER`
    /// names, this very executable.
    ///
    /// # Errors
    /// A message that names a variable that is wrong.
    pub fn from_environment(control_fd: RawFd, faults_fd: Option<RawFd>) -> Result<Self, String> {
        let options = keeper_options(["--control-fd".into(), control_fd.to_string().into()])?;
        Ok(Self { faults_fd, ..options })
    }
}

/// Reads a server's command line, program and subcommand left out.
///
/// # Errors
/// A message that names the argument.
pub fn keeper_options(arguments: impl IntoIterator<Item = OsString>) -> Result<Options, String> {
    let given = parse(arguments)?;
    let mut variables = Variables::of_environment();
    let options = Options {
        control_fd: given.control_fd()?,
        faults_fd: None,
        native_driver: given.native_driver(),
        executor_program: given.executor_program.unwrap_or_else(|| OWN_EXECUTABLE.into()),
        contexts_per_device: variables.number(&settings::CONTEXTS_PER_DEVICE),
        latency_multiprocessors: variables.number(&settings::LATENCY_SMS),
        grouping: variables.word(&settings::ISOLATION),
    };
    // A server with other limits than were meant does not start.
    variables.complaints.into_iter().next().map_or(Ok(options), Err)
}

/// How an executor is started; the keeper makes these.
#[derive(Clone, Debug)]
pub struct ExecutorOptions {
    /// Descriptor of the socket to the keeper.
    pub control_fd: RawFd,
    /// The native driver's library.
    pub native_driver: PathBuf,
}

/// Reads an executor's command line, program and subcommand left out.
pub fn executor_options(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<ExecutorOptions, String> {
    let given = parse(arguments)?;
    Ok(ExecutorOptions { control_fd: given.control_fd()?, native_driver: given.native_driver() })
}

#[derive(Default)]
struct Given {
    control_fd: Option<RawFd>,
    native_driver: Option<PathBuf>,
    executor_program: Option<PathBuf>,
}

impl Given {
    fn control_fd(&self) -> Result<RawFd, String> {
        self.control_fd.ok_or_else(|| {
            "--control-fd N is missing; this is started by the daemon, not by hand".into()
        })
    }

    fn native_driver(&self) -> PathBuf {
        let named = self.native_driver.clone();
        let variable = settings::NATIVE_DRIVER.variable;
        let from_environment = || std::env::var_os(variable).filter(|path| !path.is_empty());
        named
            .or_else(|| from_environment().map(PathBuf::from))
            .unwrap_or_else(|| DEFAULT_NATIVE_DRIVER.into())
    }
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Given, String> {
    let mut given = Given::default();
    let mut arguments = arguments.into_iter();
    while let Some(name) = arguments.next() {
        let name = name.to_string_lossy().into_owned();
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--control-fd" => {
                let number = value
                    .to_str()
                    .and_then(|text| text.parse().ok())
                    .filter(|&number: &RawFd| number >= 0);
                given.control_fd =
                    Some(number.ok_or_else(|| format!("--control-fd {value:?} is no descriptor"))?);
            }
            "--native-driver" => given.native_driver = Some(value.into()),
            "--executor-program" => given.executor_program = Some(value.into()),
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_complaints_name_them() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let options =
            keeper_options(words("--control-fd 5 --native-driver /x --executor-program /y"))
                .unwrap();
        let expected = Options {
            control_fd: 5,
            faults_fd: None,
            native_driver: "/x".into(),
            executor_program: "/y".into(),
            contexts_per_device: 48,
            latency_multiprocessors: 0,
            grouping: Grouping::Server,
        };
        assert_eq!(options, expected);
        assert!(keeper_options(words("--native-driver /x")).unwrap_err().contains("--control-fd"));
        assert!(keeper_options(words("--control-fd -1")).unwrap_err().contains("-1"));
        assert!(keeper_options(words("--control-fd")).unwrap_err().contains("value"));
        assert!(keeper_options(words("--foo 1")).unwrap_err().contains("--foo"));
    }
}
