//! What a program has said of managed memory: advice, and where it was prefetched to. It is told
//! again when asked for, as drivers do; where the bytes are is not kept here.

use crate::types::{
    CUdevice, CUmem_advise, CUmem_range_attribute, CUmemLocation, CUmemLocationType, CUresult,
};
use core::ffi::c_void;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CU_DEVICE_CPU`.
const CPU: CUdevice = -1;
/// `CU_DEVICE_INVALID`.
const NOWHERE: CUdevice = -2;

type Answer<T = ()> = Result<T, CUresult>;

/// A device, or the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The host's memory, of any node.
    Host,
    /// By ordinal.
    Device(CUdevice),
}

impl Place {
    /// Of the functions of before locations, where -1 is the host.
    pub fn of_device(device: CUdevice) -> Self {
        if device == CPU { Self::Host } else { Self::Device(device) }
    }

    /// Of a location; CUDA_ERROR_INVALID_VALUE for what is none.
    pub fn of_location(location: &CUmemLocation) -> Answer<Self> {
        use CUmemLocationType as Type;
        match location.type_ {
            Type::DEVICE => Ok(Self::Device(location.id)),
            Type::HOST | Type::HOST_NUMA | Type::HOST_NUMA_CURRENT => Ok(Self::Host),
            _ => Err(CUresult::ERROR_INVALID_VALUE),
        }
    }

    fn number(place: Option<Self>) -> CUdevice {
        match place {
            None => NOWHERE,
            Some(Self::Host) => CPU,
            Some(Self::Device(device)) => device,
        }
    }

    fn kind(place: Option<Self>) -> i32 {
        let kind = match place {
            None => CUmemLocationType::INVALID,
            Some(Self::Host) => CUmemLocationType::HOST,
            Some(Self::Device(_)) => CUmemLocationType::DEVICE,
        };
        kind.0.cast_signed()
    }
}

/// Of a range, all of which was told the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    is_read_mostly: bool,
    preferred: Option<Place>,
    accessed_by: BTreeSet<Place>,
    prefetched: Option<Place>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Advices(Mutex<Ranges>);

/// By first address: its end, and what was said. They do not overlap.
type Ranges = BTreeMap<u64, (u64, Advice)>;

impl Advices {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range was prefetched.
    pub fn prefetch(&self, range: Range<u64>, to: Place) {
        self.change(range, |advice| advice.prefetched = Some(to));
    }

    /// Something is advised of a range, of a place where that matters.
    pub fn advise(&self, range: Range<u64>, advice: CUmem_advise, place: Place) -> Answer {
        use CUmem_advise as Said;
        let change: fn(&mut Advice, Place) = match advice {
            Said::SET_READ_MOSTLY => |advice, _| advice.is_read_mostly = true,
            Said::UNSET_READ_MOSTLY => |advice, _| advice.is_read_mostly = false,
            Said::SET_PREFERRED_LOCATION => |advice, place| advice.preferred = Some(place),
            Said::UNSET_PREFERRED_LOCATION => |advice, _| advice.preferred = None,
            Said::SET_ACCESSED_BY => |advice, place| _ = advice.accessed_by.insert(place),
            Said::UNSET_ACCESSED_BY => |advice, place| _ = advice.accessed_by.remove(&place),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        self.change(range, |advice| change(advice, place));
        Ok(())
    }

    fn change(&self, range: Range<u64>, change: impl Fn(&mut Advice)) {
        let mut ranges = self.lock();
        split(&mut ranges, range.start);
        split(&mut ranges, range.end);
        let mut at = range.start;
        while at < range.end {
            let next = ranges.range(at..range.end).next().map_or(range.end, |(&next, _)| next);
            if next > at {
                ranges.insert(at, (next, Advice::default()));
            }
            let Some((end, advice)) = ranges.get_mut(&at) else { return };
            change(advice);
            at = *end;
        }
    }

    /// What was said of all of a range.
    pub fn of(&self, range: Range<u64>) -> Advice {
        let ranges = self.lock();
        let before =
            ranges.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let mut common: Option<Advice> = None;
        let mut at = range.start;
        for (&start, (end, advice)) in before.into_iter().chain(ranges.range(range.clone())) {
            if start > at {
                return Advice::default();
            }
            common = Some(match common {
                None => advice.clone(),
                Some(common) => common.and(advice),
            });
            at = *end;
        }
        common.filter(|_| at >= range.end).unwrap_or_default()
    }

    /// Memory is gone.
    pub fn forget(&self, range: Range<u64>) {
        let mut ranges = self.lock();
        split(&mut ranges, range.start);
        split(&mut ranges, range.end);
        ranges.retain(|start, _| !range.contains(start));
    }
}

impl Advice {
    /// The numbers that an attribute consists of; where they are a list, those that are there.
    fn answer(&self, attribute: CUmem_range_attribute) -> Answer<Vec<i32>> {
        use CUmem_range_attribute as A;
        Ok(match attribute {
            A::READ_MOSTLY => vec![self.is_read_mostly.into()],
            A::PREFERRED_LOCATION | A::PREFERRED_LOCATION_ID => vec![Place::number(self.preferred)],
            A::PREFERRED_LOCATION_TYPE => vec![Place::kind(self.preferred)],
            A::ACCESSED_BY => {
                self.accessed_by.iter().map(|&place| Place::number(Some(place))).collect()
            }
            A::LAST_PREFETCH_LOCATION | A::LAST_PREFETCH_LOCATION_ID => {
                vec![Place::number(self.prefetched)]
            }
            A::LAST_PREFETCH_LOCATION_TYPE => vec![Place::kind(self.prefetched)],
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        })
    }

    /// Writes an attribute: a number, or a list with as many numbers as there is room for.
    ///
    /// # Safety
    /// `data` is NULL, or has room for `size_bytes`.
    pub unsafe fn write(
        &self,
        data: *mut c_void,
        size_bytes: usize,
        attribute: CUmem_range_attribute,
    ) -> Answer {
        let numbers = self.answer(attribute)?;
        let room = size_bytes / size_of::<i32>();
        let is_list = attribute == CUmem_range_attribute::ACCESSED_BY;
        let is_whole = size_bytes.is_multiple_of(size_of::<i32>());
        if data.is_null() || room == 0 || !is_whole || (!is_list && room != 1) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for at in 0..room {
            let value = numbers.get(at).copied().unwrap_or(NOWHERE);
            // SAFETY: inside the caller's variable, which may have any alignment.
            unsafe { data.cast::<i32>().add(at).write_unaligned(value) };
        }
        Ok(())
    }

    /// Writes several attributes, each as [`Self::write`].
    ///
    /// # Safety
    /// The arrays are NULL, or have `count` elements; each variable has room for its size.
    pub unsafe fn write_all(
        &self,
        (data, sizes, attributes): (*mut *mut c_void, *mut usize, *mut CUmem_range_attribute),
        count: usize,
    ) -> Answer {
        if data.is_null() || sizes.is_null() || attributes.is_null() || count == 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        (0..count).try_for_each(|i| {
            // SAFETY: inside the caller's arrays, for an index below their length; the caller's
            // variable for this attribute.
            unsafe { self.write(data.add(i).read(), sizes.add(i).read(), attributes.add(i).read()) }
        })
    }

    fn and(self, other: &Self) -> Self {
        Self {
            is_read_mostly: self.is_read_mostly && other.is_read_mostly,
            preferred: self.preferred.filter(|place| other.preferred == Some(*place)),
            accessed_by: &self.accessed_by & &other.accessed_by,
            prefetched: self.prefetched.filter(|place| other.prefetched == Some(*place)),
        }
    }
}

/// Makes an address an end of a range, if it lies in one.
fn split(ranges: &mut Ranges, at: u64) {
    let Some((_, (end, advice))) = ranges.range_mut(..at).next_back() else { return };
    if *end > at {
        let rest = (*end, advice.clone());
        *end = at;
        ranges.insert(at, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_range_holds_for_all_of_it() {
        let advices = Advices::default();
        let read_mostly = |range| advices.of(range).is_read_mostly;
        advices.change(10..20, |advice| advice.is_read_mostly = true);
        assert_eq!((read_mostly(10..20), read_mostly(12..13)), (true, true));
        assert_eq!(
            (read_mostly(9..20), read_mostly(10..21), read_mostly(30..31)),
            (false, false, false)
        );
        advices.change(15..25, |advice| advice.preferred = Some(Place::Device(1)));
        assert!(read_mostly(10..20));
        assert_eq!(
            advices.of(15..25),
            Advice { preferred: Some(Place::Device(1)), ..Advice::default() }
        );
        assert_eq!(advices.of(10..25), Advice::default());
        advices.change(5..30, |advice| _ = advice.accessed_by.insert(Place::Host));
        assert_eq!(advices.of(5..30).accessed_by, BTreeSet::from([Place::Host]));
        advices.change(12..18, |advice| advice.is_read_mostly = false);
        assert_eq!(
            (read_mostly(10..12), read_mostly(10..20), read_mostly(18..20)),
            (true, false, true)
        );
        advices.forget(0..16);
        assert_eq!((advices.of(10..12), read_mostly(18..20)), (Advice::default(), true));
    }
}
