//! The executor's own kernels. Two are nodes of chains ([`super::chain`]): one writes a completion
//! word, one copies a little. Nodes that are to be others' launches are made of a third. A fourth
//! says which SMs it runs on ([`crate::sms::sm_survey`]).
//!
//! Otherwise the word is written by `cuStreamWriteValue64`, which is a submission of its own and
//! costs half as much as a launch, as a copy does; where several clients wait for each of their
//! launches that is what they queue for. These kernels need room on an SM, so they would wait where
//! others fill them all: they are for calm times ([`crate::turns::pace`] knows), and what is not
//! done this way is done the other way.
//!
//! What the nodes before it wrote to host memory is there when the word is: they end before it
//! begins, which the chain's order says, and its store is a release for the whole system.

use crate::context::Context;
use crate::objects::graph::Code;
use crate::sms::partition::Partition;
use cuda_abi::types::*;
use link::wire::command::Launch;
use std::ffi::{CStr, c_void};
use std::ptr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const CODE: &CStr = c"
.version 6.3
.target sm_70
.address_size 64
.visible .entry openmps_note_sm(.param .u64 noted, .param .u32 most)
{
    .reg .pred %p<1>;
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [noted];
    ld.param.u32 %r0, [most];
    mov.u32 %r1, %smid;
    setp.ge.u32 %p0, %r1, %r0;
    @%p0 bra NOTED;
    cvta.to.global.u64 %rd1, %rd0;
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    mov.u32 %r2, 1;
    st.global.u32 [%rd2], %r2;
NOTED:
    nanosleep.u32 20000;
    ret;
}
.visible .entry openmps_write_word(.param .u64 address, .param .u64 value)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [address];
    ld.param.u64 %rd1, [value];
    cvta.to.global.u64 %rd2, %rd0;
    st.release.sys.global.u64 [%rd2], %rd1;
    ret;
}
.visible .entry openmps_make_room(.param .align 8 .b8 room[4096])
{
    ret;
}
.visible .entry openmps_copy(.param .u64 destination, .param .u64 source, .param .u32 units, .param .u32 unit_bytes)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %rd<6>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [units];
    setp.ge.u32 %p0, %r3, %r4;
    @%p0 bra DONE;
    ld.param.u64 %rd0, [destination];
    ld.param.u64 %rd1, [source];
    ld.param.u32 %r5, [unit_bytes];
    cvta.to.global.u64 %rd2, %rd0;
    cvta.to.global.u64 %rd3, %rd1;
    mad.wide.u32 %rd4, %r3, %r5, %rd2;
    mad.wide.u32 %rd5, %r3, %r5, %rd3;
    setp.ne.u32 %p1, %r5, 16;
    @%p1 bra NARROW;
    ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd5];
    st.global.v4.u32 [%rd4], {%r6, %r7, %r8, %r9};
    bra DONE;
NARROW:
    ld.global.u32 %r6, [%rd5];
    st.global.u32 [%rd4], %r6;
DONE:
    ret;
}
";

/// What the kernel takes that writes a word.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct WordParameters {
    pub(crate) address: u64,
    pub(crate) value: u64,
}

/// How it is launched.
pub(crate) const WORD_SHAPE: Launch = Launch {
    function: 0,
    stream: 0,
    grid: [1; 3],
    block: [1; 3],
    dynamic_shared_bytes: 0,
    parameter_bytes: size_of::<WordParameters>() as u32,
    attributes: 0,
    reserved: 0,
};

/// What the kernel takes that does nothing, in its text as well: as much as CUDA lets most kernels
/// take.
pub(crate) const ROOM: [u8; 4096] = [0; 4096];

/// How a node of it is made.
pub(crate) const ROOM_SHAPE: Launch = Launch { parameter_bytes: ROOM.len() as u32, ..WORD_SHAPE };

/// What the kernel takes that copies.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct CopyParameters {
    pub(crate) destination: u64,
    pub(crate) source: u64,
    units: u32,
    unit_bytes: u32,
}

/// What a thread copies, if all is aligned to it, or else.
const WIDE_BYTES: u64 = 16;
const NARROW_BYTES: u64 = 4;
/// Threads of a block.
const COPYING_THREADS: u32 = 256;
/// Copies are done by the kernel up to this length: longer ones are the copy engines' business.
const MOST_BYTES: u64 = 32 << 10;
/// A launch of this function is one of the kernel that copies; clients' functions have lower
/// numbers.
pub(crate) const COPIER: u32 = u32::MAX;

impl CopyParameters {
    /// For so many bytes; `None` if the kernel is not for such a copy.
    pub(crate) fn new(destination: u64, source: u64, size_bytes: u64) -> Option<Self> {
        let fits = |unit: u64| (destination | source | size_bytes).is_multiple_of(unit);
        let unit = [WIDE_BYTES, NARROW_BYTES].into_iter().find(|&unit| fits(unit))?;
        let is_apart = destination.abs_diff(source) >= size_bytes;
        let (units, unit_bytes) = ((size_bytes / unit) as u32, unit as u32);
        ((1..=MOST_BYTES).contains(&size_bytes) && is_apart).then_some(Self {
            destination,
            source,
            units,
            unit_bytes,
        })
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        u64::from(self.units) * u64::from(self.unit_bytes)
    }

    /// How it is launched on a stream.
    pub(crate) fn shape(&self, stream: u32) -> Launch {
        Launch {
            function: COPIER,
            stream,
            grid: [self.units.div_ceil(COPYING_THREADS), 1, 1],
            block: [COPYING_THREADS, 1, 1],
            dynamic_shared_bytes: 0,
            parameter_bytes: size_of::<Self>() as u32,
            attributes: 0,
            reserved: 0,
        }
    }
}

