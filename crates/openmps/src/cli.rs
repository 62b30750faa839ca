//! The command line of `openmps`, from which help, man pages and completions come.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use link::wire::shares::check_name;
use settings::{Address, Memory, MemoryPolicy, Percentage, SETTINGS, Scope, Setting, ValueError};
use settings::{Words, parse_memory_of_each};

use crate::show::Faults;

/// Variables of the environment, each with its meaning and its default.
pub(crate) fn variables() -> Vec<(&'static str, String)> {
    // Beside the longest name a page has no room; the control utility's help has it.
    let is_shown = |it: &Setting| {
        it.scope != Scope::SoftwareGpu && it.variable != settings::PARTITIONING.variable
    };
    let of_system = SETTINGS.iter().filter(|setting| is_shown(setting));
    let own = ("NO_COLOR", "not empty: `openmps top` has no colours [it has]".to_owned());
    let line = |it: &Setting| (it.variable, format!("{} [{}]", it.help(), it.default));
    of_system.map(line).chain([own]).collect()
}

/// What commands exit with.
pub(crate) const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "all went well"),
    ("1", "it failed, or doctor found a problem; of a PBS prologue: the job is aborted"),
    ("2", "the arguments are wrong; of a PBS prologue: the job is queued again"),
    ("126", "run, trace: the program could not be run"),
    ("127", "run, trace: the program was not found"),
    ("other", "run, trace: the program's own"),
];

/// Both tables, for the help.
fn tables() -> String {
    let line = |(name, meaning): (&str, String)| format!("\n  {name:<33} {meaning}");
    let variables: String = variables().into_iter().map(line).collect();
    let statuses = EXIT_STATUS.iter().map(|&(status, meaning)| line((status, meaning.to_owned())));
    format!("Environment:{variables}\n\nExit status:{}", statuses.collect::<String>())
}

/// Share a GPU between CUDA programs.
#[derive(Debug, Parser)]
#[command(name = "openmps", version, about, after_help = tables())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Env(Env),
    Ps(View),
    Status(StatusView),
    Top(Top),
    Trace(Trace),
    Limit(Limit),
    Reserve(Reserve),
    Move(Move),
    Drain(Drain),
    Socket(Socket),
    Logs(Logs),
    Doctor(Doctor),
    Config(Config),
    Cdi(crate::cdi::Cdi),
    Kubernetes(Kubernetes),
    Bench(crate::bench::Bench),
    Slurm(crate::slurm::Slurm),
    Pbs(crate::pbs::Pbs),
    Control(Control),
    Completions(Completions),
    Man(ManualPages),
    /// Print the version, as --version does.
    Version,
    #[command(hide = true)]
    BenchWorker(crate::bench::BenchWorker),
    #[command(hide = true)]
    ChaosWorker(crate::chaos::ChaosWorker),
    #[command(hide = true)]
    ProbeDriver(ProbeDriver),
    #[command(hide = true)]
    Server(Server),
    #[command(hide = true)]
    Executor(Executor),
}

