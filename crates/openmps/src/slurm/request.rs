//! What a Slurm job asked for, read out of the environment of its prolog, epilog or task. Plain
//! code.
//!
//! | variable | of | says |
//! |---|---|---|
//! | `SLURM_JOB_GPUS` | prolog, epilog | the GPUs' numbers, also for shares |
//! | `CUDA_VISIBLE_DEVICES` | all | the same, where the variable before is absent |
//! | `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` | all | per cent that gres/mps gives, of the job or the step |
//! | `SLURM_SHARDS_ON_NODE` | task | shards of the job or the step |
//! | `SLURM_JOB_GRES` | some | the resources as text |
//! | `SPANK_OPENMPS_SM`, `SPANK_OPENMPS_MEMORY` | prolog | what the options of the SPANK plugin asked for |

use super::tres;
use crate::batch::Job;
use crate::batch::gpus::{Gpus, GpusError};
use crate::batch::task::PERCENTAGE_VARIABLE;
use settings::{Memory, Percentage};

/// What `CUDA_VISIBLE_DEVICES` says where a job has no GPU.
const NO_DEVICES: &str = "NoDevFiles";

/// How the node reads requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    /// Shards of each GPU; absent: jobs cannot ask for shards here.
    pub(super) shards_per_gpu: Option<u32>,
    /// Whether jobs with whole GPUs share them, too, among their processes.
    pub(super) whole_gpus: bool,
}

/// What a job asked for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    /// Slurm's number of the job.
    pub(super) id: String,
    /// Its user.
    pub(super) uid: u32,
    /// Its GPUs here.
    pub(super) gpus: Gpus,
    /// Its shares of them.
    pub(super) shares: Shares,
    /// Options of the SPANK plugin, as they were typed.
    options: [Option<String>; 2],
}

/// A share of GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Shares {
    /// All of them.
    Whole,
    /// gres/mps: per cent of the SMs.
    Percentage(f64),
    /// gres/shard, on all the GPUs together.
    Shards(u32),
}

