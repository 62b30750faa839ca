//! Small numbers with values, looked up at every launch: attributes of devices and functions.

use std::sync::atomic::{AtomicI64, Ordering};

/// Values by attribute number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<Option<i32>>);

/// Numbers beyond this are none that a driver of today has.
const LIMIT: usize = 1024;

impl Attributes {
    /// The value of an attribute, if it has one.
    pub(crate) fn get(&self, number: u32) -> Option<i32> {
        self.0.get(number as usize).copied().flatten()
    }

    /// Changes the value of an attribute that has one.
    pub(crate) fn override_with(&mut self, number: u32, value: i32) {
        if let Some(Some(known)) = self.0.get_mut(number as usize) {
            *known = value;
        }
    }
}

/// The same, changed in place while others read.
#[derive(Debug)]
pub(crate) struct LiveAttributes(Vec<AtomicI64>);

/// No value: beyond those of 32 bits.
const UNKNOWN: i64 = i64::MIN;

impl LiveAttributes {
    pub(crate) fn new(values: &Attributes) -> Self {
        let value = |value: &Option<i32>| AtomicI64::new(value.map_or(UNKNOWN, i64::from));
        Self(values.0.iter().map(value).collect())
    }

    /// The value of an attribute, if it has one.
    pub(crate) fn get(&self, number: u32) -> Option<i32> {
        // Acquire: with the Release in `set`; who finds a value posts behind the command that made
        // it so.
        i32::try_from(self.0.get(number as usize)?.load(Ordering::Acquire)).ok()
    }

    /// Changes the value of an attribute.
    pub(crate) fn set(&self, number: u32, value: i32) {
        if let Some(place) = self.0.get(number as usize) {
            // Release: with the Acquire in `get`; also below.
            place.store(value.into(), Ordering::Release);
        }
    }

    /// Takes other values on; of the same numbers, as a driver knows them or not.
    pub(crate) fn replace(&self, values: &Attributes) {
        for (place, value) in self.0.iter().zip(&values.0) {
            place.store(value.map_or(UNKNOWN, i64::from), Ordering::Release);
        }
    }
}

impl FromIterator<(i32, i32)> for Attributes {
    fn from_iter<T: IntoIterator<Item = (i32, i32)>>(pairs: T) -> Self {
        let mut values = Vec::new();
        for (number, value) in pairs {
            let Some(index) = usize::try_from(number).ok().filter(|&index| index < LIMIT) else {
                continue;
            };
            if values.len() <= index {
                values.resize(index + 1, None);
            }
            values[index] = Some(value);
        }
        Self(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_has_a_value() {
        let mut attributes: Attributes =
            [(3, 30), (-1, 1), (0, 7), (1 << 30, 2)].into_iter().collect();
        assert_eq!((attributes.get(0), attributes.get(3)), (Some(7), Some(30)));
        assert_eq!((attributes.get(1), attributes.get(u32::MAX)), (None, None));
        attributes.override_with(3, 31);
        attributes.override_with(2, 5);
        assert_eq!((attributes.get(3), attributes.get(2)), (Some(31), None));
    }
}