/// Run a program under OpenMPS, starting the daemon if there is none.
///
/// The program takes this process's place: its signals and its exit status are its own. 126 means
/// that it could not be run, 127 that it was not found.
#[derive(Debug, Default, Args)]
pub(crate) struct Run {
    /// Let the software GPU do the work.
    #[arg(long, conflicts_with = "native_driver")]
    pub(crate) softcuda: bool,
    /// Let this driver library do the work, instead of NVIDIA's libcuda.so.1 of this system.
    #[arg(long, value_name = "PATH")]
    pub(crate) native_driver: Option<PathBuf>,
    /// The GPUs that the program sees: indices, UUIDs or their beginnings, as in
    /// CUDA_VISIBLE_DEVICES.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: Option<String>,
    /// Device memory that it may use, on every GPU, and is told as the GPU's: 512M, 4G, or by GPU
    /// 0=4G,1=2G.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) memory: Option<String>,
    /// Share of the multiprocessors, in per cent.
    #[arg(long, alias = "sm", value_name = "PERCENT", value_parser = percentage)]
    pub(crate) sm_percent: Option<String>,
    /// Give it an executor of its own: kernels of other programs then cannot reach its memory, nor
    /// its faults them, and the GPU's time is sliced between the two. Programs of one user with the
    /// same NAME share one.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = isolation)]
    pub(crate) isolate: Option<String>,
    /// What the daemon that is started does where programs want more memory than a GPU has.
    #[arg(long, value_parser = words::<MemoryPolicy>(), value_name = "POLICY")]
    pub(crate) memory_policy: Option<MemoryPolicy>,
    /// Its priority among clients.
    #[arg(long, value_enum)]
    pub(crate) priority: Option<Priority>,
    /// The group whose limits it shares with all other programs of the group.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) group: Option<String>,
    /// Device memory that all programs of the group may use together, on every GPU.
    #[arg(long, value_name = "SIZE", requires = "group")]
    pub(crate) group_memory: Option<Memory>,
    /// Share of the multiprocessors, in per cent, that all programs of the group use together.
    #[arg(long, value_name = "PERCENT", requires = "group")]
    pub(crate) group_sm_percent: Option<Percentage>,
    /// The reservation whose multiprocessors it uses (see `openmps reserve`).
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) reservation: Option<String>,
    /// Its share of a device that others want, too: to theirs as the weights are.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) weight: Option<u32>,
    /// Let its launches go before all that other clients have queued.
    #[arg(long)]
    pub(crate) latency: bool,
    /// Without a server: on the native driver, as tools that look into a program want it
    /// (debuggers, checkers, profilers). Nothing is started, and no limit holds.
    #[arg(long, conflicts_with_all = ["memory", "sm_percent", "isolate", "memory_policy", "priority", "group", "reservation", "weight", "latency", "guard"])]
    pub(crate) native: bool,
    /// Check its kernels' accesses to memory: one beyond its own ends it alone; `strict` refuses
    /// code that cannot be checked.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = ["1", "strict"], value_name = "strict")]
    pub(crate) guard: Option<String>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Record what a program's driver calls, kernels and copies take, for Perfetto (ui.perfetto.dev) or
/// chrome://tracing.
///
/// The exit status is the program's own. Its NVTX ranges are in the trace, and so are all processes
/// that it starts.
#[derive(Debug, Args)]
pub(crate) struct Trace {
    /// The file to write, compressed if it ends in .gz [openmps-trace.json, or
    /// openmps-trace-PID.json].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Trace a client that runs, until Ctrl-C; NVTX ranges are not in it. For the client's own
    /// user, and for root.
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pub(crate) client: Option<u32>,
    /// So long.
    #[arg(long, value_name = "N", requires = "client")]
    pub(crate) seconds: Option<u32>,
    /// Let the software GPU do the work.
    #[arg(long, conflicts_with_all = ["native_driver", "client"])]
    pub(crate) softcuda: bool,
    /// Let this driver library do the work, instead of NVIDIA's libcuda.so.1 of this system.
    #[arg(long, value_name = "PATH", conflicts_with = "client")]
    pub(crate) native_driver: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required_unless_present = "client", trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Priorities of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// As all clients have it.
    Normal,
    /// After the others.
    BelowNormal,
}

/// Reads the words of a type, and says what they mean.
fn words<T: Words + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let values = T::WORDS
        .iter()
        .map(|word| PossibleValue::new(word.word).help(word.help.trim().trim_end_matches('.')));
    PossibleValuesParser::new(values).map(|word| T::parse_word(&word).unwrap_or_default())
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// What a context counts as, and one grant: docs/memory.md. With less, a program attaches and
/// cannot allocate a byte.
const LEAST_MEMORY_BYTES: u64 = 3 << 20;

fn memory(text: &str) -> Result<String, String> {
    let limits = parse_memory_of_each(text).map_err(wrong)?;
    if limits.is_empty() || limits.iter().any(|(_, limit)| limit.bytes() < LEAST_MEMORY_BYTES) {
        return Err(format!(
            "a context counts as 1 MiB and memory is granted in pieces of 2 MiB, so it could allocate nothing: give {}M at least",
            LEAST_MEMORY_BYTES >> 20
        ));
    }
    Ok(text.to_owned())
}

fn isolation(text: &str) -> Result<String, String> {
    server::policy::domains::checked_name(Some(text)).map(Option::unwrap_or_default)
}

