//! The openmps executable.

fn main() {}
