//! `openmps pbs`: the prologue and epilogue of Torque and PBS jobs, as NVIDIA's MPS guide sketches
//! them (5.1.3.2): `qsub -A "MPS=true"`.
//!
//! Both run as root, with the arguments that Torque documents for its scripts ([`request`]).
//! `environment` is for the job's shell, since a prologue cannot give a job variables. A job whose
//! account does not ask for MPS is left alone, whatever else may be wrong ([`is_no_business`]).

mod node;
mod request;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

use crate::FAILURE;
use crate::batch::gpus::Gpus;
use crate::batch::options::{PlaceOptions, RuleOptions};
use crate::batch::{admission, dismissal, task};
use crate::cli::Shell;
use crate::environment::quote;
use request::{Account, Script, gpus_of_file};

/// Torque aborts the job of a prologue that ends so: the job is wrong.
const ABORT: u8 = 1;
/// Torque queues the job again: the node is wrong.
const QUEUE_AGAIN: u8 = 2;

/// Give Torque or PBS jobs MPS: to be called by the prologue and the epilogue of its nodes.
///
/// Jobs of `qsub -A "MPS=true"` run under OpenMPS, with a share where they say
/// `-A "MPS=true,sm-percent=30,memory=4G"`; others are left alone. See docs/pbs.md.
#[derive(Debug, Args)]
pub(crate) struct Pbs {
    #[command(subcommand)]
    command: PbsCommand,
}

#[derive(Debug, Subcommand)]
enum PbsCommand {
    Prologue(Prologue),
    Epilogue(Epilogue),
    Environment(Environment),
}

/// Before a job: start the daemon of its GPUs and its user's server, set its limits.
#[derive(Debug, Args)]
struct Prologue {
    #[command(flatten)]
    place: PlaceOptions,
    #[command(flatten)]
    rules: RuleOptions,
    #[command(flatten)]
    node: NodeOptions,
    /// The prologue's arguments: "$@".
    #[arg(required = true, allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<String>,
}

/// After a job: end what is left of it, look whether its GPUs answer; mark the node offline with a
/// reason if something is wrong.
#[derive(Debug, Args)]
struct Epilogue {
    #[command(flatten)]
    place: PlaceOptions,
    #[command(flatten)]
    node: NodeOptions,
    /// The epilogue's arguments: "$@".
    #[arg(required = true, allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<String>,
}

/// In a job, print the settings that make its programs clients; nothing where it did not ask for
/// MPS.
///
/// For /etc/profile.d: eval "$(openmps pbs environment)".
#[derive(Debug, Args)]
struct Environment {
    #[command(flatten)]
    place: PlaceOptions,
}

#[derive(Debug, Args)]
struct NodeOptions {
    /// The GPUs of jobs for which there is no PBS_GPUFILE.
    #[arg(long, value_name = "LIST", default_value = "0")]
    gpus: Gpus,
    /// Keep all but the daemon off the GPUs while the job runs (nvidia-smi --compute-mode).
    #[arg(long)]
    exclusive: bool,
    /// Torque's pbsnodes.
    #[arg(long, value_name = "PATH", default_value = "pbsnodes")]
    pbsnodes: PathBuf,
}

impl NodeOptions {
    fn gpus_of_job(&self) -> anyhow::Result<Gpus> {
        let Some(path) = std::env::var_os("PBS_GPUFILE") else { return Ok(self.gpus.clone()) };
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read PBS_GPUFILE {}", path.display()))?;
        Ok(gpus_of_file(&text, &node::name())?.unwrap_or_else(|| self.gpus.clone()))
    }
}

/// Whether these arguments are a call by Torque for a job that did not ask for MPS.
pub(crate) fn is_no_business(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().map(|word| word.to_string_lossy());
    let is_hook = words.next().as_deref() == Some("pbs")
        && words.next().is_some_and(|word| ["prologue", "epilogue"].contains(&&*word));
    let is_question = |word: &OsString| ["-h", "--help"].iter().any(|option| word == option);
    is_hook
        && arguments.len() > 2
        && !arguments.iter().any(is_question)
        && !arguments.iter().any(|word| Account::asks_for_mps(&word.to_string_lossy()))
}

/// `openmps pbs`.
///
/// # Errors
/// Arguments that Torque does not give; a job's environment that cannot be made.
pub(crate) fn pbs(options: Pbs) -> anyhow::Result<ExitCode> {
    match options.command {
        PbsCommand::Prologue(options) => prologue(&options),
        PbsCommand::Epilogue(options) => epilogue(&options),
        PbsCommand::Environment(options) => environment(&options),
    }
}

fn prologue(options: &Prologue) -> anyhow::Result<ExitCode> {
    let script = Script::prologue(&options.arguments)?;
    if !Account::asks_for_mps(&script.account) {
        return Ok(ExitCode::SUCCESS);
    }
    let account = match Account::parse(&script.account) {
        Ok(account) => account,
        Err(mistake) => {
            eprintln!("openmps: {mistake}");
            return Ok(ExitCode::from(ABORT));
        }
    };
    match admit(options, &script, &account) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            let reason = format!("OpenMPS prologue: {error:#}");
            node::mark_offline(&options.node.pbsnodes, &reason);
            Ok(ExitCode::from(QUEUE_AGAIN))
        }
    }
}

fn admit(options: &Prologue, script: &Script, account: &Account) -> anyhow::Result<()> {
    let gpus = options.node.gpus_of_job()?;
    let uid = node::uid_of(&script.user)?;
    if options.node.exclusive {
        node::set_compute_mode(&gpus, node::ComputeMode::ExclusiveProcess)?;
    }
    let place = options.place.place();
    let job = account.job(script, uid, gpus.clone());
    admission::admit(&place, options.rules.rules(), job)?;
    node::start_server(&place.directories(&gpus), uid)
}

fn epilogue(options: &Epilogue) -> anyhow::Result<ExitCode> {
    let script = Script::epilogue(&options.arguments)?;
    if !Account::asks_for_mps(&script.account) {
        return Ok(ExitCode::SUCCESS);
    }
    let mut wrong = match dismiss(options, &script) {
        Ok(wrong) => wrong,
        Err(error) => vec![format!("{error:#}")],
    };
    let Some(first) = wrong.first_mut() else { return Ok(ExitCode::SUCCESS) };
    let reason = format!("OpenMPS epilogue: {first}");
    match node::mark_offline(&options.node.pbsnodes, &reason) {
        node::Offline::Yes => Ok(ExitCode::SUCCESS),
        node::Offline::No => Ok(ExitCode::from(FAILURE)),
    }
}

fn dismiss(options: &Epilogue, script: &Script) -> anyhow::Result<Vec<String>> {
    let gpus = options.node.gpus_of_job()?;
    let wrong = dismissal::dismiss(&options.place.place(), &script.name(), &gpus)?;
    if options.node.exclusive {
        node::set_compute_mode(&gpus, node::ComputeMode::Default)?;
    }
    Ok(wrong)
}

fn environment(options: &Environment) -> anyhow::Result<ExitCode> {
    let place = options.place.place();
    let id = std::env::var("PBS_JOBID").unwrap_or_default();
    if id.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(job) = place.job(&request::name_of(&id))? {
        for (name, value) in task::variables(&place, &job, None)? {
            println!("export {name}={}", quote(Shell::Sh, &value));
        }
    }
    Ok(ExitCode::SUCCESS)
}
