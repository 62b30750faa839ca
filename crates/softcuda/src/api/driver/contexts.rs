//! Contexts begin and end, and reach each other's memory.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cuda_abi::types::{CUcontext, CUdevice, CUresult};

use super::{Device, Driver};
use crate::api::answer::Answer;
use crate::api::context::storage;
use crate::api::objects::{Context, ContextKind, ContextSettings};
use crate::device::config::ComputeMode;
use crate::device::grid::SmMask;
use crate::device::machine::Sharing;
use crate::device::services::ContextServices;

/// Device heap of a context until a program sets another size, in bytes.
const DEFAULT_HEAP_BYTES: u64 = 8 << 20;
/// Longest that destroying a context waits for its running work.
const CONTEXT_END_LIMIT: Duration = Duration::from_secs(10);

impl Driver {
    /// Opens a context on a device.
    pub(crate) fn create_context(
        &self,
        ordinal: CUdevice,
        handle: CUcontext,
        kind: ContextKind,
        api_version: u32,
        flags: u32,
        mask: Option<SmMask>,
    ) -> Answer<Arc<Context>> {
        let device = self.device(ordinal)?;
        if self.config.compute_mode == ComputeMode::Prohibited {
            return Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
        }
        let sharing = match self.config.compute_mode {
            ComputeMode::ExclusiveProcess => Sharing::OneProcess,
            _ => Sharing::Processes,
        };
        if let Some(machine) = &self.machine
            && !machine.open_context(device.physical, sharing)
        {
            return Err(CUresult::ERROR_DEVICE_UNAVAILABLE);
        }
        let numbers = self.engine.create_context();
        let sm_count = self.config.sm_count;
        let services = ContextServices::new(
            numbers.0,
            ordinal as u32,
            self.space.clone(),
            device.account.clone(),
            sm_count,
            DEFAULT_HEAP_BYTES,
        );
        let mask = mask.unwrap_or(SmMask::first(sm_count));
        let settings = ContextSettings { flags, ..ContextSettings::default() };
        let context = Arc::new(Context::new(
            handle,
            numbers,
            ordinal as u32,
            kind,
            Arc::new(services),
            mask,
            api_version,
            settings,
        ));
        self.contexts.insert(handle.0, context.clone());
        Ok(context)
    }

    /// Ends a context and frees what belongs to it.
    pub(crate) fn destroy_context(&self, context: &Arc<Context>) -> Answer {
        if !context.end() {
            return Err(CUresult::ERROR_CONTEXT_IS_DESTROYED);
        }
        storage::run_destructors(context.handle);
        context.services.flush_console();
        self.destroyed.lock().unwrap_or_else(PoisonError::into_inner).insert(context.handle.0);
        // Only the table's entry of this incarnation: a primary context may have a new one soon.
        let _ = self.contexts.remove(context.handle.0);
        for green in self.contexts.all().iter().filter(|other| other.id == context.id) {
            self.end_green(green);
        }
        if context.kind == ContextKind::Affinity
            && let Some(device) = self.devices.get(context.device as usize)
        {
            device.sm_loads().give(context.mask);
        }
        if let (Some(machine), Some(device)) =
            (&self.machine, self.devices.get(context.device as usize))
        {
            machine.close_context(device.physical);
        }
        self.change_peers(|peers| {
            peers.retain(|&(viewer, owner, ..)| viewer != context.id && owner != context.id);
        });
        let ended = self.engine.destroy_context(context.id, CONTEXT_END_LIMIT);
        self.streams.remove_all(|stream| stream.context_id == context.id);
        self.events.remove_all(|event| event.context_id == context.id);
        self.arrays.remove_all(|array| array.context_id == context.id);
        self.mipmapped_arrays.remove_all(|array| array.context_id == context.id);
        self.modules.remove_all(|module| module.context_id == context.id);
        self.functions.remove_all(|function| function.context_id == context.id);
        for allocation in self.space.allocations_of(context.id) {
            let _ = self.space.free(allocation.base, |_| true);
        }
        Ok(ended?)
    }

    /// Changes which contexts reach each other's memory, and with that which devices do.
    fn change_peers<T>(&self, change: impl FnOnce(&mut BTreeSet<(u64, u64, u32, u32)>) -> T) -> T {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let before = peers.clone();
        let changed = change(&mut peers);
        if *peers != before {
            for owner in 0..self.devices.len() as u32 {
                let of_owner = peers.iter().filter(|&&(.., whose)| whose == owner);
                let devices = of_owner.fold(0, |set, &(_, _, viewer, _)| set | 1 << viewer);
                self.space.accessible().admit(owner, devices);
            }
        }
        changed
    }

    /// Lets a context's kernels reach another's memory; `false` if they do already.
    pub(crate) fn enable_peer(&self, viewer: &Context, owner: &Context) -> bool {
        let pair = (viewer.id, owner.id, viewer.device, owner.device);
        self.change_peers(|peers| peers.insert(pair))
    }

    /// The reverse; `false` if they do not.
    pub(crate) fn disable_peer(&self, viewer: &Context, owner: &Context) -> bool {
        let pair = (viewer.id, owner.id, viewer.device, owner.device);
        self.change_peers(|peers| peers.remove(&pair))
    }

    /// Ends a green context; its streams' work goes on.
    pub(crate) fn end_green(&self, context: &Context) {
        context.end();
        self.destroyed.lock().unwrap_or_else(PoisonError::into_inner).insert(context.handle.0);
        let _ = self.contexts.remove(context.handle.0);
    }
}

impl Device {
    /// Retains the primary context, opening it if need be.
    pub(crate) fn retain(&self, driver: &Driver, ordinal: CUdevice) -> Answer<Arc<Context>> {
        let mut primary = self.lock();
        let context = match &primary.context {
            Some(context) => context.clone(),
            None => {
                let flags = primary.flags;
                driver.create_context(
                    ordinal,
                    self.primary_handle,
                    ContextKind::Primary,
                    3020,
                    flags,
                    None,
                )?
            }
        };
        primary.context = Some(context.clone());
        primary.retains += 1;
        Ok(context)
    }

    /// Gives one retain back; the last one closes the context.
    pub(crate) fn release(&self, driver: &Driver) -> Answer {
        let mut primary = self.lock();
        if primary.retains == 0 {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        primary.retains -= 1;
        if primary.retains > 0 {
            return Ok(());
        }
        let context = primary.context.take();
        drop(primary);
        context.map_or(Ok(()), |context| driver.destroy_context(&context))
    }

    /// Closes the primary context whatever its retains; they stay counted.
    pub(crate) fn reset(&self, driver: &Driver) -> Answer {
        let context = {
            let mut primary = self.lock();
            primary.retains = 0;
            primary.context.take()
        };
        context.map_or(Ok(()), |context| driver.destroy_context(&context))
    }
}
