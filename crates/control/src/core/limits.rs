//! Limits of new clients: of the daemon (defaults for servers to come) and of one server.
//!
//! Levels and variables: NVIDIA's MPS guide, sections 4.2.5 to 4.2.8.

use std::collections::{BTreeMap, BTreeSet};

use link::wire::daemon::{Defaults, ServerSnapshot};
use settings::{DeviceRef, Memory, Percentage, Priority, Variables, parse_memory_list};

use super::command::Command;

/// Limits of new clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Active thread percentage.
    pub percentage: Percentage,
    /// Memory per device; a device may be named twice, by ordinal and by UUID: the lower limit
    /// holds.
    pub memory: BTreeMap<DeviceRef, Memory>,
    /// Whose limits clients are told as the device's memory: those that `openmps limit` has set.
    pub told: BTreeSet<DeviceRef>,
    /// Client priority.
    pub priority: Priority,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            percentage: Percentage::ALL,
            memory: BTreeMap::new(),
            told: BTreeSet::new(),
            priority: Priority::Normal,
        }
    }
}

impl Limits {
    /// Reads the `CUDA_MPS_*` variables of the daemon's environment. What cannot be read is left at
    /// its default and described in the returned lines, as the original does in its log.
    pub fn from_environment<F>(variables: &Variables<F>) -> (Self, Vec<String>)
    where
        F: Fn(&str) -> Option<String>,
    {
        let mut limits = Limits::default();
        let mut complaints = Vec::new();
        if let Some(text) = variables.text(&settings::ACTIVE_THREAD_PERCENTAGE) {
            match text.parse() {
                Ok(percentage) => limits.percentage = percentage,
                Err(_) => complaints.push(
                    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE should be between (0.0, 100.0]".to_owned(),
                ),
            }
        }
        if let Some(text) = variables.text(&settings::CLIENT_PRIORITY) {
            match text.parse() {
                Ok(priority) => limits.priority = priority,
                Err(_) => {
                    complaints.push("CUDA_MPS_CLIENT_PRIORITY should be between [0,1]".to_owned())
                }
            }
        }
        // The guide uses both names; the lowest limit holds, as for a client.
        for setting in [settings::PINNED_DEVICE_MEM_LIMIT, settings::DEVICE_MEM_LIMIT] {
            match parse_memory_list(&variables.text(&setting).unwrap_or_default()) {
                Ok(list) => {
                    for (device, limit) in list.into_iter().filter(|(_, it)| it.bytes() > 0) {
                        let lowest = limits.memory.entry(device).or_insert(limit);
                        *lowest = limit.min(*lowest);
                    }
                }
                Err(error) => complaints.push(format!("{} is ignored: {error}", setting.variable)),
            }
        }
        (limits, complaints)
    }

    /// Carries out a command that sets a default; whether it was one, and in order.
    pub(super) fn set(&mut self, command: &Command) -> bool {
        match command {
            Command::SetDefaultPercentage(Ok(percentage)) => self.percentage = *percentage,
            Command::SetDefaultPriority(Ok(priority)) => self.priority = *priority,
            Command::SetDefaultMemoryLimit(Ok(device), Ok(limit)) => {
                self.set_memory(device.clone(), *limit);
            }
            _ => return false,
        }
        true
    }

    /// Sets or, with 0, removes the limit of a device, as the original's commands and variables do:
    /// it is not told.
    pub fn set_memory(&mut self, device: DeviceRef, limit: Memory) {
        self.told.remove(&device);
        if limit.bytes() == 0 {
            self.memory.remove(&device);
        } else {
            self.memory.insert(device, limit);
        }
    }

    /// The same, told.
    pub(super) fn set_told_memory(&mut self, device: DeviceRef, limit: Memory) {
        self.set_memory(device.clone(), limit);
        if limit.bytes() > 0 {
            self.told.insert(device);
        }
    }

    /// Whether a device's limit can only be applied once the server's devices are known.
    pub(super) fn names_by_uuid(&self) -> bool {
        self.memory.keys().any(|device| matches!(device, DeviceRef::Uuid(_)))
    }

