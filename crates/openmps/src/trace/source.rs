//! A traced process: its connection, its rings, and what must be put together from several records.
//!
//! What it sends is not believed: numbers are looked up, never followed.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use link::printable;
use link::shm::ShmError;
use link::socket::{Connection, SocketError};
use link::trace::{Annotation, MAX_TEXT_BYTES, RING_RECORDS, Record, TraceReader, TraceRing, Work};
use link::wire::trace::{FromTraced, ToTraced};
use link::wire::version::{Versions, agree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Output;
use super::names::plain;
use super::writer::{Call, Placed, Process, Writer};

/// Records taken from one ring before others are looked at.
const AT_ONCE: usize = 1 << 14;
/// Calls and work that wait for each other; beyond it the oldest are written without their other
/// half.
const MOST_WAITING: usize = 1 << 19;
/// Texts that one ring may name, and what has come of each that is not whole yet.
const MOST_TEXTS: usize = 1 << 20;
/// Rings of sessions that one process may send: more than it can have devices.
const MOST_SESSIONS: usize = 64;
/// Ranges of NVTX that may be open at once; those beyond are not in the trace.
const MOST_OPEN: usize = 1 << 18;

/// Whose driver a process uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It has not said.
    Unknown,
    /// NVIDIA's, or whichever is native: not ours to see.
    Native,
    /// A server's.
    Attached,
}

/// See the module's description.
pub(super) struct Source {
    /// `None` once it is closed.
    connection: Option<Connection>,
    process: Process,
    standing: Standing,
    is_told_to_stop: bool,
    has_stopped: bool,
    calls: Option<Ring>,
    sessions: Vec<Session>,
    open: HashMap<(u32, u64), Vec<Annotation>>,
    /// How many those are.
    opened: usize,
    started: HashMap<u64, Annotation>,
    /// Calls that have posted commands, by device and the last command's end.
    posted: BTreeMap<(u32, u64), Call>,
    /// Work whose call has not returned, by device and the command's end.
    waiting: BTreeMap<(u32, u64), Work>,
    last_ns: u64,
}

struct Session {
    device: u32,
    ring: Ring,
}

struct Ring {
    reader: TraceReader,
    texts: HashMap<u64, String>,
    parts: HashMap<u64, Vec<u8>>,
}

impl Ring {
    fn new(file: &OwnedFd) -> Result<Self, ShmError> {
        let reader = TraceReader::new(TraceRing::map(file.as_fd())?);
        Ok(Self { reader, texts: HashMap::new(), parts: HashMap::new() })
    }

    /// Keeps a text's piece.
    fn note(&mut self, id: u64, is_last: bool, bytes: &[u8]) {
        if self.texts.len() + self.parts.len() >= MOST_TEXTS {
            return;
        }
        let mut whole = self.parts.remove(&id).unwrap_or_default();
        whole.extend_from_slice(&bytes[..bytes.len().min(MAX_TEXT_BYTES - whole.len())]);
        match is_last {
            true => drop(self.texts.insert(id, String::from_utf8_lossy(&whole).into_owned())),
            false => drop(self.parts.insert(id, whole)),
        }
    }
}

