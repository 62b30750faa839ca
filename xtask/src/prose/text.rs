//! What of a Markdown page is prose: its sentences, with the lines that they begin on.

/// Stands for a code span, which counts as one word.
const CODE: char = '\u{25a0}';

/// A sentence as a reader counts it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    /// The line that it begins on, from 1.
    pub(super) line: usize,
    pub(super) words: Vec<String>,
}

impl Sentence {
    /// Its text, with code spans as one sign.
    pub(super) fn text(&self) -> String {
        self.words.join(" ")
    }

    /// Its words in small letters, without punctuation at their ends.
    pub(super) fn plain_words(&self) -> Vec<String> {
        self.words.iter().map(|word| plain(word)).collect()
    }
}

fn plain(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric() && c != CODE).to_lowercase()
}

/// What a line of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Blank,
    /// Inside of a fence, or the fence itself.
    Code,
    Table,
    Heading,
    /// A line of HTML: comments and pictures.
    Html,
    /// The first line of an item of a list.
    Item,
    Text,
}

/// Each line of a page with its kind.
pub(super) fn lines(page: &str) -> Vec<(Kind, &str)> {
    let mut in_code = false;
    page.lines()
        .map(|line| {
            let start = line.trim_start();
            let fence = start.starts_with("```");
            let kind = if fence || in_code {
                Kind::Code
            } else if start.is_empty() {
                Kind::Blank
            } else if start.starts_with('|') {
                Kind::Table
            } else if start.starts_with('#') {
                Kind::Heading
            } else if start.starts_with('<') {
                Kind::Html
            } else if item_text(start).is_some() {
                Kind::Item
            } else {
                Kind::Text
            };
            in_code ^= fence;
            (kind, line)
        })
        .collect()
}

/// The text behind the mark of a list's item.
fn item_text(line: &str) -> Option<&str> {
    let marked = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "));
    marked.or_else(|| {
        let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest.len() < line.len() { rest.strip_prefix(". ") } else { None }
    })
}

/// All sentences of a page's paragraphs and lists.
pub(super) fn sentences(page: &str) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    let mut paragraph = Paragraph::default();
    for (index, (kind, line)) in lines(page).into_iter().enumerate() {
        match kind {
            Kind::Item => {
                paragraph.end(&mut sentences);
                let start = line.trim_start();
                paragraph.add(index + 1, item_text(start).unwrap_or(start));
            }
            Kind::Text => paragraph.add(index + 1, line.trim_start_matches(['>', ' '])),
            _ => paragraph.end(&mut sentences),
        }
    }
    paragraph.end(&mut sentences);
    sentences
}

/// The words of a paragraph, until it ends.
#[derive(Default)]
struct Paragraph {
    words: Vec<(usize, String)>,
    /// A code span goes on in the next line.
    in_code: bool,
    /// The target of a link goes on.
    in_target: bool,
}

impl Paragraph {
    fn add(&mut self, line: usize, text: &str) {
        let mut word = String::new();
        let mut previous = ' ';
        for c in text.chars() {
            match c {
                '`' => {
                    if self.in_code {
                        word.push(CODE);
                    }
                    self.in_code = !self.in_code;
                }
                _ if self.in_code => {}
                ')' if self.in_target => self.in_target = false,
                _ if self.in_target => {}
                '(' if previous == ']' => self.in_target = true,
                '[' | ']' | '*' => {}
                _ if c.is_whitespace() => self.push(line, &mut word),
                _ => word.push(c),
            }
            previous = c;
        }
        if !self.in_code {
            self.push(line, &mut word);
        }
    }

    fn push(&mut self, line: usize, word: &mut String) {
        if word.chars().any(|c| c.is_alphanumeric() || c == CODE) {
            self.words.push((line, std::mem::take(word)));
        } else if let Some((_, last)) = self.words.last_mut() {
            // Punctuation by itself belongs to the word before.
            last.push_str(word);
            word.clear();
        }
    }

    fn end(&mut self, sentences: &mut Vec<Sentence>) {
        let mut current: Option<Sentence> = None;
        let words = std::mem::take(&mut self.words);
        for (index, (line, word)) in words.iter().enumerate() {
            let sentence =
                current.get_or_insert_with(|| Sentence { line: *line, words: Vec::new() });
            sentence.words.push(word.clone());
            let next = words.get(index + 1).map(|(_, next)| next.as_str());
            if ends_sentence(word, next) {
                sentences.extend(current.take());
            }
        }
        sentences.extend(current);
        *self = Self::default();
    }
}

fn ends_sentence(word: &str, next: Option<&str>) -> bool {
    let stop = word.trim_end_matches([')', '"']).ends_with(['.', '!', '?']);
    let begins = |next: &str| {
        let first = next.trim_start_matches(['(', '"']).chars().next();
        first.is_some_and(|c| c.is_uppercase() || c.is_ascii_digit() || c == CODE)
    };
    stop && next.is_none_or(begins)
}

/// How many columns a line has without the targets of its links.
pub(super) fn columns(line: &str) -> usize {
    let mut columns = 0;
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        columns += before.chars().count() + 1;
        rest = after.split_once(')').map_or("", |(_, behind)| behind);
    }
    columns + rest.chars().count()
}

#[cfg(test)]
mod tests {
    use super::{Kind, Sentence, columns, lines, sentences};

    fn counts(page: &str) -> Vec<(usize, usize)> {
        sentences(page).iter().map(|Sentence { line, words }| (*line, words.len())).collect()
    }

    #[test]
    fn sentences_go_over_lines_and_end_with_their_paragraph() {
        let page = "# Not a sentence\n\nOne two three\nfour. Five six (see 7.5 below). `a b` c:\n\n- an item\n  of five words\n2. two";
        assert_eq!(counts(page), [(3, 4), (4, 5), (4, 2), (6, 5), (8, 1)]);
    }

    #[test]
    fn code_spans_and_links_count_as_what_is_read() {
        assert_eq!(counts("Use `a b c`, [two words](a/b.md#c-d-e) and **one**."), [(1, 6)]);
        assert_eq!(counts("A span `over\ntwo lines` is one."), [(1, 5)]);
        assert_eq!(counts("A dash - alone."), [(1, 3)]);
    }

    #[test]
    fn an_abbreviation_in_a_sentence_does_not_end_it() {
        assert_eq!(counts("See sec. four of it. Then go."), [(1, 5), (1, 2)]);
        assert_eq!(counts("It is 2.5 ms. `x` follows."), [(1, 4), (1, 2)]);
    }

    #[test]
    fn tables_code_and_html_are_no_prose() {
        let page = "| a | b |\n```sh\necho This. That.\n```\n<!-- no -->\nYes.";
        assert_eq!(counts(page), [(6, 1)]);
        let kinds: Vec<Kind> = lines(page).into_iter().map(|(kind, _)| kind).collect();
        let code = Kind::Code;
        assert_eq!(kinds, [Kind::Table, code, code, code, Kind::Html, Kind::Text]);
    }

    #[test]
    fn targets_of_links_take_no_columns() {
        assert_eq!(columns("a [b](http://c.d/e) f"), 7);
    }
}
