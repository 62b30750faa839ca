//! What the simulated device refuses, in its own words; `api::status` turns these into `CUresult`
//! codes.

use thiserror::Error;

/// Why a device operation was refused. Nothing here is sticky: faults of kernels are
/// [`super::fault::Sticky`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum DeviceError {
    /// Sizes, alignments or addresses that make no sense.
    #[error("invalid argument: {0}")]
    InvalidValue(&'static str),
    /// The device's configured memory, or the host's, is used up.
    #[error("out of memory: free device memory or raise OPENMPS_SOFT_MEMORY_MIB")]
    OutOfMemory,
    /// Host memory that is registered already.
    #[error("host memory is already registered")]
    AlreadyRegistered,
    /// Host memory that is not registered.
    #[error("host memory is not registered")]
    NotRegistered,
    /// The range is not mapped, or mapped where it should be free.
    #[error("address range is in another state than the call needs")]
    WrongState,
    /// Something that this device does not do.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The context has a sticky error.
    #[error("the context has failed: {0}")]
    Failed(super::fault::Sticky),
    /// The operating system refused.
    #[error("operating system: {0}")]
    Os(rustix::io::Errno),
}

impl From<rustix::io::Errno> for DeviceError {
    fn from(errno: rustix::io::Errno) -> Self {
        match errno {
            rustix::io::Errno::NOMEM => DeviceError::OutOfMemory,
            other => DeviceError::Os(other),
        }
    }
}

/// Result of a device operation.
pub(crate) type Result<T> = std::result::Result<T, DeviceError>;
