//! Code is guarded, told what it may touch, and caught when it touches more.

use super::*;
use crate::session::state::State;
use cuda_abi::image::{Accepts, Code, Image, Target};
use executor_link::log::log_server;
use executor_link::messages::FromExecutor;
use link::wire::command::LINKED_TEXTS;
use ptx_guard::Guarded;
use ptx_guard::table::merge;
use std::ffi::CString;

/// Modules whose lack of a guard the log tells of.
const MOST_LOGGED: u32 = 16;

impl State {
    /// The guarded text of an image, if this session's code is guarded and this can be.
    ///
    /// # Errors
    /// CUDA_ERROR_NO_BINARY_FOR_GPU in the strict mode where it cannot.
    pub(crate) fn guarded(&mut self, image: &[u8]) -> Result<Option<Guarded>, Failure> {
        if self.guard.mode == GuardMode::Off {
            return Ok(None);
        }
        let why = match self
            .text_of(image)
            .and_then(|text| ptx_guard::instrument(&text).map_err(|error| error.to_string()))
        {
            Ok(guarded) => return Ok(Some(guarded)),
            Err(why) => why,
        };
        let is_strict = self.guard.mode == GuardMode::Strict;
        self.guard.logged += 1;
        if self.guard.logged <= MOST_LOGGED {
            let what = if is_strict { "is refused" } else { "runs unguarded" };
            log_server!("{}: code {what}: {why}", self.handle.label);
        }
        match is_strict {
            true => Err(Failure::Cuda(CUresult::ERROR_NO_BINARY_FOR_GPU)),
            false => Ok(None),
        }
    }

    fn text_of(&self, image: &[u8]) -> Result<String, String> {
        let attribute = |attribute| {
            let mut value = 0;
            let device = self.context().device();
            // SAFETY: the result is written.
            let _ = unsafe { self.driver().cuDeviceGetAttribute(&mut value, attribute, device) };
            value.max(0).cast_unsigned()
        };
        let target = Target {
            major: attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR),
            minor: attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR),
            accepts: Accepts::PtxOnly,
        };
        let parsed = Image::parse(image).map_err(|error| error.to_string())?;
        let text = match parsed.choose(target).map_err(|error| error.to_string())? {
            Code::Ptx(text) => String::from_utf8_lossy(&text).into_owned(),
            _ => return Err("it has no PTX".to_owned()),
        };
        if text.contains(LINKED_TEXTS) {
            return Err("it is linked from several texts".to_owned());
        }
        Ok(text)
    }

    /// Takes note of a guarded module that has been loaded.
    pub(crate) fn guard_module(
        &mut self,
        module: u32,
        library: CUlibrary,
        guarded: Guarded,
    ) -> Result<(), Failure> {
        let (mut at, mut size_bytes) = (0, 0);
        let name = CString::new(guarded.table).map_err(|_| CUresult::ERROR_UNKNOWN)?;
        // SAFETY: a live library; both results are written.
        self.check(unsafe {
            self.driver().cuLibraryGetGlobal(&mut at, &mut size_bytes, library, name.as_ptr())
        })?;
        self.guard.modules.insert(module, GuardedModule { table: at, sites: guarded.sites });
        self.guard.changes = None;
        Ok(())
    }

    /// Sees to it that guarded code knows what it may touch; before work is submitted.
    pub(crate) fn refresh_guard(&mut self) -> Result<(), Failure> {
        if self.guard.mode == GuardMode::Off || self.guard.modules.is_empty() {
            return Ok(());
        }
        let changes = Some(self.memory.addressable.changes());
        if self.guard.changes == changes {
            return Ok(());
        }
        let ranges = merge(self.memory.addressable.iter());
        self.guard.ranges = place(&self.guard.ranges, &ranges);
        let record = self.memory.guard_record_address().ok_or(CUresult::ERROR_UNKNOWN)?;
        let stream = self.side_stream()?;
        for (&module, GuardedModule { table: at, .. }) in &self.guard.modules {
            let words = table(module, record, &self.guard.ranges);
            // SAFETY: the module's own variable, which is as long; the driver has read pageable
            // memory when it returns, or at the wait below.
            self.check(unsafe {
                let size_bytes = words.len() * size_of::<u64>();
                self.driver().cuMemcpyHtoDAsync_v2(*at, words.as_ptr().cast(), size_bytes, stream)
            })?;
            // SAFETY: a live stream of this session, on which there are such copies only, and those
            // that the client waits for.
            self.check(unsafe { self.driver().cuStreamSynchronize(stream) })?;
        }
        self.guard.changes = changes;
        Ok(())
    }

    /// Ends the session when the device has recorded an access beyond what it may touch.
    pub(crate) fn look_at_guard(&mut self) {
        if self.guard.mode == GuardMode::Off || self.guard.told {
            return;
        }
        let Some(record) = self.handle.words.guard_record() else { return };
        let Some(record) = ptx_guard::table::Record::read(&record) else { return };
        self.guard.told = true;
        let module = self.guard.modules.get(&record.module);
        let site = module.and_then(|module| module.sites.get(record.site as usize));
        let place = site.map_or_else(
            || "unloaded code".to_owned(),
            |site| format!("{}, PTX line {}: {}", site.function, site.line, site.instruction),
        );
        let ([bx, by, bz], [tx, ty, tz]) = (record.block, record.thread);
        let message = format!(
            "guard: {} bytes at {:#x}, {}, in {place}; block ({bx},{by},{bz}) thread ({tx},{ty},{tz})",
            record.size_bytes,
            record.address,
            nearest(self.memory.addressable.iter(), record.address)
        );
        log_server!("{}: {message}", self.handle.label);
        let code = CUresult::ERROR_ILLEGAL_ADDRESS.0;
        self.handle.mark_ended(&self.shared.counters);
        self.handle.end(code);
        self.counters().set_error(code);
        let session = self.handle.id;
        let address = record.address;
        self.shared.tell(&FromExecutor::Guarded { session, address, message });
    }
}
