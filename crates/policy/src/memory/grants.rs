//! Where in a client's device window its grants lie, and how much it has.

use super::ranges::Ranges;
use link::wire::attach::Window;
use std::collections::BTreeMap;

/// Grants that one session may have at a time, so that no client makes planning slow for others.
pub const MAX_GRANTS: usize = 8192;

/// Pieces without an address that one session may have at a time.
pub const MAX_PIECES: usize = 1 << 16;

/// What one client has been granted on one device.
#[derive(Clone, Debug)]
pub struct Grants {
    window: Window,
    ranges: Ranges,
    /// Pieces without an address: key to length.
    pieces: BTreeMap<u64, u64>,
    last_key: u64,
    granted_bytes: u64,
    limit_bytes: Option<u64>,
}

/// Why nothing was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantRefusal {
    /// Its limit would be exceeded.
    OverLimit,
    /// No gap of the window is large enough, or it has [`MAX_GRANTS`] already.
    NoAddresses,
}

/// Whether `size_bytes` more, rounded up to `granularity_bytes`, would be more than a group may
/// have whose members have been granted so much.
pub fn is_beyond_group(
    granted_bytes: impl IntoIterator<Item = u64>,
    size_bytes: u64,
    granularity_bytes: u64,
    limit_bytes: u64,
) -> bool {
    let wanted = size_bytes.checked_next_multiple_of(granularity_bytes.max(1));
    let total = granted_bytes.into_iter().try_fold(wanted.unwrap_or(u64::MAX), u64::checked_add);
    total.is_none_or(|total| total > limit_bytes)
}

impl Grants {
    /// None yet.
    pub fn new(window: Window, limit_bytes: Option<u64>) -> Self {
        Self {
            window,
            ranges: Ranges::default(),
            pieces: BTreeMap::new(),
            last_key: 0,
            granted_bytes: 0,
            limit_bytes,
        }
    }

    /// From now on so much may be granted; what is granted beyond it stays.
    pub fn set_limit_bytes(&mut self, limit_bytes: Option<u64>) {
        self.limit_bytes = limit_bytes;
    }

    /// How much may be granted, if that is limited.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Plans a grant of `size_bytes`, rounded up to `granularity_bytes`: the lowest gap that holds
    /// it. Returns address and length; it counts from now on.
    ///
    /// # Errors
    /// Why not.
    pub fn plan(
        &mut self,
        size_bytes: u64,
        granularity_bytes: u64,
    ) -> Result<(u64, u64), GrantRefusal> {
        let (size_bytes, total) = self.count(size_bytes, granularity_bytes)?;
        if self.ranges.len() >= MAX_GRANTS {
            return Err(GrantRefusal::NoAddresses);
        }
        let mut at = self.window.base;
        for (address, length) in self.ranges.iter() {
            if address - at >= size_bytes {
                break;
            }
            at = address + length;
        }
        if !self.window.contains(at, size_bytes) || !self.ranges.insert(at, size_bytes) {
            return Err(GrantRefusal::NoAddresses);
        }
        self.granted_bytes = total;
        Ok((at, size_bytes))
    }

    /// Plans memory of `size_bytes` that gets its addresses later; returns a key, which is no
    /// address of any window, and the length.
    ///
    /// # Errors
    /// Why not.
    pub fn plan_piece(
        &mut self,
        size_bytes: u64,
        granularity_bytes: u64,
    ) -> Result<(u64, u64), GrantRefusal> {
        let (size_bytes, total) = self.count(size_bytes, granularity_bytes)?;
        if self.pieces.len() >= MAX_PIECES {
            return Err(GrantRefusal::NoAddresses);
        }
        self.last_key += 1;
        self.pieces.insert(self.last_key, size_bytes);
        self.granted_bytes = total;
        Ok((self.last_key, size_bytes))
    }

    /// The length in whole granules, and what would be granted in all.
    fn count(&self, size_bytes: u64, granularity_bytes: u64) -> Result<(u64, u64), GrantRefusal> {
        let size_bytes = size_bytes
            .max(1)
            .checked_next_multiple_of(granularity_bytes.max(1))
            .ok_or(GrantRefusal::NoAddresses)?;
        let total = self.granted_bytes.checked_add(size_bytes).ok_or(GrantRefusal::NoAddresses)?;
        if self.limit_bytes.is_some_and(|limit| total > limit) {
            return Err(GrantRefusal::OverLimit);
        }
        Ok((size_bytes, total))
    }

