//! Finding F11.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