/// One kernel, loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnKernel {
    kernel: CUkernel,
    function: CUfunction,
}

impl OwnKernel {
    fn find(context: &Context, library: CUlibrary, name: &CStr) -> Option<Self> {
        let driver = context.driver();
        let (mut kernel, mut function) = (CUkernel::NULL, CUfunction::NULL);
        // SAFETY: a live library; the results are written.
        let found = unsafe {
            let found = driver.cuLibraryGetKernel(&mut kernel, library, name.as_ptr()).ok();
            found.and_then(|()| driver.cuKernelGetFunction(&mut function, kernel).ok())
        };
        context.check(found.err().unwrap_or(CUresult::SUCCESS)).ok()?;
        Some(Self { kernel, function })
    }

    /// As a node of a chain names it.
    pub(crate) fn code(&self, partition: Option<&Partition>) -> Code {
        match partition {
            Some(partition) => Code::Kernel(self.kernel, partition.context()),
            None => Code::Function(self.function),
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct OwnKernels {
    pub(crate) word_writer: OwnKernel,
    pub(crate) copier: OwnKernel,
    pub(crate) room_maker: OwnKernel,
    sm_noter: OwnKernel,
}

/// Shared memory of a block that notes its SM: few such blocks fit on one.
const NOTING_SHARED_BYTES: u32 = 40 << 10;
/// Blocks for each SM: more than fit, so that none is left out.
const NOTING_BLOCKS: u32 = 8;
const WARP_THREADS: u32 = 32;

impl OwnKernels {
    /// Loads them, before there are clients that this could hold up. `None` where the driver does
    /// not take them.
    pub(crate) fn load(context: &Context) -> Option<Self> {
        let mut library = CUlibrary::NULL;
        // SAFETY: the text lives for ever and ends with a NUL; no options; the result is written.
        let loaded = unsafe {
            context.driver().cuLibraryLoadData(
                &mut library,
                CODE.as_ptr().cast(),
                ptr::null_mut(),
                ptr::null_mut(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
            )
        };
        context.check(loaded).ok()?;
        Some(Self {
            word_writer: OwnKernel::find(context, library, c"openmps_write_word")?,
            copier: OwnKernel::find(context, library, c"openmps_copy")?,
            room_maker: OwnKernel::find(context, library, c"openmps_make_room")?,
            sm_noter: OwnKernel::find(context, library, c"openmps_note_sm")?,
        })
    }

    /// Numbers, below `most`, of the `count` SMs that a stream has. Some are missing if others were
    /// at work there.
    pub(crate) fn note_sms(
        &self,
        context: &Context,
        stream: CUstream,
        count: u32,
        most: usize,
    ) -> Result<Vec<usize>, CUresult> {
        let driver = context.driver();
        let (mut noted, mut words) = (0 as CUdeviceptr, vec![0_u32; most]);
        let bytes = size_of_val(&words[..]);
        let mut most = most as u32;
        // SAFETY: the address is written.
        context.check(unsafe { driver.cuMemAlloc_v2(&mut noted, bytes) })?;
        let mut parameters = [(&raw mut noted).cast::<c_void>(), (&raw mut most).cast::<c_void>()];
        let (grid, null) = (count * NOTING_BLOCKS, ptr::null_mut());
        // SAFETY: `noted` has `bytes`, as `words` has, and both live until the stream was waited
        // for; the parameters are those of the kernel.
        let done = unsafe {
            let cleared = driver.cuMemsetD32Async(noted, 0, words.len(), stream).ok();
            let launched = cleared.and_then(|()| {
                let (function, shared) = (self.sm_noter.function, NOTING_SHARED_BYTES);
                let list = parameters.as_mut_ptr();
                let threads = WARP_THREADS;
                driver
                    .cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, shared, stream, list, null)
                    .ok()
            });
            let words = words.as_mut_ptr().cast();
            let copied = launched
                .and_then(|()| driver.cuMemcpyDtoHAsync_v2(words, noted, bytes, stream).ok());
            let waited = driver.cuStreamSynchronize(stream).ok();
            let _ = driver.cuMemFree_v2(noted);
            copied.and(waited)
        };
        context.check(done.err().unwrap_or(CUresult::SUCCESS))?;
        let words = words.into_iter().enumerate();
        Ok(words.filter(|&(_, word)| word == 1).map(|(sm, _)| sm).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_of_whole_units_apart_and_short() {
        let units = |destination, source, size_bytes| {
            let copy = CopyParameters::new(destination, source, size_bytes)?;
            assert_eq!(copy.size_bytes(), size_bytes);
            let threads = copy.shape(0).grid[0] * COPYING_THREADS;
            assert!((copy.units..copy.units + COPYING_THREADS).contains(&threads));
            Some(copy.unit_bytes)
        };
        assert_eq!(units(0x1000, 0x2000, 2048), Some(16));
        assert_eq!(units(0x1000, 0x2004, 2048), Some(4));
        assert_eq!(units(0x1000, 0x2000, 20), Some(4));
        assert_eq!(units(0x10000, 0x20000, MOST_BYTES), Some(16));
        assert_eq!(units(0x10000, 0x20000, MOST_BYTES + 16), None, "too long");
        assert_eq!(units(0x1000, 0x2002, 2048), None, "not aligned");
        assert_eq!(units(0x1000, 0x2000, 6), None);
        assert_eq!(units(0x1000, 0x1010, 32), None, "it overlaps");
        assert_eq!(units(0x1010, 0x1000, 16), Some(16));
        assert_eq!(units(0x1000, 0x2000, 0), None);
    }
}
