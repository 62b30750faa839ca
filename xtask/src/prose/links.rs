//! Relative links between the documents: the file is there, and so is the heading.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::text::{Kind, lines};

/// Each link of a page, with its line.
pub(super) fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, (kind, line)) in lines(page).into_iter().enumerate() {
        if kind == Kind::Code {
            continue;
        }
        // What is between backquotes is every second part.
        let without_code: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        let mut rest = without_code.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, behind)) = after.split_once(')') else { break };
            found.push((index + 1, target.to_owned()));
            rest = behind;
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub makes them.
pub(super) fn anchors(page: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = lines(page).into_iter().filter(|(kind, _)| *kind == Kind::Heading);
    headings
        .map(|(_, line)| {
            let slug = slug(line.trim_start_matches('#').trim());
            let before = seen.entry(slug.clone()).or_default();
            *before += 1;
            if *before == 1 { slug } else { format!("{slug}-{}", *before - 1) }
        })
        .collect()
}

fn slug(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// What is wrong with a link of the page at `path`; links to other sites are not followed.
pub(super) fn fault(path: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(f, a)| (f, Some(a)));
    let file: PathBuf = match file {
        "" => path.to_path_buf(),
        file => path.parent().unwrap_or(path).join(file),
    };
    if !file.exists() {
        return Some(format!("a link to {target}: there is no such file"));
    }
    let anchor = anchor?;
    let page = fs::read_to_string(&file).unwrap_or_default();
    let missing = !anchors(&page).iter().any(|known| known == anchor);
    missing.then(|| format!("a link to {target}: there is no such heading"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{anchors, fault, links};

    #[test]
    fn links_are_found_in_text_and_tables_and_not_in_code() {
        let page =
            "See [a](b.md) and [c](d.md#e).\n| [f](g.md) |\n`[h](i.md)`\n```\n[j](k.md)\n```";
        let targets: Vec<String> = links(page).into_iter().map(|(_, target)| target).collect();
        assert_eq!(targets, ["b.md", "d.md#e", "g.md"]);
    }

    #[test]
    fn headings_become_anchors() {
        let page = "# `openmps trace`: what, and when\n## PyTorch with 1 to 16 processes\n## /tmp\n## /tmp";
        let expected =
            ["openmps-trace-what-and-when", "pytorch-with-1-to-16-processes", "tmp", "tmp-1"];
        assert_eq!(anchors(page), expected);
    }

    #[test]
    fn a_missing_file_or_heading_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("page.md");
        fs::write(&page, "# Here\n").unwrap();
        assert_eq!(fault(&page, "#here"), None);
        assert_eq!(fault(&page, "page.md#here"), None);
        assert_eq!(fault(&page, "https://example.org/nowhere"), None);
        assert!(fault(&page, "#there").unwrap().contains("no such heading"));
        assert!(fault(&page, "other.md").unwrap().contains("no such file"));
    }
}
