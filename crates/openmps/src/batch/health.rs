//! Whether the devices answer, and how much memory they have: asked in a process of its own, which
//! a broken driver may hang or crash.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use server::probe::{DeviceFacts, DriverFacts};

use super::gpus::Gpus;
use super::place::Place;
use super::{BatchError, bounded, file};
use crate::installation;

/// A driver that has to initialise its devices takes seconds.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

/// Checks that the driver has these GPUs and that they answer.
pub(crate) fn check(gpus: &Gpus) -> Result<(), String> {
    let driver = installation::daemon_driver().map_err(|error| format!("{error:#}"))?;
    has(&ask(&driver)?, gpus)
}

fn has(devices: &[DeviceFacts], gpus: &Gpus) -> Result<(), String> {
    match devices.len() {
        count if gpus.last() as usize >= count => {
            Err(format!("GPU {} is missing: the driver has {count}", gpus.last()))
        }
        _ => Ok(()),
    }
}

/// Memory of the smallest of these GPUs, in bytes. The driver's word is kept until the node starts
/// anew.
pub(crate) fn memory_bytes(place: &Place, gpus: &Gpus) -> Result<u64, BatchError> {
    let kept = fs::read(place.devices()).ok();
    let kept = kept.and_then(|text| serde_json::from_slice::<Vec<DeviceFacts>>(&text).ok());
    let devices = match kept.filter(|devices| has(devices, gpus).is_ok()) {
        Some(devices) => devices,
        None => {
            let driver = installation::daemon_driver()
                .map_err(|error| BatchError::Driver(format!("{error:#}")))?;
            let devices = ask(&driver).map_err(BatchError::Driver)?;
            let text = serde_json::to_vec(&devices).unwrap_or_default();
            // Half a file is as good as none to whoever reads it meanwhile.
            fs::write(place.devices(), text).map_err(file("write", place.devices()))?;
            devices
        }
    };
    has(&devices, gpus).map_err(BatchError::Driver)?;
    let of = |number: &u32| devices.get(*number as usize).map(|device| device.memory_bytes);
    Ok(Vec::from(gpus.clone()).iter().filter_map(of).min().unwrap_or(0))
}

fn ask(driver: &Path) -> Result<Vec<DeviceFacts>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .arg("probe-driver")
        .arg(driver)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let answer = bounded::run(&mut command, PROBE_LIMIT).map_err(|error| error.to_string())?;
    let facts: DriverFacts =
        serde_json::from_str(&answer.success()?).map_err(|error| error.to_string())?;
    Ok(facts.devices)
}
