//! Finding F2.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
