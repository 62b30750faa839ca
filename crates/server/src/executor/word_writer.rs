//! A kernel that writes a completion word: the last node of a chain whose client waits for it.
//!
//! Otherwise the word is written by `cuStreamWriteValue64`, which is a submission of its own and costs half as much as a launch; where several clients wait for
//! each of their launches that is what they queue for. The kernel takes one thread of an SM, so it would wait where others fill them all: it is for calm times
//! ([`super::pacing`] knows), and a word that is not written this way is written the other way.
//!
//! What the launches before it wrote to host memory is there when the word is: they end before it begins, which the chain's order says, and its store is a
//! release for the whole system.

use super::context::Context;
use super::graph::Code;
use super::partition::Partition;
use cuda_abi::types::*;
use link::wire::command::Launch;
use std::ffi::CStr;
use std::ptr;
use zerocopy::{Immutable, IntoBytes};

const CODE: &CStr = c"
.version 6.0
.target sm_70
.address_size 64
.visible .entry openmps_write_word(.param .u64 address, .param .u64 value)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [address];
    ld.param.u64 %rd1, [value];
    cvta.to.global.u64 %rd2, %rd0;
    st.release.sys.global.u64 [%rd2], %rd1;
    ret;
}
";

/// What the kernel takes.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Parameters {
    pub(super) address: u64,
    pub(super) value: u64,
}

/// How it is launched.
pub(super) const SHAPE: Launch = Launch {
    function: 0,
    stream: 0,
    grid: [1; 3],
    block: [1; 3],
    dynamic_shared_bytes: 0,
    parameter_bytes: size_of::<Parameters>() as u32,
    attributes: 0,
    reserved: 0,
};

/// The kernel, loaded.
#[derive(Debug)]
pub(crate) struct WordWriter {
    kernel: CUkernel,
    function: CUfunction,
}

impl WordWriter {
    /// Loads the kernel, before there are clients that this could hold up. `None` where the driver does not take it.
    pub(crate) fn load(context: &Context) -> Option<Self> {
        let driver = context.driver();
        let mut library = CUlibrary::NULL;
        let (mut kernel, mut function) = (CUkernel::NULL, CUfunction::NULL);
        // SAFETY: the text lives for ever and ends with a NUL; no options; the results are written.
        let loaded = unsafe {
            driver
                .cuLibraryLoadData(
                    &mut library,
                    CODE.as_ptr().cast(),
                    ptr::null_mut(),
                    ptr::null_mut(),
                    0,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    0,
                )
                .ok()
                .and_then(|()| {
                    driver
                        .cuLibraryGetKernel(&mut kernel, library, c"openmps_write_word".as_ptr())
                        .ok()
                })
                .and_then(|()| driver.cuKernelGetFunction(&mut function, kernel).ok())
        };
        context.check(loaded.err().unwrap_or(CUresult::SUCCESS)).ok()?;
        Some(Self { kernel, function })
    }

    /// As a node of a chain names it.
    pub(super) fn code(&self, partition: Option<&Partition>) -> Code {
        match partition {
            Some(partition) => Code::Kernel(self.kernel, partition.context()),
            None => Code::Function(self.function),
        }
    }
}
