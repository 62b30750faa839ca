//! The parser's one error.

/// Where and why a text is no PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, 1-based.
    pub line: u32,
    /// Column in bytes, 1-based.
    pub column: u32,
    /// What is wrong.
    pub message: String,
}
