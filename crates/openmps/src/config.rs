//! The configuration file, and `openmps config`.
//!
//! A file in TOML sets what environment variables set: for a service that nobody starts from a
//! shell. A variable that is set wins over the file, an option over both. Where the file says what
//! the environment does not, the executable starts itself anew with the file's values as variables
//! ([`apply`]), so that everything behind has one way to learn them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use control::core::PREWARM_VARIABLE;
use control::core::group_text::{GROUPS_VARIABLE, parse_groups, parse_profiles};
use link::wire::shares::{GROUP_BY_CGROUP_VARIABLE, PROFILES_VARIABLE};
use serde::{Deserialize, Serialize};
use server::policy::faults::fault_settings::{self, FaultSettings};
use server::policy::memory::memory_settings::{self, MemorySettings};

use crate::cli::Format;

/// Names another file.
pub(crate) const FILE_VARIABLE: &str = "OPENMPS_CONFIG";
/// Read if it is there.
const SYSTEM_FILE: &str = "/etc/openmps/config.toml";

/// What a file may say; other keys are refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    directories: Directories,
    #[serde(default)]
    driver: Driver,
    #[serde(default)]
    daemon: Daemon,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    isolation: Isolation,
    #[serde(default)]
    memory: Memory,
    #[serde(default)]
    faults: Faults,
    #[serde(default)]
    groups: Groups,
    #[serde(default)]
    profiles: BTreeMap<String, GroupLimits>,
}

/// What is done where clients want more memory than a device has.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    policy: Option<String>,
    wait_ms: Option<u64>,
    turn_ms: Option<u64>,
    spill_limit: Option<String>,
    total: Option<String>,
    managed_faults: Option<bool>,
}

impl Memory {
    /// Its variables, with the file's values.
    fn variables(&self) -> [(&'static str, &'static str, Option<String>); 6] {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let switch = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
        [
            ("memory.policy", memory_settings::POLICY_VARIABLE, self.policy.clone()),
            ("memory.wait_ms", memory_settings::WAIT_VARIABLE, number(self.wait_ms)),
            ("memory.turn_ms", memory_settings::TURN_VARIABLE, number(self.turn_ms)),
            ("memory.spill_limit", memory_settings::SPILL_LIMIT_VARIABLE, self.spill_limit.clone()),
            ("memory.total", memory_settings::TOTAL_VARIABLE, self.total.clone()),
            (
                "memory.managed_faults",
                crate::original::MANAGED_FAULTS_VARIABLE,
                self.managed_faults.map(switch),
            ),
        ]
    }
}

/// What is kept ready for faults, and what becomes of programs meanwhile.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Faults {
    standbys: Option<u64>,
    arrivals: Option<String>,
    kill_patience_ms: Option<u64>,
    saved_arrays_mib: Option<u64>,
    second_context: Option<bool>,
    longest_kernel_ms: Option<u64>,
    quarantine_contexts: Option<u64>,
    quarantine_ms: Option<u64>,
}

