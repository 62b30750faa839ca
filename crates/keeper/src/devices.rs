//! The devices of a server, as the native driver describes them without a context.

use super::executors::Executor;
use crate::executors::place::Seat;
use crate::executors::standby::Standbys;
use crate::sessions::keeping::DeviceKeeping;
use cuda_abi::types::*;
use executor_link::counters::Counts;
use executor_link::driver::{Driver, DriverError};
use executor_link::log::log_server;
use link::wire::attach::{DeviceCode, DeviceInfo, PeerInfo};
use policy::devices::{Candidate, Choice, choose};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::time::Instant;

/// One device and who serves it.
pub(crate) struct Device {
    pub(crate) info: DeviceInfo,
    pub(crate) handle: CUdevice,
    /// The driver's number of it; the server counts only those that it serves.
    pub(crate) ordinal: u32,
    /// Allocations are multiples of this.
    pub(crate) granularity_bytes: u64,
    /// By who shares them, and in which of two contexts.
    pub(crate) executors: BTreeMap<Seat, Executor>,
    /// In reserve.
    pub(crate) standby: Standbys,
    /// When it got its second context last.
    pub(crate) second_since: Option<Instant>,
    /// Since when no kernel has run for long in either of two contexts.
    pub(crate) calm_since: Option<Instant>,
    /// Whether its executors keep what clients have given up.
    pub(crate) keeping: DeviceKeeping,
    /// What sessions did that have ended.
    pub(crate) departed: Counts,
    /// Executors that ended by themselves.
    pub(crate) deaths: u64,
    /// Fatal faults of its context.
    pub(crate) faults: u64,
    /// Executors started after the first.
    pub(crate) restarts: u64,
    /// Contexts refused because the device had as many as are allowed.
    pub(crate) refused_contexts: u64,
    /// SMs that its executors have reserved, by name.
    pub(crate) reservations: Vec<(String, u32)>,
    /// SMs that are kept for the latency class.
    pub(crate) headroom: Headroom,
}

/// A device's headroom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Headroom {
    /// Nobody needs it, or none is to be kept.
    #[default]
    None,
    /// So many SMs are kept.
    Held(u32),
    /// The same, though nobody of the class has been there since.
    Unused(u32, Instant),
}

impl Headroom {
    /// SMs that are kept.
    pub(crate) fn multiprocessors(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Held(count) | Self::Unused(count, _) => Some(count),
        }
    }
}

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComputeMode {
    Default,
    Prohibited,
    ExclusiveProcess,
}

impl Device {
    pub(crate) fn candidate(&self) -> Candidate {
        Candidate {
            compute_capability: (
                self.attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR),
                self.attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR),
            ),
            unified_addressing: self.attribute(CUdevice_attribute::UNIFIED_ADDRESSING) != 0,
        }
    }

    /// 0 where the driver does not say.
    pub(crate) fn attribute(&self, wanted: CUdevice_attribute) -> i32 {
        let found = self.info.attributes.iter().find(|(number, _)| *number == wanted.0 as i32);
        found.map_or(0, |&(_, value)| value)
    }

    /// Who may have contexts on it, as the driver says now.
    pub(crate) fn compute_mode(&self, driver: Driver) -> ComputeMode {
        let mut mode = 0;
        let wanted = CUdevice_attribute::COMPUTE_MODE;
        // SAFETY: the result is written.
        let asked = unsafe { driver.cuDeviceGetAttribute(&mut mode, wanted, self.handle) };
        match mode {
            2 if asked.is_success() => ComputeMode::Prohibited,
            3 if asked.is_success() => ComputeMode::ExclusiveProcess,
            _ => ComputeMode::Default,
        }
    }

    /// Its streaming multiprocessors; 0 where the driver does not say.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT).max(0) as u32
    }
}

