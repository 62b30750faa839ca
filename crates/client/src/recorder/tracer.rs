//! The tracer: how a process finds it, what it is told, and how a trace ends.

use super::{RECORDER, Recorder, TIMEOUT, is_on, recorder};
use crate::client::{self, Client};
use crate::context::device::Device;
use crate::exports;
use crate::{info, warn};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use link::socket::{Connection, SocketError};
use link::trace::TraceRing;
use link::wire::trace::{FromTraced, SOCKET_VARIABLE, ToTraced};
use link::wire::version::Versions;
use rustix::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

/// The descriptor of its connection, for the child of a fork; -1 if there is none.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// Connects to the tracer that the environment names, unless that was done.
pub(crate) fn open_from_environment() {
    let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) else {
        return;
    };
    if is_on() {
        return;
    }
    match Connection::connect(Path::new(&path), TIMEOUT) {
        Ok(connection) => drop(publish(connection)),
        // A child that has outlived the tracer.
        Err(error) => info!("nothing is traced: {error}"),
    }
}

/// The choice of this process is the native driver.
pub(crate) fn note_native() {
    open_from_environment();
    if let Some(recorder) = recorder() {
        recorder.tell(&FromTraced::Native, None);
    }
}

/// The choice of this process is a server: its calls are to be made ready. Says whether they are
/// traced.
pub(crate) fn begin_attached() {
    open_from_environment();
    match recorder() {
        Some(recorder) => {
            recorder.tell(&FromTraced::Attached, None);
            exports::attach_recorded();
        }
        None => exports::attach(),
    }
}

/// Somebody wants to trace this process, which runs.
pub(crate) fn begin(connection: Connection, client: &'static Client) {
    if is_on() {
        // Closing the connection says so.
        return info!("a second tracer is turned away");
    }
    if publish(connection).is_none() {
        return;
    }
    if let Some(recorder) = recorder() {
        recorder.tell(&FromTraced::Attached, None);
    }
    exports::attach_recorded();
    client.devices.iter().for_each(begin_session);
}

/// A device has a session, or nothing happens.
pub(crate) fn begin_session(device: &Device) {
    let (Some(recorder), Some(backend)) = (recorder(), device.opened()) else { return };
    let ring = match TraceRing::create() {
        Ok((file, _)) => file,
        Err(error) => return warn!("the work of device {} is not traced: {error}", device.ordinal),
    };
    let ordinal = device.ordinal.unsigned_abs();
    match backend.session.start_trace(ring.as_fd(), ordinal + 1) {
        Ok(()) => {
            let message = FromTraced::Session { device: ordinal, name: device.info.name.clone() };
            recorder.tell(&message, Some(&ring));
        }
        Err(error) => warn!("the work of device {ordinal} is not traced: {error}"),
    }
}

/// Makes the connection the one trace of this process; `None` if that was not possible.
fn publish(connection: Connection) -> Option<()> {
    let (file, ring) = match TraceRing::create() {
        Ok(made) => made,
        Err(error) => {
            warn!("nothing is traced: {error}");
            return None;
        }
    };
    let words: Vec<_> =
        std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let hello = FromTraced::Hello {
        versions: Versions::ours(),
        pid: std::process::id(),
        command: words.join(" "),
    };
    connection.send(&hello, &[file.as_fd()], TIMEOUT).ok()?;
    let connection = Arc::new(connection);
    let descriptor = connection.as_fd().as_raw_fd();
    let made = Recorder {
        ring,
        connection: Arc::clone(&connection),
        texts: Mutex::default(),
        stuck_at: AtomicU64::new(0),
    };
    let made = Box::into_raw(Box::new(made));
    // Release: with the Acquire in `recorder`. A thread that was faster has its own.
    let null = core::ptr::null_mut();
    if RECORDER.compare_exchange(null, made, Ordering::Release, Ordering::Relaxed).is_err() {
        // SAFETY: made above, known to nobody.
        drop(unsafe { Box::from_raw(made) });
        return None;
    }
    // Relaxed: read by the child of a fork, which has one thread.
    DESCRIPTOR.store(descriptor, Ordering::Relaxed);
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: the handler only stores to atomics and closes a descriptor, which is allowed in
        // the child of a fork.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    let listening = crate::thread::spawn("openmps-trace", move || {
        await_end(&connection);
        end(&connection);
    });
    if let Err(error) = listening {
        warn!("the tracer cannot be listened to: {error}");
    }
    Some(())
}

/// The parent is traced, not the child.
extern "C" fn in_child() {
    // Relaxed: the child has one thread.
    RECORDER.store(core::ptr::null_mut(), Ordering::Relaxed);
    let descriptor = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        // SAFETY: the recorder's own, which the child never uses.
        unsafe { libc::close(descriptor) };
    }
}

fn await_end(connection: &Connection) {
    loop {
        match connection.receive::<ToTraced>(Duration::from_secs(60)) {
            Ok(received) => match received.message {
                ToTraced::Stop => return,
            },
            Err(SocketError::TimedOut(_)) => {}
            Err(_) => return,
        }
    }
}

/// Records no more; tells the tracer when nothing more will come.
fn end(connection: &Connection) {
    let Some(recorder) = recorder() else { return };
    // Release: as in `publish`; who has the old value still writes to a ring that is there.
    RECORDER.store(core::ptr::null_mut(), Ordering::Release);
    DESCRIPTOR.store(-1, Ordering::Relaxed);
    if let Some(client) = client::started() {
        exports::attach();
        for backend in client.devices.iter().filter_map(Device::opened) {
            backend.session.stop_trace();
        }
    }
    recorder.ring.close();
    let _ = connection.send(&FromTraced::Stopped, &[], TIMEOUT);
}
