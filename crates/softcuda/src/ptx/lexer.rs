//! A cursor over PTX text: whitespace, comments, names, numbers, positions.

use super::error::ParseError;

/// Position in the text, with the line known.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    bytes: &'a [u8],
    pos: usize,
    line: u32,
    line_start: usize,
}

/// A numeric literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(u64),
    Float32(u32),
    Float64(u64),
}

const NAME: u8 = 1;
const DIGIT: u8 = 2;
const SPACE: u8 = 4;

/// Character classes by byte.
static CLASS: [u8; 256] = {
    let mut class = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let c = i as u8;
        if c.is_ascii_alphabetic() || c == b'_' || c == b'$' || c == b'%' {
            class[i] |= NAME;
        }
        if c.is_ascii_digit() {
            class[i] |= DIGIT;
        }
        if matches!(c, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c) {
            class[i] |= SPACE;
        }
        i += 1;
    }
    class
};

fn is(byte: u8, classes: u8) -> bool {
    CLASS[byte as usize] & classes != 0
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `text`, which begins on `line`. Text ends at the first NUL.
    pub(super) fn new(text: &'a str, line: u32) -> Self {
        let end = text.find('\0').unwrap_or(text.len());
        let text = &text[..end];
        Self { text, bytes: text.as_bytes(), pos: 0, line, line_start: 0 }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    pub(super) fn line(&self) -> u32 {
        self.line
    }

    pub(super) fn column(&self) -> u32 {
        (self.pos - self.line_start) as u32 + 1
    }

    /// The error `message` at the current position.
    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError { line: self.line, column: self.column(), message: message.into() })
    }

    /// The error that something else was expected, naming what is there.
    pub(super) fn expected<T>(&self, what: &str) -> Result<T, ParseError> {
        let rest = &self.text[self.pos..];
        let found: String = rest.chars().take_while(|c| !c.is_whitespace()).take(24).collect();
        if found.is_empty() {
            return self.error(format!("expected {what}, found end of text"));
        }
        self.error(format!("expected {what}, found '{found}'"))
    }

    /// The next byte, 0 at the end.
    pub(super) fn peek(&self) -> u8 {
        self.bytes.get(self.pos).copied().unwrap_or(0)
    }

    pub(super) fn peek_at(&self, ahead: usize) -> u8 {
        self.bytes.get(self.pos + ahead).copied().unwrap_or(0)
    }

    pub(super) fn at_end(&self) -> bool {
        self.pos >= self.bytes.len()
    }

    /// Advances over one byte that is no newline.
    pub(super) fn bump(&mut self) {
        self.pos += 1;
    }

    /// Skips whitespace and comments.
    pub(super) fn skip(&mut self) -> Result<(), ParseError> {
        loop {
            let byte = self.peek();
            if byte == b'\n' {
                self.pos += 1;
                self.line += 1;
                self.line_start = self.pos;
            } else if is(byte, SPACE) {
                self.pos += 1;
            } else if byte == b'/' && self.peek_at(1) == b'/' {
                self.skip_line();
            } else if byte == b'/' && self.peek_at(1) == b'*' {
                self.skip_block_comment()?;
            } else if byte == b'#' {
                // Line markers of preprocessed text.
                self.skip_line();
            } else {
                return Ok(());
            }
        }
    }

    /// Advances to the end of the line.
    pub(super) fn skip_line(&mut self) {
        while !self.at_end() && self.bytes[self.pos] != b'\n' {
            self.pos += 1;
        }
    }

    fn skip_block_comment(&mut self) -> Result<(), ParseError> {
        let start = self.clone();
        self.pos += 2;
        while !self.at_end() {
            match self.bytes[self.pos] {
                b'*' if self.peek_at(1) == b'/' => {
                    self.pos += 2;
                    return Ok(());
                }
                b'\n' => {
                    self.line += 1;
                    self.line_start = self.pos + 1;
                }
                _ => {}
            }
            self.pos += 1;
        }
        start.error("comment is not closed")
    }

    /// Consumes `byte` and what whitespace follows it, if it is next.
    pub(super) fn eat(&mut self, byte: u8) -> Result<bool, ParseError> {
        if self.peek() != byte || self.at_end() {
            return Ok(false);
        }
        self.pos += 1;
        self.skip()?;
        Ok(true)
    }

    /// Consumes `byte` or fails.
    pub(super) fn expect(&mut self, byte: u8) -> Result<(), ParseError> {
        if self.eat(byte)? { Ok(()) } else { self.expected(&format!("'{}'", byte as char)) }
    }

    pub(super) fn at_name(&self) -> bool {
        is(self.peek(), NAME)
    }

    pub(super) fn at_digit(&self) -> bool {
        is(self.peek(), DIGIT)
    }

    /// A name, without skipping what follows.
    pub(super) fn raw_name(&mut self) -> Option<&'a str> {
        if !self.at_name() {
            return None;
        }
        let start = self.pos;
        while is(self.peek(), NAME | DIGIT) {
            self.pos += 1;
        }
        Some(&self.text[start..self.pos])
    }

    /// A name and what whitespace follows it.
    pub(super) fn name(&mut self, what: &str) -> Result<&'a str, ParseError> {
        match self.raw_name() {
            Some(name) => {
                self.skip()?;
                Ok(name)
            }
            None => self.expected(what),
        }
    }

    /// An operand name: may have `.x`-like parts (`%tid.x`, `v.w`).
    pub(super) fn operand_name(&mut self) -> Result<&'a str, ParseError> {
        let start = self.pos;
        if self.raw_name().is_none() {
            return self.expected("an operand");
        }
        while self.peek() == b'.' && is(self.peek_at(1), NAME) {
            self.pos += 1;
            self.raw_name();
        }
        let name = &self.text[start..self.pos];
        self.skip()?;
        Ok(name)
    }

    /// The rest of an opcode whose first name starts at `start`: `.mod` and `::part` suffixes.
    pub(super) fn opcode_from(&mut self, start: usize) -> Result<&'a str, ParseError> {
        loop {
            match self.peek() {
                b'.' if is(self.peek_at(1), NAME | DIGIT) => self.pos += 1,
                b':' if self.peek_at(1) == b':' && is(self.peek_at(2), NAME | DIGIT) => {
                    self.pos += 2
                }
                _ => break,
            }
            while is(self.peek(), NAME | DIGIT) {
                self.pos += 1;
            }
        }
        let opcode = &self.text[start..self.pos];
        self.skip()?;
        Ok(opcode)
    }

    /// A directive name after its dot, dot included in the text but not in the result; `::` parts
    /// are kept.
    pub(super) fn directive(&mut self) -> Result<&'a str, ParseError> {
        if self.peek() != b'.' {
            return self.expected("a directive");
        }
        self.pos += 1;
        let start = self.pos;
        if self.raw_name().is_none() {
            return self.expected("a directive name");
        }
        while self.peek() == b':' && self.peek_at(1) == b':' && is(self.peek_at(2), NAME) {
            self.pos += 2;
            self.raw_name();
        }
        let name = &self.text[start..self.pos];
        self.skip()?;
        Ok(name)
    }

    /// The directive name ahead, without moving.
    pub(super) fn peek_directive(&self) -> &'a str {
        let mut ahead = self.clone();
        ahead.directive().unwrap_or("")
    }

    /// A quoted string, without the quotes.
    pub(super) fn string(&mut self) -> Result<&'a str, ParseError> {
        if self.peek() != b'"' {
            return self.expected("a string");
        }
        let start = self.pos + 1;
        let mut end = start;
        while end < self.bytes.len() && self.bytes[end] != b'"' {
            if self.bytes[end] == b'\n' {
                return self.error("string is not closed on its line");
            }
            end += if self.bytes[end] == b'\\' { 2 } else { 1 };
        }
        if end >= self.bytes.len() {
            return self.error("string is not closed");
        }
        let Some(text) = self.text.get(start..end) else {
            return self.error("string is not closed");
        };
        self.pos = end + 1;
        self.skip()?;
        Ok(text)
    }

    /// An unsigned numeric literal.
    pub(super) fn number(&mut self) -> Result<Number, ParseError> {
        let start = self.pos;
        let number = if self.peek() == b'0' {
            match self.peek_at(1) {
                b'x' | b'X' => self.digits(2, 16)?,
                b'f' | b'F' => Number::Float32(self.float_bits(8)? as u32),
                b'd' | b'D' => Number::Float64(self.float_bits(16)?),
                b'b' | b'B' => self.digits(2, 2)?,
                c if is(c, DIGIT) && !self.is_decimal_float() => self.digits(1, 8)?,
                _ => self.decimal()?,
            }
        } else {
            self.decimal()?
        };
        if matches!(number, Number::Int(_)) && self.peek() == b'U' {
            self.pos += 1;
        }
        if is(self.peek(), NAME | DIGIT) {
            self.pos = start;
            return self.expected("a number");
        }
        self.skip()?;
        Ok(number)
    }

    fn digits(&mut self, prefix: usize, radix: u32) -> Result<Number, ParseError> {
        self.pos += prefix;
        let start = self.pos;
        let mut value = 0u64;
        while let Some(digit) = (self.peek() as char).to_digit(radix) {
            let next =
                value.checked_mul(u64::from(radix)).and_then(|v| v.checked_add(u64::from(digit)));
            let Some(next) = next else {
                return self.error("integer constant does not fit 64 bits");
            };
            value = next;
            self.pos += 1;
        }
        if self.pos == start {
            return self.expected("a digit");
        }
        Ok(Number::Int(value))
    }

    fn float_bits(&mut self, digits: usize) -> Result<u64, ParseError> {
        self.pos += 2;
        let mut value = 0u64;
        for _ in 0..digits {
            let Some(digit) = (self.peek() as char).to_digit(16) else {
                return self.expected(&format!("{digits} hexadecimal digits"));
            };
            value = value << 4 | u64::from(digit);
            self.pos += 1;
        }
        Ok(value)
    }

    fn is_decimal_float(&self) -> bool {
        let mut ahead = self.pos;
        while self.bytes.get(ahead).is_some_and(|&b| is(b, DIGIT)) {
            ahead += 1;
        }
        matches!(self.bytes.get(ahead), Some(b'.' | b'e' | b'E'))
    }

    fn decimal(&mut self) -> Result<Number, ParseError> {
        if !self.is_decimal_float() {
            return self.digits(0, 10);
        }
        let start = self.pos;
        while is(self.peek(), DIGIT) || self.peek() == b'.' {
            self.pos += 1;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.pos += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.pos += 1;
            }
            while is(self.peek(), DIGIT) {
                self.pos += 1;
            }
        }
        match self.text[start..self.pos].parse::<f64>() {
            Ok(value) => Ok(Number::Float64(value.to_bits())),
            Err(_) => self.error("malformed floating-point constant"),
        }
    }
}
