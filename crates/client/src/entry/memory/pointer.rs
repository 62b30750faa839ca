//! What an address is.

use crate::client::{Client, run};
use crate::entry::arguments::not_null;
use crate::memory::memory_map::{Area, Kind};
use crate::result::Result;
use core::ffi::c_void;
use cuda_abi::types::*;

/// A value of an attribute, in the width in which it is written.
enum Value {
    Word(u64),
    Int(u32),
    /// Written as an `int`: the runtime passes one that it has not cleared.
    Bool(bool),
    Tokens([u64; 2]),
}

impl Value {
    /// # Safety
    /// `data` has room for the attribute's type.
    unsafe fn write(&self, data: *mut c_void) {
        // SAFETY: the caller's promise; the caller's variable may have any alignment.
        unsafe {
            match *self {
                Self::Word(value) => data.cast::<u64>().write_unaligned(value),
                Self::Int(value) => data.cast::<u32>().write_unaligned(value),
                Self::Bool(value) => data.cast::<u32>().write_unaligned(value.into()),
                Self::Tokens(value) => data.cast::<[u64; 2]>().write_unaligned(value),
            }
        }
    }
}

fn memory_type(area: &Area) -> CUmemorytype {
    match area.kind {
        Kind::Pinned(_) | Kind::Registered { .. } | Kind::Alias { .. } => CUmemorytype::HOST,
        _ => CUmemorytype::DEVICE,
    }
}

/// Writes an attribute of an address in a known range.
///
/// # Safety
/// `data` has room for the attribute's type.
unsafe fn put_known(
    client: &Client,
    address: u64,
    attribute: CUpointer_attribute,
    data: *mut c_void,
) -> Result {
    let moves = attribute == CUpointer_attribute::DEVICE_POINTER;
    let found = client.memory.look(address, |area| match area {
        Some(Area { kind: Kind::Registered { .. }, .. }) if moves => None,
        Some(Area { kind: Kind::Graph, .. }) => None,
        Some(area) => {
            let value = of_allocation(area, address, attribute);
            // SAFETY: the caller's promise.
            Some(value.map(|value| unsafe { value.write(data) }))
        }
        None => Some(Err(CUresult::ERROR_INVALID_VALUE)),
    });
    if let Some(written) = found {
        return written;
    }
    if let Some(area) = client.memory.find(address).filter(|area| matches!(area.kind, Kind::Graph))
    {
        let value = of_graph_memory(client, &area, address, attribute)?;
        // SAFETY: the caller's promise.
        unsafe { value.write(data) };
        return Ok(());
    }
    // Asked of registered memory, the pages are moved to where the device reaches them.
    let moved = crate::memory::device_address(client, address)?;
    // SAFETY: the caller's promise.
    unsafe { Value::Word(moved).write(data) };
    Ok(())
}

fn of_area(
    client: &Client,
    area: &Area,
    address: u64,
    attribute: CUpointer_attribute,
) -> Result<Value> {
    match area.kind {
        Kind::Graph => of_graph_memory(client, area, address, attribute),
        _ => of_allocation(area, address, attribute),
    }
}

/// Memory of graphs is there while it is live.
fn of_graph_memory(
    client: &Client,
    area: &Area,
    address: u64,
    attribute: CUpointer_attribute,
) -> Result<Value> {
    let allocated = client.graphs.memory.allocated(area, address);
    let (start, size_bytes) = allocated.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    match attribute {
        CUpointer_attribute::RANGE_START_ADDR => Ok(Value::Word(start)),
        CUpointer_attribute::RANGE_SIZE => Ok(Value::Word(size_bytes)),
        _ => of_allocation(area, address, attribute),
    }
}

