//! Finding F1.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
