//! Comments of the code: no line beyond the columns of the documents, so that two files fit beside
//! each other.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::text::columns;

/// Where the code is.
const FOLDERS: &[&str] = &["crates", "programs", "tests", "tools", "xtask"];
/// What is made from something else.
const GENERATED: &str = "generated";

/// Each comment that is too long, as `FILE:LINE: what`.
///
/// # Errors
/// When a file cannot be read.
pub(super) fn faults(root: &Path, most_columns: usize) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for folder in FOLDERS {
        for file in sources(&root.join(folder))? {
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            let text = fs::read_to_string(&file)?;
            let long = long_comments(&text, most_columns);
            faults.extend(long.map(|(line, columns)| format!("{name}:{line}: {columns} columns")));
        }
    }
    Ok(faults)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != GENERATED && name != "target" {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Lines and columns of comments that are too long. Rows of tables, and what has no space to be
/// wrapped at, may be.
fn long_comments(text: &str, most_columns: usize) -> impl Iterator<Item = (usize, usize)> {
    text.lines().enumerate().filter_map(move |(index, line)| {
        let comment = line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']).trim();
        let can_be_wrapped = !comment.starts_with('|') && comment.contains(' ');
        let columns = columns(line);
        (can_be_wrapped && columns > most_columns).then_some((index + 1, columns))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_comments_are_found() {
        let words = "word ".repeat(30);
        let text = format!(
            "//! short\nlet x = \"{words}\";\n    /// {words}\n// {words}\n//! | {words} |\n// {}\n",
            "x".repeat(200)
        );
        let lines: Vec<usize> = long_comments(&text, 100).map(|(line, _)| line).collect();
        assert_eq!(lines, [3, 4]);
    }
}
