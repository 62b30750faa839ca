//! Guarded sessions: their code is rewritten when it is loaded ([`ptx_guard`]) so that it checks
//! every access to global memory against what the session may address, and an access beyond ends
//! the session instead of the context.
//!
//! The ranges go into each module's table before the next launch after they have changed. What was
//! touched is recorded by the device at the end of the completion file, where the client sees it
//! too: its waits never end well once there is a record. That end is mapped and registered apart
//! from the completion words, as a guarded kernel can find out where its record is. Code without
//! PTX runs unguarded, or, in the strict mode, is refused.

mod guarding;

use crate::session::failure::Failure;
use cuda_abi::types::*;
use policy::limits::GuardMode;
use ptx_guard::Site;
use ptx_guard::table::{MOST_RANGES, table};
use std::collections::BTreeMap;

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
    use super::{Failure, Guard, GuardMode, nearest, place};
    use crate::code::variables::Variables;
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
