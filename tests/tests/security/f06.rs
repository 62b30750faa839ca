//! Finding F6.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