impl Source {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection: Some(connection),
            process: Process::default(),
            standing: Standing::Unknown,
            is_told_to_stop: false,
            has_stopped: false,
            calls: None,
            sessions: Vec::new(),
            open: HashMap::new(),
            opened: 0,
            started: HashMap::new(),
            posted: BTreeMap::new(),
            waiting: BTreeMap::new(),
            last_ns: 0,
        }
    }

    pub(super) fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    pub(super) fn standing(&self) -> Standing {
        self.standing
    }

    /// Has it end the trace, if it runs.
    pub(super) fn stop(&mut self) {
        if let Some(connection) = self.connection.as_ref().filter(|_| !self.is_told_to_stop) {
            self.is_told_to_stop = true;
            // One that has ended needs no telling.
            let _ = connection.send(&ToTraced::Stop, &[], Duration::ZERO);
        }
    }

    /// Whether all has come that will.
    pub(super) fn is_done(&self) -> bool {
        let has_ended = self.connection.is_none() || self.has_stopped;
        has_ended && self.sessions.iter().all(|session| session.ring.reader.is_closed())
    }

    /// Records that their writers could not place.
    pub(super) fn lost(&self) -> u64 {
        let sessions = self.sessions.iter().map(|session| &session.ring);
        self.calls.iter().chain(sessions).map(|ring| ring.reader.lost()).sum()
    }

    /// Takes what has come; says whether anything had.
    pub(super) fn look(&mut self, writer: &mut Writer<Output>) -> anyhow::Result<bool> {
        // Before the rings: what a process has written before it ended is then there.
        let is_busy = self.hear(writer)?;
        Ok(self.drain(writer)? || is_busy)
    }

    fn hear(&mut self, writer: &mut Writer<Output>) -> anyhow::Result<bool> {
        let Some(connection) = &self.connection else { return Ok(false) };
        let mut polled = [PollFd::new(connection, PollFlags::IN)];
        if !matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..)) {
            return Ok(false);
        }
        match connection.try_receive::<FromTraced>() {
            Ok(None) => Ok(false),
            Ok(Some(received)) => {
                self.take(received.message, received.descriptors, writer)?;
                Ok(true)
            }
            Err(SocketError::Closed) => {
                self.connection = None;
                Ok(true)
            }
            Err(error) => {
                let error = printable(&error.to_string());
                eprintln!("openmps: process {} is not understood: {error}", self.process.pid);
                self.connection = None;
                Ok(true)
            }
        }
    }

    /// Does what a message says.
    pub(super) fn take(
        &mut self,
        message: FromTraced,
        descriptors: Vec<OwnedFd>,
        writer: &mut Writer<Output>,
    ) -> anyhow::Result<()> {
        let file = descriptors.into_iter().next();
        match message {
            FromTraced::Hello { versions: library, pid, command } => {
                let ours = Versions::ours();
                if agree(library, ours).is_err() {
                    eprintln!(
                        "openmps: the library of process {pid} speaks {library} of the client wire, and this command {ours}: it is not traced; update the older of both"
                    );
                    self.connection = None;
                    return Ok(());
                }
                if let Some(ring) = self.ring(file).filter(|_| self.calls.is_none()) {
                    self.process = writer.process(pid, &command)?;
                    self.calls = Some(ring);
                }
            }
            FromTraced::Native => self.standing = Standing::Native,
            FromTraced::Attached => self.standing = Standing::Attached,
            FromTraced::Session { device, name } => {
                if let Some(ring) = self.ring(file) {
                    writer.device(&mut self.process, device, &name);
                    self.sessions.push(Session { device, ring });
                }
            }
            FromTraced::Stopped => self.has_stopped = true,
        }
        Ok(())
    }

    /// The ring that came with a message. A process that sends what is none is heard no more, and
    /// the traces of others go on.
    fn ring(&mut self, file: Option<OwnedFd>) -> Option<Ring> {
        let made = match file {
            None => Err("it sent no ring".to_owned()),
            Some(_) if self.sessions.len() >= MOST_SESSIONS => {
                Err(format!("it sent more than {MOST_SESSIONS} rings"))
            }
            Some(file) => Ring::new(&file).map_err(|error| error.to_string()),
        };
        if let Err(why) = &made {
            eprintln!("openmps: process {} is not understood: {why}", self.process.pid);
            self.connection = None;
        }
        made.ok()
    }

    fn drain(&mut self, writer: &mut Writer<Output>) -> anyhow::Result<bool> {
        let mut taken = 0;
        if let Some(mut ring) = self.calls.take() {
            for _ in 0..AT_ONCE {
                let Some(words) = ring.reader.take() else { break };
                taken += 1;
                if let Some(record) = Record::from_words(&words) {
                    self.take_record(record, &mut ring, writer)?;
                }
            }
            // A thread that was killed leaves a hole, behind which there may be more.
            if taken == 0 && self.connection.is_none() && ring.reader.skip_unfinished() {
                taken += 1;
            }
            ring.reader.publish();
            self.calls = Some(ring);
        }
        let mut sessions = std::mem::take(&mut self.sessions);
        for Session { device, ring } in &mut sessions {
            for _ in 0..AT_ONCE {
                let Some(words) = ring.reader.take() else { break };
                taken += 1;
                match Record::from_words(&words) {
                    Some(Record::Text { id, is_last, length, bytes }) => {
                        ring.note(id, is_last, &bytes[..usize::from(length)]);
                    }
                    Some(Record::Work(work)) => self.take_work(*device, work, ring, writer)?,
                    _ => {}
                }
            }
            ring.reader.publish();
        }
        // Sessions may have come meanwhile; none does, as nobody else has `self`.
        self.sessions = sessions;
        Ok(taken > 0)
    }

    fn take_record(
        &mut self,
        record: Record,
        ring: &mut Ring,
        writer: &mut Writer<Output>,
    ) -> anyhow::Result<()> {
        match record {
            Record::Text { id, is_last, length, bytes } => {
                ring.note(id, is_last, &bytes[..usize::from(length)]);
            }
            Record::Call { thread, function, result, device, start_ns, end_ns, first, last } => {
                self.last_ns = self.last_ns.max(end_ns);
                let call = Call { thread, function, result, start_ns, end_ns, first };
                writer.call(&mut self.process, &call)?;
                if first != 0 {
                    self.call_returned(device, last, call, writer)?;
                }
            }
            Record::Push(at) if self.opened < MOST_OPEN => {
                self.opened += 1;
                self.open.entry((at.thread, at.domain)).or_default().push(at);
            }
            Record::Push(_) => {}
            Record::Pop(at) => {
                self.last_ns = self.last_ns.max(at.at_ns);
                let track = (at.thread, at.domain);
                let open = self.open.get_mut(&track).and_then(Vec::pop);
                if self.open.get(&track).is_some_and(Vec::is_empty) {
                    self.open.remove(&track);
                }
                if let Some(open) = open {
                    self.opened -= 1;
                    let (name, domain) = (text(ring, open.text), text(ring, open.domain));
                    writer.range(&mut self.process, &open, at.at_ns, name, domain)?;
                }
            }
            Record::Start(at) if self.started.len() < MOST_OPEN => {
                self.started.insert(at.id, at);
            }
            Record::Start(_) => {}
            Record::End(at) => {
                self.last_ns = self.last_ns.max(at.at_ns);
                if let Some(start) = self.started.remove(&at.id) {
                    let (name, domain) = (text(ring, start.text), text(ring, start.domain));
                    writer.free_range(&self.process, &start, at.at_ns, name, domain)?;
                }
            }
            Record::Mark(at) => {
                let (name, domain) = (text(ring, at.text), text(ring, at.domain));
                writer.mark(&mut self.process, &at, name, domain)?;
            }
            Record::ThreadName(at) => {
                writer.thread_name(&mut self.process, at.id as u32, text(ring, at.text))?;
            }
            Record::Work(_) => {}
        }
        Ok(())
    }

    /// Writes the work that waited for this call, and keeps the call for what is to come.
    fn call_returned(
        &mut self,
        device: u32,
        last: u64,
        call: Call,
        writer: &mut Writer<Output>,
    ) -> anyhow::Result<()> {
        let places = (device, call.first)..=(device, last.max(call.first));
        let found: Vec<_> = self.waiting.range(places).map(|(at, work)| (*at, *work)).collect();
        for (at, work) in found {
            self.waiting.remove(&at);
            let ring = self.sessions.iter().find(|session| session.device == device);
            let name = ring.map_or(String::new(), |session| name_of(&session.ring, &work));
            writer.work(&mut self.process, &Placed { device, work, call: Some(&call) }, &name)?;
        }
        self.posted.insert((device, last), call);
        if self.posted.len() > MOST_WAITING {
            self.posted.pop_first();
        }
        Ok(())
    }

    fn take_work(
        &mut self,
        device: u32,
        work: Work,
        ring: &Ring,
        writer: &mut Writer<Output>,
    ) -> anyhow::Result<()> {
        self.last_ns = self.last_ns.max(work.end_ns);
        let place = (device, work.position);
        let call = self
            .posted
            .range(place..)
            .next()
            .filter(|((of, _), call)| *of == device && (call.first..).contains(&work.position));
        let is_traced_call = work.position != 0;
        match call {
            Some((_, call)) if is_traced_call => {
                let placed = Placed { device, work, call: Some(call) };
                writer.work(&mut self.process, &placed, &name_of(ring, &work))
            }
            _ if is_traced_call && self.waiting.len() < MOST_WAITING => {
                self.waiting.insert(place, work);
                Ok(())
            }
            _ => {
                let placed = Placed { device, work, call: None };
                writer.work(&mut self.process, &placed, &name_of(ring, &work))
            }
        }
    }

    /// Writes what is left, and what will not be completed any more: ranges that were left open,
    /// work of calls that began before the trace.
    pub(super) fn finish(&mut self, writer: &mut Writer<Output>) -> anyhow::Result<()> {
        // The last records may have come between the last look and the ring's end. A writer that
        // goes on is not waited for.
        for _ in 0..=RING_RECORDS as usize / AT_ONCE {
            if !self.drain(writer)? {
                break;
            }
        }
        for ((device, _), work) in std::mem::take(&mut self.waiting) {
            let ring = self.sessions.iter().find(|session| session.device == device);
            let name = ring.map_or(String::new(), |session| name_of(&session.ring, &work));
            writer.work(&mut self.process, &Placed { device, work, call: None }, &name)?;
        }
        let Some(ring) = &self.calls else { return Ok(()) };
        let until = self.last_ns;
        for mut open in std::mem::take(&mut self.open).into_values() {
            while let Some(at) = open.pop() {
                let (name, domain) = (text(ring, at.text), text(ring, at.domain));
                writer.range(&mut self.process, &at, until.max(at.at_ns), name, domain)?;
            }
        }
        for start in std::mem::take(&mut self.started).into_values() {
            let (name, domain) = (text(ring, start.text), text(ring, start.domain));
            writer.free_range(&self.process, &start, until.max(start.at_ns), name, domain)?;
        }
        Ok(())
    }
}

