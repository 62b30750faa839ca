//! As much of HTTP as the metrics and the page of `openmps top --web` need.

mod request;
mod serving;

use std::rc::Rc;

pub use request::Request;
pub use serving::{Listener, Reach, Site, Socket, answer_all, listen};
pub use settings::Address;

/// Content type of messages.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// A whole answer, after which the connection is closed.
pub fn response(status: &str, content_type: &str, body: &str) -> Rc<[u8]> {
    response_with(status, &[("Content-Type", content_type)], body)
}

/// [`response`] with these headers, of which one is the content's type.
pub fn response_with(status: &str, headers: &[(&str, &str)], body: &str) -> Rc<[u8]> {
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    Rc::from(text.into_bytes())
}
