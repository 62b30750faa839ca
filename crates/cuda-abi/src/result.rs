//! Names and texts of result codes, as `cuGetErrorName` and `cuGetErrorString` give them.
//!
//! Programs print these texts and some compare them, so the short ones that every driver gives are
//! kept; longer explanations are our own.

use core::ffi::CStr;
use core::fmt;

use crate::generated::types::{CUresult, RESULT_NAMES};

impl CUresult {
    /// Whether this is `CUDA_SUCCESS`.
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// `Ok` for success, else the code as error.
    pub const fn ok(self) -> Result<(), CUresult> {
        if self.is_success() { Ok(()) } else { Err(self) }
    }

    /// The constant's name, `CUDA_ERROR_INVALID_VALUE`, or `None` for an unknown code.
    pub fn name(self) -> Option<&'static CStr> {
        static POSITIONS: [u8; CODES] = positions(RESULT_NAMES);
        text(RESULT_NAMES, &POSITIONS, self)
    }

    /// A short text for the code, or `None` for an unknown one.
    pub fn description(self) -> Option<&'static CStr> {
        static POSITIONS: [u8; CODES] = positions(DESCRIPTIONS);
        text(DESCRIPTIONS, &POSITIONS, self)
    }
}

/// Codes are below this.
const CODES: usize = 1000;

/// A list of texts by code.
type Texts = [(u32, &'static CStr)];

/// Where in a list each code is; beyond its end for those that are not.
const fn positions(texts: &Texts) -> [u8; CODES] {
    assert!(texts.len() < u8::MAX as usize);
    let mut positions = [u8::MAX; CODES];
    let mut i = 0;
    while i < texts.len() {
        positions[texts[i].0 as usize] = i as u8;
        i += 1;
    }
    positions
}

fn text(texts: &Texts, positions: &[u8; CODES], code: CUresult) -> Option<&'static CStr> {
    let position = *positions.get(code.0 as usize)?;
    texts.get(usize::from(position)).map(|(_, text)| *text)
}

impl From<Result<(), CUresult>> for CUresult {
    #[inline]
    fn from(result: Result<(), CUresult>) -> Self {
        result.err().unwrap_or(CUresult::SUCCESS)
    }
}

impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} ({})", name.to_string_lossy(), self.0),
            None => write!(f, "unknown CUDA result {}", self.0),
        }
    }
}

impl std::error::Error for CUresult {}

