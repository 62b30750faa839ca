//! The configuration file, and `openmps config`.
//!
//! A file in TOML sets what environment variables set: for a service that nobody starts from a
//! shell. A variable that is set wins over the file, an option over both. Where the file says what
//! the environment does not, the executable starts itself anew with the file's values as variables
//! ([`apply`]), so that everything behind has one way to learn them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use control::core::group_text::{parse_groups, parse_profiles};
use serde::{Deserialize, Serialize};
use settings::{Kind, SETTINGS, Setting};
use toml::Value;

use crate::cli::Format;

/// Read if it is there.
const SYSTEM_FILE: &str = "/etc/openmps/config.toml";

/// What a file says, by variable, as the variable would have it.
#[derive(Debug, Default)]
struct File(BTreeMap<&'static str, String>);

/// Limits of a group or a profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupLimits {
    sm_percent: Option<f64>,
    memory: Option<String>,
    weight: Option<u32>,
}

/// Limits by name as the daemon's variables have them.
fn limits_text(limits: BTreeMap<String, GroupLimits>) -> String {
    let entry = |(name, limits): (String, GroupLimits)| {
        let share = limits.sm_percent.map(|share| format!(" sm-percent={share}"));
        let memory = limits.memory.map(|size| format!(" memory={size}"));
        let weight = limits.weight.map(|weight| format!(" weight={weight}"));
        let parts = [share, memory, weight].map(Option::unwrap_or_default).concat();
        format!("{name}{parts}")
    };
    limits.into_iter().map(entry).collect::<Vec<_>>().join("; ")
}

fn setting_of(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == Some(key))
}

fn unknown(key: &str) -> anyhow::Error {
    let known = SETTINGS.iter().filter_map(|setting| setting.key);
    match settings::nearest(key, known) {
        Some(meant) => anyhow::anyhow!("there is no key {key}: did you mean {meant}?"),
        None => anyhow::anyhow!("there is no key {key}: `openmps config` lists all"),
    }
}

impl File {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut file = Self::default();
        for (section, value) in toml::from_str::<toml::Table>(text)? {
            let begins =
                |key: &str| key.strip_prefix(&section).is_some_and(|it| it.starts_with('.'));
            let is_section = SETTINGS.iter().filter_map(|setting| setting.key).any(begins);
            match (setting_of(&section), value) {
                (Some(setting), value) => file.set(setting, value)?,
                (None, Value::Table(keys)) if is_section => {
                    for (key, value) in keys {
                        let key = format!("{section}.{key}");
                        file.set(setting_of(&key).ok_or_else(|| unknown(&key))?, value)?;
                    }
                }
                (None, _) => return Err(unknown(&section)),
            }
        }
        Ok(file)
    }

    /// Takes a value that its variable would take.
    fn set(&mut self, setting: &'static Setting, value: Value) -> anyhow::Result<()> {
        let text = text_of(setting, value).context(setting.key.unwrap_or_default())?;
        if !text.is_empty() {
            self.0.insert(setting.variable, text);
        }
        Ok(())
    }
}

/// A value as its variable has it.
fn text_of(setting: &Setting, value: Value) -> anyhow::Result<String> {
    let given = value.type_str();
    let wrong = |wanted: &str| bail!("a value of type {given} is not taken: give {wanted}");
    let text = match (setting.kind, value) {
        (Kind::Groups, Value::Table(limits)) => {
            let text = limits_text(Value::Table(limits).try_into()?);
            let is_of_profiles = setting.variable == settings::PROFILES.variable;
            let parse = if is_of_profiles { parse_profiles } else { parse_groups };
            parse(&text).map_err(anyhow::Error::msg)?;
            text
        }
        (Kind::Groups, _) => return wrong("a table of names with their limits"),
        (Kind::Switch, Value::Boolean(is_on)) => if is_on { "on" } else { "off" }.to_owned(),
        (Kind::Switch, _) => return wrong("true or false"),
        (Kind::Percentage, Value::Float(number)) => number.to_string(),
        (Kind::Number(..) | Kind::Priority | Kind::Percentage, Value::Integer(number)) => {
            number.to_string()
        }
        (Kind::Number(..) | Kind::Priority | Kind::Percentage, _) => return wrong("a number"),
        (_, Value::String(text)) => text,
        _ => return wrong("a text in quotes"),
    };
    if !text.trim().is_empty() {
        setting.check(&text)?;
    }
    Ok(text)
}

