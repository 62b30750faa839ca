//! Finding F5.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
