//! `cargo xtask prose`: the documents against the style sheet of CONTRIBUTING.md.
//!
//! It reads the pages that people read and names each sentence of more than 30 words, each line
//! beyond 100 columns, words that the style sheet rules out, links and paths of sources that lead
//! nowhere, and pages with long sentences on average or without an example. Comments of the code
//! have 100 columns, too.

mod comments;
mod links;
mod named_sources;
mod text;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::text::{Kind, Sentence};
use crate::paths::Paths;

/// Words of a sentence, at most.
const LONGEST_SENTENCE: usize = 30;
/// Words of a page's sentences, on average and at most.
const AVERAGE_SENTENCE: usize = 18;
/// Columns of a line, at most. Tables, code and the targets of links may have more.
const COLUMNS: usize = 100;

/// Pages that are not made from something else, beside those of `docs`.
const PAGES: &[&str] = &["README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md"];

/// What is not written, and what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("the original", "NVIDIA MPS"),
    ("the original's", "NVIDIA MPS's"),
    ("anew", "again"),
    ("but for", "except"),
    ("of theirs", "their"),
    ("of ours", "our"),
    ("or else", "otherwise"),
    ("client who", "a client that"),
    ("clients who", "clients that"),
    ("program who", "a program that"),
    ("programs who", "programs that"),
    ("process who", "a process that"),
    ("processes who", "processes that"),
];

/// Where `else` is plain English: nothing else, somebody else.
const BEFORE_ELSE: &[&str] = &[
    "anybody",
    "anyone",
    "anything",
    "everybody",
    "everyone",
    "everything",
    "nobody",
    "nothing",
    "nowhere",
    "somebody",
    "someone",
    "something",
    "what",
    "who",
];

/// Checks all pages.
///
/// # Errors
/// When a page cannot be read, or one has something to mend: each is printed.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let mut faults = Vec::new();
    let sources = named_sources::sources(&paths.root)?;
    for page in pages(&paths.root)? {
        let name = page.strip_prefix(&paths.root).unwrap_or(&page).display().to_string();
        let text =
            fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        let of_style = faults_of_style(&text, name.starts_with("docs/"));
        faults.extend(of_style.iter().map(|fault| format!("{name}:{fault}")));
        for (line, path) in named_sources::named(&text) {
            if !named_sources::is_there(&path, &sources) {
                faults.push(format!("{name}:{line}: there is no source {path}"));
            }
        }
        for (line, target) in links::links(&text) {
            faults.extend(
                links::fault(&page, &target).map(|fault| format!("{name}:{line}: {fault}")),
            );
        }
    }
    faults.extend(comments::faults(&paths.root, COLUMNS)?);
    for fault in &faults {
        println!("{fault}");
    }
    match faults.len() {
        0 => Ok(()),
        n => bail!("{n} places do not follow the style sheet of CONTRIBUTING.md"),
    }
}

fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut docs = Vec::new();
    for entry in fs::read_dir(root.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            docs.push(path);
        }
    }
    docs.sort();
    Ok(PAGES.iter().map(|page| root.join(page)).chain(docs).collect())
}

/// What a page has to mend, each as `LINE: what`.
fn faults_of_style(page: &str, needs_example: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let lines = text::lines(page);
    for (index, (kind, line)) in lines.iter().enumerate() {
        let exempt = matches!(kind, Kind::Code | Kind::Table | Kind::Html);
        let columns = text::columns(line);
        if !exempt && columns > COLUMNS {
            faults.push(format!("{}: {columns} columns", index + 1));
        }
    }
    let sentences = text::sentences(page);
    for sentence in &sentences {
        let words = sentence.words.len();
        if words > LONGEST_SENTENCE {
            faults.push(format!("{}: {words} words: {}", sentence.line, sentence.text()));
        }
        faults.extend(ruled_out(sentence));
    }
    let words: usize = sentences.iter().map(|sentence| sentence.words.len()).sum();
    if words > AVERAGE_SENTENCE * sentences.len() {
        let average = words / sentences.len();
        faults.push(format!("1: sentences of more than {average} words on average"));
    }
    if needs_example && !lines.iter().any(|(kind, _)| *kind == Kind::Code) {
        faults.push("1: no example".to_owned());
    }
    faults
}

fn ruled_out(sentence: &Sentence) -> Vec<String> {
    let words = sentence.plain_words();
    let mut faults = Vec::new();
    for (phrase, instead) in WORDS {
        let phrase_words: Vec<&str> = phrase.split(' ').collect();
        if words.windows(phrase_words.len()).any(|window| window == phrase_words.as_slice()) {
            faults.push(format!("{}: \"{phrase}\": write {instead:?}", sentence.line));
        }
    }
    let else_alone = words.iter().enumerate().any(|(index, word)| {
        let before = index.checked_sub(1).map(|before| words[before].as_str());
        word == "else" && !before.is_some_and(|before| BEFORE_ELSE.contains(&before))
    });
    if else_alone {
        faults.push(format!("{}: \"else\": write \"otherwise\"", sentence.line));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::faults_of_style;

    #[test]
    fn a_plain_page_has_nothing_to_mend() {
        let page = "# A page\n\nIt does one thing. For example:\n\n```sh\nopenmps ps\n```\n";
        assert!(faults_of_style(page, true).is_empty());
    }

    #[test]
    fn a_long_sentence_is_named_with_its_line() {
        let page = format!("Short one.\n\n{}end.", "word ".repeat(30));
        let faults = faults_of_style(&page, false);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].starts_with("3: 154 columns"), "{faults:?}");
        assert!(faults[1].starts_with("3: 31 words"), "{faults:?}");
    }

    #[test]
    fn the_average_is_held_where_each_sentence_is() {
        let page = format!("{}end.", "word\n".repeat(18));
        let faults = faults_of_style(&page, false);
        assert_eq!(faults, ["1: sentences of more than 19 words on average"]);
    }

    #[test]
    fn wide_lines_are_tables_code_and_links() {
        let wide = "x".repeat(120);
        let page = format!("| {wide} |\n```\n{wide}\n```\n[a]({wide})\n");
        assert!(faults_of_style(&page, false).is_empty());
        assert_eq!(faults_of_style(&wide, false), ["1: 120 columns"]);
    }

    #[test]
    fn words_are_ruled_out_in_prose_alone() {
        let faults = |text| faults_of_style(text, false).len();
        assert_eq!(faults("It works as in the original."), 1);
        assert_eq!(faults("It is made\nanew."), 1);
        assert_eq!(faults("Else it fails, or else it waits."), 2);
        assert_eq!(faults("Nobody else is told. Use `the original`."), 0);
        assert_eq!(faults("Theoriginal is a renewal."), 0);
    }

    #[test]
    fn a_page_without_an_example_is_named() {
        assert_eq!(faults_of_style("Text.", true), ["1: no example"]);
    }
}
