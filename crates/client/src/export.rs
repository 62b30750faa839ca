//! What the export tables and the start-up handshake of libcudart need to know of this library.

use crate::client::{self, started};
use crate::code::modules;
use crate::context::STORAGE;
use crate::stream::targets;
use crate::thread::current;
use core::ffi::c_void;
use cuda_abi::context_storage::ContextStorage;
use cuda_abi::export_tables::{Driver, Tables};
use cuda_abi::handshake::DeviceIdentity;
use cuda_abi::types::{
    CUcontext, CUdevice, CUdevice_attribute, CUfunction, CUmodule, CUresult, CUstream,
};

/// Stands for this library.
pub(crate) struct Attached;

pub(crate) static TABLES: Tables = Tables::new::<Attached>();

impl Driver for Attached {
    fn tables() -> &'static Tables {
        &TABLES
    }

    fn context_storage() -> &'static ContextStorage {
        &STORAGE
    }

    fn initialized() -> bool {
        started().is_some_and(|client| client.is_initialised())
    }

    fn driver_version() -> u32 {
        started().map_or(0, |client| client.driver_version.unsigned_abs())
    }

    fn device_identities() -> Result<Vec<DeviceIdentity>, CUresult> {
        let client = client::get()?;
        let attribute =
            |device: &crate::context::device::Device, which| device.attribute(which).unwrap_or(0);
        let identities = client.devices.iter().map(|device| DeviceIdentity {
            uuid: device.info.uuid,
            pci_domain: attribute(device, CUdevice_attribute::PCI_DOMAIN_ID),
            pci_bus: attribute(device, CUdevice_attribute::PCI_BUS_ID),
            pci_device: attribute(device, CUdevice_attribute::PCI_DEVICE_ID),
        });
        Ok(identities.collect())
    }

    fn primary_context(device: CUdevice) -> Result<CUcontext, CUresult> {
        Ok(client::get()?.device(device)?.primary.handle())
    }

    fn current_context() -> CUcontext {
        current::top().map_or(CUcontext::NULL, |context| context.handle())
    }

    fn context_id(context: CUcontext) -> Result<u64, CUresult> {
        Ok(client::get()?.context(context.0)?.id)
    }

    fn stream_id(handle: CUstream) -> Result<u64, CUresult> {
        targets::id_of(client::get()?, handle)
    }

    unsafe fn load_module(image: *const c_void) -> Result<CUmodule, CUresult> {
        // SAFETY: the caller's promise: an image.
        unsafe { modules::load_current(client::get()?, image) }
    }

    fn module_functions(module: CUmodule) -> Result<Vec<CUfunction>, CUresult> {
        let client = client::get()?;
        let module = modules::get(client, module.0)?;
        let names = module.kernel_names()?;
        names.iter().map(|name| Ok(CUfunction(module.function(client, name)?.token))).collect()
    }
}