/// The file that is read: the named one, or the system's if it is there.
fn file() -> Option<PathBuf> {
    match std::env::var_os(settings::CONFIG.variable) {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(path.into()),
        None => Some(PathBuf::from(SYSTEM_FILE)).filter(|path| path.exists()),
    }
}

fn read(path: &Path) -> anyhow::Result<File> {
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!("there is no configuration file {}", path.display()),
        _ => anyhow::anyhow!("cannot read {}: {error}", path.display()),
    })?;
    File::parse(&text).with_context(|| format!("{} is no configuration of OpenMPS", path.display()))
}

/// Starts this process anew with the file's values, if it has any that the environment lacks.
///
/// # Errors
/// A file that cannot be read or is wrong; an executable that cannot be started.
pub(crate) fn apply() -> anyhow::Result<()> {
    let missing = missing_variables()?;
    if missing.is_empty() {
        return Ok(());
    }
    let mut arguments = std::env::args_os();
    let program = std::env::current_exe().context("cannot find this executable")?;
    let error = Command::new(program)
        .arg0(arguments.next().unwrap_or_default())
        .args(arguments)
        .envs(missing)
        .exec();
    Err(error).context("cannot start anew with the configuration file's values")
}

fn missing_variables() -> anyhow::Result<BTreeMap<&'static str, String>> {
    let Some(path) = file() else { return Ok(BTreeMap::new()) };
    let mut values = read(&path)?.0;
    values.retain(|variable, _| std::env::var_os(variable).is_none_or(|set| set.is_empty()));
    Ok(values)
}

/// A setting as it is in force.
#[derive(Debug, Serialize)]
struct InForce {
    key: &'static str,
    variable: &'static str,
    /// Absent: the default.
    value: Option<String>,
    origin: Origin,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    File,
    Environment,
    Default,
}

#[derive(Debug, Serialize)]
struct Shown {
    file: Option<PathBuf>,
    settings: Vec<InForce>,
}

