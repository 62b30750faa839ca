//! Finding F4.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
