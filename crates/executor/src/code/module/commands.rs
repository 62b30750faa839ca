//! What clients ask of modules, and that work may change their variables.

use super::*;
use crate::session::state::State;
use executor_link::standing::Saved;
use link::wire::command::{ModuleKernels, NamesReply};
use link::wire::layout::CALL_REPLY_BYTES;
use std::ffi::{CStr, CString};
use std::ptr;

impl Module {
    /// Its variables may change; says whether it has any.
    fn touch(&mut self) -> bool {
        let are_any = self.values.are_any();
        self.values.changed |= are_any;
        are_any
    }
}

impl Modules {
    /// Kernels may change variables; says whether there are any.
    fn touch(&mut self, touch: Touch) -> bool {
        let mut is_any = false;
        let mut run = |module: &mut Module| {
            module.has_run = true;
            is_any |= module.touch();
        };
        match touch {
            Touch::Function(number) => {
                let of = self.function(number).ok().map(|it| it.module);
                of.and_then(|of| self.modules.get_mut(&of)).into_iter().for_each(run);
            }
            Touch::All => self.modules.values_mut().for_each(&mut run),
        }
        self.touch_asked(|variable| variable.kept.is_some()) | is_any
    }

    /// Those variables may change of which the client has the addresses, where they are such; says
    /// whether there are any.
    fn touch_asked(&mut self, are_touched: impl Fn(&AskedFor) -> bool) -> bool {
        let mut is_any = false;
        for number in &self.asked {
            let module = self.modules.get_mut(number);
            let touched = module.filter(|module| module.asked_for.iter().any(&are_touched));
            is_any |= touched.is_some_and(Module::touch);
        }
        is_any
    }
}

impl State {
    /// Before kernels that may change variables, or arrays through surfaces.
    pub(crate) fn touch_variables(&mut self, touch: Touch) {
        self.touch_surfaces();
        if self.modules.have_variables() && self.modules.touch(touch) {
            self.standing.note_variables(Saved::InPart);
        }
    }

    /// Before so many bytes are written from an address on, as the client names it: to variables,
    /// perhaps.
    pub(crate) fn touch_written(&mut self, address: u64, size_bytes: u64) {
        if self.modules.touch_asked(|variable| variable.is_met_by(address, size_bytes)) {
            self.standing.note_variables(Saved::InPart);
        }
    }

    pub(crate) fn module_kernels(&mut self, wanted: ModuleKernels) -> Result<(), Failure> {
        let library = self.modules.library(wanted.module)?;
        let driver = self.driver();
        let mut count = 0;
        // SAFETY: a live library; the result is written.
        self.check(unsafe { driver.cuLibraryGetKernelCount(&mut count, library) })?;
        let mut kernels = vec![CUkernel::NULL; count as usize];
        // SAFETY: room for as many as are asked for.
        self.check(unsafe {
            driver.cuLibraryEnumerateKernels(kernels.as_mut_ptr(), count, library)
        })?;
        let mut names = Vec::new();
        for kernel in kernels {
            let mut name = ptr::null();
            // SAFETY: a live kernel; the result is written, and lives as long as the library.
            self.check(unsafe { driver.cuKernelGetName(&mut name, kernel) })?;
            if name.is_null() {
                return Err(Failure::Cuda(CUresult::ERROR_UNKNOWN));
            }
            // SAFETY: a NUL-terminated string, by the driver's word.
            names.extend_from_slice(unsafe { CStr::from_ptr(name) }.to_bytes_with_nul());
        }
        if names.len() + size_of::<NamesReply>() > CALL_REPLY_BYTES {
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        self.answer(&NamesReply { names: count, size_bytes: names.len() as u32 })?;
        self.reply.extend_from_slice(&names);
        Ok(())
    }
}

pub(super) fn name_in(rest: &[u8], name_bytes: u32) -> Result<CString, Failure> {
    let name = rest.get(..name_bytes as usize);
    let name = name
        .ok_or_else(|| Failure::Protocol(format!("a name of {name_bytes} bytes is not there")))?;
    CString::new(name).map_err(|_| Failure::Cuda(CUresult::ERROR_INVALID_VALUE))
}