/// Why a request cannot be read, or served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// Slurm always sets it.
    #[error("{0} is not set: this is for Slurm's Prolog or Epilog")]
    Missing(&'static str),
    /// Slurm sets a number.
    #[error("{name}={value}: a number was expected")]
    Number {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// As UUIDs are.
    #[error(transparent)]
    Gpus(#[from] GpusError),
    /// The node does not say how much a shard is.
    #[error("the job has {0} shards: give --shards-per-gpu to the prolog, as in gres.conf")]
    UnknownShards(u32),
}

/// Whether the environment is of a job, or of a task of one, that asked for GPUs or for a share of
/// one.
pub(super) fn asks_for_gpus(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name: &str| variable(name).is_some_and(|value| value != NO_DEVICES);
    let resources = variable("SLURM_JOB_GRES").unwrap_or_default();
    let has_resource = |resource: &&str| tres::count(&resources, resource).is_some_and(|n| n > 0);
    [
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "CUDA_VISIBLE_DEVICES",
        "SLURM_SHARDS_ON_NODE",
        PERCENTAGE_VARIABLE,
    ]
    .into_iter()
    .any(is_set)
        || ["gpu", "mps", "shard"].iter().any(has_resource)
}

impl Request {
    /// Reads the environment of a prolog or an epilog.
    pub(super) fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Self, RequestError> {
        let needed = |name| variable(name).ok_or(RequestError::Missing(name));
        let uid = needed("SLURM_JOB_UID")?;
        let uid =
            uid.parse().map_err(|_| RequestError::Number { name: "SLURM_JOB_UID", value: uid })?;
        let gpus = variable("SLURM_JOB_GPUS").or_else(|| variable("CUDA_VISIBLE_DEVICES"));
        Ok(Request {
            id: needed("SLURM_JOB_ID")?,
            uid,
            gpus: gpus.ok_or(RequestError::Missing("SLURM_JOB_GPUS"))?.parse()?,
            shares: shares(&variable)?,
            options: ["SPANK_OPENMPS_SM", "SPANK_OPENMPS_MEMORY"].map(&variable),
        })
    }

    /// What Slurm's controller knows of its shards.
    pub(super) fn add_shards(&mut self, shards: Option<u32>) {
        if let Some(shards) = shards.filter(|count| *count > 0) {
            self.shares = Shares::Shards(shards);
        }
    }

    /// The job's name on the node.
    pub(super) fn name(&self) -> String {
        name_of(&self.id)
    }

    /// What the node is to do for it; nothing for one that has its GPUs for itself.
    pub(super) fn job(&self, settings: Settings) -> Result<Option<Job>, RequestError> {
        let of_shares = match self.shares {
            Shares::Whole => None,
            Shares::Percentage(percentage) => Some(percentage),
            Shares::Shards(shards) => {
                let per_gpu = settings.shards_per_gpu.ok_or(RequestError::UnknownShards(shards))?;
                Some(percentage_of(shards, per_gpu, &self.gpus))
            }
        };
        let [sm, memory] = &self.options;
        let is_shared =
            of_shares.is_some() || settings.whole_gpus || sm.is_some() || memory.is_some();
        if !is_shared {
            return Ok(None);
        }
        let sm = sm.as_deref().map(str::parse::<Percentage>).transpose();
        let memory = memory.as_deref().map(str::parse::<Memory>).transpose();
        // The user's mistakes, which are no reason to drain the node.
        let mistake =
            |option: &str, error: &dyn std::fmt::Display| format!("--openmps-{option}: {error}");
        let refusal = match (&sm, &memory) {
            (Err(error), _) => Some(mistake("sm-percent", error)),
            (_, Err(error)) => Some(mistake("memory", error)),
            _ => None,
        };
        let asked = sm.ok().flatten().map(Percentage::percent);
        let percentage = [of_shares, asked].into_iter().flatten().reduce(f64::min);
        let memory = memory.ok().flatten();
        Ok(Some(Job {
            name: self.name(),
            uid: self.uid,
            gpus: self.gpus.clone(),
            percentage: percentage.filter(|percentage| *percentage < 100.0),
            memory_bytes: memory.and_then(Memory::limit_bytes),
            shards_per_gpu: match self.shares {
                Shares::Shards(_) => settings.shards_per_gpu,
                Shares::Whole | Shares::Percentage(_) => None,
            },
            refusal,
        }))
    }
}

/// The name of the job with this number.
pub(super) fn name_of(id: &str) -> String {
    format!("slurm-{id}")
}

fn shares(variable: &impl Fn(&str) -> Option<String>) -> Result<Shares, RequestError> {
    if let Some(value) = variable(PERCENTAGE_VARIABLE) {
        let percentage: Percentage =
            value.parse().map_err(|_| RequestError::Number { name: PERCENTAGE_VARIABLE, value })?;
        return Ok(Shares::Percentage(percentage.percent()));
    }
    let of_list = variable("SLURM_JOB_GRES").and_then(|list| tres::count(&list, "shard"));
    let shards = match variable("SLURM_SHARDS_ON_NODE") {
        Some(value) => Some(
            value
                .parse()
                .map_err(|_| RequestError::Number { name: "SLURM_SHARDS_ON_NODE", value })?,
        ),
        None => of_list,
    };
    Ok(shards.filter(|count| *count > 0).map_or(Shares::Whole, Shares::Shards))
}

/// What so many shards are of each of these GPUs.
fn percentage_of(shards: u32, per_gpu: u32, gpus: &Gpus) -> f64 {
    let all = f64::from(per_gpu.max(1)) * gpus.count() as f64;
    (100.0 * f64::from(shards) / all).min(100.0)
}

/// The share of each process of a task, where Slurm does not set it: that of the step's shards.
pub(super) fn task_percentage(job: &Job, variable: impl Fn(&str) -> Option<String>) -> Option<f64> {
    let per_gpu = job.shards_per_gpu?;
    let shards = variable("SLURM_SHARDS_ON_NODE")?.parse().ok().filter(|count| *count > 0)?;
    let of_step = percentage_of(shards, per_gpu, &job.gpus);
    // An option of the step, or the user, may want less.
    let wanted = variable(PERCENTAGE_VARIABLE).and_then(|value| value.parse::<Percentage>().ok());
    Some(wanted.map_or(of_step, |wanted| wanted.percent().min(of_step)))
}

#[cfg(test)]
mod tests;
