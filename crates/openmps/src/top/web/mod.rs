//! `openmps top --web`: the same for a browser, and for reading alone.
//!
//! One thread looks at the daemon, as often as the terminal's screen does, and leaves what it saw
//! ([`state`]). Another answers requests with that ([`site`]): however many browsers look, the
//! daemon is asked once.

mod site;
mod state;

use std::io::{ErrorKind, Read, Write, stdout};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use control::http::{Address, Listener, Reach, answer_all, listen};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{Watch, said};
use site::{Door, Page, Token};

/// What was seen last, and when.
#[derive(Debug, Clone)]
struct Seen {
    state: Arc<str>,
    at: Instant,
}

type Shared = Arc<Mutex<Seen>>;

/// Serves the page until a signal ends it.
///
/// # Errors
/// The address is taken or not allowed.
pub(super) fn serve(
    place: &Address,
    mut watch: Watch,
    interval: Duration,
) -> anyhow::Result<ExitCode> {
    let mut signals = signals()?;
    signals.set_read_timeout(Some(interval))?;
    let seen = |state: String| Seen { state: state.into(), at: Instant::now() };
    let shared = Arc::new(Mutex::new(seen(state::text(&watch, None, interval)?)));
    // Its file goes with it.
    let (listener, _socket) =
        listen(place, Reach::Owner).with_context(|| format!("cannot listen at {place}"))?;
    let door = match &listener {
        Listener::Unix(_) => {
            say(&format!("the page is at {place}, for this user; Ctrl-C ends it"))?;
            Door::OwnersSocket
        }
        Listener::Tcp(listener) => {
            let token = Token::new().context("the kernel has no random bytes")?;
            let at = listener.local_addr()?;
            say(&format!("http://{at}/{token}/\nthe address opens the page; Ctrl-C ends it"))?;
            Door::Token(token)
        }
    };
    let mut page = Page::new(door, Arc::clone(&shared));
    let thread = std::thread::Builder::new().name("page".into());
    thread.spawn(move || answer_all(&listener, &mut page))?;
    loop {
        match signals.read(&mut [0]) {
            Err(error) if is_for_later(error.kind()) => {}
            _ => return Ok(ExitCode::SUCCESS),
        }
        let trouble = watch.look().err().map(said);
        let state = state::text(&watch, trouble, interval)?;
        *shared.lock().unwrap_or_else(PoisonError::into_inner) = seen(state);
    }
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// A socket that can be read once the process is to end.
fn signals() -> std::io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}

fn say(text: &str) -> std::io::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}