fn percentage(text: &str) -> Result<String, String> {
    // NVIDIA's variable, to which it goes, takes a number alone.
    let share: Percentage = text.parse().map_err(wrong)?;
    Ok(share.percent().to_string())
}

fn wrong(error: ValueError) -> String {
    error.to_string()
}

/// Print the settings that make a shell's programs run under OpenMPS.
///
/// For example: eval "$(openmps env)".
#[derive(Debug, Args)]
pub(crate) struct Env {
    /// The shell to print them for.
    #[arg(long, value_enum, default_value_t = Shell::Sh, conflicts_with = "json")]
    pub(crate) shell: Shell,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Env {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Syntaxes of shells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// sh, bash, zsh and their kin.
    Sh,
    /// fish.
    Fish,
    /// csh and tcsh.
    Csh,
}

/// List the client processes, and the faults of the last ten minutes.
///
/// Faults are the user's own: of the own server, or of a client of the own. Root sees all.
#[derive(Debug, Args)]
pub(crate) struct View {
    /// List all faults that the servers remember, and no clients.
    #[arg(long)]
    faults: bool,
    /// List the processes that have the library of OpenMPS and are no clients: their work is done
    /// by the native driver, and no limit holds.
    #[arg(long, conflicts_with = "faults")]
    pub(crate) native: bool,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

/// Show the daemon, its servers and their devices.
#[derive(Debug, Args)]
pub(crate) struct StatusView {
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

/// How something is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

impl View {
    pub(crate) fn which_faults(&self) -> Faults {
        if self.faults { Faults::All } else { Faults::Recent }
    }

    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

impl StatusView {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

fn format_of(json: bool) -> Format {
    if json { Format::Json } else { Format::Table }
}

/// Watch GPUs and clients, in the terminal or in a browser.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Print one look and end; also done where standard output is no terminal.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one look as JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    pub(crate) json: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub(crate) interval: f64,
    /// Serve a page for a browser until Ctrl-C, and print its address: at ADDRESS:PORT of this
    /// machine's own, with a random word that opens it [127.0.0.1:0, any port], or at unix:/PATH,
    /// for this user alone. The page changes nothing.
    #[arg(long, value_name = "PLACE", num_args = 0..=1, default_missing_value = "127.0.0.1:0", value_parser = own_address, conflicts_with_all = ["once", "json"])]
    pub(crate) web: Option<Address>,
}

/// An address that other machines do not reach.
fn own_address(text: &str) -> Result<Address, String> {
    let address: Address = text.parse().map_err(|error: ValueError| error.to_string())?;
    match &address {
        Address::Tcp(at) if !at.ip().is_loopback() => Err(format!(
            "other machines would reach `{text}`: give 127.0.0.1:PORT, and look from elsewhere with `ssh -L`"
        )),
        _ => Ok(address),
    }
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    if (0.1..=3600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("give 0.1 to 3600 seconds".to_owned())
    }
}

/// Change what running clients may use, between two of their kernels, or show what is in force.
///
/// Of a client, only the client changes; of a server or a user, later clients have the same limits;
/// a group's limits are shared by all of its clients. Memory that is held beyond a new limit stays:
/// further allocations fail until enough was freed. A share of the multiprocessors comes into force
/// when kernels that were submitted before have ended. Without a change, the limits are shown.
#[derive(Debug, Args)]
pub(crate) struct Limit {
    /// The client process.
    #[arg(long, value_name = "PID", group = "target")]
    pub(crate) client: Option<u32>,
    /// The group; one that ends in * stands for all groups without limits of their own whose names
    /// begin so.
    #[arg(long, value_name = "NAME", group = "target", value_parser = name)]
    pub(crate) group: Option<String>,
    /// The server process: all of its clients.
    #[arg(long, value_name = "PID", group = "target")]
    pub(crate) server: Option<u32>,
    /// All clients of this user id.
    #[arg(long, value_name = "UID", group = "target")]
    pub(crate) user: Option<u32>,
    /// Share of the multiprocessors, in per cent.
    #[arg(long, value_name = "PERCENT")]
    pub(crate) sm_percent: Option<Percentage>,
    /// Device memory: 512M, 4G; 0 removes the limit.
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Memory>,
    /// The device whose memory is limited; each without it.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) device: Option<u32>,
    /// Share of a device that others want, too: to theirs as the weights are. Of a server or a
    /// user, running clients only.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) weight: Option<u32>,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Limit {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Reserve multiprocessors for some clients; list the reservations.
///
/// Only programs that were started with `openmps run --reservation NAME` use them, and no others.
/// Running clients move, between two of their kernels.
#[derive(Debug, Args)]
pub(crate) struct Reserve {
    /// The name of a new reservation.
    #[arg(value_name = "NAME", conflicts_with = "release")]
    pub(crate) name: Option<String>,
    /// How many multiprocessors; they are set apart in pairs.
    #[arg(long, value_name = "NUMBER", requires = "name")]
    pub(crate) sms: Option<u32>,
    /// Of which device.
    #[arg(long, value_name = "NUMBER", requires = "name")]
    pub(crate) device: Option<u32>,
    /// Give this reservation up; its clients share what is not reserved.
    #[arg(long, value_name = "NAME")]
    pub(crate) release: Option<String>,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Reserve {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Have running clients go on on another GPU of the machine.
///
/// Each goes between two of its commands, when nothing of it is in flight: device memory, code,
/// streams and graphs go along, and the program is not told. It keeps the number, the name and the
/// UUID of the GPU that it began on, so the other one must be at least equal. A client that cannot
/// go stays, unharmed, and the reason is said.
#[derive(Debug, Args)]
pub(crate) struct Move {
    /// The client process.
    #[arg(long, value_name = "PID", required_unless_present = "group", conflicts_with = "group")]
    pub(crate) pid: Option<u32>,
    /// All clients of this group.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) group: Option<String>,
    /// Where they go: the GPU's number or UUID, as `openmps status` shows it.
    #[arg(long, value_name = "GPU")]
    pub(crate) to: String,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Move {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Have all clients of a GPU go on on others, and keep programs that start from it.
///
/// Each client goes as with `openmps move`, to the GPU with the fewest clients that can take it.
/// A program that starts and wants the drained GPU begins on another that is at least equal, or
/// gets no context where there is none. Clients of containers' and jobs' sockets stay: end them, or
/// have their system place them elsewhere.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    /// The GPU's number or UUID, as `openmps status` shows it.
    #[arg(value_name = "GPU")]
    pub(crate) drained: String,
    /// Let programs that start use it again; clients that have gone stay where they are.
    #[arg(long)]
    pub(crate) undo: bool,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Drain {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Open a socket whose clients are of one group, for a container; list those that are open.
///
/// Who has the directory as CUDA_MPS_PIPE_DIRECTORY is of the group and has its limits, whatever
/// its own environment says, and can command nothing. The socket is open until it is closed, or the
/// daemon ends.
#[derive(Debug, Args)]
pub(crate) struct Socket {
    /// The directory for the socket; made if need be.
    #[arg(value_name = "DIRECTORY", conflicts_with = "close")]
    pub(crate) directory: Option<PathBuf>,
    /// The group.
    #[arg(long, value_name = "NAME", value_parser = name, requires = "directory")]
    pub(crate) group: Option<String>,
    /// Device memory that the group may use, on every GPU.
    #[arg(long, value_name = "SIZE", requires = "group")]
    pub(crate) memory: Option<Memory>,
    /// Share of the multiprocessors, in per cent, that the group uses.
    #[arg(long, value_name = "PERCENT", requires = "group")]
    pub(crate) sm_percent: Option<Percentage>,
    /// The GPUs that it may use, by UUID; all without it.
    #[arg(long, value_name = "UUID", value_delimiter = ',', requires = "group")]
    pub(crate) gpu: Vec<String>,
    /// With whom its clients share an executor: kernels of one executor can reach each other's
    /// memory.
    #[arg(long, value_enum, value_name = "WHOM", default_value_t = Share::User)]
    pub(crate) share: Share,
    /// The weight of each of its clients where programs compete for a GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), requires = "group")]
    pub(crate) weight: Option<u32>,
    /// Close the socket in this directory: its clients stay, and no more come.
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) close: Option<PathBuf>,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

/// With whom clients of a group's socket share an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Share {
    /// With all clients of the server that nothing sets apart.
    Server,
    /// With those of other such sockets that are the same user's.
    User,
    /// With those of their group alone.
    Group,
}

impl Socket {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Show the logs of the daemon and of its servers.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Go on with what is added.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// How many lines of the past.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 20)]
    pub(crate) lines: usize,
    /// Which log; both without it.
    #[arg(value_enum)]
    pub(crate) source: Option<LogSource>,
    /// Print an object of JSON for each line; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Logs {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogSource {
    /// The daemon's.
    Control,
    /// The servers'.
    Server,
}

/// Look for what keeps programs from running under OpenMPS, and say what to do.
///
/// Ends with 1 if something was found.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also look whether this program can run under OpenMPS.
    #[arg(value_name = "PROGRAM")]
    pub(crate) program: Option<OsString>,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// Show every setting and where it comes from.
///
/// The configuration file is /etc/openmps/config.toml, or what OPENMPS_CONFIG names. Variables win
/// over it.
#[derive(Debug, Args)]
pub(crate) struct Config {
    /// Check this file instead.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) check: Option<PathBuf>,
    /// Print JSON; its `schema` field changes when its meaning does.
    #[arg(long)]
    json: bool,
}

impl Config {
    pub(crate) fn format(&self) -> Format {
        format_of(self.json)
    }
}

/// OpenMPS on a node of Kubernetes.
#[derive(Debug, Args)]
pub(crate) struct Kubernetes {
    #[command(subcommand)]
    pub(crate) command: KubernetesCommand,
}

/// What a node runs.
#[derive(Debug, Subcommand)]
pub(crate) enum KubernetesCommand {
    DevicePlugin(DevicePlugin),
}

/// Offer shares of this node's GPUs to the kubelet, until it is told to stop.
///
/// Each container gets a socket of its own with the limits that its pod asked for; the daemon of
/// this node keeps it to them. See docs/kubernetes.md.
#[derive(Debug, Args)]
pub(crate) struct DevicePlugin {
    /// What is offered (TOML); without it, hundredths of GPUs as openmps.dev/sm-percent.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The kubelet's directory of device plugins.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet/device-plugins")]
    pub(crate) plugin_directory: PathBuf,
    /// The kubelet's socket that says which container has what.
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    pub(crate) pod_resources: PathBuf,
    /// Where containers' sockets are: the same path on the host, for the daemon and here.
    #[arg(long, value_name = "DIRECTORY", default_value = "/run/openmps/pods")]
    pub(crate) sockets: PathBuf,
    /// Where it keeps its records; on a disk, as containers outlive a reboot for the kubelet.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/openmps/kubernetes")]
    pub(crate) state: PathBuf,
    /// Milliseconds between two looks at the daemon.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) daemon_interval_ms: u64,
    /// Milliseconds between two looks at the kubelet's list.
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub(crate) list_interval_ms: u64,
}

/// The control utility, as nvidia-cuda-mps-control but with honest exit codes (see its --help).
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Control {
    /// Its options and command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Print completions for a shell, of openmps and of nvidia-cuda-mps-control.
///
/// For bash, zsh and fish, process ids, groups and the like are those of the moment.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page of openmps, or of one of its commands.
#[derive(Debug, Args)]
pub(crate) struct ManualPages {
    /// The command, or nvidia-cuda-mps-control.
    pub(crate) command: Option<String>,
    /// Write the pages of all commands into this directory instead.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    pub(crate) directory: Option<PathBuf>,
}

/// A look at a driver; started by `openmps doctor`.
#[derive(Debug, Args)]
pub(crate) struct ProbeDriver {
    /// The driver library.
    pub(crate) path: PathBuf,
}

/// A server process; started by the daemon.
#[derive(Debug, Args)]
pub(crate) struct Server {
    /// Descriptor of its socket to the daemon.
    #[arg(long)]
    pub(crate) control_fd: i32,
    /// Descriptor of `/dev/userfaultfd`, which clients may have.
    #[arg(long)]
    pub(crate) faults_fd: Option<i32>,
    /// The user that it has become by now, where root's daemon has started it.
    #[arg(long, value_name = "UID:GID")]
    pub(crate) user: Option<String>,
}

/// An executor process; started by a server.
#[derive(Debug, Args)]
pub(crate) struct Executor {
    /// What its server says.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}
