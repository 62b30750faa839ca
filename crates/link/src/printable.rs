//! Words of clients, peers and files, as they may stand in a log, in a table or on somebody's terminal.

/// A text without control characters: it stays on its line, and no terminal obeys it.
pub fn printable(text: &str) -> String {
    printable_prefix(text, usize::MAX)
}

/// The same, cut off after so many characters.
pub fn printable_prefix(text: &str, most_characters: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most_characters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminals_controls_or_another_line() {
        assert_eq!(printable("a\u{1b}[2Jb\r\n[forged] ü\u{9b}1m"), "a[2Jb[forged] ü1m");
        assert_eq!(printable_prefix("\n\nabc", 2), "ab");
    }
}
