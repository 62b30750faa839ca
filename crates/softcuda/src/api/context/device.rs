//! Devices: number, names, attributes.

use std::ffi::c_char;

use cuda_abi::types::{
    CUdevice, CUdevice_P2PAttribute, CUdevice_attribute as Attribute, CUdevprop,
    CUexecAffinityType, CUresult, CUuuid,
};

use crate::api::answer::Answer;
use crate::api::driver::{Device, Driver, driver};
use crate::api::out;
use crate::device::clock::SM_CLOCK_KHZ;
use crate::device::config::ComputeMode;
use crate::device::properties::{self, limits};

api! {
    fn cuDeviceGetCount(count: *mut i32) {
        // SAFETY: the caller's pointer.
        unsafe { out::write(count, driver()?.devices.len() as i32) }
    }

    fn cuDeviceGet(device: *mut CUdevice, ordinal: i32) {
        driver()?.device(ordinal)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(device, ordinal) }
    }

    fn cuDeviceGetName(name: *mut c_char, len: i32, dev: CUdevice) {
        driver()?.device(dev)?;
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { out::write_text(name, len, properties::NAME) }
    }

    fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) {
        let bytes = properties::uuid(driver()?.device(dev)?.physical);
        // SAFETY: the caller's pointer.
        unsafe { out::write(uuid, CUuuid { bytes: bytes.map(|byte| byte as c_char) }) }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) {
        let total = driver()?.device(dev)?.account.total_bytes();
        // SAFETY: the caller's pointer.
        unsafe { out::write(bytes, total as usize) }
    }

    fn cuDeviceGetAttribute(pi: *mut i32, attrib: Attribute, dev: CUdevice) {
        let driver = driver()?;
        let value = attribute(driver, driver.device(dev)?, attrib).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pi, value) }
    }

    fn cuDeviceGetProperties(prop: *mut CUdevprop, dev: CUdevice) {
        driver()?.device(dev)?;
        let properties = CUdevprop {
            maxThreadsPerBlock: limits::THREADS_PER_BLOCK as i32,
            maxThreadsDim: limits::BLOCK.map(|d| d as i32),
            maxGridSize: limits::GRID.map(|d| d as i32),
            sharedMemPerBlock: limits::SHARED_PER_BLOCK as i32,
            totalConstantMemory: limits::CONSTANT_BYTES as i32,
            SIMDWidth: limits::WARP_THREADS as i32,
            memPitch: i32::MAX,
            regsPerBlock: limits::REGISTERS_PER_BLOCK as i32,
            clockRate: SM_CLOCK_KHZ as i32,
            textureAlign: 512,
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(prop, properties) }
    }

    fn cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, dev: CUdevice) {
        let driver = driver()?;
        driver.device(dev)?;
        let (have_major, have_minor) = driver.config.compute_capability;
        // SAFETY: the caller's pointers.
        unsafe {
            out::write(major, have_major as i32)?;
            out::write(minor, have_minor as i32)
        }
    }

    fn cuDeviceGetPCIBusId(pciBusId: *mut c_char, len: i32, dev: CUdevice) {
        let text = pci_text(driver()?.device(dev)?.physical);
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { out::write_text(pciBusId, len, &text) }
    }

    fn cuDeviceGetByPCIBusId(dev: *mut CUdevice, pciBusId: *const c_char) {
        let driver = driver()?;
        // SAFETY: the caller's string.
        let wanted = unsafe { out::string(pciBusId)? }.to_ascii_lowercase();
        let names = |device: &Device| {
            let full = pci_text(device.physical).to_ascii_lowercase();
            // The domain and the function may be left out.
            let short = full.split_once(':').map_or("", |(_, rest)| rest);
            [full.as_str(), short, full.trim_end_matches(".0"), short.trim_end_matches(".0")].contains(&wanted.as_str())
        };
        let found = driver.devices.iter().position(names).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(dev, found as CUdevice) }
    }

    fn cuDeviceCanAccessPeer(canAccessPeer: *mut i32, dev: CUdevice, peerDev: CUdevice) {
        let driver = driver()?;
        driver.device(dev)?;
        driver.device(peerDev)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(canAccessPeer, i32::from(dev != peerDev)) }
    }

    fn cuDeviceGetP2PAttribute(value: *mut i32, attrib: CUdevice_P2PAttribute, srcDevice: CUdevice, dstDevice: CUdevice) {
        let driver = driver()?;
        driver.device(srcDevice)?;
        driver.device(dstDevice)?;
        if srcDevice == dstDevice {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        let found = match attrib.0 {
            // Performance rank: all alike.
            1 => 0,
            // Access, atomics, arrays.
            2..=4 => 1,
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(value, found) }
    }

    fn cuDeviceGetExecAffinitySupport(pi: *mut i32, type_: CUexecAffinityType, dev: CUdevice) {
        driver()?.device(dev)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pi, i32::from(type_ == CUexecAffinityType::SM_COUNT)) }
    }
}

alias! {
    cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) = cuDeviceGetUuid;
}

fn pci_text(index: u32) -> String {
    let (domain, bus, device) = properties::pci(index);
    format!("{domain:04X}:{bus:02X}:{device:02X}.0")
}

