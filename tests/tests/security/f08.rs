//! Finding F8.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
