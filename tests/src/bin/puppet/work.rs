//! Kernels with results that the CPU knows.

use anyhow::Result;
use cuda_driver::{Context, DeviceBuffer, Function, LaunchShape, Stream};

const COUNT: u32 = 4096;
const BLOCK: u32 = 128;

/// `step`: `values[i] = values[i] * 3 + i`. `poke`: writes to the address that it is given.
pub(crate) const PTX: &str = r"
.version 6.0
.target sm_50
.address_size 64

.visible .entry step(.param .u64 values, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [values];
    ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra DONE;
    mul.wide.u32 %rd1, %r4, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r5, [%rd2];
    mad.lo.u32 %r6, %r5, 3, %r4;
    st.global.u32 [%rd2], %r6;
DONE:
    ret;
}

.visible .entry poke(.param .u64 address)
{
    .reg .b64 %rd;
    .reg .b32 %r;
    ld.param.u64 %rd, [address];
    mov.u32 %r, 1;
    st.global.u32 [%rd], %r;
    ret;
}
";

/// Launches `step` so many times over a fresh array; whether the result agrees with the CPU's.
pub(crate) fn work(context: &Context, kernels: u32) -> Result<bool> {
    let module = context.load_ptx(PTX)?;
    let step = module.function("step")?;
    let mut values: Vec<u32> = (0..COUNT).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let memory = DeviceBuffer::from_host(context, &values)?;
    for _ in 0..kernels {
        // SAFETY: COUNT integers and their number, as the kernel declares them.
        unsafe {
            step.launch(LaunchShape::linear(COUNT / BLOCK, BLOCK), None, &[&memory, &COUNT])?
        };
        for (i, value) in (0..).zip(&mut values) {
            *value = value.wrapping_mul(3).wrapping_add(i);
        }
    }
    Ok(memory.read()? == values)
}

/// What a kernel on a stream of its own needs, whose results a synchronous copy waits for.
pub(crate) struct Copied {
    step: Function<'static>,
    stream: Stream,
    values: DeviceBuffer<u32>,
    launches: u32,
}

impl Copied {
    /// Its code stays until the process ends.
    pub(crate) fn of(context: &Context) -> Result<Self> {
        let module = Box::leak(Box::new(context.load_ptx(PTX)?));
        let values = DeviceBuffer::from_host(context, &vec![0; COUNT as usize])?;
        let (step, stream) = (module.function("step")?, context.blocking_stream()?);
        Ok(Self { step, stream, values, launches: 0 })
    }

    /// Launches `step` once more and copies its results; whether they agree with the CPU's.
    pub(crate) fn again(&mut self) -> Result<bool> {
        let shape = LaunchShape::linear(COUNT / BLOCK, BLOCK);
        // SAFETY: COUNT integers and their number, as the kernel declares them.
        unsafe { self.step.launch(shape, Some(&self.stream), &[&self.values, &COUNT])? };
        self.launches += 1;
        let expected =
            |i| (0..self.launches).fold(0_u32, |it, _| it.wrapping_mul(3).wrapping_add(i));
        Ok(self.values.read()?.into_iter().eq((0..COUNT).map(expected)))
    }
}

/// Launches a kernel that writes to an address, and waits for it.
pub(crate) fn write_to(context: &Context, address: u64) -> Result<()> {
    let module = context.load_ptx(PTX)?;
    write_by(&module.function("poke")?, context, address)
}

/// The same by a kernel that is there.
pub(crate) fn write_by(poke: &Function<'_>, context: &Context, address: u64) -> Result<()> {
    // SAFETY: the device refuses the address, or it is a puppet's; that is what this is for.
    unsafe { poke.launch(LaunchShape::linear(1, 1), None, &[&address])? };
    Ok(context.synchronize()?)
}
