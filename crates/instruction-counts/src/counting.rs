//! Instructions, counted one by one: while the trap flag is set in a thread, the processor traps
//! after each.
//!
//! Only those of one program or library are counted. What the C library, its dynamic linker and the
//! kernel's clock do differs between machines: they choose by the processor. Nothing but signals is
//! needed: no counters of the processor, which most virtual machines and containers keep to
//! themselves, and no tracer.

use std::arch::asm;
use std::fs;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing is known of the code.
    #[error("the list of this process's memory, /proc/self/maps, cannot be read")]
    NoMaps(#[source] io::Error),
    /// The address is not one of a function.
    #[error("no code is mapped at {0:#x}")]
    NoCode(usize),
    /// The kernel refused the handler.
    #[error("no handler for SIGTRAP can be set")]
    NoHandler(#[source] io::Error),
    /// Some emulators and user-mode kernels leave the flag out.
    #[error(
        "no instruction trapped: this system lacks the processor's trap flag (TF), by which instructions are counted; use a kernel or a virtual machine that has it"
    )]
    NoTraps,
}

/// What the handler counts, in the one thread that traps; hence all accesses are relaxed.
static FIRST: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static COUNTED: AtomicU64 = AtomicU64::new(0);
static TRAPS: AtomicU64 = AtomicU64::new(0);
/// Held by the thread that counts: tests run at the same time.
static COUNTING: Mutex<()> = Mutex::new(());

/// The code of one program or library in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code(Range<usize>);

impl Code {
    /// The code of whatever has a function at this address.
    ///
    /// # Errors
    /// When there is none.
    pub fn around(function: *const ()) -> Result<Self, Error> {
        let maps = fs::read_to_string("/proc/self/maps").map_err(Error::NoMaps)?;
        let address = function.addr();
        let code = maps.lines().filter_map(executable).find(|code| code.contains(&address));
        code.map(Self).ok_or(Error::NoCode(address))
    }
}

/// The addresses of a line of `/proc/self/maps`, if they may be executed: `55d0-55e0 r-xp ...`.
fn executable(line: &str) -> Option<Range<usize>> {
    let (addresses, rest) = line.split_once(' ')?;
    let (first, end) = addresses.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    rest.starts_with("r-x").then_some(address(first)?..address(end)?)
}

/// How many instructions of this code `act` takes in this thread, and what it returned: look at
/// that afterwards, since a panic takes minutes to say where it was while all of it traps.
///
/// # Errors
/// When this system cannot count.
pub fn count<T>(code: &Code, act: impl FnOnce() -> T) -> Result<(u64, T), Error> {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    FIRST.store(code.0.start, Ordering::Relaxed);
    END.store(code.0.end, Ordering::Relaxed);
    COUNTED.store(0, Ordering::Relaxed);
    TRAPS.store(0, Ordering::Relaxed);
    let traps = Traps::begin()?;
    let returned = act();
    drop(traps);
    match TRAPS.load(Ordering::Relaxed) {
        0 => Err(Error::NoTraps),
        _ => Ok((COUNTED.load(Ordering::Relaxed), returned)),
    }
}

/// This thread traps after each instruction, also while it unwinds.
struct Traps;

impl Traps {
    fn begin() -> Result<Self, Error> {
        // SAFETY: plain data, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = count_one as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a handler that calls nothing. Nobody else in a program that counts uses the
        // signal.
        if unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(Error::NoHandler(io::Error::last_os_error()));
        }
        // SAFETY: sets the trap flag, for which there is a handler now.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        Ok(Self)
    }
}

impl Drop for Traps {
    fn drop(&mut self) {
        // SAFETY: clears the trap flag.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    }
}

/// After each instruction.
extern "C" fn count_one(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's record of the interrupted thread.
    let at = unsafe { (*context).uc_mcontext.gregs[libc::REG_RIP as usize] } as usize;
    let code = FIRST.load(Ordering::Relaxed)..END.load(Ordering::Relaxed);
    COUNTED.fetch_add(code.contains(&at).into(), Ordering::Relaxed);
    TRAPS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{Code, Error, count};
    use std::arch::asm;
    use std::hint::black_box;
    use std::panic::{catch_unwind, resume_unwind};
    use std::ptr;

    fn of_this_program() -> Code {
        Code::around(of_this_program as *const ()).unwrap()
    }

    fn steps<const STEPS: usize>() -> u64 {
        let act = || {
            // SAFETY: does nothing.
            unsafe { asm!(".rept {steps}", "nop", ".endr", steps = const STEPS) };
        };
        count(&of_this_program(), act).unwrap().0
    }

    #[test]
    fn each_instruction_is_counted_once() {
        assert_eq!(steps::<1000>() - steps::<100>(), 900);
        assert_eq!(steps::<101>() - steps::<100>(), 1);
    }

    #[test]
    fn what_another_library_does_is_not_counted() {
        // By an address that the compiler does not know, or it would write the bytes itself.
        let set: unsafe extern "C" fn(_, _, _) -> _ = black_box(libc::memset);
        let clear = |bytes: usize| {
            let mut memory = vec![1_u8; bytes];
            let place = memory.as_mut_ptr().cast();
            // SAFETY: all of the memory.
            let (instructions, _) =
                count(&of_this_program(), || unsafe { set(place, 0, bytes) }).unwrap();
            assert!(memory.iter().all(|&byte| byte == 0));
            instructions
        };
        assert_eq!(clear(10), clear(10_000));
    }

    #[test]
    fn what_unwinds_is_counted_no_longer() {
        let code = of_this_program();
        // Without the message of a panic, which takes minutes if all of it traps.
        let unwinds = || count(&code, || resume_unwind(Box::new("as it should")));
        assert!(catch_unwind(unwinds).is_err());
        let flags: u64;
        // SAFETY: reads the flags.
        unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
        assert_eq!(flags & 0x100, 0);
        assert!(count(&code, || ()).is_ok());
    }

    #[test]
    fn what_is_no_code_is_refused() {
        let data = [0_u8; 1];
        let found = [Code::around(data.as_ptr().cast()), Code::around(ptr::null())];
        assert!(found.iter().all(|code| matches!(code, Err(Error::NoCode(_)))), "{found:?}");
    }
}