fn of_allocation(area: &Area, address: u64, attribute: CUpointer_attribute) -> Result<Value> {
    use CUpointer_attribute as A;
    Ok(match attribute {
        A::CONTEXT => Value::Word(area.context as u64),
        A::MEMORY_TYPE => Value::Int(memory_type(area).0),
        A::DEVICE_POINTER => Value::Word(address),
        A::HOST_POINTER if area.is_host() => Value::Word(match area.kind {
            Kind::Alias { first_page } => first_page + (address - area.base),
            _ => address,
        }),
        A::HOST_POINTER => return Err(CUresult::ERROR_INVALID_VALUE),
        A::SYNC_MEMOPS => Value::Bool(false),
        A::BUFFER_ID => Value::Word(area.buffer_id),
        A::IS_MANAGED => Value::Bool(area.is_managed()),
        A::DEVICE_ORDINAL => Value::Int(area.device.cast_unsigned()),
        A::IS_LEGACY_CUDA_IPC_CAPABLE => Value::Bool(matches!(area.kind, Kind::Device)),
        A::IS_GPU_DIRECT_RDMA_CAPABLE | A::IS_HW_DECOMPRESS_CAPABLE => Value::Bool(false),
        A::RANGE_START_ADDR => Value::Word(area.base),
        A::RANGE_SIZE | A::MAPPING_SIZE => Value::Word(area.size_bytes),
        A::MAPPING_BASE_ADDR => Value::Word(area.base),
        A::MAPPED => Value::Bool(true),
        A::ALLOWED_HANDLE_TYPES => {
            Value::Word(matches!(area.kind, Kind::Mapped { shareable: true }).into())
        }
        // Read and write.
        A::ACCESS_FLAGS => Value::Int(3),
        A::MEMPOOL_HANDLE => Value::Word(match area.kind {
            Kind::Pool { pool } => pool as u64,
            _ => 0,
        }),
        A::MEMORY_BLOCK_ID => Value::Word(area.buffer_id),
        A::P2P_TOKENS => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    })
}

/// What `cuPointerGetAttributes` says of addresses that CUDA does not know.
fn unknown(attribute: CUpointer_attribute) -> Result<Value> {
    use CUpointer_attribute as A;
    Ok(match attribute {
        A::MEMORY_TYPE | A::ACCESS_FLAGS => Value::Int(0),
        A::DEVICE_ORDINAL => Value::Int(CU_DEVICE_INVALID.cast_unsigned()),
        A::SYNC_MEMOPS
        | A::IS_MANAGED
        | A::IS_LEGACY_CUDA_IPC_CAPABLE
        | A::IS_GPU_DIRECT_RDMA_CAPABLE
        | A::IS_HW_DECOMPRESS_CAPABLE
        | A::MAPPED => Value::Bool(false),
        A::P2P_TOKENS => Value::Tokens([0; 2]),
        _ if attribute.0 == 0 || attribute.0 > A::IS_HW_DECOMPRESS_CAPABLE.0 => {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        _ => Value::Word(0),
    })
}

pub(crate) unsafe fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        not_null(data)?;
        // SAFETY: the caller's variable for this attribute.
        unsafe { put_known(client, ptr, attribute, data) }
    })
}

pub(crate) unsafe fn cuPointerGetAttributes(
    numAttributes: u32,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    ptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        not_null(attributes)?;
        not_null(data)?;
        if numAttributes == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: inside the caller's arrays, for an index below their length.
        let question = |i: usize| unsafe { (attributes.add(i).read(), data.add(i).read()) };
        let count = numAttributes as usize;
        if (0..count).any(|i| question(i).1.is_null()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // Registered memory is asked for one by one: its pages may be moved meanwhile.
        let answered = client.memory.look(ptr, |area| {
            if area.is_some_and(|area| matches!(area.kind, Kind::Registered { .. })) {
                return None;
            }
            Some((0..count).try_for_each(|i| {
                let (attribute, place) = question(i);
                let answer = match area {
                    Some(area) => {
                        of_area(client, area, ptr, attribute).or_else(|_| unknown(attribute))
                    }
                    None => unknown(attribute),
                };
                // SAFETY: the caller's variable for this attribute.
                unsafe { answer?.write(place) };
                Ok(())
            }))
        });
        if let Some(answered) = answered {
            return answered;
        }
        for i in 0..count {
            let (attribute, place) = question(i);
            // SAFETY: the caller's variable for this attribute.
            unsafe {
                if put_known(client, ptr, attribute, place).is_err() {
                    unknown(attribute)?.write(place);
                }
            }
        }
        Ok(())
    })
}

/// Every copy within the process is synchronous enough for this promise: see [`crate::copy`].
pub(crate) unsafe fn cuPointerSetAttribute(
    value: *const c_void,
    attribute: CUpointer_attribute,
    ptr: CUdeviceptr,
) -> CUresult {
    run(|client| {
        not_null(value)?;
        client.memory.find(ptr).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let settable = attribute == CUpointer_attribute::SYNC_MEMOPS;
        if settable { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    })
}
