//! Two streams of which one waits for what the other one's kernel, launched later, writes.

use anyhow::Result;
use cuda_driver::{Context, DeviceBuffer, Function, LaunchShape, Module};

/// `wait_for`: spins until the word is no longer zero, then copies it to the word behind it. `say`:
/// writes the word.
const PTX: &str = r"
.version 6.0
.target sm_50
.address_size 64

.visible .entry wait_for(.param .u64 words)
{
    .reg .pred %p;
    .reg .b32 %r;
    .reg .b64 %rd;
    ld.param.u64 %rd, [words];
AGAIN:
    ld.volatile.global.u32 %r, [%rd];
    setp.eq.u32 %p, %r, 0;
    @%p bra AGAIN;
    st.global.u32 [%rd+4], %r;
    ret;
}

.visible .entry say(.param .u64 words, .param .u32 word)
{
    .reg .b32 %r;
    .reg .b64 %rd;
    ld.param.u64 %rd, [words];
    ld.param.u32 %r, [word];
    st.volatile.global.u32 [%rd], %r;
    ret;
}
";

/// The code of both.
pub(crate) fn load(context: &Context) -> Result<Module> {
    Ok(context.load_ptx(PTX)?)
}

/// A kernel that waits, and one that lets it end.
pub(crate) struct Holding<'a> {
    wait_for: Function<'a>,
    say: Function<'a>,
}

impl<'a> Holding<'a> {
    /// From the code.
    pub(crate) fn of(module: &'a Module) -> Result<Self> {
        Ok(Self { wait_for: module.function("wait_for")?, say: module.function("say")? })
    }

    /// Runs a kernel as long as something goes on.
    pub(crate) fn hold(
        &self,
        context: &Context,
        goes_on: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (waits, says) = (context.stream()?, context.stream()?);
        let words = DeviceBuffer::from_host(context, &[0_u32; 2])?;
        context.synchronize()?;
        let one = LaunchShape::linear(1, 1);
        // SAFETY: two words, as the kernel declares them.
        unsafe { self.wait_for.launch(one, Some(&waits), &[&words])? };
        goes_on()?;
        // SAFETY: two words, and what to write there, as the kernel declares them.
        unsafe { self.say.launch(one, Some(&says), &[&words, &1_u32])? };
        waits.synchronize()?;
        Ok(says.synchronize()?)
    }
}

/// So many meetings; whether each waiting kernel saw what was said.
pub(crate) fn meet(context: &Context, meetings: u32) -> Result<bool> {
    let module = context.load_ptx(PTX)?;
    // Both before the first launch: code that is loaded while a kernel of the program waits would
    // wait for that kernel.
    let (wait_for, say) = (module.function("wait_for")?, module.function("say")?);
    let (waits, says) = (context.stream()?, context.stream()?);
    let words = DeviceBuffer::from_host(context, &[0_u32; 2])?;
    let one = LaunchShape::linear(1, 1);
    for word in 1..=meetings {
        words.write(&[0, 0])?;
        // The streams are ordered with no other, and a small copy may still be on its way when its
        // call returns.
        context.synchronize()?;
        // SAFETY: two words, and what to write there, as the kernels declare them.
        unsafe {
            wait_for.launch(one, Some(&waits), &[&words])?;
            say.launch(one, Some(&says), &[&words, &word])?;
        }
        waits.synchronize()?;
        says.synchronize()?;
        if words.read()? != [word, word] {
            return Ok(false);
        }
    }
    Ok(true)
}
