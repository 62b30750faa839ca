//! Answers scrapes: as much of HTTP as a Prometheus server speaks.
//!
//! A thread of the daemon's process, which asks the daemon like any front end does: however scrapers behave, clients never wait for
//! them. Nor do other scrapers: all connections are looked after together, each with a deadline, an answer per connection. Who they are cannot be told, so where there are
//! too many the oldest has to go: whoever asks as soon as it has connected is answered.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use link::wire::ui::DaemonState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::exposition::Format;
use super::{Address, Totals, accept, render};
use crate::directories::Directories;
use crate::frontend::{Frontend, FrontendError};
use crate::listening::listens;
use crate::trusted_path::{Directory, Missing, Trust};

/// A scraper has asked within this time, and then taken its answer.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// Connections at a time, at most.
const MAX_CONNECTIONS: usize = 64;
/// After a connection could not be taken: out of descriptors, perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Longest request that is read.
const MAX_REQUEST_BYTES: usize = 16 << 10;
const PLAIN: &str = "text/plain; charset=utf-8";

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The next connection, if one waits.
    fn accept(&self) -> io::Result<Option<Box<dyn Stream>>> {
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
            Self::Unix(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Box::new(stream) as Box<dyn Stream>)
            }),
        };
        match accepted {
            Err(error) if means_later(&error) => Ok(None),
            other => other.map(Some),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A connection of either kind, which never blocks.
trait Stream: Read + Write + AsFd {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// Metrics that are being served; a Unix socket is removed when dropped.
#[derive(Debug)]
pub struct Metrics {
    /// Its directory and its name there.
    socket: Option<(Directory, String)>,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some((directory, name)) = &self.socket {
            let _ = directory.remove(name);
        }
    }
}

/// Starts to serve the metrics of the daemon in these directories.
///
/// # Errors
/// The address is taken or not allowed.
pub fn serve(address: &Address, directories: &Directories) -> io::Result<Metrics> {
    let (listener, socket) = match address {
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            (Listener::Tcp(listener), None)
        }
        Address::Unix(path) => {
            let (directory, name) = make_way(path)?;
            let listener = UnixListener::bind(directory.path().join(&name))?;
            listener.set_nonblocking(true)?;
            link::peer::refuse_descriptors(listener.as_fd());
            (Listener::Unix(listener), Some((directory, name)))
        }
    };
    let directories = directories.clone();
    let thread = std::thread::Builder::new().name("metrics".into());
    thread.spawn(move || answer_all(&listener, &directories))?;
    Ok(Metrics { socket })
}

/// Where a socket can be made: its directory, in which nobody else has a hand, and its name. One that nobody listens at is removed.
fn make_way(path: &Path) -> io::Result<(Directory, String)> {
    let no_name = || io::Error::new(ErrorKind::InvalidInput, "it names no file");
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
    else {
        return Err(no_name());
    };
    let directory =
        Directory::open(parent, Trust::of_places(), Missing::Report).map_err(io::Error::other)?;
    let place = directory.path().join(name);
    let is_socket =
        std::fs::symlink_metadata(&place).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && listens(&place) == Ok(false) {
        directory.remove(name).map_err(io::Error::other)?;
    }
    Ok((directory, name.to_owned()))
}

fn answer_all(listener: &Listener, directories: &Directories) {
    let mut daemon = Asked::new(directories);
    // In the order in which they came.
    let mut scrapers: Vec<Scraper> = Vec::new();
    loop {
        wait(listener, &scrapers);
        let now = Instant::now();
        daemon.state = None;
        daemon.pages = [None, None];
        scrapers.retain_mut(|scraper| scraper.until > now && scraper.goes_on(&mut daemon));
        for _ in 0..MAX_CONNECTIONS {
            match listener.accept() {
                Ok(Some(stream)) => {
                    let mut scraper = Scraper::new(stream);
                    // What it asks has often come with it.
                    if scraper.goes_on(&mut daemon) {
                        if scrapers.len() >= MAX_CONNECTIONS {
                            scrapers.remove(0);
                        }
                        scrapers.push(scraper);
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    break;
                }
            }
        }
    }
}

/// Waits until somebody connects, asks or has room, or somebody's time is over.
fn wait(listener: &Listener, scrapers: &[Scraper]) {
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(scrapers.iter().map(|scraper| {
        let flags = if scraper.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(scraper.stream.as_fd(), flags)
    }));
    let next = scrapers.iter().map(|scraper| scraper.until).min();
    // A little late is in time; a little early would spin.
    let limit = next.and_then(|at| {
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    });
    // What goes wrong here, every look at a connection finds again.
    let _ = poll(&mut polled, limit.as_ref());
}

/// One connection.
struct Scraper {
    stream: Box<dyn Stream>,
    /// It is closed at this time.
    until: Instant,
    request: Vec<u8>,
    /// Once the request is whole: the answer, and how much of it is sent.
    answer: Option<(Rc<[u8]>, usize)>,
}

impl Scraper {
    fn new(stream: Box<dyn Stream>) -> Self {
        let until = Instant::now() + CONNECTION_LIMIT;
        Self { stream, until, request: Vec::new(), answer: None }
    }

    /// Reads and sends what can be; whether there is more to come.
    fn goes_on(&mut self, daemon: &mut Asked<'_>) -> bool {
        match self.step(daemon) {
            Err(error) => means_later(&error),
            Ok(()) => false,
        }
    }

    /// To the end, unless it is [`ErrorKind::WouldBlock`].
    fn step(&mut self, daemon: &mut Asked<'_>) -> io::Result<()> {
        while self.answer.is_none() {
            let mut piece = [0; 1024];
            let count = self.stream.read(&mut piece)?;
            self.request.extend_from_slice(&piece[..count]);
            let is_whole = count == 0
                || self.request.windows(4).any(|end| end == b"\r\n\r\n")
                || self.request.len() >= MAX_REQUEST_BYTES;
            if is_whole {
                self.answer = Some((daemon.answer(&self.request), 0));
                self.until = Instant::now() + CONNECTION_LIMIT;
            }
        }
        while let Some((answer, sent)) = &mut self.answer
            && *sent < answer.len()
        {
            match self.stream.write(&answer[*sent..])? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => *sent += count,
            }
        }
        Ok(())
    }
}

