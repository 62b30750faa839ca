//! Finding F14.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
