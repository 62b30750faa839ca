//! Code is read when it was loaded, and made like new.

use super::*;
use crate::code::spares::Origin;
use crate::session::failure::Failure;
use crate::session::state::State;
use link::wire::command::CACHE_CONFIG;
use policy::faults::code_state::{Variable, all_variables};

/// Of one image. Code with more is loaded anew each time.
const MOST_BYTES: u64 = 1 << 20;
/// Likewise: each is a command of its own.
const MOST_VARIABLES: usize = 64;
/// Code of a session that waits for the end of kernels; more is unloaded, which waits for them too.
const MOST_LEAVING: usize = 8;

impl State {
    /// Code that was just loaded and has variables: its origin with what was set, if all of that
    /// can be told and set again.
    pub(crate) fn with_initial(
        &mut self,
        mut origin: Origin,
        library: CUlibrary,
    ) -> Option<Origin> {
        let spans = self.spans(library, &all_variables(&origin.image)?)?;
        origin.initial = Some(self.read_initial(&spans)?);
        Some(origin)
    }

    /// Where the variables of loaded code are.
    fn spans(&self, library: CUlibrary, all: &[Variable]) -> Option<Vec<(CUdeviceptr, usize)>> {
        if all.len() > MOST_VARIABLES {
            return None;
        }
        let spans: Option<Vec<_>> = all.iter().map(|each| self.span(library, each)).collect();
        let sum = spans.iter().flatten().fold(0_u64, |sum, span| sum.saturating_add(span.1 as u64));
        spans.filter(|_| sum <= MOST_BYTES)
    }

    fn span(&self, library: CUlibrary, variable: &Variable) -> Option<(CUdeviceptr, usize)> {
        let (driver, name) = (self.driver(), variable.name.as_ptr());
        let (mut at, mut size) = (0, 0);
        // SAFETY: a live library; both results are written.
        let managed = unsafe { driver.cuLibraryGetManaged(&mut at, &mut size, library, name) };
        if managed.is_success() {
            return None;
        }
        // SAFETY: as above.
        let found = unsafe { driver.cuLibraryGetGlobal(&mut at, &mut size, library, name) };
        let is_told = variable.size_bytes.is_none_or(|size_bytes| size_bytes == size as u64);
        (found.is_success() && size > 0 && is_told).then_some((at, size))
    }

    fn read_initial(&mut self, spans: &[(CUdeviceptr, usize)]) -> Option<Initial> {
        let stream = self.side_stream().ok()?;
        let mut read: Vec<_> = spans.iter().map(|&(at, size)| (at, vec![0_u8; size])).collect();
        let copied = read.iter_mut().try_for_each(|(at, bytes)| {
            let to = bytes.as_mut_ptr().cast();
            // SAFETY: variables of the session, and as many bytes that stay until the copies have
            // ended.
            self.check(unsafe { self.driver().cuMemcpyDtoHAsync_v2(to, *at, bytes.len(), stream) })
        });
        if !self.await_copies(stream) {
            // The driver may write to them yet.
            std::mem::forget(read);
            return None;
        }
        copied.ok()?;
        Some(Initial(read.into_iter().map(|(at, bytes)| (at, Contents::new(bytes))).collect()))
    }

    /// Takes code that nothing names any more: it is kept for whoever loads the same next, now or
    /// when its kernels have ended. What is returned is to be unloaded.
    pub(crate) fn give_up_code(
        &mut self,
        library: CUlibrary,
        origin: Option<Origin>,
    ) -> Vec<CUlibrary> {
        let Some(origin) = origin else { return vec![library] };
        if origin.is_as_loaded() || self.has_ended() {
            return self.keep_code_renewed(library, origin);
        }
        let leaving = &mut self.modules.leaving;
        if leaving.len() >= MOST_LEAVING {
            return vec![library];
        }
        leaving.push((library, origin));
        Vec::new()
    }

    /// All work has ended: makes code like new that was given up meanwhile. What is returned is to
    /// be unloaded.
    pub(crate) fn renew_leaving(&mut self) -> Vec<CUlibrary> {
        let leaving = std::mem::take(&mut self.modules.leaving);
        let unkept = leaving.into_iter();
        unkept.flat_map(|(library, origin)| self.keep_code_renewed(library, origin)).collect()
    }

