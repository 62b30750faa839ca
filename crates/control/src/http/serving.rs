//! Answers requests: as much of HTTP as scrapers and browsers speak, an answer per connection.
//!
//! All connections are looked after together by one thread, each with a deadline, so that nobody
//! waits for somebody else. Who asks cannot be told, so where there are too many the oldest has to
//! go: whoever asks as soon as it has connected is answered.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::{Address, PLAIN, Request, response};
use crate::listening::listens;
use crate::trusted_path::{Directory, Missing, Trust};

/// Who connects has asked within this time, and then taken its answer.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// Connections at a time, at most.
const MAX_CONNECTIONS: usize = 64;
/// Connections that wait to be taken, as in the standard library.
const BACKLOG: i32 = 128;
/// After a connection could not be taken: out of descriptors, perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Answers that somebody has still to take, at most; then the oldest connection has to go.
const MAX_ANSWERS_BYTES: usize = 64 << 20;
/// Longest request that is read.
const MAX_REQUEST_BYTES: usize = 16 << 10;

/// Where requests come.
#[derive(Debug)]
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A socket in a directory.
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

/// What answers.
pub trait Site {
    /// Connections are looked at again: what was said to those before may be too old now.
    fn begin_round(&mut self) {}

    /// The whole answer, as [`response`] makes it.
    fn answer(&mut self, request: &Request<'_>) -> Rc<[u8]>;
}

/// A Unix socket's directory and its name there, which is removed when this is dropped.
#[derive(Debug)]
pub struct Socket(Directory, String);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = self.0.remove(&self.1);
    }
}

/// Who may connect to a Unix socket, beside root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Whoever the umask lets.
    Umask,
    /// Its owner.
    Owner,
}

/// Listens at an address.
///
/// # Errors
/// The address is taken or not allowed.
pub fn listen(address: &Address, reach: Reach) -> io::Result<(Listener, Option<Socket>)> {
    match address {
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok((Listener::Tcp(listener), None))
        }
        Address::Unix(path) => {
            let (directory, name) = make_way(path)?;
            let listener = bind(&directory.path().join(&name), reach)?;
            let socket = Socket(directory, name);
            listener.set_nonblocking(true)?;
            link::peer::refuse_descriptors(listener.as_fd());
            Ok((Listener::Unix(listener), Some(socket)))
        }
    }
}

/// A Unix socket that nobody beyond `reach` could ever have connected to.
fn bind(path: &Path, reach: Reach) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if reach == Reach::Owner {
        // The file has what its socket has, less what the umask takes.
        fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Where a socket can be made: its directory, in which nobody else has a hand, and its name. One
/// that nobody listens at is removed.
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

/// Answers all requests.
pub fn answer_all(listener: &Listener, site: &mut dyn Site) -> ! {
    // In the order in which they came.
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        wait(listener, &connections);
        let now = Instant::now();
        site.begin_round();
        connections.retain_mut(|open| open.until > now && open.goes_on(site));
        while answers_bytes(&connections) > MAX_ANSWERS_BYTES {
            connections.remove(0);
        }
        for _ in 0..MAX_CONNECTIONS {
            match listener.accept() {
                Ok(Some(stream)) => {
                    let mut open = Connection::new(stream);
                    // What it asks has often come with it.
                    if open.goes_on(site) {
                        if connections.len() >= MAX_CONNECTIONS {
                            connections.remove(0);
                        }
                        connections.push(open);
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

/// Bytes of the answers that are being sent; one that several get counts once.
fn answers_bytes(connections: &[Connection]) -> usize {
    let answers = connections.iter().filter_map(|open| open.answer.as_ref());
    let distinct: HashMap<*const u8, usize> =
        answers.map(|(answer, _)| (answer.as_ptr(), answer.len())).collect();
    distinct.into_values().sum()
}

/// Waits until somebody connects, asks or has room, or somebody's time is over.
fn wait(listener: &Listener, connections: &[Connection]) {
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(connections.iter().map(|open| {
        let flags = if open.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(open.stream.as_fd(), flags)
    }));
    let next = connections.iter().map(|open| open.until).min();
    // A little late is in time; a little early would spin.
    let limit = next.and_then(|at| {
        let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(left).ok()
    });
    // What goes wrong here, every look at a connection finds again.
    let _ = poll(&mut polled, limit.as_ref());
}

/// One connection.
struct Connection {
    stream: Box<dyn Stream>,
    /// It is closed at this time.
    until: Instant,
    request: Vec<u8>,
    /// Once the request is whole: the answer, and how much of it is sent.
    answer: Option<(Rc<[u8]>, usize)>,
}

impl Connection {
    fn new(stream: Box<dyn Stream>) -> Self {
        let until = Instant::now() + CONNECTION_LIMIT;
        Self { stream, until, request: Vec::new(), answer: None }
    }

    /// Reads and sends what can be; whether there is more to come.
    fn goes_on(&mut self, site: &mut dyn Site) -> bool {
        match self.step(site) {
            Err(error) => means_later(&error),
            Ok(()) => false,
        }
    }

    /// To the end, unless it is [`ErrorKind::WouldBlock`].
    fn step(&mut self, site: &mut dyn Site) -> io::Result<()> {
        while self.answer.is_none() {
            let mut piece = [0; 1024];
            let count = self.stream.read(&mut piece)?;
            self.request.extend_from_slice(&piece[..count]);
            let is_whole = count == 0
                || self.request.windows(4).any(|end| end == b"\r\n\r\n")
                || self.request.len() >= MAX_REQUEST_BYTES;
            if is_whole {
                let answer = match Request::read(&self.request) {
                    Some(request) => site.answer(&request),
                    None => response("400 Bad Request", PLAIN, "this is no HTTP request\n"),
                };
                self.answer = Some((answer, 0));
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
