//! The one choice of a process: attached to a server, or native.
//!
//! Made by `cuInit` or `cuDriverGetVersion`, whichever comes first (and by `cuGetExportTable`, as a
//! table's address must not change later). A daemon's socket that takes our connection means
//! attached; what the daemon then refuses is the result of `cuInit`, never a reason to go native. A
//! process that a debugger or another tool of CUDA's has in its hands is native, too
//! ([`crate::attach::tools`]). No socket, or nobody behind it, means native: the jump table is
//! filled with the native driver's functions.

use crate::attach::native;
use crate::attach::tools;
use crate::attach::tools::Tool;
use crate::attach::{self, AttachError, Attachment};
use crate::client::Client;
use crate::client::starting::{self, Child};
use crate::exports;
use crate::recorder::tracer;
use crate::{error, info};
use cuda_abi::table::DriverTable;
use cuda_abi::types::CUresult;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

/// What was chosen.
pub(crate) enum Choice {
    /// Every call goes to the native driver.
    Native(Box<DriverTable>),
    /// Every call is ours.
    Attached(&'static Client),
    /// There is a daemon, and it refused, or there is neither daemon nor driver: the result of
    /// `cuInit`.
    None(CUresult),
}

/// Never freed once it is there; null again only in the child of a fork.
static CHOICE: AtomicPtr<Choice> = AtomicPtr::new(core::ptr::null_mut());
/// The process in which a thread is making the choice, or 0. A process id, as a fork in that moment
/// leaves the child without that thread.
static CHOOSING: AtomicU32 = AtomicU32::new(0);
/// Between two looks at whether another thread has made the choice, which takes milliseconds or,
/// with a server to start, seconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The choice, made now if it was not before.
#[inline]
pub(crate) fn choose() -> &'static Choice {
    match made() {
        Some(made) => made,
        None => choose_now(),
    }
}

#[cold]
fn choose_now() -> &'static Choice {
    let process = std::process::id();
    loop {
        if let Some(made) = made() {
            return made;
        }
        match CHOOSING.load(Ordering::Acquire) {
            present if present == process => std::thread::sleep(LOOK_INTERVAL),
            // Nobody, or a thread of this process's parent.
            stale => {
                // AcqRel: with the load above and the store below; who comes second finds the
                // choice made.
                let ours =
                    CHOOSING.compare_exchange(stale, process, Ordering::AcqRel, Ordering::Relaxed);
                if ours.is_ok() {
                    return make_once();
                }
            }
        }
    }
}

fn make_once() -> &'static Choice {
    /// Lets others look again, also after a panic.
    struct Chosen;
    impl Drop for Chosen {
        fn drop(&mut self) {
            // Release: with the Acquire in `choose`.
            CHOOSING.store(0, Ordering::Release);
        }
    }
    let _chosen = Chosen;
    if let Some(choice) = made() {
        return choice;
    }
    let choice: &'static mut Choice = Box::leak(Box::new(make()));
    // Release: with the Acquire in `made`.
    CHOICE.store(choice, Ordering::Release);
    choice
}

/// The choice, if it was made.
#[inline]
pub(crate) fn made() -> Option<&'static Choice> {
    // SAFETY: null, or a leaked box; Acquire: with the Release in `make_once`.
    unsafe { CHOICE.load(Ordering::Acquire).as_ref() }
}

/// Lets the child of a fork choose for itself, where it may.
extern "C" fn in_child() {
    if starting::leave_to_parent() == Child::MayChoose {
        // Relaxed: the child has one thread.
        CHOICE.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

fn make() -> Choice {
    match tools::present() {
        Some(Tool::Injection(variable)) => {
            info!("running natively for the sake of a tool: {variable} is set");
            return native_driver();
        }
        Some(Tool::ParentsDebugger(name)) => {
            info!("running natively as the process that started this one does, under {name}");
            return native_driver();
        }
        Some(Tool::Debugger(name)) => {
            if let Err(refused) = attach::await_release(&name) {
                tell(&refused);
                return Choice::None(refused.code());
            }
            info!("running natively under {name}");
            return native_driver();
        }
        None => {}
    }
    match attach::connect() {
        Ok(attachment) => attached(attachment),
        Err(AttachError::NoDaemon(_)) => native_driver(),
        Err(refused) => {
            tell(&refused);
            Choice::None(refused.code())
        }
    }
}

/// Says why the process can have no GPU: plainly where another library or daemon is all it takes.
fn tell(refused: &AttachError) {
    match refused.is_of_another_version() {
        true => crate::log::tell_unless_off(format_args!("{refused}")),
        false => error!("{refused}"),
    }
}

fn attached(attachment: Attachment) -> Choice {
    info!(
        "attached to server {} as client {}, {} devices",
        attachment.welcome.server_pid,
        attachment.welcome.client_id,
        attachment.welcome.devices.len()
    );
    match starting::start(attachment) {
        Ok(client) => {
            // A child that attaches anew has inherited the handler.
            static HANDLER: Once = Once::new();
            HANDLER.call_once(|| {
                // SAFETY: the handler only stores to atomics and closes descriptors, which is
                // allowed in the child of a fork.
                let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            });
            tracer::begin_attached();
            Choice::Attached(client)
        }
        Err(code) => Choice::None(code),
    }
}

fn native_driver() -> Choice {
    match native::load() {
        Ok(table) => {
            exports::pass_through(&table);
            tracer::note_native();
            Choice::Native(Box::new(table))
        }
        Err(reason) => {
            error!("no OpenMPS daemon, and {reason}");
            Choice::None(CUresult::ERROR_NO_DEVICE)
        }
    }
}
