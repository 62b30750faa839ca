//! The environment of a job's tasks: what makes them clients of their GPUs' daemon, with their
//! job's share.

use std::ffi::OsString;

use control::directories::Directories;

use super::Job;
use super::place::Place;
use crate::environment::client_variables;
use crate::installation::{DriverWish, library_directory, native_driver};

/// Of each process.
pub(crate) const PERCENTAGE_VARIABLE: &str = settings::ACTIVE_THREAD_PERCENTAGE.variable;

/// Variables of a task. `percentage`: of the SMs, for each of its processes, where the batch system
/// does not set it itself.
///
/// # Errors
/// No libraries or no driver on this node.
pub(crate) fn variables(
    place: &Place,
    job: &Job,
    percentage: Option<f64>,
) -> anyhow::Result<Vec<(&'static str, OsString)>> {
    let libraries = library_directory()?;
    let driver = native_driver(DriverWish::None, &libraries)?;
    let pipe = place.pipe_of(job)?;
    let directories = Directories::from_variables(|_| Some(pipe.clone().into()));
    let mut variables = client_variables(&libraries, &driver, &directories)?;
    variables.push(("CUDA_VISIBLE_DEVICES", job.gpus.renumbered().into()));
    if let Some(percentage) = percentage {
        variables.push((PERCENTAGE_VARIABLE, percentage.to_string().into()));
    }
    Ok(variables)
}
