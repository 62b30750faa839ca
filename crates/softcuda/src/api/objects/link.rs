//! The state of the linker: what its handle stands for.

use std::sync::Mutex;

/// A link in progress.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    pub(crate) texts: Mutex<Vec<String>>,
    /// Lent to the program until the state is destroyed.
    pub(crate) output: Mutex<Option<Box<[u8]>>>,
}
