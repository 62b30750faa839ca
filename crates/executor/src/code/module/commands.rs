//! What clients ask of modules, and that work may change their variables.

use super::*;
use crate::session::state::State;
use executor_link::standing::Saved;
use link::wire::command::{ModuleKernels, NamesReply};
use link::wire::layout::CALL_REPLY_BYTES;
use std::ffi::{CStr, CString};
use std::ptr;

impl State {
    /// Before work that may change variables, or arrays through surfaces.
    pub(crate) fn touch_variables(&mut self, touch: Touch) {
        if !matches!(touch, Touch::Known) {
            self.touch_surfaces();
        }
        if !self.modules.have_variables() {
            return;
        }
        let of = match touch {
            Touch::Function(number) => self.modules.function(number).ok().map(|it| it.module),
            Touch::Known | Touch::All => None,
        };
        let mut is_any = false;
        let has_run = !matches!(touch, Touch::Known);
        let mut mark = |module: &mut Module| {
            let are_any = module.values.are_any();
            module.has_run |= has_run;
            module.values.changed |= are_any;
            is_any |= are_any;
        };
        let modules = &mut self.modules.modules;
        match (touch, of) {
            (Touch::Function(_), of) => {
                of.and_then(|of| modules.get_mut(&of)).into_iter().for_each(mark)
            }
            (Touch::Known, _) => {
                modules.values_mut().filter(|module| !module.asked_for.is_empty()).for_each(mark);
            }
            (Touch::All, _) => modules.values_mut().for_each(&mut mark),
        }
        if is_any {
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
