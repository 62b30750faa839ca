//! Answers scrapes.
//!
//! A thread of the daemon's process, which asks the daemon like any front end does: however
//! scrapers behave, clients never wait for them.

use std::io;
use std::rc::Rc;

use link::wire::ui::DaemonState;

use super::exposition::Format;
use super::{Totals, accept, render};
use crate::directories::Directories;
use crate::frontend::{Frontend, FrontendError};
use crate::http::{Address, PLAIN, Reach, Request, Site, Socket, answer_all, listen, response};

/// Longest page. One of 1,024 clients on eight devices has a third of that.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// Starts to serve the metrics of the daemon in these directories. A Unix socket is there until
/// what is returned is dropped.
///
/// # Errors
/// The address is taken or not allowed.
pub fn serve(address: &Address, directories: &Directories) -> io::Result<Option<Socket>> {
    let (listener, socket) = listen(address, Reach::Umask)?;
    let directories = directories.clone();
    let thread = std::thread::Builder::new().name("metrics".into());
    thread.spawn(move || answer_all(&listener, &mut Asked::new(&directories)))?;
    Ok(socket)
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

    fn page(&mut self, format: Format) -> Rc<[u8]> {
        if let Some(page) = &self.pages[format as usize] {
            return Rc::clone(page);
        }
        let (state, totals) = match self.looked() {
            Ok(looked) => looked,
            Err(error) => return unavailable(error),
        };
        let text = render(state, totals, format);
        if text.len() > MAX_PAGE_BYTES {
            return unavailable(&format!(
                "the metrics have more than {} MiB: what servers say of themselves is too much",
                MAX_PAGE_BYTES >> 20
            ));
        }
        let page = response("200 OK", format.content_type(), &text);
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

impl Site for Asked<'_> {
    fn begin_round(&mut self) {
        self.state = None;
        self.pages = [None, None];
    }

    fn answer(&mut self, request: &Request<'_>) -> Rc<[u8]> {
        match (request.method, request.path) {
            ("GET", "/metrics" | "/") => self.page(accept::format(request)),
            ("GET", "/healthz") => match self.looked() {
                Ok(_) => response("200 OK", PLAIN, "ok\n"),
                Err(error) => unavailable(error),
            },
            ("GET", _) => {
                response("404 Not Found", PLAIN, "metrics are at /metrics, health is at /healthz\n")
            }
            _ => response("405 Method Not Allowed", PLAIN, "ask with GET\n"),
        }
    }
}

fn unavailable(error: &str) -> Rc<[u8]> {
    response("503 Service Unavailable", PLAIN, &format!("{error}\n"))
}

#[cfg(test)]
mod tests {
    use super::Asked;
    use crate::directories::Directories;
    use crate::http::{Request, Site};

    #[test]
    fn without_a_daemon_nothing_is_well() {
        let nowhere = tempfile::tempdir().unwrap();
        let directories = Directories::from_variables(|_| Some(nowhere.path().into()));
        let mut asked = Asked::new(&directories);
        for path in ["/metrics", "/healthz"] {
            let request = format!("GET {path} HTTP/1.1\r\n\r\n");
            let answer = asked.answer(&Request::read(request.as_bytes()).unwrap());
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 503 "), "{path}: {answer}");
            assert!(answer.contains("Cannot find MPS control daemon"), "{path}: {answer}");
        }
    }
}
