//! Finding F3.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
