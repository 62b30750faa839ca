//! Finding F12.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
