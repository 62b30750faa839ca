//! Answers scrapes: as much of HTTP as a Prometheus server speaks.
//!
//! A thread of the daemon's process, which asks the daemon like any front end does: however scrapers behave, clients never wait for
//! them. One connection at a time, each with a deadline, an answer per connection.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Address, render};
use crate::directories::Directories;
use crate::frontend::Frontend;

/// A scraper asks and takes its answer within this time.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// Longest request that is read.
const MAX_REQUEST_BYTES: usize = 16 << 10;
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Metrics that are being served; a Unix socket is removed when dropped.
#[derive(Debug)]
pub struct Metrics {
    path: Option<PathBuf>,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Starts to serve the metrics of the daemon in these directories.
///
/// # Errors
/// The address is taken or not allowed.
pub fn serve(address: &Address, directories: &Directories) -> io::Result<Metrics> {
    let (listener, path) = match address {
        Address::Tcp(address) => (Listener::Tcp(TcpListener::bind(address)?), None),
        Address::Unix(path) => {
            remove_stale(path)?;
            (Listener::Unix(UnixListener::bind(path)?), Some(path.clone()))
        }
    };
    let directories = directories.clone();
    let thread = std::thread::Builder::new().name("metrics".into());
    thread.spawn(move || answer_all(&listener, &directories))?;
    Ok(Metrics { path })
}

/// Removes a socket that nobody listens at.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn answer_all(listener: &Listener, directories: &Directories) {
    let mut frontend = None;
    loop {
        let answered = match listener {
            Listener::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_read_timeout(Some(CONNECTION_LIMIT))?;
                stream.set_write_timeout(Some(CONNECTION_LIMIT))?;
                answer(stream, directories, &mut frontend)
            }),
            Listener::Unix(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_read_timeout(Some(CONNECTION_LIMIT))?;
                stream.set_write_timeout(Some(CONNECTION_LIMIT))?;
                answer(stream, directories, &mut frontend)
            }),
        };
        if answered.is_err() {
            // Out of descriptors, perhaps; a scraper that hung up costs the same short pause.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn answer(
    mut stream: impl Read + Write,
    directories: &Directories,
    frontend: &mut Option<Frontend>,
) -> io::Result<()> {
    let request = read_request(&mut stream)?;
    let (status, content_type, body) = match target(&request) {
        Some(("GET", "/metrics" | "/")) => match state(directories, frontend) {
            Ok(state) => ("200 OK", CONTENT_TYPE, render(state)),
            Err(error) => ("503 Service Unavailable", "text/plain", format!("{error}\n")),
        },
        Some(("GET", _)) => ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned()),
        Some(_) => ("405 Method Not Allowed", "text/plain", "ask with GET\n".to_owned()),
        None => ("400 Bad Request", "text/plain", "this is no HTTP request\n".to_owned()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    stream.flush()
}

/// The request's head, as far as it came in time.
fn read_request(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + CONNECTION_LIMIT;
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n")
        && request.len() < MAX_REQUEST_BYTES
        && Instant::now() < deadline
    {
        match stream.read(&mut piece)? {
            0 => break,
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    Ok(request)
}

/// Method and path, without a query.
fn target(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (method, path, version) = (words.next()?, words.next()?, words.next()?);
    version.starts_with("HTTP/").then_some((method, path.split('?').next().unwrap_or(path)))
}

/// Asks over the connection of the last scrape, or over a new one.
fn state(
    directories: &Directories,
    frontend: &mut Option<Frontend>,
) -> Result<link::wire::ui::DaemonState, crate::frontend::FrontendError> {
    if let Some(open) = frontend
        && let Ok(state) = open.state()
    {
        return Ok(state);
    }
    *frontend = None;
    let mut fresh = Frontend::connect(directories)?;
    let state = fresh.state()?;
    *frontend = Some(fresh);
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::target;

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
