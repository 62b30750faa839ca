//! Finding F13.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
