//! Who gets the page and what it shows.
//!
//! Every user of this machine reaches a port of its loopback, and so does every page that a browser
//! here has open. So what is asked for begins with a word that nobody can guess, and the name that
//! the browser knows this machine by must be one of a loopback's: a page that has its own name
//! lead here (DNS rebinding) is refused, and so is what another page asks for.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::PoisonError;

use control::http::{PLAIN, Request, Site, response_with};

use super::{Seen, Shared};

/// The page. `NONCE` in it is another word in each answer, without which a browser runs no script
/// and uses no style.
const PAGE: &str = include_str!("page.html");

/// Of every answer: nothing is kept, framed, told to others or taken for what it is not.
const GUARDS: [(&str, &str); 6] = [
    ("Cache-Control", "no-store"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
];

/// A word that nobody can guess: 128 bits, in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token(String);

impl Token {
    pub(super) fn new() -> io::Result<Self> {
        let bytes = link::random::bytes::<16>()?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// How long this takes says nothing of how much of the word is right.
    fn is(&self, said: &str) -> bool {
        let (own, said) = (self.0.as_bytes(), said.as_bytes());
        let differ = own.iter().zip(said).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        own.len() == said.len() && differ == 0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Who is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Door {
    /// Whoever knows it.
    Token(Token),
    /// Whoever the kernel lets through a socket of this user.
    OwnersSocket,
}

/// What there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Page,
    State,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refusal {
    #[error("ask by the name localhost, or by the number of this machine's loopback")]
    Host,
    #[error("this is for its own page alone, not for others")]
    Origin,
    #[error("this is not the address that `openmps top --web` has printed: it ends with a /")]
    Token,
    #[error("nothing can be changed here: ask with GET")]
    Method,
    #[error("there are the page and its `state`, and nothing else")]
    Path,
}

impl Refusal {
    fn status(self) -> &'static str {
        match self {
            Self::Host | Self::Origin | Self::Token => "403 Forbidden",
            Self::Method => "405 Method Not Allowed",
            Self::Path => "404 Not Found",
        }
    }
}

/// What answers.
pub(super) struct Page {
    door: Door,
    shared: Shared,
}

impl Page {
    pub(super) fn new(door: Door, shared: Shared) -> Self {
        Self { door, shared }
    }
}

impl Site for Page {
    fn answer(&mut self, request: &Request<'_>) -> Rc<[u8]> {
        match asked(&self.door, request) {
            Ok(Asked::Page) => page(),
            Ok(Asked::State) => {
                let Seen { state, at } =
                    self.shared.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let age = at.elapsed().as_secs().to_string();
                guarded("200 OK", &[("Content-Type", "application/json"), ("Age", &age)], &state)
            }
            Err(refusal) => {
                let mut headers = vec![("Content-Type", PLAIN)];
                headers.extend((refusal == Refusal::Method).then_some(("Allow", "GET")));
                guarded(refusal.status(), &headers, &format!("{refusal}\n"))
            }
        }
    }
}

fn asked(door: &Door, request: &Request<'_>) -> Result<Asked, Refusal> {
    let mut hosts = request.header("Host");
    let host = hosts.next().ok_or(Refusal::Host)?;
    if hosts.next().is_some() || !is_of_a_loopback(host) {
        return Err(Refusal::Host);
    }
    let own = format!("http://{host}");
    if !request.header("Origin").all(|origin| origin.eq_ignore_ascii_case(&own)) {
        return Err(Refusal::Origin);
    }
    let path = request.path.strip_prefix('/').unwrap_or_default();
    let path = match door {
        Door::OwnersSocket => path,
        Door::Token(token) => {
            let (said, rest) = path.split_once('/').ok_or(Refusal::Token)?;
            if !token.is(said) {
                return Err(Refusal::Token);
            }
            rest
        }
    };
    if request.method != "GET" {
        return Err(Refusal::Method);
    }
    match path {
        "" => Ok(Asked::Page),
        "state" => Ok(Asked::State),
        _ => Err(Refusal::Path),
    }
}

/// Any port is right: `ssh -L` has its own.
fn is_of_a_loopback(host: &str) -> bool {
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let number = match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').unwrap_or_default(),
        None => name,
    };
    name.eq_ignore_ascii_case("localhost")
        || number.parse::<IpAddr>().is_ok_and(|number| number.is_loopback())
}

fn page() -> Rc<[u8]> {
    let Ok(nonce) = Token::new() else {
        return guarded(
            "500 Internal Server Error",
            &[("Content-Type", PLAIN)],
            "no random bytes\n",
        );
    };
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let headers =
        [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", &policy)];
    guarded("200 OK", &headers, &PAGE.replace("NONCE", &nonce.0))
}

fn guarded(status: &str, headers: &[(&str, &str)], body: &str) -> Rc<[u8]> {
    response_with(status, &[headers, &GUARDS].concat(), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(door: &Door, text: &str) -> Result<Asked, Refusal> {
        asked(door, &Request::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn only_the_page_itself_is_answered() {
        let token = Token::new().unwrap();
        assert_eq!(token.0.len(), 32);
        let door = Door::Token(token.clone());
        let get = |path: &str, rest: &str| of(&door, &format!("GET {path} HTTP/1.1\r\n{rest}\r\n"));
        let (page, state) = (format!("/{token}/"), format!("/{token}/state"));
        for host in ["localhost:1", "LOCALHOST", "127.0.0.1:9400", "[::1]:80", "127.9.9.9"] {
            let host = format!("Host: {host}\r\n");
            assert_eq!(get(&page, &host), Ok(Asked::Page), "{host}");
            assert_eq!(get(&state, &host), Ok(Asked::State), "{host}");
        }
        for hosts in [
            "",
            "Host: evil.example\r\n",
            "Host: localhost.evil.example:80\r\n",
            "Host: 127.0.0.1.evil.example\r\n",
            "Host: 10.0.0.1:80\r\n",
            "Host: [::1\r\n",
            "Host: \r\n",
            "Host: localhost\r\nHost: evil.example\r\n",
        ] {
            assert_eq!(get(&state, hosts), Err(Refusal::Host), "{hosts}");
        }
        let host = "Host: localhost:80\r\n";
        let from = |origin: &str| get(&state, &format!("{host}Origin: {origin}\r\n"));
        assert_eq!(from("http://localhost:80"), Ok(Asked::State));
        for origin in ["null", "http://evil.example", "http://localhost:81", "https://localhost:80"]
        {
            assert_eq!(from(origin), Err(Refusal::Origin), "{origin}");
        }
        let digit = if token.0.ends_with('0') { "1" } else { "0" };
        let almost = format!("/{}{digit}/state", &token.0[..31]);
        let longer = format!("/{token}0/state");
        for path in ["/", "/state", "//state", "/0/state", &almost, &longer, &format!("/{token}")] {
            assert_eq!(get(path, host), Err(Refusal::Token), "{path}");
        }
        assert_eq!(get(&format!("{page}x"), host), Err(Refusal::Path));
        let post = format!("POST {state} HTTP/1.1\r\n{host}\r\n");
        assert_eq!(of(&door, &post), Err(Refusal::Method));
        let socket = |path: &str| {
            of(&Door::OwnersSocket, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        };
        assert_eq!((socket("/"), socket("/state")), (Ok(Asked::Page), Ok(Asked::State)));
    }

    #[test]
    fn the_page_is_whole_and_every_answer_has_its_own_word() {
        let [one, other] = [page(), page()].map(|it| String::from_utf8(it.to_vec()).unwrap());
        assert_ne!(one, other);
        assert!(!one.contains("NONCE"));
        let nonce = one.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap();
        for tag in ["<script", "<style"] {
            assert_eq!(one.matches(tag).count(), 1, "{tag}");
            assert!(one.contains(&format!("{tag} nonce=\"{nonce}\">")), "{tag}");
        }
        // What loads something, makes code of text, or is stopped by the policy.
        for not in ["src=", "@import", "url(", "innerHTML", "eval(", "style=", "onclick="] {
            assert!(!PAGE.contains(not), "{not}");
        }
    }
}