/// The value of a device attribute; `None` for a number that is no attribute.
pub(crate) fn attribute(driver: &Driver, device: &Device, attribute: Attribute) -> Option<i32> {
    let (domain, bus, number) = properties::pci(device.physical);
    let (major, minor) = driver.config.compute_capability;
    let value = match attribute {
        Attribute::MAX_THREADS_PER_BLOCK => limits::THREADS_PER_BLOCK,
        Attribute::MAX_BLOCK_DIM_X => limits::BLOCK[0],
        Attribute::MAX_BLOCK_DIM_Y => limits::BLOCK[1],
        Attribute::MAX_BLOCK_DIM_Z => limits::BLOCK[2],
        Attribute::MAX_GRID_DIM_X => limits::GRID[0],
        Attribute::MAX_GRID_DIM_Y => limits::GRID[1],
        Attribute::MAX_GRID_DIM_Z => limits::GRID[2],
        Attribute::MAX_SHARED_MEMORY_PER_BLOCK => limits::SHARED_PER_BLOCK,
        Attribute::TOTAL_CONSTANT_MEMORY => limits::CONSTANT_BYTES,
        Attribute::WARP_SIZE => limits::WARP_THREADS,
        Attribute::MAX_PITCH => i32::MAX as u32,
        Attribute::MAX_REGISTERS_PER_BLOCK => limits::REGISTERS_PER_BLOCK,
        Attribute::CLOCK_RATE => SM_CLOCK_KHZ as u32,
        Attribute::TEXTURE_ALIGNMENT | Attribute::SURFACE_ALIGNMENT => 512,
        Attribute::TEXTURE_PITCH_ALIGNMENT => 32,
        Attribute::MULTIPROCESSOR_COUNT => driver.config.sm_count,
        Attribute::COMPUTE_MODE => match driver.config.compute_mode {
            ComputeMode::Default => 0,
            ComputeMode::Prohibited => 2,
            ComputeMode::ExclusiveProcess => 3,
        },
        // What it has.
        Attribute::GPU_OVERLAP
        | Attribute::CAN_MAP_HOST_MEMORY
        | Attribute::CONCURRENT_KERNELS
        | Attribute::UNIFIED_ADDRESSING
        | Attribute::STREAM_PRIORITIES_SUPPORTED
        | Attribute::GLOBAL_L1_CACHE_SUPPORTED
        | Attribute::LOCAL_L1_CACHE_SUPPORTED
        | Attribute::MANAGED_MEMORY
        | Attribute::HOST_NATIVE_ATOMIC_SUPPORTED
        | Attribute::CONCURRENT_MANAGED_ACCESS
        | Attribute::COMPUTE_PREEMPTION_SUPPORTED
        | Attribute::CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | Attribute::CAN_USE_STREAM_MEM_OPS_V1
        | Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS_V1
        | Attribute::CAN_USE_STREAM_WAIT_VALUE_NOR_V1
        | Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS
        | Attribute::CAN_USE_STREAM_WAIT_VALUE_NOR
        | Attribute::COOPERATIVE_LAUNCH
        | Attribute::HOST_REGISTER_SUPPORTED
        | Attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | Attribute::CLUSTER_LAUNCH
        | Attribute::MEMORY_POOLS_SUPPORTED
        | Attribute::UNIFIED_FUNCTION_POINTERS => 1,
        Attribute::ASYNC_ENGINE_COUNT => 2,
        Attribute::PCI_BUS_ID => bus,
        Attribute::PCI_DEVICE_ID => number,
        Attribute::PCI_DOMAIN_ID => domain,
        Attribute::MEMORY_CLOCK_RATE => 7_000_000,
        Attribute::GLOBAL_MEMORY_BUS_WIDTH => 384,
        Attribute::L2_CACHE_SIZE => 48 << 20,
        Attribute::MAX_THREADS_PER_MULTIPROCESSOR => limits::THREADS_PER_SM,
        Attribute::COMPUTE_CAPABILITY_MAJOR => major,
        Attribute::COMPUTE_CAPABILITY_MINOR => minor,
        Attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => limits::SHARED_PER_SM,
        Attribute::MAX_REGISTERS_PER_MULTIPROCESSOR => limits::REGISTERS_PER_SM,
        Attribute::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
        Attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => limits::SHARED_PER_BLOCK_OPTIN,
        Attribute::MAX_BLOCKS_PER_MULTIPROCESSOR => limits::BLOCKS_PER_SM,
        Attribute::RESERVED_SHARED_MEMORY_PER_BLOCK => limits::RESERVED_SHARED_PER_BLOCK,
        Attribute::MEM_SYNC_DOMAIN_COUNT => 1,
        Attribute::NUMA_ID => return Some(-1),
        Attribute::HOST_NUMA_ID => return Some(-1),
        // Texture limits are those of the API's documented minimum for this compute capability;
        // textures are not executed yet.
        Attribute(21..=24 | 27..=29 | 42 | 43 | 45..=49 | 52..=74 | 77) => {
            texture_limit(attribute.0)
        }
        // Known, and not there.
        Attribute(1..=147) => 0,
        _ => return None,
    };
    Some(value as i32)
}

/// Largest texture and surface sizes by attribute number, as every device of this generation has
/// them.
fn texture_limit(attribute: u32) -> u32 {
    match attribute {
        21 | 22 => 131_072,
        23 => 65_536,
        24 | 47..=49 => 16_384,
        27 | 28 | 42 | 45 | 46 | 52 | 53 | 55 | 57 | 59..=61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => {
            32_768
        }
        29 | 43 | 54 | 62 | 65 | 68 => 2_046,
        56 | 58 | 70 | 71 => 65_536,
        69 => 1 << 28,
        _ => 2_097_120,
    }
}

/// The device of an ordinal as the current driver knows it.
pub(crate) fn checked(ordinal: CUdevice) -> Answer<(&'static Driver, &'static Device)> {
    let driver = driver()?;
    Ok((driver, driver.device(ordinal)?))
}
