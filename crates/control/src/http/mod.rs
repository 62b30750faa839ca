//! As much of HTTP as the metrics need.

mod address;
mod request;
mod serving;

use std::rc::Rc;

pub use address::{Address, AddressError};
pub use request::Request;
pub use serving::{Listener, Site, Socket, answer_all, listen};

/// Content type of messages.
pub const PLAIN: &str = "text/plain; charset=utf-8";

/// A whole answer, after which the connection is closed.
pub fn response(status: &str, content_type: &str, body: &str) -> Rc<[u8]> {
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    Rc::from(text.into_bytes())
}
