//! Unsigned integers of 384 bits: wide enough for an exact sum of a product of doubles and a third
//! one, once what lies far below the rest is replaced by a single low bit.

const LIMBS: usize = 6;

/// An unsigned integer below 2^384.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wide([u64; LIMBS]);

impl Wide {
    pub(crate) const ZERO: Self = Self([0; LIMBS]);

    pub(crate) fn new(value: u128) -> Self {
        let mut limbs = [0; LIMBS];
        limbs[0] = value as u64;
        limbs[1] = (value >> 64) as u64;
        Self(limbs)
    }

    /// Number of bits up to the highest set one.
    pub(crate) fn bits(self) -> u32 {
        let top = self.0.iter().rposition(|&limb| limb != 0);
        top.map_or(0, |index| (index as u32 + 1) * 64 - self.0[index].leading_zeros())
    }

    pub(crate) fn bit(self, index: u32) -> bool {
        self.0.get((index / 64) as usize).is_some_and(|limb| limb >> (index % 64) & 1 == 1)
    }

    /// Whether a bit below `index` is set.
    pub(crate) fn any_below(self, index: u32) -> bool {
        (0..index.min(384)).any(|bit| self.bit(bit))
    }

    pub(crate) fn shifted_left(self, by: u32) -> Self {
        let (limbs, bits) = ((by / 64) as usize, by % 64);
        let mut result = [0; LIMBS];
        for (index, limb) in result.iter_mut().enumerate().skip(limbs) {
            *limb = self.0[index - limbs] << bits;
            if bits > 0 && index > limbs {
                *limb |= self.0[index - limbs - 1] >> (64 - bits);
            }
        }
        Self(result)
    }

    /// The low 64 bits after a shift to the right.
    pub(crate) fn low_after_shift(self, by: u32) -> u64 {
        let (limbs, bits) = ((by / 64) as usize, by % 64);
        let limb = |index: usize| self.0.get(index).copied().unwrap_or(0);
        let low = limb(limbs) >> bits;
        if bits == 0 { low } else { low | limb(limbs + 1) << (64 - bits) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let mut result = [0; LIMBS];
        let mut carry = false;
        for (index, limb) in result.iter_mut().enumerate() {
            let (sum, first) = self.0[index].overflowing_add(other.0[index]);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            *limb = sum;
            carry = first || second;
        }
        Self(result)
    }

    /// The difference; `other` is not larger.
    pub(crate) fn minus(self, other: Self) -> Self {
        let mut result = [0; LIMBS];
        let mut borrow = false;
        for (index, limb) in result.iter_mut().enumerate() {
            let (difference, first) = self.0[index].overflowing_sub(other.0[index]);
            let (difference, second) = difference.overflowing_sub(u64::from(borrow));
            *limb = difference;
            borrow = first || second;
        }
        Self(result)
    }

    pub(crate) fn is_less(self, other: Self) -> bool {
        self.0.iter().rev().lt(other.0.iter().rev())
    }
}