/// The driver's version and all its devices.
pub(crate) fn query(driver: Driver) -> Result<(i32, Vec<Device>), DriverError> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: the result is written.
    check("cuDriverGetVersion", unsafe { driver.cuDriverGetVersion(&mut version) })?;
    // SAFETY: the result is written.
    check("cuDeviceGetCount", unsafe { driver.cuDeviceGetCount(&mut count) })?;
    let devices = (0..count as u32)
        .map(|ordinal| describe(driver, ordinal))
        .collect::<Result<Vec<_>, _>>()?;
    if devices.is_empty() {
        return Err(DriverError::Refused {
            call: "cuDeviceGetCount",
            result: CUresult::ERROR_NO_DEVICE,
        });
    }
    Ok((version, devices))
}

/// Leaves the devices that a server can have; the others are named in the log.
///
/// # Errors
/// Why a server cannot start with these.
pub(crate) fn keep_served(devices: &mut Vec<Device>) -> Result<(), String> {
    let candidates: Vec<Candidate> = devices.iter().map(Device::candidate).collect();
    let chosen = choose(&candidates).inspect_err(|_| {
        log_server!(
            "MPS is only supported on 64-bit Linux platforms, with an SM 3.5 or higher GPU."
        );
    });
    let mut choices = chosen?.into_iter();
    devices.retain(|device| {
        let served = choices.next() == Some(Choice::Served);
        if !served {
            log_server!(
                "Device {} is older than Volta: left out beside those that are not",
                device.info.name
            );
        }
        served
    });
    Ok(())
}

/// What each of the served devices can do with the others.
pub(crate) fn describe_peers(driver: Driver, devices: &mut [Device]) {
    let handles: Vec<CUdevice> = devices.iter().map(|device| device.handle).collect();
    for device in devices {
        device.info.peers =
            handles.iter().map(|&peer| peer_info(driver, device.handle, peer)).collect();
    }
}

fn peer_info(driver: Driver, device: CUdevice, peer: CUdevice) -> PeerInfo {
    if device == peer {
        return PeerInfo::default();
    }
    let mut can_access = 0;
    // SAFETY: the result is written.
    let asked = unsafe { driver.cuDeviceCanAccessPeer(&mut can_access, device, peer) };
    let attributes = [1, 2, 3, 4, 5].map(|number| {
        let (mut value, attribute) = (0, CUdevice_P2PAttribute(number));
        // SAFETY: the result is written.
        let asked = unsafe { driver.cuDeviceGetP2PAttribute(&mut value, attribute, device, peer) };
        if asked.is_success() { value } else { 0 }
    });
    PeerInfo { can_access: asked.is_success() && can_access != 0, attributes }
}

/// How a device's memory is made: on the device, with a descriptor to hand on.
pub(crate) fn allocation_properties(device: CUdevice) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        requestedHandleTypes: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
        location: CUmemLocation { type_: CUmemLocationType::DEVICE, id: device },
        ..Default::default()
    }
}

