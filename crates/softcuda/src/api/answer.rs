//! What driver functions come to, and device errors as their codes.

use cuda_abi::types::CUresult;

use crate::device::error::DeviceError;
use crate::device::fault::Sticky;

/// What a driver function comes to.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

impl From<Sticky> for CUresult {
    fn from(sticky: Sticky) -> Self {
        match sticky {
            Sticky::IllegalAddress => CUresult::ERROR_ILLEGAL_ADDRESS,
            Sticky::LaunchTimeout => CUresult::ERROR_LAUNCH_TIMEOUT,
            Sticky::Assert => CUresult::ERROR_ASSERT,
            Sticky::IllegalInstruction => CUresult::ERROR_ILLEGAL_INSTRUCTION,
            Sticky::MisalignedAddress => CUresult::ERROR_MISALIGNED_ADDRESS,
            Sticky::InvalidAddressSpace => CUresult::ERROR_INVALID_ADDRESS_SPACE,
            Sticky::InvalidPc => CUresult::ERROR_INVALID_PC,
            Sticky::LaunchFailed => CUresult::ERROR_LAUNCH_FAILED,
            Sticky::ContextDestroyed => CUresult::ERROR_CONTEXT_IS_DESTROYED,
        }
    }
}

impl From<DeviceError> for CUresult {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::InvalidValue(_) | DeviceError::WrongState => CUresult::ERROR_INVALID_VALUE,
            DeviceError::OutOfMemory => CUresult::ERROR_OUT_OF_MEMORY,
            DeviceError::AlreadyRegistered => CUresult::ERROR_HOST_MEMORY_ALREADY_REGISTERED,
            DeviceError::NotRegistered => CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED,
            DeviceError::NotSupported(_) => CUresult::ERROR_NOT_SUPPORTED,
            DeviceError::Failed(sticky) => sticky.into(),
            DeviceError::Os(_) => CUresult::ERROR_OPERATING_SYSTEM,
        }
    }
}
