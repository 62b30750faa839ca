//! Sources that the pages name: each path to one leads to a file.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::text::{Kind, lines};

/// Where sources are.
const FOLDERS: &[&str] = &["bench", "crates", "programs", "tests", "tools", "xtask"];
const EXTENSIONS: &[&str] = &["rs", "c", "cu", "h", "py", "sh"];

/// Each path of a source between backquotes, with its line. Patterns and absolute paths are none.
pub(super) fn named(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, (kind, line)) in lines(page).into_iter().enumerate() {
        if kind == Kind::Code {
            continue;
        }
        let quoted = line.split('`').skip(1).step_by(2);
        let paths = quoted.filter(|word| is_source(word)).map(|path| (index + 1, path.to_owned()));
        found.extend(paths);
    }
    found
}

fn is_source(word: &str) -> bool {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let extension = word.rsplit_once('.').map(|(_, extension)| extension);
    // A name alone may be that of a program of the reader's.
    word.contains('/')
        && !word.starts_with(['/', '.'])
        && word.chars().all(is_of_path)
        && extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
}

/// All sources, by their paths from the root.
///
/// # Errors
/// When a folder cannot be read.
pub(super) fn sources(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        collect(root, &root.join(folder), &mut found)?;
    }
    Ok(found)
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(root, &path, found)?;
        } else if let Ok(path) = path.strip_prefix(root) {
            found.push(path.display().to_string());
        }
    }
    Ok(())
}

/// Whether a path leads to one of the sources: pages leave out the folders that all have in front.
pub(super) fn is_there(path: &str, sources: &[String]) -> bool {
    sources.iter().any(|source| {
        source.strip_suffix(path).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_sources_are_found_and_compared_by_whole_names() {
        let page = "See `core/a.rs` and `b.rs`, `/etc/c.sh`, `docs/d.md`, `*/e.rs`.\n\
            | `tests/f.py` |\n```\n`x/g.rs`\n```\n";
        let found = named(page);
        assert_eq!(found, [(1, "core/a.rs".to_owned()), (2, "tests/f.py".to_owned())]);
        let sources = ["crates/control/src/core/a.rs".to_owned(), "tests/f.py".to_owned()];
        assert!(found.iter().all(|(_, path)| is_there(path, &sources)));
        assert!(!is_there("ore/a.rs", &sources) && !is_there("core/b.rs", &sources));
    }
}
