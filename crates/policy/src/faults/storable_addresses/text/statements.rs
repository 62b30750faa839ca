//! A PTX text as statements.

/// What a text consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Outside of functions.
    Declaration(&'a str),
    /// A function with this head.
    Begins(&'a str),
    /// Of a function.
    Statement(&'a str),
    /// The function's end.
    Ends,
}

impl<'a> Part<'a> {
    /// The name of the function that is declared.
    pub(super) fn function(&self) -> Option<&'a str> {
        let (Self::Declaration(head) | Self::Begins(head)) = self else { return None };
        let at = head.find(".func").map(|at| at + ".func".len());
        let at = at.or_else(|| head.find(".entry").map(|at| at + ".entry".len()))?;
        let mut rest = head[at..].trim_start();
        // Its results.
        if rest.starts_with('(') {
            rest = &rest[rest.find(')')? + 1..];
        }
        words(rest.trim_start().trim_start_matches(".noreturn")).next()
    }
}

/// Names and registers.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '$' | '%');
    text.split(move |it| !is_part(it)).filter(|word| !word.is_empty())
}

/// The text without comments, and with nothing between quotes.
pub(super) fn without_comments(text: &[u8]) -> String {
    let mut kept = Vec::with_capacity(text.len());
    let mut rest = text;
    let until = |rest: &[u8], end: &[u8]| {
        let found = rest.windows(end.len()).position(|it| it == end);
        found.map_or(rest.len(), |at| at + end.len())
    };
    while let Some(&first) = rest.first() {
        let skipped = match first {
            b'/' if rest.starts_with(b"//") => until(rest, b"\n"),
            b'/' if rest.starts_with(b"/*") => until(rest, b"*/"),
            b'"' => 1 + until(&rest[1..], b"\""),
            _ => {
                kept.push(first);
                rest = &rest[1..];
                continue;
            }
        };
        kept.push(if rest.starts_with(b"//") { b'\n' } else { b' ' });
        rest = &rest[skipped..];
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Directives that end with their line.
const OF_ONE_LINE: [&str; 5] = [".version", ".target", ".address_size", ".file", ".loc"];

/// The parts of a text without comments.
pub(super) fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut parts, mut begin) = (Vec::new(), 0);
    // Of blocks, the function's own is the first; and of braces in a statement.
    let (mut blocks, mut braces) = (0_usize, 0_usize);
    for (at, byte) in text.bytes().enumerate() {
        if !matches!(byte, b'\n' | b'{' | b'}' | b';') {
            continue;
        }
        let so_far = text[begin..at].trim();
        match byte {
            b'\n' if OF_ONE_LINE.iter().any(|it| so_far.starts_with(it)) => begin = at + 1,
            b'{' if braces > 0 => braces += 1,
            b'{' if blocks == 0 && is_head(so_far) => {
                parts.push(Part::Begins(so_far));
                (blocks, begin) = (1, at + 1);
            }
            b'{' if blocks > 0 && (so_far.is_empty() || so_far.ends_with(':')) => {
                (blocks, begin) = (blocks + 1, at + 1);
            }
            b'{' => braces = 1,
            b'}' if braces > 0 => {
                braces -= 1;
                if braces == 0 && so_far.starts_with(".section") {
                    begin = at + 1;
                }
            }
            b'}' => {
                blocks = blocks.saturating_sub(1);
                begin = at + 1;
                if blocks == 0 {
                    parts.push(Part::Ends);
                }
            }
            b';' if braces == 0 => {
                parts.push(match blocks {
                    0 => Part::Declaration(so_far),
                    _ => Part::Statement(so_far),
                });
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts
}

fn is_head(text: &str) -> bool {
    text.starts_with('.') && (text.contains(".entry") || text.contains(".func"))
}

/// The operands up to the first comma that is not in braces or parentheses.
pub(super) fn first_operand(operands: &str) -> &str {
    let mut depth = 0_i32;
    let end = operands.find(|it| {
        match it {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        it == ',' && depth == 0
    });
    &operands[..end.unwrap_or(operands.len())]
}

/// What of operands is not in brackets.
pub(super) fn outside_of_brackets(operands: &str) -> impl Iterator<Item = &str> {
    let behind = operands.split('[').enumerate();
    behind.filter_map(|(number, piece)| match number {
        0 => Some(piece),
        _ => piece.split_once(']').map(|(_, outside)| outside),
    })
}
