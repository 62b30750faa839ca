//! Whether the kernels of several clients find room on a device at the same time.
//!
//! A kernel's footprint is the part of the device that its blocks fill. Who may use the whole
//! device finds room anywhere, so that there only the sum counts; a client with a share of the SMs
//! has it on those alone, and shares of several clients may lie on the same ones
//! ([`crate::sms::partitions`]).

/// The whole device, of which footprints and shares are parts.
pub const ALL: u32 = 1000;
/// What rounding may add to several parts.
const ROUNDING: u32 = 2;
/// Units that a place can name.
const MOST_UNITS: usize = 128;

/// The SMs of a client with a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// One bit each.
    units: u128,
    /// Their part of the device, of [`ALL`].
    part: u32,
}

impl Place {
    /// These units, together such a part of the device, of [`ALL`]; `None` where there are more
    /// units than this can name, so that the place is taken for the whole device.
    pub fn new(units: &[usize], part: u32) -> Option<Self> {
        let bit = |&unit: &usize| (unit < MOST_UNITS).then(|| 1u128 << unit);
        let bits: Option<Vec<u128>> = units.iter().map(bit).collect();
        let units = bits?.into_iter().fold(0, |all, bit| all | bit);
        (units != 0).then_some(Self { units, part: part.min(ALL) })
    }

    /// What the union of two places can hold.
    fn holds_with(self, other: Self) -> (u128, u32) {
        let units = self.units | other.units;
        let shared = (self.units & other.units).count_ones();
        let part = self.part + other.part - self.part * shared / self.units.count_ones().max(1);
        (units, part)
    }
}

/// What a client's kernels take of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Of [`ALL`].
    pub footprint: u32,
    /// `None`: anywhere.
    pub place: Option<Place>,
}

impl Room {
    /// So much of the device, and no more than the place is. 0: not known, as if all.
    pub fn new(footprint: u32, place: Option<Place>) -> Self {
        let most = place.map_or(ALL, |place| place.part);
        Self { footprint: if footprint == 0 { most } else { footprint.min(most) }, place }
    }

    /// So much of the device, anywhere. 0: not known, as if all.
    pub fn anywhere(footprint: u32) -> Self {
        Self::new(footprint, None)
    }

    /// Whether it can have room on these units only.
    fn lies_within(self, units: u128) -> bool {
        self.place.is_some_and(|place| place.units & !units == 0)
    }
}

/// Whether there is room for all of them at the same time: in all of the device, on each share, and
/// on each two shares together.
pub fn is_room(rooms: &[Room]) -> bool {
    if rooms.iter().map(|room| room.footprint).sum::<u32>() > ALL {
        return false;
    }
    let mut places: Vec<Place> = rooms.iter().filter_map(|room| room.place).collect();
    places.dedup();
    let holds = |(units, part): (u128, u32)| {
        let within = rooms.iter().filter(|room| room.lies_within(units));
        within.map(|room| room.footprint).sum::<u32>() <= part + ROUNDING
    };
    let pairs = places
        .iter()
        .enumerate()
        .flat_map(|(at, &one)| places[at..].iter().map(move |&other| one.holds_with(other)));
    pairs.into_iter().all(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a device of 66 pairs of SMs.
    fn share(first: usize, units: usize) -> Room {
        let part = (units * ALL as usize / 66) as u32;
        let place = Place::new(&(first..first + units).collect::<Vec<_>>(), part);
        Room { footprint: part, place }
    }

    #[test]
    fn what_adds_up_to_the_device_fits_anywhere() {
        assert!(is_room(&[250; 4].map(Room::anywhere)));
        assert!(!is_room(&[250, 250, 250, 251].map(Room::anywhere)));
        assert!(!is_room(&[0, 1].map(Room::anywhere)), "not known: as if all");
        assert!(is_room(&[Room::anywhere(400), share(0, 33)]));
    }

    #[test]
    fn shares_that_lie_on_the_same_sms_do_not_fit() {
        // Four of a third, as they are placed one after the other.
        let [a, b, c, d] = [share(0, 21), share(21, 21), share(42, 21), share(45, 21)];
        assert!(is_room(&[a, b, c]) && is_room(&[a, b, d]));
        assert!(!is_room(&[c, d]) && !is_room(&[a, c, d]));
        let halves = [share(0, 33), share(33, 33), share(0, 33)];
        assert!(is_room(&halves[..2]) && !is_room(&halves));
        // Half of what each may have is not in the way of the other.
        let narrow = |room: Room| Room { footprint: room.footprint / 2, ..room };
        assert!(is_room(&[narrow(c), narrow(d)]));
        // A third one finds no room between two, though it fits beside each.
        let between = narrow(share(11, 20));
        assert!(is_room(&[share(0, 21), between]) && is_room(&[share(21, 21), between]));
        assert!(!is_room(&[share(0, 21), share(21, 21), between]));
    }

    #[test]
    fn a_place_of_units_that_cannot_be_named_is_the_whole_device() {
        assert_eq!(Place::new(&[0, 128], 20), None);
        assert_eq!(Place::new(&[], 20), None);
    }
}
