//! Finding F15.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
