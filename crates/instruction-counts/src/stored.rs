//! What was counted before, in the source beside its test, and how far from that a count may be.

/// How far from what is stored a count may be, in percent of it.
pub const TOLERANCE_PERCENT: u64 = 10;

/// What was counted when it last changed on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What takes them.
    pub what: &'static str,
    /// So many were counted.
    pub instructions: u64,
    /// Why it became so many: for whoever reads the source, and the commit that changed it.
    pub why: &'static str,
}

/// A count that is too far from what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Changed {
    /// A change made it dearer.
    #[error(
        "{what} takes {counted} instructions instead of {stored}: {percent} % more, where {TOLERANCE_PERCENT} % are allowed. \
         Spare them; or, if they are needed, store {counted} with the reason as `why` in the same commit",
        what = stored.what, stored = stored.instructions, percent = percent(stored, *counted)
    )]
    Rose {
        /// What it was.
        stored: Stored,
        /// What it is.
        counted: u64,
    },
    /// A change made it cheaper.
    #[error(
        "{what} takes {counted} instructions instead of {stored}: {percent} % fewer. \
         Lower what is stored to {counted}, with the reason as `why`, so that the slack is not used up unseen",
        what = stored.what, stored = stored.instructions, percent = percent(stored, *counted)
    )]
    Fell {
        /// What it was.
        stored: Stored,
        /// What it is.
        counted: u64,
    },
}

fn percent(stored: &Stored, counted: u64) -> u64 {
    (100 * stored.instructions.abs_diff(counted)).div_ceil(stored.instructions.max(1))
}

impl Stored {
    /// Compares with what is counted now, and prints both.
    ///
    /// # Errors
    /// When that is more than [`TOLERANCE_PERCENT`] above or below.
    pub fn check(&self, counted: u64) -> Result<(), Changed> {
        let Self { what, instructions, .. } = *self;
        println!("{what}: {counted} instructions, {instructions} are stored");
        if 100 * counted > (100 + TOLERANCE_PERCENT) * instructions {
            return Err(Changed::Rose { stored: *self, counted });
        }
        if 100 * counted < (100 - TOLERANCE_PERCENT) * instructions {
            return Err(Changed::Fell { stored: *self, counted });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Changed, Stored};

    const STORED: Stored = Stored { what: "a call", instructions: 1200, why: "it is so" };

    #[test]
    fn a_tenth_more_or_fewer_is_allowed() {
        for counted in [1080, 1200, 1320] {
            assert_eq!(STORED.check(counted), Ok(()));
        }
    }

    #[test]
    fn more_is_a_rise_to_be_spared_or_stored_with_its_reason() {
        let rose = STORED.check(1321).unwrap_err();
        assert_eq!(rose, Changed::Rose { stored: STORED, counted: 1321 });
        let message = rose.to_string();
        for part in
            ["a call takes 1321 instructions instead of 1200", "11 % more", "`why`", "same commit"]
        {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn fewer_are_to_be_stored() {
        let fell = STORED.check(1079).unwrap_err();
        assert_eq!(fell, Changed::Fell { stored: STORED, counted: 1079 });
        assert!(fell.to_string().contains("Lower what is stored to 1079"), "{fell}");
    }

    #[test]
    fn small_counts_change_by_whole_instructions() {
        let small = Stored { instructions: 38, ..STORED };
        assert_eq!(small.check(41), Ok(()));
        assert!(small.check(42).is_err());
        assert!(small.check(34).is_err());
    }
}
