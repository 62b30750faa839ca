//! Finding F7.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
