//! How executing a command can fail.

use cuda_abi::types::CUresult;

/// Why a command was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client is told: in the answer of a called command, as the session's error for a posted
    /// one.
    Cuda(CUresult),
    /// The client does not speak the protocol; its session ends. No client of ours does this,
    /// whatever its program does.
    Protocol(String),
    /// Nothing was done: the session is to leave for another context, and the command is done
    /// there ([`crate::recovery::relocation`]).
    Elsewhere,
}

/// What was asked for cannot be.
pub(crate) const INVALID: Failure = Failure::Cuda(CUresult::ERROR_INVALID_VALUE);

impl From<CUresult> for Failure {
    fn from(result: CUresult) -> Self {
        Self::Cuda(result)
    }
}

/// Refuses a number that no honest client can have given out. One within bounds that names nothing
/// is the program's mistake, such as the use of what it has destroyed.
pub(crate) fn below(what: &str, number: u32, limit: u32) -> Result<(), Failure> {
    if number < limit {
        return Ok(());
    }
    Err(Failure::Protocol(format!("{what} {number} is beyond the last, {}", limit - 1)))
}

/// Whether a result says that the context is gone and every later call will say so too.
pub(crate) fn is_sticky(result: CUresult) -> bool {
    matches!(
        result,
        CUresult::ERROR_ECC_UNCORRECTABLE
            | CUresult::ERROR_NVLINK_UNCORRECTABLE
            | CUresult::ERROR_ILLEGAL_ADDRESS
            | CUresult::ERROR_LAUNCH_TIMEOUT
            | CUresult::ERROR_ASSERT
            | CUresult::ERROR_HARDWARE_STACK_ERROR
            | CUresult::ERROR_ILLEGAL_INSTRUCTION
            | CUresult::ERROR_MISALIGNED_ADDRESS
            | CUresult::ERROR_INVALID_ADDRESS_SPACE
            | CUresult::ERROR_INVALID_PC
            | CUresult::ERROR_LAUNCH_FAILED
            | CUresult::ERROR_EXTERNAL_DEVICE
            | CUresult::ERROR_CONTAINED
            | CUresult::ERROR_TENSOR_MEMORY_LEAK
    )
}
