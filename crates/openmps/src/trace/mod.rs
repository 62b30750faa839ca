//! `openmps trace`: what a client's driver calls, kernels and copies take, as a trace that Perfetto
//! and `chrome://tracing` show.
//!
//! The command is either started with this process's socket in its environment, or runs already and
//! is handed a connection by the daemon. Each traced process sends its rings ([`source`]); they are
//! read as they fill, so that nothing is lost however long it runs, and what they say is written at
//! once ([`writer`]). Messages: `link::wire::trace`.

pub(crate) mod names;
mod source;
mod writer;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use control::directories::Directories;
use flate2::Compression;
use flate2::write::GzEncoder;
use link::printable;
use link::socket::{Connection, Listener, SocketError};
use link::wire::attach::{Hello, HelloReply};
use link::wire::protocol_version;
use link::wire::trace::{FromTraced, SOCKET_VARIABLE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::{Run, Trace};
use crate::output;
use crate::program;
use crate::run;
use source::{Source, Standing};
use writer::Writer;

/// Between two looks at rings that have been found empty.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// For an answer on a socket.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What is left when the command has ended, or the trace is to end, must come within this time.
const PATIENCE: Duration = Duration::from_secs(30);
/// What NVTX loads at its first call.
const NVTX_VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// As shells report a signal.
const SIGNAL_STATUS: i32 = 128;

/// Where the trace goes, compressed or not. Dropped without [`Output::finish`], a compressed file
/// has no end.
enum Output {
    Plain(BufWriter<File>),
    Compressed(Box<GzEncoder<BufWriter<File>>>),
}

impl Output {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let file = BufWriter::with_capacity(1 << 18, output::create(path)?);
        let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
        Ok(match is_compressed {
            true => Self::Compressed(Box::new(GzEncoder::new(file, Compression::fast()))),
            false => Self::Plain(file),
        })
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Plain(mut file) => file.flush(),
            Self::Compressed(encoder) => encoder.finish()?.flush(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Compressed(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Compressed(encoder) => encoder.flush(),
        }
    }
}

/// `openmps trace`.
///
/// # Errors
/// No daemon, no such client, no such program; a file that cannot be written.
pub(crate) fn trace(options: Trace) -> anyhow::Result<ExitCode> {
    match options.client {
        Some(pid) => trace_client(pid, &options),
        None => trace_command(options),
    }
}

fn trace_command(options: Trace) -> anyhow::Result<ExitCode> {
    let output = options.output.clone().unwrap_or_else(|| "openmps-trace.json".into());
    let run = Run {
        softcuda: options.softcuda,
        native_driver: options.native_driver,
        command: options.command,
        ..Run::default()
    };
    let Some((program, arguments)) = run.command.split_first() else {
        bail!("what is to be traced? give a command, or --client PID")
    };
    if let Err(error) = program::find_servable(program) {
        return Ok(run::cannot_run(program, &error));
    }
    let variables = run::prepare(&run)?;
    let meeting = Meeting::new()?;
    let writer = Writer::new(Output::create(&output)?)?;
    let library = variables.library.join("libcuda.so.1");
    let signals = Signals::for_command()?;
    let child = Command::new(program)
        .args(arguments)
        .envs(variables.all)
        .env(SOCKET_VARIABLE, meeting.socket())
        .env(NVTX_VARIABLE, library)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return Ok(run::cannot_run(program, &error)),
    };
    let mut tracer = Tracer { sources: Vec::new(), writer, is_ending: None };
    let mut status = None;
    loop {
        if let Some(signal) = signals.taken() {
            forward(&child, signal);
        }
        if status.is_none() {
            status = child.try_wait()?;
        }
        // What it has started in the background is traced until it has ended itself.
        if status.is_some() {
            tracer.end();
        }
        for connection in meeting.arrivals()? {
            tracer.sources.push(Source::new(connection));
        }
        if !tracer.look(Some(&meeting.listener))? && status.is_some() && tracer.is_done() {
            break;
        }
    }
    tracer.report(&output, Some(program))?;
    let status = status.context("the program has no status")?;
    let code = status.code().unwrap_or_else(|| SIGNAL_STATUS + status.signal().unwrap_or(0));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

fn trace_client(pid: u32, options: &Trace) -> anyhow::Result<ExitCode> {
    let output = options.output.clone();
    let output = output.unwrap_or_else(|| PathBuf::from(format!("openmps-trace-{pid}.json")));
    let socket = Directories::from_environment().socket();
    let connection = Connection::connect(&socket, TIMEOUT)
        .with_context(|| format!("no daemon answers at {}", socket.display()))?;
    link::trust::check_daemon(&connection, &socket)
        .with_context(|| format!("the daemon at {} is not used", socket.display()))?;
    // Before the client hears of it: whoever sees that it is traced may end that.
    let signals = Signals::for_client()?;
    let hello = Hello::Trace { protocol: protocol_version(), pid };
    connection.send(&hello, &[], TIMEOUT)?;
    let first = match connection.receive::<serde_json::Value>(TIMEOUT) {
        Ok(received) => received,
        Err(SocketError::Closed) => bail!(
            "process {pid} is no client that you may trace, or is traced already: `openmps ps` lists the clients; what runs natively cannot be traced"
        ),
        Err(error) => bail!("client {pid} does not answer: {}", printable(&error.to_string())),
    };
    // The client's server may answer in its place. Whoever does may say anything, also in what an
    // error repeats of it.
    if let Ok(HelloReply::Refused(refusal)) = serde_json::from_value(first.message.clone()) {
        bail!("{}", printable(&refusal.message));
    }
    let message: FromTraced = match serde_json::from_value(first.message) {
        Ok(message) => message,
        Err(error) => {
            bail!("client {pid} sent what is no answer: {}", printable(&error.to_string()))
        }
    };
    let mut source = Source::new(connection);
    let mut writer = Writer::new(Output::create(&output)?)?;
    source.take(message, first.descriptors, &mut writer)?;
    let mut tracer = Tracer { sources: vec![source], writer, is_ending: None };
    let until = options.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
    eprintln!("openmps: tracing process {pid} into {}; Ctrl-C ends that", output.display());
    loop {
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if is_over || signals.taken().is_some() {
            tracer.end();
        }
        if !tracer.look(None)? && tracer.is_done() {
            break;
        }
    }
    tracer.report(&output, None)?;
    Ok(ExitCode::SUCCESS)
}

struct Tracer {
    sources: Vec<Source>,
    writer: Writer<Output>,
    is_ending: Option<Instant>,
}

impl Tracer {
    /// Tells all to stop, once.
    fn end(&mut self) {
        if self.is_ending.is_none() {
            self.is_ending = Some(Instant::now());
        }
        self.sources.iter_mut().for_each(Source::stop);
    }

    /// Takes what has come, or waits a moment; says whether anything had.
    fn look(&mut self, listener: Option<&Listener>) -> anyhow::Result<bool> {
        let mut is_busy = false;
        for source in &mut self.sources {
            is_busy |= source.look(&mut self.writer)?;
        }
        if !is_busy {
            let listeners = listener.iter().map(|listener| PollFd::new(*listener, PollFlags::IN));
            let open = self.sources.iter().filter_map(Source::connection);
            let mut polled: Vec<_> =
                listeners
                    .chain(open.map(|connection| {
                        PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)
                    }))
                    .collect();
            let limit = Timespec { tv_sec: 0, tv_nsec: LOOK_INTERVAL.subsec_nanos().into() };
            match poll(&mut polled, Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(is_busy)
    }

    fn is_done(&self) -> bool {
        let is_late = self.is_ending.is_some_and(|at| at.elapsed() > PATIENCE);
        is_late || self.sources.iter().all(Source::is_done)
    }

    /// Ends the file and says what is in it.
    fn report(mut self, output: &Path, program: Option<&OsString>) -> anyhow::Result<()> {
        for source in &mut self.sources {
            source.finish(&mut self.writer)?;
        }
        let lost: u64 = self.sources.iter().map(Source::lost).sum();
        let untold = self.sources.iter().filter(|source| !source.is_done()).count();
        let is_attached = |source: &&Source| source.standing() == Standing::Attached;
        let attached = self.sources.iter().filter(is_attached).count();
        let native = self.sources.iter().filter(|s| s.standing() == Standing::Native).count();
        let counts = self.writer.counts();
        self.writer
            .finish(lost)?
            .finish()
            .with_context(|| format!("cannot write {}", output.display()))?;
        eprintln!(
            "openmps: {}: {attached} client(s), {} driver calls, {} kernels, {} copies and fills, {} graph launches, {} NVTX ranges and marks",
            output.display(),
            counts.calls,
            counts.kernels,
            counts.copies,
            counts.graphs,
            counts.annotations
        );
        if lost > 0 || untold > 0 {
            eprintln!(
                "openmps: the trace is not complete: {lost} record(s) are missing, and {untold} process(es) did not come to an end"
            );
        }
        if native > 0 {
            eprintln!(
                "openmps: {native} process(es) ran on the native driver, of which there is nothing to trace: no daemon was reached, or a tool had the process in its hands"
            );
        } else if let (0, Some(program)) = (attached, program) {
            eprintln!(
                "openmps: nothing was traced: {} has not used CUDA, or has not loaded the libcuda.so.1 of OpenMPS",
                program.to_string_lossy()
            );
        }
        Ok(())
    }
}

/// Where traced processes find the tracer: a socket in a directory of this user's.
struct Meeting {
    directory: PathBuf,
    listener: Listener,
}

impl Meeting {
    fn new() -> anyhow::Result<Self> {
        let number = std::process::id();
        // Short: the paths of sockets are.
        let directory = PathBuf::from(format!("/tmp/openmps-trace-{number}"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let listener = Listener::bind(&directory.join("socket"))?;
        Ok(Self { directory, listener })
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    fn arrivals(&self) -> anyhow::Result<Vec<Connection>> {
        let mut arrived = Vec::new();
        while let Some(connection) = self.listener.try_accept()? {
            arrived.push(connection);
        }
        Ok(arrived)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A signal that came, if any.
struct Signals(Arc<AtomicI32>);

impl Signals {
    /// A terminal's Ctrl-C reaches the command by itself; what is sent to this process alone is
    /// passed on.
    fn for_command() -> io::Result<Self> {
        signal_hook::flag::register(SIGINT, Arc::new(AtomicBool::new(false)))?;
        Self::of(&[SIGTERM, SIGHUP])
    }

    fn for_client() -> io::Result<Self> {
        Self::of(&[SIGINT, SIGTERM, SIGHUP])
    }

    fn of(signals: &[i32]) -> io::Result<Self> {
        let came = Arc::new(AtomicI32::new(0));
        for &signal in signals {
            let came = Arc::clone(&came);
            let note = move || came.store(signal, Ordering::Relaxed);
            // SAFETY: the handler stores to an atomic, which a signal handler may.
            unsafe { signal_hook::low_level::register(signal, note) }?;
        }
        Ok(Self(came))
    }

    fn taken(&self) -> Option<i32> {
        // Relaxed: the number is all that there is.
        Some(self.0.swap(0, Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

fn forward(child: &Child, signal: i32) {
    let pid = rustix::process::Pid::from_child(child);
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        // Fails only if it has ended.
        let _ = rustix::process::kill_process(pid, signal);
    }
}