/// `openmps config`: every setting, its value and where that comes from; with a file, whether that
/// is in order.
///
/// # Errors
/// A file that cannot be read or is wrong.
pub(crate) fn show(options: &crate::cli::Config) -> anyhow::Result<ExitCode> {
    if let Some(path) = &options.check {
        read(path)?;
        println!("{}: in order", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    let found = file();
    let parsed = found.as_deref().map(read).transpose()?.unwrap_or_default();
    let settings: Vec<InForce> = SETTINGS.iter().filter_map(|it| in_force(it, &parsed)).collect();
    match options.format() {
        Format::Json => crate::show::print_json(Shown { file: found, settings })?,
        Format::Table => {
            match &found {
                Some(path) => println!("# {}", path.display()),
                None => println!(
                    "# no file: neither {} is set nor is there {SYSTEM_FILE}",
                    settings::CONFIG.variable
                ),
            }
            for InForce { key, variable, value, origin } in settings {
                let value = value.unwrap_or_else(|| "(default)".to_owned());
                let origin = match origin {
                    Origin::File => "file".to_owned(),
                    Origin::Environment => variable.to_owned(),
                    Origin::Default => format!("or {variable}"),
                };
                println!("{key:<34} {value:<42} {origin}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A setting that a file can have.
fn in_force(setting: &Setting, file: &File) -> Option<InForce> {
    let (key, variable) = (setting.key?, setting.variable);
    let of_file = file.0.get(variable);
    // Variables of the file were set at this process's start: equal values come from there.
    let set = std::env::var_os(variable).filter(|set| !set.is_empty());
    let (value, origin) = match (set, of_file) {
        (Some(set), Some(value)) if set == **value => (Some(value.clone()), Origin::File),
        (Some(set), _) => (Some(set.to_string_lossy().into_owned()), Origin::Environment),
        (None, Some(value)) => (Some(value.clone()), Origin::File),
        (None, None) => (None, Origin::Default),
    };
    Some(InForce { key, variable, value, origin })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_becomes_a_variable() {
        let file = File::parse(
            "[directories]\npipe = '/p'\nlog = '/l'\nlibraries = '/b'\n[driver]\nnative = '/n'\nvisible_devices = '1'\nbatching = true\nlanes = 4\nspin_clients = 8\n[daemon]\nprovisioning = 'concurrent'\nmetrics = 'unix:/m'\nprewarm = 'self'\ndebuggable = true\n[limits]\nactive_thread_percentage = 50\ndevice_memory = '0=1G'\nclient_priority = 1\nclient_weight = 3\nclient_guard = 'on'\ncontexts_per_device = 200\nlatency_sms = 8\n[isolation]\nby = 'cgroup'\n[memory]\npolicy = 'spill'\nwait_ms = 1000\nturn_ms = 10\nspill_limit = '8G'\ntotal = 'limit'\nmanaged_faults = true\npinned_limit = '64G'\n[faults]\nstandbys = 2\narrivals = 'refuse'\nkill_patience_ms = 500\nsaved_arrays_mib = 64\nsecond_context = false\nlongest_kernel_ms = 60000\nquarantine_contexts = 1\nquarantine_ms = 5000\n[groups]\nby_cgroup = true\n[groups.limits.'/jobs/*']\nmemory = '4G'\nsm_percent = 30\n[profiles.half]\nsm_percent = 50",
        );
        let values = file.unwrap().0;
        for setting in SETTINGS.iter().filter(|setting| setting.key.is_some()) {
            assert!(values.contains_key(setting.variable), "{setting:?}");
        }
        for (variable, value) in [
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50"),
            ("OPENMPS_GROUP_BY_CGROUP", "on"),
            ("OPENMPS_GUARD", "on"),
            ("OPENMPS_GROUPS", "/jobs/* sm-percent=30 memory=4G"),
        ] {
            assert_eq!(values[variable], value, "{variable}");
        }
    }

    #[test]
    fn wrong_files_are_refused_by_key() {
        for (text, named) in [
            ("[limits]\nactive_thread_percentages = 5", "active_thread_percentages"),
            ("[limit]", "limit"),
            ("[limits]\nclient_wieght = 3", "did you mean limits.client_weight?"),
            ("[daemon]\nprewarm = 'me'", "daemon.prewarm"),
            ("[driver]\nbatching = 'on'", "driver.batching: a value of type string"),
            ("[driver]\nnative = 5", "driver.native: a value of type integer"),
            ("driver = 5", "driver"),
            ("profiles = 5", "profiles"),
            ("[limits]\nactive_thread_percentage = 0", "active_thread_percentage"),
            ("[limits]\ndevice_memory = '3X'", "device_memory"),
            ("[limits]\nclient_priority = 2", "client_priority"),
            ("[limits]\ncontexts_per_device = 0", "contexts_per_device"),
            ("[limits]\nclient_weight = 0", "client_weight"),
            ("[limits]\nlatency_sms = -1", "latency_sms"),
            ("[daemon]\nmetrics = '9400'", "daemon.metrics"),
            ("[daemon]\nprovisioning = 'all'", "all"),
            ("[memory]\npolicy = 'swap'", "swap"),
            ("[memory]\nspill_limit = 'much'", "much"),
            ("[memory]\ntotal = 'all'", "all"),
            ("[faults]\nstandbys = 5", "faults"),
            ("[faults]\narrivals = 'refused'", "refused"),
            ("[faults]\nsaved_arrays_mib = 9999999", "faults.saved_arrays_mib"),
            ("[isolation]\nby = 'container'", "container"),
            ("[groups.limits.a]\nmemory = '3X'", "3X"),
            ("[groups.limits.'a b']\nmemory = '3G'", "groups.limits"),
            (
                "[groups.limits.a]\nweight = 0",
                "group a: `0` cannot be used: give a number from 1 to 1000",
            ),
            ("[profiles.all]\nmemory = '3G'", "all"),
            ("[profiles.a]\nsm_percent = 0", "profile a: `0` is no percentage"),
            ("[groups.limits.a]\nsm_percent = 0", "group a: `0` is no percentage"),
        ] {
            let error = format!("{:#}", File::parse(text).unwrap_err());
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn mutated_texts_of_the_configuration() {
        let delivered = include_str!("../../../packaging/config.toml");
        // With every key in use.
        let used = delivered.replace("\n# ", "\n");
        let files = [
            delivered,
            &used,
            "[limits]\nactive_thread_percentage = 50\ndevice_memory = '0=1G'\nclient_weight = 3\n",
            "[groups.limits.'/jobs/*']\nmemory = '4G'\nsm_percent = 30\n[profiles.half]\nsm_percent = 50\n",
        ];
        for file in files {
            File::parse(file).unwrap();
        }
        crate::mutated::fuzz("configuration", &files, |text| {
            let _ = File::parse(text);
        });
    }
}
