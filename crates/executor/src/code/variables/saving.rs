//! Values of variables are saved, and written back.

use super::*;
use crate::session::failure::Failure;
use crate::session::state::State;
use executor_link::log::log_server;
use executor_link::standing::Saved;
use policy::faults::code_state::variable_names;
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Of one module.
const MOST_BYTES: u64 = 4 << 20;
/// Copies of a few bytes behind no other work.
const COPY_LIMIT: Duration = Duration::from_secs(1);
const COPY_POLL: Duration = Duration::from_micros(10);

impl State {
    /// Finds the variables of code that was just loaded.
    pub(crate) fn find_variables(&self, library: CUlibrary, image: &[u8]) -> Variables {
        let Some(names) = variable_names(image) else { return Variables::Unknown };
        let (mut found, mut sum) = (Vec::new(), 0);
        for name in names {
            let Ok(name) = CString::new(name) else { return Variables::Unknown };
            let (mut at, mut size) = (0, 0);
            // SAFETY: a live library; both results are written.
            let result = unsafe {
                self.driver().cuLibraryGetGlobal(&mut at, &mut size, library, name.as_ptr())
            };
            if !result.is_success() {
                return Variables::Unknown;
            }
            sum += size as u64;
            found.push((at, size));
        }
        match (sum, found.is_empty()) {
            (_, true) => Variables::None,
            (..=MOST_BYTES, _) => Variables::Known(found),
            _ => Variables::Unknown,
        }
    }

    /// All work has ended: saves the variables that it may have changed.
    pub(crate) fn save_variables(&mut self) {
        if !self.standing.has_unsaved() {
            return;
        }
        let mut saved = Saved::Whole;
        for number in self.modules.changed() {
            match self.save_module(number) {
                Ok(true) => {}
                Ok(false) => saved = Saved::InPart,
                // The next look tries again; the context may be lost.
                Err(_) => return,
            }
        }
        self.standing.note_variables(saved);
    }

    /// Saves one module's; says whether that is possible.
    fn save_module(&mut self, number: u32) -> Result<bool, Failure> {
        let Some(values) = self.modules.values(number) else { return Ok(true) };
        let Variables::Known(spans) = &values.variables else { return Ok(false) };
        let spans = spans.clone();
        let mut bytes = vec![0_u8; spans.iter().map(|(_, size)| size).sum()];
        let stream = self.side_stream()?;
        let mut rest = bytes.as_mut_slice();
        for (at, size) in spans {
            let (here, after) = rest.split_at_mut(size);
            rest = after;
            // SAFETY: variables of the session, and as many bytes that stay until the copies have
            // ended.
            let copied = unsafe {
                self.driver().cuMemcpyDtoHAsync_v2(here.as_mut_ptr().cast(), at, size, stream)
            };
            if let Err(failure) = self.check(copied) {
                self.await_copies(stream);
                return Err(failure);
            }
        }
        if !self.await_copies(stream) {
            // The driver may write to them yet.
            std::mem::forget(bytes);
            return Err(Failure::Cuda(CUresult::ERROR_NOT_READY));
        }
        let is_new = self.modules.values(number).is_some_and(|values| values.saved != bytes);
        if is_new {
            let body = [&number.to_le_bytes()[..], &[0; 4], &bytes].concat();
            self.note_values(number, &body)?;
        }
        if let Some(values) = self.modules.values(number) {
            values.changed = false;
            values.saved = bytes;
        }
        Ok(true)
    }

    /// Waits for copies of the session's own stream; says whether they have ended.
    pub(crate) fn await_copies(&self, stream: CUstream) -> bool {
        let until = Instant::now() + COPY_LIMIT;
        loop {
            // SAFETY: the session's own stream.
            match unsafe { self.driver().cuStreamQuery(stream) } {
                CUresult::ERROR_NOT_READY if Instant::now() < until => {
                    std::thread::sleep(COPY_POLL);
                }
                CUresult::ERROR_NOT_READY => return false,
                result => {
                    let _ = self.context().check(result);
                    return true;
                }
            }
        }
    }

    /// Writes a module's variables as they were saved.
    pub(crate) fn restore_variables(&mut self, body: &[u8]) -> Result<(), Failure> {
        let unknown = Failure::Cuda(CUresult::ERROR_UNKNOWN);
        let (Some(number), Some(bytes)) = (body.first_chunk::<4>(), body.get(8..)) else {
            return Err(unknown);
        };
        let number = u32::from_le_bytes(*number);
        let values = self.modules.values(number);
        let Some(Values { variables: Variables::Known(spans), .. }) = values else {
            return Err(unknown);
        };
        let spans = spans.clone();
        if spans.iter().map(|(_, size)| size).sum::<usize>() != bytes.len() {
            return Err(unknown);
        }
        let stream = self.side_stream()?;
        let mut rest = bytes;
        for (at, size) in spans {
            let (here, after) = rest.split_at(size);
            rest = after;
            // SAFETY: variables of the session, and as many bytes, which are read before the copies
            // have ended.
            self.check(unsafe {
                self.driver().cuMemcpyHtoDAsync_v2(at, here.as_ptr().cast(), size, stream)
            })?;
        }
        if !self.await_copies(stream) {
            log_server!("{}: its variables are not written", self.handle.label);
            return Err(unknown);
        }
        if let Some(values) = self.modules.values(number) {
            values.saved = bytes.to_vec();
        }
        Ok(())
    }
}
