//! Devices: everything is known since the server's welcome.

use super::arguments::{c_name, not_null};
use crate::client::{Client, run};
use crate::context::share::Wish;
use crate::copy::array::texel_bytes;
use crate::memory::peer;
use crate::thread::current;
use core::ffi::{c_char, c_int};
use cuda_abi::types::*;

pub(crate) unsafe fn cuDeviceGetCount(count: *mut c_int) -> CUresult {
    run(|client| {
        put!(count, client.devices.len() as c_int);
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult {
    run(|client| {
        put!(device, client.device(ordinal)?.ordinal);
        Ok(())
    })
}

/// Writes text and its NUL, cut to `len` bytes in all.
///
/// # Safety
/// `out` has `len` bytes.
unsafe fn put_text(out: *mut c_char, len: c_int, text: &str) -> crate::result::Result {
    not_null(out)?;
    let room =
        usize::try_from(len).ok().filter(|&len| len > 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let length = text.len().min(room - 1);
    // SAFETY: `length + 1` bytes at most are written, no more than there are.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, length);
        out.add(length).write(0);
    }
    Ok(())
}

pub(crate) unsafe fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) -> CUresult {
    // SAFETY: the caller's buffer.
    run(|client| unsafe { put_text(name, len, &client.device(dev)?.info.name) })
}

/// Stays what it was when the process attached, as natively: programs ask once.
fn told_memory_bytes(client: &Client, dev: CUdevice) -> Result<u64, CUresult> {
    let info = &client.device(dev)?.info;
    Ok(info.told_memory_bytes.unwrap_or(info.total_memory_bytes))
}

pub(crate) unsafe fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) -> CUresult {
    run(|client| {
        put!(bytes, told_memory_bytes(client, dev)? as usize);
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceTotalMem(bytes: *mut u32, dev: CUdevice) -> CUresult {
    run(|client| {
        put!(bytes, u32::try_from(told_memory_bytes(client, dev)?).unwrap_or(u32::MAX));
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGetAttribute(
    pi: *mut c_int,
    attrib: CUdevice_attribute,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        not_null(pi)?;
        let device = client.device(dev)?;
        let mut value = device.attribute(attrib).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if attrib == CUdevice_attribute::MULTIPROCESSOR_COUNT {
            let now = device.multiprocessors();
            value = current_share(dev).map_or(now, |share| share.min(now)).cast_signed();
        }
        put!(pi, value);
        Ok(())
    })
}

/// SMs of the context that is current to the calling thread, where contexts have shares of their
/// own (MPS guide, 4.2.6).
fn current_share(dev: CUdevice) -> Option<u32> {
    let share = current::look(|top| top.filter(|context| context.device == dev)?.share())?;
    matches!(share.wish, Wish::Percentage(_)).then_some(share.multiprocessors)
}

fn uuid(bytes: [u8; 16]) -> CUuuid {
    CUuuid { bytes: bytes.map(|byte| byte as c_char) }
}

pub(crate) unsafe fn cuDeviceGetUuid(out: *mut CUuuid, dev: CUdevice) -> CUresult {
    run(|client| {
        put!(out, uuid(client.device(dev)?.info.uuid));
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGetUuid_v2(out: *mut CUuuid, dev: CUdevice) -> CUresult {
    run(|client| {
        put!(out, uuid(client.device(dev)?.info.uuid_v2));
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGetPCIBusId(
    pciBusId: *mut c_char,
    len: c_int,
    dev: CUdevice,
) -> CUresult {
    // SAFETY: the caller's buffer.
    run(|client| unsafe { put_text(pciBusId, len, &client.device(dev)?.info.pci_bus_id) })
}

/// Domain, bus, device, function of a bus id: `[domain:]bus:device[.function]`, in hexadecimal.
fn parse_bus_id(text: &str) -> Option<[u32; 4]> {
    let (rest, function) = text.split_once('.').unwrap_or((text, "0"));
    let mut fields: Vec<_> = rest.split(':').collect();
    if fields.len() == 2 {
        fields.insert(0, "0");
    }
    let [domain, bus, device] = fields[..] else { return None };
    let number = |field| u32::from_str_radix(field, 16).ok();
    Some([number(domain)?, number(bus)?, number(device)?, number(function)?])
}

pub(crate) unsafe fn cuDeviceGetByPCIBusId(
    dev: *mut CUdevice,
    pciBusId: *const c_char,
) -> CUresult {
    run(|client| {
        not_null(dev)?;
        // SAFETY: the caller's string.
        let asked = unsafe { c_name(pciBusId) }?.to_str().ok().and_then(parse_bus_id);
        let asked = asked.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let found = client.devices.iter().find(|d| parse_bus_id(&d.info.pci_bus_id) == Some(asked));
        put!(dev, found.ok_or(CUresult::ERROR_INVALID_DEVICE)?.ordinal);
        Ok(())
    })
}

/// Each device has its own executor, and no executor reaches another's memory.
pub(crate) unsafe fn cuDeviceCanAccessPeer(
    canAccessPeer: *mut c_int,
    dev: CUdevice,
    peerDev: CUdevice,
) -> CUresult {
    run(|client| {
        put!(canAccessPeer, c_int::from(peer::info(client, dev, peerDev)?.can_access));
        Ok(())
    })
}

/// `CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED`.
const ARRAY_ACCESS: u32 = 4;

pub(crate) unsafe fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    attrib: CUdevice_P2PAttribute,
    srcDevice: CUdevice,
    dstDevice: CUdevice,
) -> CUresult {
    run(|client| {
        if srcDevice == dstDevice {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        let info = peer::info(client, srcDevice, dstDevice)?;
        let known = attrib.0.checked_sub(1).and_then(|place| info.attributes.get(place as usize));
        let known = *known.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // Arrays are reached on their own device only.
        put!(value, if attrib.0 == ARRAY_ACCESS { 0 } else { known });
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceComputeCapability(
    major: *mut c_int,
    minor: *mut c_int,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        let device = client.device(dev)?;
        put!(major, device.limit(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR, 0) as c_int);
        put!(minor, device.limit(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR, 0) as c_int);
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGetProperties(prop: *mut CUdevprop, dev: CUdevice) -> CUresult {
    use CUdevice_attribute as A;
    run(|client| {
        let device = client.device(dev)?;
        let value = |attribute| device.attribute(attribute).unwrap_or(0);
        put!(
            prop,
            CUdevprop {
                maxThreadsPerBlock: value(A::MAX_THREADS_PER_BLOCK),
                maxThreadsDim: [
                    value(A::MAX_BLOCK_DIM_X),
                    value(A::MAX_BLOCK_DIM_Y),
                    value(A::MAX_BLOCK_DIM_Z)
                ],
                maxGridSize: [
                    value(A::MAX_GRID_DIM_X),
                    value(A::MAX_GRID_DIM_Y),
                    value(A::MAX_GRID_DIM_Z)
                ],
                sharedMemPerBlock: value(A::MAX_SHARED_MEMORY_PER_BLOCK),
                totalConstantMemory: value(A::TOTAL_CONSTANT_MEMORY),
                SIMDWidth: value(A::WARP_SIZE),
                memPitch: value(A::MAX_PITCH),
                regsPerBlock: value(A::MAX_REGISTERS_PER_BLOCK),
                clockRate: value(A::CLOCK_RATE),
                textureAlign: value(A::TEXTURE_ALIGNMENT),
            }
        );
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGetExecAffinitySupport(
    pi: *mut c_int,
    type_: CUexecAffinityType,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        client.device(dev)?;
        // SMs are set apart by green contexts.
        let is_there = type_ == CUexecAffinityType::SM_COUNT && client.driver_version >= 12050;
        put!(pi, is_there.into());
        Ok(())
    })
}

pub(crate) unsafe fn cuDeviceGetTexture1DLinearMaxWidth(
    maxWidthInElements: *mut usize,
    format: CUarray_format,
    numChannels: u32,
    dev: CUdevice,
) -> CUresult {
    run(|client| {
        let device = client.device(dev)?;
        let texel = texel_bytes(format, numChannels).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let most = device.info.linear_texture_texels[texel.ilog2() as usize];
        if most == 0 {
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        put!(maxWidthInElements, most as usize);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::parse_bus_id;

    #[test]
    fn bus_ids_are_compared_by_value() {
        assert_eq!(parse_bus_id("0000:1f:00.0"), parse_bus_id("1F:0"));
        assert_eq!(parse_bus_id("00010000:03:01.0"), Some([0x10000, 3, 1, 0]));
        assert_eq!(parse_bus_id("zz"), None);
    }
}
