//! How many contexts a device has at a time, and whose: nobody who comes early has all that there
//! are.

/// Places beyond the usual ones, for owners who come late: so many parts of those.
const LATE_PART: usize = 4;
/// Each such owner has so many parts of them.
const LATE_OWNERS: usize = 4;
/// A process may have half of the usual ones: it makes one, and a few more with parts of the
/// device.
const CLIENT_PART: usize = 2;

/// The contexts of a device when one more is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contexts {
    /// All.
    pub all: usize,
    /// Those of the owner who wants one.
    pub of_owner: usize,
    /// Of these, the process's that asks.
    pub of_client: usize,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The process has this many.
    Client(usize),
    /// This many are in use, and the owner has its part of the places for who comes late.
    Device(usize),
}

/// Whether one more may be had where usually there are `most`. A single owner, as the processes of
/// one job are, can have all of these; so an owner who finds none left has some beyond.
///
/// # Errors
/// Why not.
pub fn may_open(most: usize, contexts: Contexts) -> Result<(), Refused> {
    let Contexts { all, of_owner, of_client } = contexts;
    let of_one = most.div_ceil(CLIENT_PART);
    if of_client >= of_one {
        return Err(Refused::Client(of_one));
    }
    let late = most.div_ceil(LATE_PART);
    let is_late = of_owner < late.div_ceil(LATE_OWNERS) && all < most + late;
    if all < most || is_late { Ok(()) } else { Err(Refused::Device(most)) }
}

/// How many there can be in all.
pub const fn at_most(most: usize) -> usize {
    most + most.div_ceil(LATE_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as an owner gets, by processes of one context each.
    fn fill(most: usize, all: &mut usize) -> usize {
        let mut own = 0;
        while may_open(most, Contexts { all: *all, of_owner: own, of_client: 0 }).is_ok() {
            own += 1;
            *all += 1;
        }
        own
    }

    #[test]
    fn one_owner_can_have_all_and_others_still_get_some() {
        let mut all = 0;
        assert_eq!([(); 6].map(|()| fill(48, &mut all)), [48, 3, 3, 3, 3, 0]);
        assert_eq!(all, at_most(48));
        let mut all = 20;
        assert_eq!(fill(48, &mut all), 28);
        let mut all = 0;
        assert_eq!([(); 3].map(|()| fill(1, &mut all)), [1, 1, 0]);
    }

    #[test]
    fn one_process_has_half_at_most() {
        let of = |of_client| Contexts { all: of_client, of_owner: of_client, of_client };
        assert_eq!(may_open(48, of(23)), Ok(()));
        assert_eq!(may_open(48, of(24)), Err(Refused::Client(24)));
        assert_eq!((may_open(1, of(0)), may_open(1, of(1))), (Ok(()), Err(Refused::Client(1))));
    }
}