static DESCRIPTIONS: &[(u32, &CStr)] = &[
    (0, c"no error"),
    (1, c"invalid argument"),
    (2, c"out of memory"),
    (3, c"initialization error"),
    (4, c"driver shutting down"),
    (5, c"profiler disabled while using external profiling tool"),
    (6, c"profiler not initialized"),
    (7, c"profiler already started"),
    (8, c"profiler already stopped"),
    (34, c"CUDA driver is a stub library"),
    (36, c"API call requires a newer CUDA driver"),
    (46, c"CUDA-capable device(s) is/are busy or unavailable"),
    (100, c"no CUDA-capable device is detected"),
    (101, c"invalid device ordinal"),
    (102, c"device is not licensed for compute"),
    (200, c"device kernel image is invalid"),
    (201, c"invalid device context"),
    (202, c"context already current"),
    (205, c"mapping of buffer object failed"),
    (206, c"unmapping of buffer object failed"),
    (207, c"array is mapped"),
    (208, c"resource already mapped"),
    (209, c"no kernel image is available for execution on the device"),
    (210, c"resource already acquired"),
    (211, c"resource not mapped"),
    (212, c"resource not mapped as array"),
    (213, c"resource not mapped as pointer"),
    (214, c"uncorrectable ECC error encountered"),
    (215, c"limit is not supported on this architecture"),
    (216, c"exclusive-thread device already in use by a different thread"),
    (217, c"peer access is not supported between these two devices"),
    (218, c"a PTX JIT compilation failed"),
    (219, c"invalid OpenGL or DirectX context"),
    (220, c"uncorrectable NVLink error detected during the execution"),
    (221, c"PTX JIT compiler library not found"),
    (222, c"the provided PTX was compiled with an unsupported toolchain."),
    (223, c"PTX JIT compilation was disabled"),
    (224, c"the provided execution affinity is not supported"),
    (225, c"device-side synchronization is not supported here"),
    (226, c"a contained error ended the work of this process"),
    (300, c"device kernel image is invalid"),
    (301, c"file not found"),
    (302, c"shared object symbol not found"),
    (303, c"shared object initialization failed"),
    (304, c"OS call failed or operation not supported on this OS"),
    (400, c"invalid resource handle"),
    (401, c"the operation cannot be performed in the present state"),
    (402, c"the query would lose part of the answer"),
    (500, c"named symbol not found"),
    (600, c"device not ready"),
    (700, c"an illegal memory access was encountered"),
    (701, c"too many resources requested for launch"),
    (702, c"the launch timed out and was terminated"),
    (703, c"launch uses incompatible texturing mode"),
    (704, c"peer access is already enabled"),
    (705, c"peer access has not been enabled"),
    (708, c"cannot set while device is active in this process"),
    (709, c"context is destroyed"),
    (710, c"device-side assert triggered"),
    (711, c"peer mapping resources exhausted"),
    (712, c"part or all of the requested memory range is already mapped"),
    (713, c"pointer does not correspond to a registered memory region"),
    (714, c"hardware stack error"),
    (715, c"an illegal instruction was encountered"),
    (716, c"misaligned address"),
    (717, c"operation not supported on global/shared address space"),
    (718, c"invalid program counter"),
    (719, c"unspecified launch failure"),
    (720, c"too many blocks in cooperative launch"),
    (721, c"tensor memory was not released before the kernel ended"),
    (800, c"operation not permitted"),
    (801, c"operation not supported"),
    (802, c"system not yet initialized"),
    (803, c"system has unsupported display driver / cuda driver combination"),
    (804, c"forward compatibility was attempted on non supported HW"),
    (805, c"MPS client failed to connect to the MPS control daemon or the MPS server"),
    (806, c"the remote procedural call between the MPS server and the MPS client failed"),
    (807, c"MPS server is not ready to accept new MPS client requests"),
    (808, c"the hardware resources required to create MPS client have been exhausted"),
    (809, c"the hardware resources required to support device connections have been exhausted"),
    (810, c"the MPS client has been terminated by the server"),
    (811, c"dynamic parallelism is used but not supported"),
    (812, c"dynamic parallelism versions of module and driver differ"),
    (900, c"operation not permitted when stream is capturing"),
    (901, c"operation failed due to a previous error during capture"),
    (902, c"operation would result in a merge of separate capture sequences"),
    (903, c"capture was not ended in the same stream as it began"),
    (904, c"capturing stream has unjoined work"),
    (905, c"dependency created on uncaptured work in another stream"),
    (906, c"operation would make the legacy stream depend on a capturing blocking stream"),
    (907, c"operation not permitted on an event last recorded in a capturing stream"),
    (908, c"attempt to terminate a thread-local capture sequence from another thread"),
    (909, c"wait operation timed out"),
    (910, c"the graph update was not performed because it included changes which violated constraints"),
    (911, c"an error happened outside of the device"),
    (912, c"cluster misconfiguration"),
    (913, c"function is not loaded"),
    (914, c"resource type not valid for this operation"),
    (915, c"resource configuration not valid for this operation"),
    (916, c"key rotation is in progress"),
    (999, c"unknown error"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_code_has_a_description_and_the_reverse() {
        let named: Vec<_> = RESULT_NAMES.iter().map(|(code, _)| *code).collect();
        let described: Vec<_> = DESCRIPTIONS.iter().map(|(code, _)| *code).collect();
        assert_eq!(named, described);
        assert!(named.is_sorted());
    }

    #[test]
    fn texts_that_programs_know() {
        assert_eq!(CUresult::ERROR_OUT_OF_MEMORY.name(), Some(c"CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(CUresult::ERROR_OUT_OF_MEMORY.description(), Some(c"out of memory"));
        assert_eq!(CUresult::SUCCESS.name(), Some(c"CUDA_SUCCESS"));
        assert_eq!(CUresult(12345).name(), None);
        assert_eq!(CUresult(12345).description(), None);
        assert_eq!(CUresult(12345).to_string(), "unknown CUDA result 12345");
    }
}
