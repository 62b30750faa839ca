//! Guarded sessions: their code is rewritten when it is loaded ([`ptx_guard`]) so that it checks
//! every access to global memory against what the session may address, and an access beyond ends
//! the session instead of the context.
//!
//! The ranges go into each module's table before the next launch after they have changed. What was
//! touched is recorded by the device at the end of the completion file, where the client sees it
//! too: its waits never end well once there is a record. That end is mapped and registered apart
//! from the completion words, as a guarded kernel can find out where its record is. Code without
//! PTX runs unguarded, or, in the strict mode, is refused.

use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::image::{Accepts, Code, Image, Target};
use cuda_abi::types::*;
use executor_link::log::log_server;
use executor_link::messages::FromExecutor;
use link::wire::command::LINKED_TEXTS;
use policy::limits::GuardMode;
use ptx_guard::table::{MOST_RANGES, merge, table};
use ptx_guard::{Guarded, Site};
use std::collections::BTreeMap;
use std::ffi::CString;

/// Modules whose lack of a guard the log tells of.
const MOST_LOGGED: u32 = 16;

/// A session's guard.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    mode: GuardMode,
    /// By the client's numbers.
    modules: BTreeMap<u32, GuardedModule>,
    /// The ranges as the tables have them, each in its place; empty ones are free.
    ranges: Vec<(u64, u64)>,
    /// The count of changes that the tables know of; `None`: a module has no table yet.
    changes: Option<u64>,
    logged: u32,
    /// The record has been told.
    told: bool,
}

#[derive(Debug)]
struct GuardedModule {
    /// Address of its table.
    table: CUdeviceptr,
    sites: Vec<Site>,
}

impl Guard {
    pub(crate) fn new(mode: GuardMode) -> Self {
        Self { mode, ..Self::default() }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.mode == GuardMode::Off
    }

    /// Forgets a module that is unloaded.
    pub(crate) fn forget(&mut self, module: u32) {
        self.modules.remove(&module);
    }
}

/// The places of ranges once they are these: what stays keeps its place, so that a kernel that
/// looks meanwhile finds what it may touch.
fn place(old: &[(u64, u64)], new: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut placed = vec![(0, 0); old.len()];
    let mut rest: Vec<(u64, u64)> = Vec::new();
    for range in new {
        match old.iter().position(|before| before.1 > 0 && before.0 == range.0) {
            Some(at) => placed[at] = *range,
            None => rest.push(*range),
        }
    }
    let mut free = (0..MOST_RANGES).filter(|&at| placed.get(at).is_none_or(|range| range.1 == 0));
    for (range, at) in rest.into_iter().zip(free.by_ref().collect::<Vec<_>>()) {
        if at >= placed.len() {
            placed.resize(at + 1, (0, 0));
        }
        placed[at] = range;
    }
    placed
}

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

/// Where an address lies, of those allocations the nearest, in words.
fn nearest(allocations: impl Iterator<Item = (u64, u64)>, address: u64) -> String {
    let distance = |(at, size): &(u64, u64)| match address {
        below if below < *at => at - below,
        _ => address.saturating_sub(at + size - 1),
    };
    match allocations.min_by_key(distance) {
        None => "beside no allocation at all".to_owned(),
        Some((at, size)) if address < at => {
            format!("{} bytes before the allocation of {size} bytes at {at:#x}", at - address)
        }
        Some((at, size)) => match (at + size).checked_sub(address).filter(|inside| *inside > 0) {
            Some(inside) => format!(
                "of which {inside} are the last of the allocation of {size} bytes at {at:#x}"
            ),
            None => format!(
                "{} bytes after the end of the allocation of {size} bytes at {at:#x}",
                address - (at + size)
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::variables::Variables;
    use super::{Failure, Guard, GuardMode, nearest, place};
    use crate::testbed::{Bed, CODE, CODE_WITH_VARIABLE, hide_variables, load_of, unloaded};
    use cuda_abi::types::CUresult;
    use policy::faults::code_state::variable_names;

    #[test]
    fn the_variables_of_guarded_code_are_found_whatever_its_length() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        state.guard = Guard::new(GuardMode::On);
        let longer = [CODE_WITH_VARIABLE, &[0; 1 << 16]].concat();
        let text = str::from_utf8(CODE_WITH_VARIABLE).unwrap().trim_end_matches('\0');
        let last = format!("{text}.visible .global .align 8 .u64 at_the_end;\n\0").into_bytes();
        for (module, image) in [(1, longer), (2, last)] {
            let guarded = ptx_guard::instrument(str::from_utf8(&image).unwrap()).unwrap();
            state.load_image(load_of(module, &image), image, None).unwrap();
            let found = &state.modules.values(module).unwrap().variables;
            let Variables::Known(found) = found else { panic!("{found:?}") };
            let names = variable_names(guarded.text.as_bytes()).unwrap();
            assert_eq!(found.len(), names.len(), "{names:?}");
        }
    }

    #[test]
    fn code_whose_table_is_not_found_is_unloaded_and_counts_no_longer() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        state.guard = Guard::new(GuardMode::On);
        state.handle.allowance.set_bound(policy::limits::MemoryBound::told(Some(1 << 30)));
        let (left, before) = (state.handle.allowance.left_bytes(), unloaded());
        hide_variables();
        let refused = state.load_image(load_of(1, CODE), CODE.to_vec(), None);
        let Err(Failure::Cuda(CUresult::ERROR_NOT_FOUND)) = refused else { panic!("{refused:?}") };
        assert_eq!(unloaded() - before, 1);
        assert_eq!(state.handle.allowance.left_bytes(), left);
        assert!(state.modules.values(1).is_none());
    }

    #[test]
    fn an_address_is_before_behind_or_across_the_end_of_an_allocation() {
        let at = |address| nearest([(0x100, 0x10), (0x200, 0x10)].into_iter(), address);
        assert_eq!(at(0xfe), "2 bytes before the allocation of 16 bytes at 0x100");
        assert_eq!(at(0x214), "4 bytes after the end of the allocation of 16 bytes at 0x200");
        assert_eq!(at(0x210), "0 bytes after the end of the allocation of 16 bytes at 0x200");
        assert_eq!(at(0x20c), "of which 4 are the last of the allocation of 16 bytes at 0x200");
        assert_eq!(nearest(std::iter::empty(), 1), "beside no allocation at all");
    }

    #[test]
    fn what_stays_keeps_its_place() {
        let first = place(&[], &[(100, 10), (200, 10)]);
        assert_eq!(first, [(100, 10), (200, 10)]);
        assert_eq!(place(&first, &[(50, 5), (200, 20)]), [(50, 5), (200, 20)]);
        assert_eq!(place(&first, &[(200, 10)]), [(0, 0), (200, 10)]);
        assert_eq!(place(&first, &[(100, 10), (200, 10), (300, 1)])[2], (300, 1));
    }
}
