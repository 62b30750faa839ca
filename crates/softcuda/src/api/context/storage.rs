//! What libraries keep with contexts.

use cuda_abi::context_storage::ContextStorage;
use cuda_abi::types::CUcontext;

/// The values of all contexts.
pub(crate) static STORAGE: ContextStorage = ContextStorage::new();

/// Calls the destructors that libraries registered for a context's storage.
pub(crate) fn run_destructors(context: CUcontext) {
    // SAFETY: destructors are the libraries' own functions for their own values; the context is
    // ending.
    unsafe { STORAGE.destroy_context(context) };
}
