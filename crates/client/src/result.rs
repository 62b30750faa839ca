//! What nearly every function of the library returns.

use cuda_abi::types::CUresult;

/// The result of what can fail with a `CUresult`.
pub(crate) type Result<T = ()> = core::result::Result<T, CUresult>;