    /// As the server wants them; UUIDs that name none of its devices are left out.
    pub(super) fn for_server(&self, snapshot: &ServerSnapshot) -> Defaults {
        let mut by_index: BTreeMap<u32, u64> = BTreeMap::new();
        let mut told_devices = BTreeSet::new();
        for (device, limit) in &self.memory {
            let indices: Vec<u32> = match device {
                DeviceRef::Ordinal(index) => vec![*index],
                DeviceRef::Uuid(_) => {
                    let known = (0u32..).zip(&snapshot.devices);
                    known.filter(|(i, of)| device.names(*i, &of.uuid)).map(|(i, _)| i).collect()
                }
            };
            for index in indices {
                let lowest = by_index.entry(index).or_insert(limit.bytes());
                *lowest = limit.bytes().min(*lowest);
                if self.told.contains(device) {
                    told_devices.insert(index);
                }
            }
        }
        Defaults {
            active_thread_percentage: Some(self.percentage.percent()),
            pinned_device_mem_limits_bytes: by_index.into_iter().collect(),
            told_devices: told_devices.into_iter().collect(),
            client_priority: Some(self.priority.number()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::DeviceSnapshot;

    #[test]
    fn environment_is_read_and_bad_values_are_reported() {
        let variables = Variables::new(|name: &str| match name {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" => Some("500".into()),
            "CUDA_MPS_CLIENT_PRIORITY" => Some("1".into()),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" => Some("0=1G".into()),
            "CUDA_MPS_DEVICE_MEM_LIMIT" => Some("nonsense".into()),
            _ => None,
        });
        let (limits, complaints) = Limits::from_environment(&variables);
        assert_eq!(limits.percentage, Percentage::ALL);
        assert_eq!(limits.priority, Priority::BelowNormal);
        assert_eq!(limits.memory.len(), 1);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
    }

    #[test]
    fn of_two_variables_the_lowest_limit_holds() {
        let variables = Variables::new(|name: &str| match name {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" => Some(" 50% ".into()),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" => Some("0=1G,0=3G,1=512K".into()),
            "CUDA_MPS_DEVICE_MEM_LIMIT" => Some("0=2G,1=0".into()),
            _ => None,
        });
        let (limits, complaints) = Limits::from_environment(&variables);
        assert_eq!((limits.percentage.percent(), complaints), (50.0, Vec::new()));
        let defaults = limits.for_server(&ServerSnapshot::default());
        assert_eq!(defaults.pinned_device_mem_limits_bytes, [(0, 1 << 30), (1, 512 << 10)]);
    }

    #[test]
    fn the_lower_of_two_limits_of_one_device_holds() {
        let mut limits = Limits::default();
        limits.set_memory("1".parse().unwrap(), "3G".parse().unwrap());
        limits.set_memory("GPU-bb".parse().unwrap(), "2G".parse().unwrap());
        limits.set_memory("GPU-nowhere".parse().unwrap(), "1G".parse().unwrap());
        let device = |uuid: &str| DeviceSnapshot { uuid: uuid.into(), ..Default::default() };
        let snapshot = ServerSnapshot {
            devices: vec![device("GPU-aa"), device("GPU-bb")],
            ..Default::default()
        };
        assert_eq!(limits.for_server(&snapshot).pinned_device_mem_limits_bytes, [(1, 2 << 30)]);
        assert!(limits.for_server(&snapshot).told_devices.is_empty());
        limits.set_told_memory("1".parse().unwrap(), "4G".parse().unwrap());
        assert_eq!(limits.for_server(&snapshot).pinned_device_mem_limits_bytes, [(1, 2 << 30)]);
        assert_eq!(limits.for_server(&snapshot).told_devices, [1]);
        limits.set_memory("1".parse().unwrap(), "4G".parse().unwrap());
        assert!(limits.for_server(&snapshot).told_devices.is_empty());
    }
}
