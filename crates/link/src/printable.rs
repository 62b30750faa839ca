//! Words of clients, peers and files, as they may stand in a log, in a table or on somebody's
//! terminal.

/// A text without control characters, and without those that format a text unseen: it stays on its
/// line, no terminal obeys it, and it is read in the order in which it is written.
pub fn printable(text: &str) -> String {
    printable_prefix(text, usize::MAX)
}

/// The same, cut off after so many characters.
pub fn printable_prefix(text: &str, most_characters: usize) -> String {
    text.chars().filter(|c| is_printable(*c)).take(most_characters).collect()
}

/// Whether a character is none of the categories Cc, Cf, Zl and Zp of Unicode.
pub fn is_printable(c: char) -> bool {
    !c.is_control() && !FORMATS.iter().any(|(first, last)| (*first..=*last).contains(&c))
}

/// Categories Cf, Zl and Zp, first and last of each range (Unicode 16.0).
const FORMATS: [(char, char); 21] = [
    ('\u{ad}', '\u{ad}'),
    ('\u{600}', '\u{605}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{6dd}', '\u{6dd}'),
    ('\u{70f}', '\u{70f}'),
    ('\u{890}', '\u{891}'),
    ('\u{8e2}', '\u{8e2}'),
    ('\u{180e}', '\u{180e}'),
    ('\u{200b}', '\u{200f}'),
    ('\u{2028}', '\u{202e}'),
    ('\u{2060}', '\u{2064}'),
    ('\u{2066}', '\u{206f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{110bd}', '\u{110bd}'),
    ('\u{110cd}', '\u{110cd}'),
    ('\u{13430}', '\u{1343f}'),
    ('\u{1bca0}', '\u{1bca3}'),
    ('\u{1d173}', '\u{1d17a}'),
    ('\u{e0001}', '\u{e0001}'),
    ('\u{e0020}', '\u{e007f}'),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_a_terminals_controls_or_another_line() {
        assert_eq!(printable("a\u{1b}[2Jb\r\n[forged] ü\u{9b}1m"), "a[2Jb[forged] ü1m");
        assert_eq!(printable_prefix("\n\nabc", 2), "ab");
    }

    #[test]
    fn nothing_formats_what_comes_after_it() {
        assert_eq!(printable("a\u{202e}b\u{2028}c\u{2029}d\u{2066}e\u{200b}f\u{feff}"), "abcdef");
        assert_eq!(printable("日本語 naïve – e\u{301}🙂"), "日本語 naïve – e\u{301}🙂");
    }
}
