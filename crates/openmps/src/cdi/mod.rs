//! `openmps cdi`: the file that tells container engines what a container needs to be a client,
//! which is a socket's directory and a library.
//!
//! Devices are `openmps.dev/share=all`, by the daemon's own socket, and one for each profile of the
//! configuration, by that profile's socket, whose limits a container cannot shed. [`spec`] says
//! what is in the file, [`yaml`] how it is written.

mod spec;
#[cfg(test)]
mod tests;
mod yaml;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, ValueEnum};
use control::core::group_text::parse_profiles;
use control::directories::Directories;
use control::trusted_path::{Directory, Missing, Trust};
use settings::Variables;

use crate::installation::library_directory;
use spec::{LibrarySearch, Specification};

/// Print a container device specification (CDI): what makes containers clients.
///
/// Containers that are started with --device openmps.dev/share=all are clients of the daemon of
/// this pipe directory; those with openmps.dev/share=NAME have the limits of that profile of the
/// configuration. Docker, Podman and Kubernetes read files of /etc/cdi.
#[derive(Debug, Args)]
pub(crate) struct Cdi {
    /// How it is written; without it as the file's name says, else in JSON.
    #[arg(long, value_enum)]
    format: Option<Language>,
    /// The file to write, as /etc/cdi/openmps.json or .yaml; standard output without it.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How programs find the client library.
    #[arg(long, value_enum, default_value_t = LibrarySearch::Default)]
    library_search: LibrarySearch,
}

/// Languages of specifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    Json,
    Yaml,
}

/// `openmps cdi`.
///
/// # Errors
/// No library directory, a wrong profile, a file that cannot be written.
pub(crate) fn cdi(options: &Cdi) -> anyhow::Result<ExitCode> {
    let text = Variables::of_environment().text(&settings::PROFILES).unwrap_or_default();
    let profiles = parse_profiles(&text).map_err(anyhow::Error::msg).context("OPENMPS_PROFILES")?;
    let directories = Directories::from_environment();
    let profiles: Vec<_> = profiles
        .into_iter()
        .map(|profile| (profile.name.clone(), directories.profile(&profile.name)))
        .collect();
    let libraries = library_directory()?;
    let specification =
        spec::specification(directories.pipe(), &profiles, &libraries, options.library_search)?;
    let text = written(&specification, language(options))?;
    match &options.output {
        None => std::io::stdout().write_all(text.as_bytes())?,
        Some(file) => replace(file, &text)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn language(options: &Cdi) -> Language {
    let extension = options.output.as_deref().and_then(Path::extension);
    let by_name = match extension.and_then(OsStr::to_str) {
        Some("yaml" | "yml") => Language::Yaml,
        _ => Language::Json,
    };
    options.format.unwrap_or(by_name)
}

fn written(specification: &Specification, language: Language) -> anyhow::Result<String> {
    Ok(match language {
        Language::Json => serde_json::to_string_pretty(specification)? + "\n",
        Language::Yaml => yaml::document(&serde_json::to_value(specification)?),
    })
}

/// Engines read the file when they like, so all of it is there at once. What it says is done by
/// root: nobody else is to have a hand in where it is.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    let written = || {
        let path = std::path::absolute(file)?;
        let name = path.file_name().and_then(OsStr::to_str).context("it names no file")?;
        let directory = path.parent().context("it is in no directory")?;
        let directory = Directory::open(directory, Trust::of_places(), Missing::Make)?;
        anyhow::Ok(directory.replace(name, text.as_bytes(), 0o644)?)
    };
    written().with_context(|| format!("cannot write {}", file.display()))
}
