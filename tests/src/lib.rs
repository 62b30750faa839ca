//! Shared tools of the black-box tests.
