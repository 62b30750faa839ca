//! `openmps slurm`: what slurmd calls on a node before a job, before each of its tasks, and after
//! it.
//!
//! `prolog` and `epilog` run as root, `task-prolog` as the job's user. A job that asked for no GPU
//! is none of their business, whatever else may be wrong: they end with 0 before anything is looked
//! at ([`is_no_business`]), since another status drains the node. What a job asked for is
//! [`request`]; of a node's part the rest is `crate::batch`. Slurm's documents: prolog and epilog
//! guide, gres guide; its behaviour was observed with Slurm 22.05.

mod controller;
mod request;
mod tres;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::FAILURE;
use crate::batch::options::{PlaceOptions, RuleOptions};
use crate::batch::{admission, dismissal, task};
use controller::Controller;
use request::{Request, Settings, Shares, asks_for_gpus, task_percentage};

/// Give Slurm jobs their shares of GPUs: to be called by Slurm's Prolog, Epilog and TaskProlog.
///
/// Jobs that ask for gres/mps or gres/shard run under OpenMPS with the share that they asked for;
/// jobs that ask for whole GPUs run natively, others are left alone. See docs/slurm.md.
#[derive(Debug, Args)]
pub(crate) struct Slurm {
    #[command(subcommand)]
    command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
enum SlurmCommand {
    Prolog(Prolog),
    Epilog(Epilog),
    TaskProlog(TaskProlog),
}

/// Before a job: start the daemon of its GPUs, set its limits.
#[derive(Debug, Args)]
struct Prolog {
    #[command(flatten)]
    place: PlaceOptions,
    #[command(flatten)]
    rules: RuleOptions,
    /// Shards that each GPU of this node has (gres.conf), where jobs may ask for gres/shard.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    shards_per_gpu: Option<u32>,
    /// Let jobs with whole GPUs run under OpenMPS, too: their processes then share the GPUs with
    /// each other.
    #[arg(long)]
    whole_gpus: bool,
    /// Slurm's scontrol; else it is looked for.
    #[arg(long, value_name = "PATH")]
    scontrol: Option<PathBuf>,
}

/// After a job: end what is left of it, look whether its GPUs answer; drain the node with a reason
/// if something is wrong.
#[derive(Debug, Args)]
struct Epilog {
    #[command(flatten)]
    place: PlaceOptions,
    /// Slurm's scontrol; else it is looked for.
    #[arg(long, value_name = "PATH")]
    scontrol: Option<PathBuf>,
}

/// Before each task, as the job's user: print the environment that makes it a client.
#[derive(Debug, Args)]
struct TaskProlog {
    #[command(flatten)]
    place: PlaceOptions,
}

/// Whether these arguments are a call by Slurm for a job that asked for no GPU.
pub(crate) fn is_no_business(arguments: &[OsString]) -> bool {
    let words: Vec<&OsStr> = arguments.iter().take(2).map(OsString::as_os_str).collect();
    let hooks = ["prolog", "epilog", "task-prolog"];
    let is_hook = matches!(words.as_slice(), [slurm, hook]
        if *slurm == "slurm" && hooks.iter().any(|known| hook == known));
    is_hook && variable("SLURM_JOB_ID").is_some() && !asks_for_gpus(variable)
}

/// `openmps slurm`.
///
/// # Errors
/// The node cannot do its part.
pub(crate) fn slurm(options: Slurm) -> anyhow::Result<ExitCode> {
    if !asks_for_gpus(variable) {
        if variable("SLURM_JOB_ID").is_none() {
            anyhow::bail!(
                "SLURM_JOB_ID is not set: this is for Slurm's Prolog, Epilog or TaskProlog"
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    match options.command {
        SlurmCommand::Prolog(options) => prolog(&options),
        SlurmCommand::Epilog(options) => epilog(&options),
        SlurmCommand::TaskProlog(options) => task_prolog(&options),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn prolog(options: &Prolog) -> anyhow::Result<ExitCode> {
    let controller = Controller::new(options.scontrol.clone(), variable("SLURMD_NODENAME"));
    let admitted = admit(options, &controller);
    if let Err(error) = &admitted {
        // Slurm drains a node whose prolog failed, but does not know why.
        controller.drain(&format!("OpenMPS prolog: {error:#}"));
    }
    admitted.map(|()| ExitCode::SUCCESS)
}

fn admit(options: &Prolog, controller: &Controller) -> anyhow::Result<()> {
    let settings =
        Settings { shards_per_gpu: options.shards_per_gpu, whole_gpus: options.whole_gpus };
    let mut request = Request::parse(variable)?;
    // Slurm 22.05 does not tell the prolog of shards, and a job with shards looks as one with whole
    // GPUs.
    if request.shares == Shares::Whole && settings.shards_per_gpu.is_some() {
        request.add_shards(controller.shards_of_job(&request.id)?);
    }
    match request.job(settings)? {
        Some(job) => Ok(admission::admit(&options.place.place(), options.rules.rules(), job)?),
        None => Ok(()),
    }
}

fn epilog(options: &Epilog) -> anyhow::Result<ExitCode> {
    let controller = Controller::new(options.scontrol.clone(), variable("SLURMD_NODENAME"));
    let dismissed = Request::parse(variable).map_err(anyhow::Error::from).and_then(|request| {
        Ok(dismissal::dismiss(&options.place.place(), &request.name(), &request.gpus)?)
    });
    let wrong = dismissed.unwrap_or_else(|error| vec![format!("{error:#}")]);
    let Some(first) = wrong.first() else { return Ok(ExitCode::SUCCESS) };
    for finding in &wrong {
        eprintln!("openmps: {finding}");
    }
    // Drained with a reason, the node needs no failed epilog, which would hide it.
    match controller.drain(&format!("OpenMPS epilog: {first}")) {
        controller::Drained::Yes => Ok(ExitCode::SUCCESS),
        controller::Drained::No => Ok(ExitCode::from(FAILURE)),
    }
}

fn task_prolog(options: &TaskProlog) -> anyhow::Result<ExitCode> {
    let place = options.place.place();
    let Some(id) = variable("SLURM_JOB_ID") else { return Ok(ExitCode::SUCCESS) };
    let Some(job) = place.job(&request::name_of(&id))? else { return Ok(ExitCode::SUCCESS) };
    if let Some(refusal) = &job.refusal {
        println!("print openmps: {refusal}");
        return Ok(ExitCode::from(FAILURE));
    }
    let percentage = task_percentage(&job, variable);
    for (name, value) in task::variables(&place, &job, percentage)? {
        println!("export {name}={}", value.display());
    }
    Ok(ExitCode::SUCCESS)
}
