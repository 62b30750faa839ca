//! Kernels that do not end, or fault when they are told, and what hides that they run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use link::completion::CompletionWords;
use link::shm::{self, Access, Mapping};
use link::wire::command::{
    EventCreate, FunctionGet, Launch, ModuleLoad, Opcode, REGION_PINNED, Signal,
};
use rustix::fd::AsFd;
use zerocopy::IntoBytes;

use crate::PATIENCE;
use crate::session::Session;

/// `spin` waits until a word is not 0; `late` does, too, and faults then; `forge` writes a value
/// somewhere meanwhile.
const CODE: &str = ".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 p) {
    .reg .u64 %rd<2>; .reg .u32 %r<2>; .reg .pred %p;
    ld.param.u64 %rd1, [p];
L:  ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p, %r1, 0;
    @%p bra L;
    ret;
}
.visible .entry late(.param .u64 p) {
    .reg .u64 %rd<3>; .reg .u32 %r<2>; .reg .pred %p;
    ld.param.u64 %rd1, [p];
L:  ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p, %r1, 0;
    @%p bra L;
    mov.u64 %rd2, 0xdead000;
    st.global.u32 [%rd2], %r1;
    ret;
}
.visible .entry forge(.param .u64 p, .param .u64 place, .param .u64 value) {
    .reg .u64 %rd<4>; .reg .u32 %r<2>; .reg .pred %p;
    ld.param.u64 %rd1, [p];
    ld.param.u64 %rd2, [place];
    ld.param.u64 %rd3, [value];
L:  st.volatile.global.u64 [%rd2], %rd3;
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p, %r1, 0;
    @%p bra L;
    ret;
}\0";
const NAMES: [&str; 3] = ["spin", "late", "forge"];
const PAGE_BYTES: u64 = 4096;
const CODE_BYTES: u64 = PAGE_BYTES;

/// The code, loaded, and the word that its kernels wait for.
pub(crate) struct Kernels {
    word: Mapping,
    address: u64,
}

impl Kernels {
    pub(crate) fn load(session: &mut Session) -> Result<Self> {
        let file = shm::create("attack", CODE_BYTES + PAGE_BYTES)?;
        let length = (CODE_BYTES + PAGE_BYTES) as usize;
        rustix::io::pwrite(&file, CODE.as_bytes(), 0)?;
        ensure!(session.map(file.as_fd(), 0, length as u64, REGION_PINNED)? == 0, "no region");
        let load = ModuleLoad {
            module: 0,
            optimization_level: u32::MAX,
            max_registers: 0,
            log_bytes: 0,
            address: session.window.base,
            size_bytes: CODE.len() as u64,
        };
        let (code, _) = session.call(Opcode::ModuleLoad, &[load.as_bytes()])?;
        ensure!(code == 0, "no code: {code}");
        for (function, name) in (0..).zip(NAMES) {
            let name_bytes = name.len() as u32;
            let get = FunctionGet { module: 0, function, name_bytes, reserved: 0 };
            let parts: [&[u8]; 2] = [get.as_bytes(), name.as_bytes()];
            let (code, _) = session.call(Opcode::FunctionGet, &parts)?;
            ensure!(code == 0, "no function {name}: {code}");
        }
        let word = Mapping::new(file.as_fd(), length, Access::ReadWrite)?;
        Ok(Self { word, address: session.window.base + CODE_BYTES })
    }

    /// Launches one of them on the default stream, with these parameters behind the address of the
    /// word.
    pub(crate) fn launch(&self, session: &mut Session, name: &str, more: &[u64]) -> Result<()> {
        let function = NAMES.iter().position(|known| *known == name).context("no such kernel")?;
        let launch = Launch {
            function: function as u32,
            grid: [1; 3],
            block: [1; 3],
            parameter_bytes: (size_of::<u64>() + size_of_val(more)) as u32,
            ..Default::default()
        };
        session.post(Opcode::Launch, &[launch.as_bytes(), self.address.as_bytes(), more.as_bytes()])
    }

    /// Lets them go on.
    pub(crate) fn go(&self) {
        let at = self.word.base().wrapping_add(CODE_BYTES as usize).cast::<AtomicU32>();
        // SAFETY: a word of the mapping, which others write as a whole, too.
        unsafe { &*at }.store(1, Ordering::Release);
    }
}

/// Asks for a signal of the default stream.
pub(crate) fn signal(session: &mut Session, value: u64) -> Result<()> {
    session.post(Opcode::Signal, &[Signal { stream: 0, reserved: 0, value }.as_bytes()])
}

/// Waits until the default stream has come so far, as its completion word says.
pub(crate) fn await_word(session: &Session, value: u64) -> Result<()> {
    let words = CompletionWords::map(session.completions.as_fd())?;
    let began = Instant::now();
    while words.completed(0) != value {
        ensure!(began.elapsed() < PATIENCE, "the word is {}", words.completed(0));
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// So many calls that do no harm.
pub(crate) fn events(session: &mut Session, count: u32) -> Result<()> {
    (0..count).try_for_each(|event| {
        session.post(Opcode::EventCreate, &[EventCreate { event, flags: 2 }.as_bytes()])
    })
}