fn describe(driver: Driver, ordinal: u32) -> Result<Device, DriverError> {
    let handle = driver.device(ordinal)?;
    let (mut uuid, mut uuid_v2) = (CUuuid::default(), CUuuid::default());
    let (mut total, mut granularity, mut recommended) = (0, 0, 0);
    let properties = allocation_properties(handle);
    // SAFETY: in all four, the results are written.
    unsafe {
        check("cuDeviceGetUuid", driver.cuDeviceGetUuid(&mut uuid, handle))?;
        if !driver.cuDeviceGetUuid_v2(&mut uuid_v2, handle).is_success() {
            uuid_v2 = uuid;
        }
        check("cuDeviceTotalMem", driver.cuDeviceTotalMem_v2(&mut total, handle))?;
        let minimum = CUmemAllocationGranularity_flags::MINIMUM;
        let granular = driver.cuMemGetAllocationGranularity(&mut granularity, &properties, minimum);
        check("cuMemGetAllocationGranularity", granular)?;
        let wanted = CUmemAllocationGranularity_flags::RECOMMENDED;
        let granular = driver.cuMemGetAllocationGranularity(&mut recommended, &properties, wanted);
        if !granular.is_success() {
            recommended = granularity;
        }
    }
    // SAFETY: the function writes at most `length` bytes.
    let name = text(|buffer, length| unsafe { driver.cuDeviceGetName(buffer, length, handle) });
    // SAFETY: as above.
    let pci_bus_id =
        text(|buffer, length| unsafe { driver.cuDeviceGetPCIBusId(buffer, length, handle) });
    let info = DeviceInfo {
        name: name.map_err(|result| DriverError::Refused { call: "cuDeviceGetName", result })?,
        uuid: uuid.bytes.map(|byte| byte as u8),
        uuid_v2: uuid_v2.bytes.map(|byte| byte as u8),
        pci_bus_id: pci_bus_id.unwrap_or_default(),
        total_memory_bytes: total as u64,
        told_memory_bytes: None,
        attributes: attributes(driver, handle),
        stream_priorities: (0, 0),
        code: if driver.is_software() { DeviceCode::PtxOnly } else { DeviceCode::MachineCode },
        granularity_bytes: (granularity as u64, recommended as u64),
        linear_texture_texels: linear_texture_texels(driver, handle),
        peers: Vec::new(),
        closed: false,
    };
    Ok(Device {
        info,
        handle,
        ordinal,
        granularity_bytes: granularity as u64,
        executors: BTreeMap::new(),
        standby: Standbys::default(),
        second_since: None,
        calm_since: None,
        keeping: DeviceKeeping::default(),
        departed: Counts::default(),
        deaths: 0,
        faults: 0,
        restarts: 0,
        refused_contexts: 0,
        reservations: Vec::new(),
        headroom: Headroom::None,
    })
}

fn attributes(driver: Driver, device: CUdevice) -> Vec<(i32, i32)> {
    let read = |number: u32| {
        let mut value = 0;
        // SAFETY: the result is written.
        let result =
            unsafe { driver.cuDeviceGetAttribute(&mut value, CUdevice_attribute(number), device) };
        result.is_success().then_some((number as i32, value))
    };
    (1..CUdevice_attribute::MAX.0).filter_map(read).collect()
}

/// By texels of 1, 2, 4, 8 and 16 bytes: for the driver no more than the texel's size matters.
fn linear_texture_texels(driver: Driver, device: CUdevice) -> [u64; 5] {
    const TEXELS: [(CUarray_format, u32); 5] = [
        (CUarray_format::UNSIGNED_INT8, 1),
        (CUarray_format::UNSIGNED_INT8, 2),
        (CUarray_format::UNSIGNED_INT8, 4),
        (CUarray_format::UNSIGNED_INT16, 4),
        (CUarray_format::UNSIGNED_INT32, 4),
    ];
    TEXELS.map(|(format, channels)| {
        let mut width = 0;
        // SAFETY: the result is written.
        let result = unsafe {
            driver.cuDeviceGetTexture1DLinearMaxWidth(&mut width, format, channels, device)
        };
        if result.is_success() { width as u64 } else { 0 }
    })
}

fn text(fill: impl FnOnce(*mut c_char, i32) -> CUresult) -> Result<String, CUresult> {
    let mut buffer = [0u8; 256];
    fill(buffer.as_mut_ptr().cast(), buffer.len() as i32 - 1).ok()?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn check(call: &'static str, result: CUresult) -> Result<(), DriverError> {
    result.ok().map_err(|result| DriverError::Refused { call, result })
}

/// `GPU-d123c540-3d02-b0d8-c638-e90011910307`.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn uuids_are_printed_as_the_original_does() {
        let uuid = [
            0xd1, 0x23, 0xc5, 0x40, 0x3d, 0x02, 0xb0, 0xd8, 0xc6, 0x38, 0xe9, 0, 0x11, 0x91, 0x03,
            0x07,
        ];
        assert_eq!(super::uuid_text(&uuid), "GPU-d123c540-3d02-b0d8-c638-e90011910307");
    }
}