fn text(ring: &Ring, id: u64) -> &str {
    ring.texts.get(&id).map_or("", String::as_str)
}

fn name_of(ring: &Ring, work: &Work) -> String {
    plain(text(ring, work.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_an_end_takes_no_more_than_a_text() {
        let (file, writer) = TraceRing::create().unwrap();
        let mut ring = Ring::new(&file).unwrap();
        for _ in 0..1000 {
            ring.note(7, false, &[b'x'; 96]);
        }
        assert_eq!(ring.parts[&7].len(), MAX_TEXT_BYTES);
        ring.note(7, true, b"end");
        assert_eq!(ring.texts[&7].len(), MAX_TEXT_BYTES);
        drop(writer);
    }

    #[test]
    fn a_process_that_sends_no_ring_is_heard_no_more() {
        let (ours, theirs) = Connection::pair().unwrap();
        let mut source = Source::new(ours);
        assert!(source.ring(Some(std::fs::File::open("/dev/null").unwrap().into())).is_none());
        assert!(source.connection().is_none() && source.is_done());
        let (file, _writer) = TraceRing::create().unwrap();
        assert!(source.ring(Some(file)).is_some());
        drop(theirs);
    }

    #[test]
    fn what_comes_last_is_in_the_trace() {
        let directory = tempfile::tempdir().unwrap();
        let output = Output::create(&directory.path().join("trace.json")).unwrap();
        let mut writer = Writer::new(output).unwrap();
        let (ours, _theirs) = Connection::pair().unwrap();
        let mut source = Source::new(ours);
        let (file, executor) = TraceRing::create().unwrap();
        let message = FromTraced::Session { device: 0, name: "GPU".into() };
        source.take(message, vec![file], &mut writer).unwrap();
        assert!(!source.look(&mut writer).unwrap());
        // Between that look and the question whether the ring is closed.
        let work = Work {
            kind: link::trace::WorkKind::Kernel,
            stream: 0,
            text: 0,
            position: 0,
            taken_ns: 1,
            start_ns: 2,
            end_ns: 3,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            timed_together: 1,
            size_bytes: 0,
        };
        assert!(executor.try_push(&Record::Work(work).to_words()));
        executor.close();
        source.finish(&mut writer).unwrap();
        assert_eq!(writer.counts().kernels, 1);
    }
}
