//! A request, as far as it is read.

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// `GET`, for example.
    pub method: &'a str,
    /// Without the query.
    pub path: &'a str,
    headers: &'a str,
}

impl<'a> Request<'a> {
    /// Reads the first line, and where the headers are; `None`: this is no request.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = bytes.split_at(end + 1);
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let path = target.split('?').next().unwrap_or(target);
        // Headers in another encoding are none.
        let headers = std::str::from_utf8(rest).unwrap_or_default();
        version.starts_with("HTTP/").then_some(Self { method, path, headers })
    }

    /// The values of a header, in the order in which they come.
    pub fn header(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let headers = self.headers.lines().take_while(|line| !line.trim_end().is_empty());
        headers.filter_map(move |line| {
            let (found, value) = line.split_once(':')?;
            found.trim().eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_is_wanted() {
        let request =
            Request::read(b"GET /metrics?x=1&token=ab HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!((request.method, request.path), ("GET", "/metrics"));
        let request = Request::read(b"POST / HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!((request.method, request.path), ("POST", "/"));
        for wrong in [&b""[..], b"GET /metrics", b"\xff\xfe\r\n\r\n", b"GET /metrics FTP/1\r\n"] {
            assert_eq!(Request::read(wrong), None);
        }
    }

    #[test]
    fn headers_end_before_the_body() {
        let request = b"GET / HTTP/1.1\r\nhost: a:1\r\nX: y\r\nHOST:b\r\n\r\nHost: c\r\n";
        let request = Request::read(request).unwrap();
        assert_eq!(Vec::from_iter(request.header("Host")), ["a:1", "b"]);
        assert_eq!(
            Vec::from_iter(Request::read(b"GET / HTTP/1.1\r\nA: \xff\r\n").unwrap().header("A")),
            [""; 0]
        );
    }
}