    fn keep_code_renewed(&mut self, library: CUlibrary, mut origin: Origin) -> Vec<CUlibrary> {
        match self.renew(&mut origin) {
            Ok(()) => self.shared.spares.keep(origin, library),
            Err(_) => vec![library],
        }
    }

    /// Makes code like new.
    fn renew(&mut self, origin: &mut Origin) -> Result<(), Failure> {
        for setting in origin.changed.drain(..).rev() {
            self.set_back(&setting)?;
        }
        let Some(initial) = origin.initial.take() else { return Ok(()) };
        let stream = self.side_stream()?;
        let driver = self.driver();
        let written = initial.0.iter().try_for_each(|(at, contents)| {
            // SAFETY: variables of code that nobody uses, and as many bytes, which are read before
            // the copies have ended.
            self.check(unsafe {
                match contents {
                    Contents::Zeros(size) => driver.cuMemsetD8Async(*at, 0, *size, stream),
                    Contents::Bytes(bytes) => {
                        let from = bytes.as_ptr().cast();
                        driver.cuMemcpyHtoDAsync_v2(*at, from, bytes.len(), stream)
                    }
                }
            })
        });
        if !self.await_copies(stream) {
            // The driver may read them yet.
            std::mem::forget(initial);
            return Err(Failure::Cuda(CUresult::ERROR_NOT_READY));
        }
        written?;
        origin.initial = Some(initial);
        Ok(())
    }

    /// Before an attribute of a function is changed: remembers it for the function's next owner,
    /// who must find it as it was.
    pub(crate) fn note_setting(&mut self, number: u32, attribute: i32) {
        let Ok(function) = self.modules.function(number) else { return };
        let (function, kernel, module) = (function.handle, function.kernel, function.module);
        let known = match self.modules.origin_of(module) {
            None => return,
            Some(origin) => origin
                .changed
                .iter()
                .any(|setting| setting.function == function && setting.attribute == attribute),
        };
        if known {
            return;
        }
        let setting = self.setting(function, kernel, attribute);
        let modules = &mut self.modules;
        match (modules.origin_of(module), setting) {
            (Some(origin), Some(setting)) => origin.changed.push(setting),
            _ => modules.forget_origin(module),
        }
    }

    /// As it is now; `None` if the driver does not say.
    fn setting(&self, function: CUfunction, kernel: CUkernel, attribute: i32) -> Option<Setting> {
        const PREFERS_NONE: i32 = 0;
        let (driver, device) = (self.driver(), self.context().device());
        if attribute == CACHE_CONFIG {
            let (value, of_kernel) = (PREFERS_NONE, None);
            return Some(Setting { function, kernel, attribute, value, of_kernel });
        }
        let known = CUfunction_attribute(u32::try_from(attribute).ok()?);
        let (mut value, mut of_kernel) = (0, 0);
        // SAFETY: a live function of this session; the result is written.
        let asked = unsafe { driver.cuFuncGetAttribute(&mut value, known, function) };
        // SAFETY: likewise, its kernel.
        let has = unsafe { driver.cuKernelGetAttribute(&mut of_kernel, known, kernel, device) };
        let of_kernel = has.is_success().then_some(of_kernel);
        asked.is_success().then_some(Setting { function, kernel, attribute, value, of_kernel })
    }

    fn set_back(&self, setting: &Setting) -> Result<(), Failure> {
        let Setting { function, kernel, attribute, value, of_kernel } = *setting;
        let (driver, device) = (self.driver(), self.context().device());
        let known = CUfunction_attribute(attribute.cast_unsigned());
        if let Some(value) = of_kernel {
            // SAFETY: a live kernel that nobody uses.
            self.check(unsafe { driver.cuKernelSetAttribute(known, value, kernel, device) })?;
        }
        // SAFETY: a live function that nobody uses.
        self.check(unsafe {
            match attribute {
                CACHE_CONFIG => {
                    driver.cuFuncSetCacheConfig(function, CUfunc_cache(value.cast_unsigned()))
                }
                _ => driver.cuFuncSetAttribute(function, known, value),
            }
        })
    }
}
