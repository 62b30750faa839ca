//! A launch's shape and place.

use cuda_abi::types::CUstream;
use link::wire::command::LaunchAttribute;

/// See the module's description.
pub(crate) struct Configuration<'a> {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) stream: CUstream,
    pub(crate) attributes: &'a [LaunchAttribute],
}