fn means_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The daemon, asked over the connection of the last scrape.
struct Asked<'a> {
    directories: &'a Directories,
    frontend: Option<Frontend>,
    totals: Totals,
    /// What it said to whoever asked first in this round, for all who do.
    state: Option<Result<DaemonState, String>>,
    /// That in either format.
    pages: [Option<Rc<[u8]>>; 2],
}

impl<'a> Asked<'a> {
    fn new(directories: &'a Directories) -> Self {
        Self {
            directories,
            frontend: None,
            totals: Totals::default(),
            state: None,
            pages: [None, None],
        }
    }

    fn answer(&mut self, request: &[u8]) -> Rc<[u8]> {
        match target(request) {
            Some(("GET", "/metrics" | "/")) => self.page(accept::format(request)),
            Some(("GET", "/healthz")) => match self.looked() {
                Ok(_) => response("200 OK", PLAIN, "ok\n"),
                Err(error) => unavailable(error),
            },
            Some(("GET", _)) => {
                response("404 Not Found", PLAIN, "metrics are at /metrics, health is at /healthz\n")
            }
            Some(_) => response("405 Method Not Allowed", PLAIN, "ask with GET\n"),
            None => response("400 Bad Request", PLAIN, "this is no HTTP request\n"),
        }
    }

    fn page(&mut self, format: Format) -> Rc<[u8]> {
        if let Some(page) = &self.pages[format as usize] {
            return Rc::clone(page);
        }
        let (state, totals) = match self.looked() {
            Ok(looked) => looked,
            Err(error) => return unavailable(error),
        };
        let page = response("200 OK", format.content_type(), &render(state, totals, format));
        self.pages[format as usize] = Some(Rc::clone(&page));
        page
    }

    /// What the daemon says, and the totals with that: asked and added up once in a round.
    fn looked(&mut self) -> Result<(&DaemonState, &Totals), &str> {
        let said = match self.state.take() {
            Some(said) => said,
            None => {
                let said = self.ask().map_err(|error| error.to_string());
                if let Ok(state) = &said {
                    self.totals.look(state);
                }
                said
            }
        };
        let said = self.state.insert(said);
        said.as_ref().map(|state| (state, &self.totals)).map_err(|error| error.as_str())
    }

    fn ask(&mut self) -> Result<DaemonState, FrontendError> {
        if let Some(open) = &mut self.frontend
            && let Ok(state) = open.state()
        {
            return Ok(state);
        }
        self.frontend = None;
        let mut fresh = Frontend::connect(self.directories)?;
        let state = fresh.state()?;
        self.frontend = Some(fresh);
        Ok(state)
    }
}

fn unavailable(error: &str) -> Rc<[u8]> {
    response("503 Service Unavailable", PLAIN, &format!("{error}\n"))
}

fn response(status: &str, content_type: &str, body: &str) -> Rc<[u8]> {
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    Rc::from(text.into_bytes())
}

/// Method and path, without a query.
fn target(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    version.starts_with("HTTP/").then_some((method, path.split('?').next().unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::{Asked, target};
    use crate::directories::Directories;

    #[test]
    fn without_a_daemon_nothing_is_well() {
        let nowhere = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(nowhere.path().into()));
        let mut asked = Asked::new(&directories);
        for path in ["/metrics", "/healthz"] {
            let answer = asked.answer(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 503 "), "{path}: {answer}");
            assert!(answer.contains("Cannot find MPS control daemon"), "{path}: {answer}");
        }
    }

    #[test]
    fn the_first_line_says_what_is_wanted() {
        assert_eq!(
            target(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"),
            Some(("GET", "/metrics"))
        );
        assert_eq!(target(b"POST / HTTP/1.0\r\n\r\n"), Some(("POST", "/")));
        for wrong in [&b""[..], b"GET /metrics", b"\xff\xfe\r\n\r\n", b"GET /metrics FTP/1\r\n"] {
            assert_eq!(target(wrong), None);
        }
    }
}
