//! Finding F9.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
