//! Functions and kernels: what their handles stand for, and what programs set on them.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use cuda_abi::types::{CUfunction, CUkernel, CUmodule};

use crate::device::properties::limits;
use crate::exec;

/// A kernel in a module: `CUfunction`.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) handle: CUfunction,
    pub(crate) module: CUmodule,
    pub(crate) context_id: u64,
    pub(crate) kernel: Arc<exec::Kernel>,
    pub(crate) name: CString,
    pub(crate) settings: Arc<FunctionSettings>,
}

/// What programs can set on a function or kernel.
#[derive(Debug)]
pub(crate) struct FunctionSettings {
    max_dynamic_shared_bytes: AtomicI32,
    carveout: AtomicI32,
    nonportable_cluster: AtomicI32,
    cluster_policy: AtomicI32,
    cluster: [AtomicI32; 3],
}

/// A kernel of a library, whatever the context: `CUkernel`.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) handle: CUkernel,
    pub(crate) library: usize,
    pub(crate) name: CString,
    pub(crate) settings: Arc<FunctionSettings>,
}

impl Default for FunctionSettings {
    fn default() -> Self {
        FunctionSettings {
            max_dynamic_shared_bytes: AtomicI32::new(-1),
            carveout: AtomicI32::new(-1),
            nonportable_cluster: AtomicI32::new(0),
            cluster_policy: AtomicI32::new(0),
            cluster: [const { AtomicI32::new(0) }; 3],
        }
    }
}

/// A settable attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    MaxDynamicShared,
    Carveout,
    NonportableCluster,
    ClusterPolicy,
    Cluster(usize),
}

impl FunctionSettings {
    fn cell(&self, setting: Setting) -> &AtomicI32 {
        match setting {
            Setting::MaxDynamicShared => &self.max_dynamic_shared_bytes,
            Setting::Carveout => &self.carveout,
            Setting::NonportableCluster => &self.nonportable_cluster,
            Setting::ClusterPolicy => &self.cluster_policy,
            Setting::Cluster(axis) => &self.cluster[axis.min(2)],
        }
    }

    pub(crate) fn get(&self, setting: Setting) -> i32 {
        // Relaxed: independent values.
        self.cell(setting).load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, setting: Setting, value: i32) {
        // Relaxed: as in `get`.
        self.cell(setting).store(value, Ordering::Relaxed);
    }

    /// Dynamic shared memory that a launch may ask for, bytes.
    pub(crate) fn max_dynamic_shared_bytes(&self, kernel: &exec::Kernel) -> u32 {
        match u32::try_from(self.get(Setting::MaxDynamicShared)) {
            Ok(set) => set,
            Err(_) => limits::SHARED_PER_BLOCK.saturating_sub(kernel.static_shared_bytes),
        }
    }
}

impl Kernel {
    /// Its name as text.
    pub(crate) fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }
}

/// Threads per block that the kernel's registers allow.
pub(crate) fn max_threads(kernel: &exec::Kernel) -> u32 {
    let per_thread = kernel.registers.next_multiple_of(limits::REGISTER_UNIT).max(1);
    let by_registers =
        limits::REGISTERS_PER_BLOCK / per_thread / limits::WARP_THREADS * limits::WARP_THREADS;
    kernel.max_threads_per_block.min(limits::THREADS_PER_BLOCK).min(by_registers)
}
