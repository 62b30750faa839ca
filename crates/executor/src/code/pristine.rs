//! Code with variables, made like new for its next owner: what loading set is read when it was
//! loaded, and written again when its owner has given it up.
//!
//! All of it by copies and fills on the session's own stream, which hold up nobody; and at once, so
//! that whatever is kept is like new and nobody ever sees what another client's variables were.
//! Code whose kernels may still run waits for their end, since they could write to it afterwards.
//! What cannot be told whole (managed variables, references to textures, names that the driver does
//! not know) is not kept: see [`policy::faults::code_state::all_variables`].

use super::spares::Origin;
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::*;
use link::wire::command::CACHE_CONFIG;
use policy::faults::code_state::{Variable, all_variables};

/// Of one image. Code with more is loaded anew each time.
const MOST_BYTES: u64 = 1 << 20;
/// Likewise: each is a command of its own.
const MOST_VARIABLES: usize = 64;
/// Code of a session that waits for the end of kernels; more is unloaded, which waits for them too.
const MOST_LEAVING: usize = 8;

/// Memory as the driver set it when it loaded code.
#[derive(Debug)]
pub(crate) struct Initial(Vec<(CUdeviceptr, Contents)>);

#[derive(Debug)]
enum Contents {
    /// So many bytes.
    Zeros(usize),
    Bytes(Vec<u8>),
}

impl Contents {
    fn new(bytes: Vec<u8>) -> Self {
        match bytes.iter().all(|byte| *byte == 0) {
            true => Self::Zeros(bytes.len()),
            false => Self::Bytes(bytes),
        }
    }
}

/// A function's attribute that its owner has changed, as it was before.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) function: CUfunction,
    pub(crate) kernel: CUkernel,
    pub(crate) attribute: i32,
    value: i32,
    /// That of the kernel, where it has such an attribute.
    of_kernel: Option<i32>,
}

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

#[cfg(test)]
mod tests {
    use crate::session::state::State;
    use crate::testbed;
    use crate::testbed::{Bed, CODE_WITH_VARIABLE, LOADED_VALUE, load_of};
    use cuda_abi::types::CUdeviceptr;
    use link::wire::command::{FunctionGet, GlobalGet, GlobalGetReply, ModuleUnload};
    use zerocopy::FromBytes;

    const MODULE: u32 = 7;
    const SECRET: u64 = 0x5ec2e7;

    fn load(state: &mut State) {
        let load = load_of(MODULE, CODE_WITH_VARIABLE);
        state.load_image(load, CODE_WITH_VARIABLE.to_vec(), None).unwrap();
        let get = FunctionGet { module: MODULE, function: MODULE, name_bytes: 1, reserved: 0 };
        state.function_get(get, b"f").unwrap();
    }

    fn unload(state: &mut State) {
        state.module_unload(ModuleUnload { module: MODULE, reserved: 0 }).unwrap();
    }

    /// Where the variable is, as the client is told.
    fn variable(state: &mut State) -> CUdeviceptr {
        state.reply.clear();
        state.global_get(GlobalGet { module: MODULE, name_bytes: 1 }, b"x").unwrap();
        GlobalGetReply::ref_from_bytes(&state.reply).unwrap().address
    }

    fn value(at: CUdeviceptr) -> u64 {
        // SAFETY: a variable of this thread's driver, which is loaded.
        unsafe { std::ptr::with_exposed_provenance::<u64>(at as usize).read() }
    }

    /// As a kernel does.
    fn set(at: CUdeviceptr, value: u64) {
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(at as usize).write(value) };
    }

    #[test]
    fn the_next_to_load_the_same_finds_it_as_it_was_loaded_and_nothing_is_loaded() {
        let bed = Bed::new();
        let [mut one, mut other] = [bed.open(), bed.open()];
        load(one.session.state());
        let first = testbed::loaded();
        let at = variable(one.session.state());
        assert_eq!(value(at), LOADED_VALUE);
        for round in 0..3 {
            set(at, SECRET + round);
            unload(one.session.state());
            assert_eq!(value(at), LOADED_VALUE, "it is no secret even while nobody has it");
            for client in [&mut other, &mut one] {
                load(client.session.state());
                assert_eq!(variable(client.session.state()), at);
                assert_eq!(value(at), LOADED_VALUE);
                set(at, SECRET);
                unload(client.session.state());
            }
            load(one.session.state());
        }
        assert_eq!((testbed::loaded(), testbed::unloaded()), (first, 0));
        // Who has it has it alone.
        set(at, SECRET);
        load(other.session.state());
        assert_eq!(testbed::loaded(), first + 2, "the code and its function");
        let another = variable(other.session.state());
        assert!(another != at && value(another) == LOADED_VALUE);
    }

    #[test]
    fn what_kernels_may_still_write_to_is_given_to_nobody() {
        let bed = Bed::new();
        let mut client = bed.open();
        load(client.session.state());
        let at = variable(client.session.state());
        client.post_launch();
        testbed::set_work(testbed::Work::Lasts);
        client.serve();
        unload(client.session.state());
        set(at, SECRET);
        assert_eq!(client.session.state().modules.leaving.len(), 1);
        client.session.state().look_whether_idle();
        assert_eq!((value(at), testbed::unloaded()), (SECRET, 0), "its kernel runs");
        testbed::set_work(testbed::Work::EndsAtOnce);
        client.session.state().look_whether_idle();
        assert_eq!(value(at), LOADED_VALUE);
        let before = testbed::loaded();
        load(client.session.state());
        assert_eq!((testbed::loaded(), variable(client.session.state())), (before, at));
    }

    #[test]
    fn what_is_kept_goes_when_memory_is_short_and_nothing_is_kept_meanwhile() {
        let bed = Bed::new();
        let mut client = bed.open();
        load(client.session.state());
        unload(client.session.state());
        assert_eq!(testbed::unloaded(), 0);
        assert!(bed.shared.spares.close());
        bed.shared.unload_spares();
        assert_eq!(testbed::unloaded(), 1);
        load(client.session.state());
        unload(client.session.state());
        assert_eq!(testbed::unloaded(), 2, "at once");
        bed.shared.spares.open();
        let before = testbed::loaded();
        load(client.session.state());
        assert_eq!(testbed::loaded(), before + 2);
        unload(client.session.state());
        assert_eq!(testbed::unloaded(), 2);
    }
}
