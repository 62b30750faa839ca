//! `CUdevResource` of SMs. The set itself is kept in the structure's private bytes, as the driver
//! API means them to be used; it is checked when a program hands the structure back.

use cuda_abi::types::{CUdevResource, CUdevResourceType, CUdevSmResource, CUresult};

use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::api::objects::SmResource;
use crate::device::grid::SmMask;
use crate::device::sm_sets;

/// Marks structures that this driver filled in.
const MAGIC: [u8; 8] = *b"softcuSM";

impl SmResource {
    /// The structure; of type INVALID if there are no SMs.
    pub(crate) fn to_c(self) -> CUdevResource {
        let mut resource = CUdevResource::default();
        let count = self.mask.count();
        if count == 0 {
            return resource;
        }
        resource.type_ = CUdevResourceType::SM;
        resource._internal_padding[..8].copy_from_slice(&MAGIC);
        resource._internal_padding[8..12].copy_from_slice(&self.device.to_le_bytes());
        resource._internal_padding[12..44].copy_from_slice(&self.mask.to_bytes());
        resource.anonymous.sm = CUdevSmResource {
            smCount: count,
            minSmPartitionSize: sm_sets::COSCHEDULED_SMS,
            smCoscheduledAlignment: sm_sets::COSCHEDULED_SMS,
        };
        resource
    }

    /// Reads a structure: 914 for another type, 1 for one that this driver did not make.
    pub(crate) fn from_c(driver: &Driver, resource: &CUdevResource) -> Answer<Self> {
        if resource.type_ != CUdevResourceType::SM {
            return Err(CUresult::ERROR_INVALID_RESOURCE_TYPE);
        }
        let private = &resource._internal_padding;
        let (mut device, mut mask) = ([0; 4], [0; 32]);
        device.copy_from_slice(&private[8..12]);
        mask.copy_from_slice(&private[12..44]);
        let (device, mask) = (u32::from_le_bytes(device), SmMask::from_bytes(mask));
        let is_ours = private[..8] == MAGIC
            && driver.device(device as i32).is_ok()
            && mask.iter().all(|sm| sm < driver.config.sm_count);
        match is_ours && mask != SmMask::EMPTY {
            true => Ok(SmResource { device, mask }),
            false => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }
}

/// The SMs of several resources of one device; 915 if they overlap or are of several devices.
pub(crate) fn union(driver: &Driver, resources: &[CUdevResource]) -> Answer<SmResource> {
    const CONFLICT: CUresult = CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION;
    let parts = resources.iter().map(|resource| SmResource::from_c(driver, resource));
    let parts = parts.collect::<Answer<Vec<_>>>()?;
    let device = parts.first().ok_or(CUresult::ERROR_INVALID_VALUE)?.device;
    let mask: SmMask = parts.iter().flat_map(|part| part.mask.iter()).collect();
    let total: u32 = parts.iter().map(|part| part.mask.count()).sum();
    if total != mask.count() || parts.iter().any(|part| part.device != device) {
        return Err(CONFLICT);
    }
    Ok(SmResource { device, mask })
}
