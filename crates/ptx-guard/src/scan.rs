//! PTX text as a row of statements, each with its place: what the rewriter needs of the grammar,
//! and no more.

use crate::GuardError;

/// A piece of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Up to and with `;`, or to the end of the line where that ends it.
    Statement(&'a str),
    /// The head of a function whose body's `{` follows.
    Head(&'a str),
    /// `name:`.
    Label,
    Open,
    Close,
}

/// Reads pieces one after the other.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, at: 0, line: 1 }
    }

    /// Where the next piece begins, comments and white space before it left out.
    pub(crate) fn skip(&mut self) -> Result<usize, GuardError> {
        loop {
            let rest = &self.text[self.at..];
            let skipped = match rest.as_bytes() {
                [b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c, ..] => 1,
                [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
                [b'/', b'*', ..] => match rest.find("*/") {
                    Some(end) => end + 2,
                    None => return self.malformed("a comment does not end"),
                },
                _ => return Ok(self.at),
            };
            self.advance(skipped);
        }
    }

    /// The line of the next piece.
    pub(crate) fn line(&self) -> u32 {
        self.line
    }

    pub(crate) fn malformed<T>(&self, what: &str) -> Result<T, GuardError> {
        Err(GuardError::Malformed { line: self.line, what: what.to_owned() })
    }

    /// The next piece inside of a function; `None` at the end of the text.
    pub(crate) fn in_body(&mut self) -> Result<Option<Piece<'a>>, GuardError> {
        let start = self.skip()?;
        let rest = &self.text[start..];
        Ok(Some(match rest.as_bytes().first() {
            None => return Ok(None),
            Some(b'{') => self.single(Piece::Open),
            Some(b'}') => self.single(Piece::Close),
            _ => {
                let name = rest.bytes().take_while(|byte| is_name(*byte)).count();
                let after = rest[name..].trim_start();
                if name > 0 && after.starts_with(':') && !after.starts_with("::") {
                    let colon = rest[name..].find(':').unwrap_or(0);
                    self.advance(name + colon + 1);
                    return Ok(Some(Piece::Label));
                }
                if rest.starts_with(".loc") {
                    return Ok(Some(Piece::Statement(self.take_line())));
                }
                Piece::Statement(self.take_statement()?)
            }
        }))
    }

    /// The next piece outside of functions.
    pub(crate) fn in_module(&mut self) -> Result<Option<Piece<'a>>, GuardError> {
        let start = self.skip()?;
        let rest = &self.text[start..];
        if rest.is_empty() {
            return Ok(None);
        }
        let word = |name: &str| {
            rest.strip_prefix(name).is_some_and(|after| !after.starts_with(|c| is_name(c as u8)))
        };
        if [".version", ".target", ".address_size", ".file", ".loc"].into_iter().any(word) {
            return Ok(Some(Piece::Statement(self.take_line())));
        }
        if word(".section") {
            self.advance(rest.find('{').unwrap_or(0));
            self.skip_braces()?;
            return Ok(Some(Piece::Statement(&self.text[start..self.at])));
        }
        // A function's head ends where its body begins, anything else with a semicolon.
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            let head = &self.text[start..self.at];
            match byte {
                b';' => {
                    self.advance(1);
                    return Ok(Some(Piece::Statement(&self.text[start..self.at])));
                }
                b'{' if is_function(head) => return Ok(Some(Piece::Head(head))),
                b'{' => self.skip_braces()?,
                b'"' => self.skip_string()?,
                b'/' => {
                    let before = self.at;
                    if self.skip()? == before {
                        self.advance(1);
                    }
                }
                _ => self.advance(1),
            }
        }
        self.malformed("the text ends in the middle of a statement")
    }

    fn single(&mut self, piece: Piece<'a>) -> Piece<'a> {
        self.advance(1);
        piece
    }

    fn take_line(&mut self) -> &'a str {
        let start = self.at;
        let rest = &self.text[start..];
        self.advance(rest.find('\n').unwrap_or(rest.len()));
        &self.text[start..self.at]
    }

    fn take_statement(&mut self) -> Result<&'a str, GuardError> {
        let start = self.at;
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            match byte {
                b';' => {
                    self.advance(1);
                    return Ok(&self.text[start..self.at]);
                }
                b'"' => self.skip_string()?,
                _ => self.advance(1),
            }
        }
        self.malformed("an instruction does not end")
    }

    fn skip_string(&mut self) -> Result<(), GuardError> {
        match self.text[self.at + 1..].find('"') {
            Some(length) => {
                self.advance(length + 2);
                Ok(())
            }
            None => self.malformed("a string does not end"),
        }
    }

    fn skip_braces(&mut self) -> Result<(), GuardError> {
        let mut depth = 0u32;
        while let Some(&byte) = self.text.as_bytes().get(self.at) {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                b'"' => {
                    self.skip_string()?;
                    continue;
                }
                _ => {}
            }
            self.advance(1);
            if depth == 0 {
                return Ok(());
            }
        }
        self.malformed("a brace is not closed")
    }

    /// Goes on by so many bytes, of which those that are not ASCII are in comments and strings
    /// only.
    fn advance(&mut self, bytes: usize) {
        let mut end = (self.at + bytes).min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end += 1;
        }
        self.line += self.text[self.at..end].matches('\n').count() as u32;
        self.at = end;
    }

    /// Up to where it has read.
    pub(crate) fn position(&self) -> usize {
        self.at
    }
}

/// Whether a byte may be part of a name.
pub(crate) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

/// What commas outside of brackets and braces separate: operands, declared variables, initial
/// values.
pub(crate) fn split_at_commas(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0i32, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' | b'(' => depth += 1,
            b']' | b'}' | b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Whether the head of a statement outside of functions is a function's.
pub(crate) fn is_function(head: &str) -> bool {
    head.split_ascii_whitespace().any(|word| {
        word == ".entry"
            || word == ".func"
            || word.starts_with(".func(")
            || word.starts_with(".entry(")
    })
}
