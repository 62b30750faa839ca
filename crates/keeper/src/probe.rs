//! A look at a native driver, for those who ask why nothing runs. To be done in a process of its
//! own: a driver may crash, and it stays loaded.

use crate::devices;
use cuda_abi::types::CUdevice_attribute;
use executor_link::driver::Driver;
use policy::devices::Candidate;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a driver says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriverFacts {
    /// `cuDriverGetVersion`: 13000 for CUDA 13.0.
    pub version: i32,
    /// Its devices.
    pub devices: Vec<DeviceFacts>,
}

/// What a driver says of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Its name.
    pub name: String,
    /// As the original prints it.
    pub uuid: String,
    /// `dddd:bb:dd.f`.
    pub pci_bus_id: String,
    /// Major and minor number of the compute capability.
    pub compute_capability: (i32, i32),
    /// `CUcomputemode`: 0 default, 2 prohibited, 3 exclusive process.
    pub compute_mode: i32,
    /// Whether host and device share one range of addresses.
    pub unified_addressing: bool,
    /// All of its memory.
    pub memory_bytes: u64,
}

/// Loads the driver at `path` and asks it.
///
/// # Errors
/// Why it cannot be loaded, or what it said.
pub fn probe(path: &Path) -> Result<DriverFacts, String> {
    let driver = Driver::open(path).map_err(|error| error.to_string())?;
    let (version, devices) = devices::query(driver).map_err(|error| error.to_string())?;
    let devices = devices.iter().map(|device| {
        let Candidate { compute_capability, unified_addressing } = device.candidate();
        DeviceFacts {
            name: device.info.name.clone(),
            uuid: devices::uuid_text(&device.info.uuid),
            pci_bus_id: device.info.pci_bus_id.clone(),
            compute_capability,
            compute_mode: device.attribute(CUdevice_attribute::COMPUTE_MODE),
            unified_addressing,
            memory_bytes: device.info.total_memory_bytes,
        }
    });
    Ok(DriverFacts { version, devices: devices.collect() })
}