impl Faults {
    /// Its variables, with the file's values.
    fn variables(&self) -> [(&'static str, &'static str, Option<String>); 8] {
        let number = |number: Option<u64>| number.map(|number| number.to_string());
        let switch = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
        [
            ("faults.standbys", fault_settings::STANDBY_VARIABLE, number(self.standbys)),
            ("faults.arrivals", fault_settings::ARRIVALS_VARIABLE, self.arrivals.clone()),
            (
                "faults.kill_patience_ms",
                fault_settings::KILL_PATIENCE_VARIABLE,
                number(self.kill_patience_ms),
            ),
            (
                "faults.saved_arrays_mib",
                fault_settings::SAVED_ARRAYS_VARIABLE,
                number(self.saved_arrays_mib),
            ),
            (
                "faults.second_context",
                fault_settings::SECOND_CONTEXT_VARIABLE,
                self.second_context.map(switch),
            ),
            (
                "faults.longest_kernel_ms",
                fault_settings::LONGEST_KERNEL_VARIABLE,
                number(self.longest_kernel_ms),
            ),
            (
                "faults.quarantine_contexts",
                fault_settings::QUARANTINE_VARIABLE,
                number(self.quarantine_contexts),
            ),
            (
                "faults.quarantine_ms",
                fault_settings::QUARANTINE_TIME_VARIABLE,
                number(self.quarantine_ms),
            ),
        ]
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Isolation {
    by: Option<By>,
}

/// Whose programs share an executor.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    User,
    Cgroup,
    Process,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Directories {
    pipe: Option<PathBuf>,
    log: Option<PathBuf>,
    libraries: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Driver {
    native: Option<PathBuf>,
    visible_devices: Option<String>,
    batching: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Daemon {
    provisioning: Option<Provisioning>,
    metrics: Option<String>,
    prewarm: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Provisioning {
    OneUserAtATime,
    Multiuser,
    Concurrent,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    active_thread_percentage: Option<f64>,
    device_memory: Option<String>,
    client_priority: Option<u8>,
    contexts_per_device: Option<usize>,
    latency_sms: Option<u32>,
    client_weight: Option<u32>,
    client_guard: Option<Guard>,
}

/// Whether programs' accesses to memory are checked.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Guard {
    On,
    Strict,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Groups {
    /// Each cgroup is a group.
    by_cgroup: Option<bool>,
    /// By name.
    #[serde(default)]
    limits: BTreeMap<String, GroupLimits>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupLimits {
    sm_percent: Option<f64>,
    memory: Option<String>,
    weight: Option<u32>,
}

/// Limits by name as the daemon's variables have them.
fn limits_text(limits: &BTreeMap<String, GroupLimits>) -> Option<String> {
    let entry = |(name, limits): (&String, &GroupLimits)| {
        let share = limits.sm_percent.map(|share| format!(" sm-percent={share}"));
        let memory = limits.memory.as_ref().map(|size| format!(" memory={size}"));
        let weight = limits.weight.map(|weight| format!(" weight={weight}"));
        let parts = [share, memory, weight].map(Option::unwrap_or_default).concat();
        format!("{name}{parts}")
    };
    let entries: Vec<String> = limits.iter().map(entry).collect();
    (!entries.is_empty()).then(|| entries.join("; "))
}

/// A setting: where the file has it, the variable that it becomes, and its value.
struct Setting {
    key: &'static str,
    variable: &'static str,
    value: Option<OsString>,
}

impl File {
    fn settings(&self) -> Vec<Setting> {
        let provisioning = self.daemon.provisioning.map(|provisioning| match provisioning {
            Provisioning::OneUserAtATime => "one-user-at-a-time",
            Provisioning::Multiuser => "multiuser",
            Provisioning::Concurrent => "concurrent",
        });
        let isolation = self.isolation.by.map(|by| match by {
            By::User => "user",
            By::Cgroup => "cgroup",
            By::Process => "process",
        });
        let path = |path: &Option<PathBuf>| path.clone().map(OsString::from);
        let text = |text: Option<String>| text.map(OsString::from);
        let limits = &self.limits;
        let of_groups = self.memory.variables().into_iter().chain(self.faults.variables());
        let of_groups = of_groups.map(|(key, variable, value)| (key, variable, text(value)));
        [
            ("directories.pipe", "CUDA_MPS_PIPE_DIRECTORY", path(&self.directories.pipe)),
            ("directories.log", "CUDA_MPS_LOG_DIRECTORY", path(&self.directories.log)),
            ("directories.libraries", "OPENMPS_LIB_DIR", path(&self.directories.libraries)),
            ("driver.native", "OPENMPS_NATIVE_DRIVER", path(&self.driver.native)),
            (
                "driver.visible_devices",
                "CUDA_VISIBLE_DEVICES",
                text(self.driver.visible_devices.clone()),
            ),
            (
                "driver.batching",
                "OPENMPS_BATCHING",
                self.driver
                    .batching
                    .map(|batching| OsString::from(if batching { "on" } else { "off" })),
            ),
            ("daemon.provisioning", "OPENMPS_PROVISIONING", provisioning.map(OsString::from)),
            ("daemon.metrics", "OPENMPS_METRICS", text(self.daemon.metrics.clone())),
            ("daemon.prewarm", PREWARM_VARIABLE, text(self.daemon.prewarm.clone())),
            ("isolation.by", "OPENMPS_ISOLATION", isolation.map(OsString::from)),
            (
                "limits.active_thread_percentage",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                text(limits.active_thread_percentage.map(|percent| percent.to_string())),
            ),
            (
                "limits.device_memory",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                text(limits.device_memory.clone()),
            ),
            (
                "limits.client_priority",
                "CUDA_MPS_CLIENT_PRIORITY",
                text(limits.client_priority.map(|priority| priority.to_string())),
            ),
            (
                "limits.contexts_per_device",
                "OPENMPS_CONTEXTS_PER_DEVICE",
                text(limits.contexts_per_device.map(|number| number.to_string())),
            ),
            (
                "limits.latency_sms",
                "OPENMPS_LATENCY_SMS",
                text(limits.latency_sms.map(|number| number.to_string())),
            ),
            (
                "groups.by_cgroup",
                GROUP_BY_CGROUP_VARIABLE,
                text(self.groups.by_cgroup.map(|on| u8::from(on).to_string())),
            ),
            ("groups.limits", GROUPS_VARIABLE, text(limits_text(&self.groups.limits))),
            ("profiles", PROFILES_VARIABLE, text(limits_text(&self.profiles))),
            (
                "limits.client_weight",
                "OPENMPS_WEIGHT",
                text(limits.client_weight.map(|weight| weight.to_string())),
            ),
            (
                "limits.client_guard",
                "OPENMPS_GUARD",
                limits.client_guard.map(|guard| match guard {
                    Guard::On => OsString::from("1"),
                    Guard::Strict => OsString::from("strict"),
                }),
            ),
        ]
        .into_iter()
        .chain(of_groups)
        .map(|(key, variable, value)| Setting { key, variable, value })
        .collect()
    }
}

/// The file that is read: the named one, or the system's if it is there.
fn file() -> Option<PathBuf> {
    match std::env::var_os(FILE_VARIABLE) {
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
    let parsed: File = toml::from_str(&text)
        .with_context(|| format!("{} is no configuration of OpenMPS", path.display()))?;
    check(&parsed).with_context(|| path.display().to_string())?;
    Ok(parsed)
}

/// What a file says for a variable.
fn value_of(variables: &[(&str, &str, Option<String>)], wanted: &str) -> Option<String> {
    variables.iter().find(|(_, variable, _)| *variable == wanted).and_then(|(.., it)| it.clone())
}

/// Refuses values that their variables would refuse.
fn check(file: &File) -> anyhow::Result<()> {
    if let Some(percent) = file.limits.active_thread_percentage
        && !(percent > 0.0 && percent <= 100.0)
    {
        bail!("limits.active_thread_percentage is {percent}: it must be above 0 and at most 100");
    }
    if let Some(priority) = file.limits.client_priority
        && priority > 1
    {
        bail!("limits.client_priority is {priority}: 0 is normal, 1 below normal");
    }
    if let Some(number) = file.limits.contexts_per_device
        && !(1..=server::policy::MOST_CONTEXTS_PER_DEVICE).contains(&number)
    {
        bail!(
            "limits.contexts_per_device is {number}: it must be 1 to {}",
            server::policy::MOST_CONTEXTS_PER_DEVICE
        );
    }
    if let Some(weight) = file.limits.client_weight
        && !(1..=1000).contains(&weight)
    {
        bail!("limits.client_weight is {weight}: it must be 1 at least and 1000 at most");
    }
    if let Some(list) = &file.limits.device_memory {
        control::values::parse_limit_list(list).context("limits.device_memory")?;
    }
    let (memory, faults) = (file.memory.variables(), file.faults.variables());
    if let Some(complaint) = MemorySettings::read(0, |name| value_of(&memory, name)).1.first() {
        bail!("memory: {complaint}");
    }
    if let Some(complaint) = FaultSettings::read(|name| value_of(&faults, name)).1.first() {
        bail!("faults: {complaint}");
    }
    if let Some(text) = limits_text(&file.groups.limits) {
        parse_groups(&text).map_err(anyhow::Error::msg).context("groups.limits")?;
    }
    if let Some(text) = limits_text(&file.profiles) {
        parse_profiles(&text).map_err(anyhow::Error::msg).context("profiles")?;
    }
    if let Some(address) = &file.daemon.metrics {
        address.parse::<control::http::Address>().context("daemon.metrics")?;
    }
    Ok(())
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

fn missing_variables() -> anyhow::Result<Vec<(&'static str, OsString)>> {
    let Some(path) = file() else { return Ok(Vec::new()) };
    let settings = read(&path)?.settings();
    let missing = settings.into_iter().filter_map(|Setting { variable, value, .. }| {
        let absent = std::env::var_os(variable).is_none_or(|set| set.is_empty());
        value.filter(|value| absent && !value.is_empty()).map(|value| (variable, value))
    });
    Ok(missing.collect())
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
    let settings: Vec<InForce> = parsed.settings().into_iter().map(in_force).collect();
    match options.format() {
        Format::Json => crate::show::print_json(Shown { file: found, settings })?,
        Format::Table => {
            match &found {
                Some(path) => println!("# {}", path.display()),
                None => {
                    println!("# no file: neither {FILE_VARIABLE} is set nor is there {SYSTEM_FILE}")
                }
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

fn in_force(Setting { key, variable, value }: Setting) -> InForce {
    // Variables of the file were set at this process's start: equal values come from there.
    let set = std::env::var_os(variable).filter(|set| !set.is_empty());
    let (value, origin) = match (set, value) {
        (Some(set), Some(value)) if set == value => (Some(value), Origin::File),
        (Some(set), _) => (Some(set), Origin::Environment),
        (None, Some(value)) => (Some(value), Origin::File),
        (None, None) => (None, Origin::Default),
    };
    let value = value.map(|value| value.to_string_lossy().into_owned());
    InForce { key, variable, value, origin }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> anyhow::Result<File> {
        let file = toml::from_str(text)?;
        check(&file)?;
        Ok(file)
    }

    #[test]
    fn every_setting_becomes_a_variable() {
        let file = parsed(
            "[directories]\npipe = '/p'\nlog = '/l'\nlibraries = '/b'\n[driver]\nnative = '/n'\nvisible_devices = '1'\nbatching = true\n[daemon]\nprovisioning = 'concurrent'\nmetrics = 'unix:/m'\nprewarm = 'self'\n[limits]\nactive_thread_percentage = 50\ndevice_memory = '0=1G'\nclient_priority = 1\nclient_weight = 3\nclient_guard = 'on'\ncontexts_per_device = 200\nlatency_sms = 8\n[isolation]\nby = 'cgroup'\n[memory]\npolicy = 'spill'\nwait_ms = 1000\nturn_ms = 10\nspill_limit = '8G'\ntotal = 'limit'\nmanaged_faults = true\n[faults]\nstandbys = 2\narrivals = 'refuse'\nkill_patience_ms = 500\nsaved_arrays_mib = 64\nsecond_context = false\nlongest_kernel_ms = 60000\nquarantine_contexts = 1\nquarantine_ms = 5000\n[groups]\nby_cgroup = true\n[groups.limits.'/jobs/*']\nmemory = '4G'\nsm_percent = 30\n[profiles.half]\nsm_percent = 50",
        );
        let settings = file.unwrap().settings();
        assert!(settings.iter().all(|setting| setting.value.is_some()));
        let percentage = settings.iter().find(|setting| setting.variable.contains("PERCENTAGE"));
        assert_eq!(percentage.unwrap().value.as_deref(), Some("50".as_ref()));
    }

    #[test]
    fn wrong_files_are_refused_by_key() {
        for (text, named) in [
            ("[limits]\nactive_thread_percentages = 5", "active_thread_percentages"),
            ("[limit]", "limit"),
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
            ("[faults]\nsaved_arrays_mib = 9999999", "OPENMPS_SAVED_ARRAYS_MIB"),
            ("[isolation]\nby = 'container'", "container"),
            ("[groups.limits.a]\nmemory = '3X'", "3X"),
            ("[groups.limits.'a b']\nmemory = '3G'", "groups.limits"),
            ("[groups.limits.a]\nweight = 0", "`0` is no weight"),
            ("[profiles.all]\nmemory = '3G'", "all"),
            ("[profiles.a]\nsm_percent = 0", "profile a: `0` is no percentage"),
            ("[groups.limits.a]\nsm_percent = 0", "group a: `0` is no percentage"),
        ] {
            let error = format!("{:#}", parsed(text).unwrap_err());
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
            parsed(file).unwrap();
        }
        crate::mutated::fuzz("configuration", &files, |text| {
            if let Ok(file) = parsed(text) {
                file.settings();
            }
        });
    }
}