    /// Forgets the grant that begins at `address`, or the piece of that key; its length, if there
    /// was one.
    pub fn release(&mut self, address: u64) -> Option<u64> {
        if let Some(size_bytes) = self.pieces.remove(&address) {
            self.granted_bytes -= size_bytes;
            return Some(size_bytes);
        }
        let size_bytes = self.ranges.length(address)?;
        self.ranges.remove(address, size_bytes);
        self.granted_bytes -= size_bytes;
        Some(size_bytes)
    }

    /// The length of the grant that begins at `address`, or of the piece of that key.
    pub fn length(&self, address: u64) -> Option<u64> {
        self.pieces.get(&address).copied().or_else(|| self.ranges.length(address))
    }

    /// Bytes granted now.
    pub fn granted_bytes(&self) -> u64 {
        self.granted_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn grants_are_rounded_counted_and_fill_the_lowest_gap() {
        let window = Window { base: 1 << 40, size_bytes: 64 * MIB };
        let mut grants = Grants::new(window, None);
        assert_eq!(grants.plan(1, 2 * MIB), Ok((window.base, 2 * MIB)));
        assert_eq!(grants.plan(4 * MIB, 2 * MIB), Ok((window.base + 2 * MIB, 4 * MIB)));
        assert_eq!(grants.release(window.base), Some(2 * MIB));
        assert_eq!(grants.release(window.base), None);
        assert_eq!(grants.plan(4 * MIB, 2 * MIB), Ok((window.base + 6 * MIB, 4 * MIB)));
        assert_eq!(grants.plan(MIB, 2 * MIB), Ok((window.base, 2 * MIB)));
        assert_eq!(grants.granted_bytes(), 10 * MIB);
    }

    #[test]
    fn pieces_count_with_grants_and_have_keys_of_their_own() {
        let window = Window { base: 1 << 40, size_bytes: 64 * MIB };
        let mut grants = Grants::new(window, Some(8 * MIB));
        let (first, size_bytes) = grants.plan_piece(1, 2 * MIB).unwrap();
        assert_eq!(size_bytes, 2 * MIB);
        assert_eq!(grants.plan(4 * MIB, 2 * MIB), Ok((window.base, 4 * MIB)));
        assert_eq!(grants.plan_piece(4 * MIB, 2 * MIB), Err(GrantRefusal::OverLimit));
        assert_eq!(grants.release(first), Some(2 * MIB));
        assert_eq!(grants.release(first), None);
        let (second, _) = grants.plan_piece(4 * MIB, 2 * MIB).unwrap();
        assert_ne!(second, first, "a key is never used again");
        assert_eq!(grants.granted_bytes(), 8 * MIB);
    }

    #[test]
    fn limits_and_the_window_end_it() {
        let window = Window { base: 1 << 40, size_bytes: 64 * MIB };
        let mut grants = Grants::new(window, Some(8 * MIB));
        assert_eq!(grants.plan(9 * MIB, 2 * MIB), Err(GrantRefusal::OverLimit));
        assert!(grants.plan(8 * MIB, 2 * MIB).is_ok());
        assert_eq!(grants.plan(1, 2 * MIB), Err(GrantRefusal::OverLimit));
        let mut unlimited = Grants::new(window, None);
        assert_eq!(unlimited.plan(65 * MIB, 2 * MIB), Err(GrantRefusal::NoAddresses));
        assert_eq!(unlimited.plan(u64::MAX, 2 * MIB), Err(GrantRefusal::NoAddresses));
        let mut many = Grants::new(Window { base: 1 << 40, size_bytes: 1 << 40 }, None);
        for _ in 0..MAX_GRANTS {
            assert!(many.plan(1, 2 * MIB).is_ok());
        }
        assert_eq!(many.plan(1, 2 * MIB), Err(GrantRefusal::NoAddresses));
        many.release(1 << 40);
        assert_eq!(many.plan(1, 2 * MIB), Ok((1 << 40, 2 * MIB)));
    }
}
