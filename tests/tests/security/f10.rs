//! Finding F10.

use crate::Test;

pub(crate) const TESTS: &[Test] = &[];
