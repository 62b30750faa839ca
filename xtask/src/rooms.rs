//! `cargo xtask rooms`: how many sources a folder has, and how many import each other in a circle.
//!
//! A circle is a set of a crate's files in which each leads to each other one. A file leads to
//! another one whose item it names by a path, in a `use` or elsewhere. Not counted are the crate's
//! root, tests, comments, and that a file declares those of its folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;

/// Sources in one folder, at most.
const MOST_FILES: usize = 25;
/// Files in one circle, at most.
const LONGEST_CIRCLE: usize = 10;

/// A file's path as a module, from the crate's root on.
type Module = Vec<String>;

/// Checks all crates.
///
/// # Errors
/// When a source cannot be read, or there is too much of something: each is printed.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let mut faults = Vec::new();
    for entry in fs::read_dir(paths.root.join("crates"))? {
        let source = entry?.path().join("src");
        if source.is_dir() {
            faults.extend(faults_of(&source)?);
        }
    }
    faults.sort();
    for fault in &faults {
        println!("{fault}");
    }
    match faults.len() {
        0 => Ok(()),
        n => bail!("{n} crates or folders have too much in one place"),
    }
}

fn faults_of(source: &Path) -> Result<Vec<String>> {
    let name = source.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let (mut texts, mut faults) = (BTreeMap::new(), Vec::new());
    read(source, &Module::new(), &mut texts, &mut faults)?;
    let circle = longest_circle(&edges(&texts));
    if circle.len() > LONGEST_CIRCLE {
        let files: Vec<String> = circle.iter().map(|file| file.join("::")).collect();
        let (found, files) = (files.len(), files.join(", "));
        faults.push(format!(
            "{name}: {found} files import each other in a circle, {LONGEST_CIRCLE} may: {files}"
        ));
    }
    Ok(faults)
}

/// Reads a folder's sources, tests left out, and counts them.
fn read(
    folder: &Path,
    module: &Module,
    texts: &mut BTreeMap<Module, String>,
    faults: &mut Vec<String>,
) -> Result<()> {
    let mut count = 0;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inner: Module = module.iter().cloned().chain([stem.clone()]).collect();
        if path.is_dir() {
            read(&path, &inner, texts, faults)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            count += 1;
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let is_root = ["mod", "lib", "main"].contains(&stem.as_str());
            let module = if is_root { module.clone() } else { inner };
            if !module.iter().any(|part| part.contains("test")) {
                texts.insert(module, code(&text));
            }
        }
    }
    if count > MOST_FILES {
        faults.push(format!("{}: {count} files, {MOST_FILES} may be", folder.display()));
    }
    Ok(())
}

/// A source without comments and tests.
fn code(text: &str) -> String {
    let mut lines = text.lines().peekable();
    let mut code = String::new();
    while let Some(line) = lines.next() {
        let is_test = line == "#[cfg(test)]"
            && lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        if is_test {
            lines.by_ref().take_while(|line| *line != "}").for_each(drop);
            continue;
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// Which files each file leads to.
fn edges<'a>(texts: &'a BTreeMap<Module, String>) -> BTreeMap<&'a Module, BTreeSet<&'a Module>> {
    let lead = |(module, text): (&'a Module, &String)| {
        let targets = named(text).into_iter().filter_map(|path| {
            let path = absolute(module, path)?;
            // The longest beginning that is a file; what follows is its item.
            let file = (1..=path.len()).rev().find_map(|n| texts.get_key_value(&path[..n]))?.0;
            (file != module).then_some(file)
        });
        (module, targets.collect())
    };
    texts.iter().map(lead).collect()
}

/// A path from the crate's root on.
fn absolute(module: &Module, path: Vec<String>) -> Option<Module> {
    let mut path = path.into_iter().peekable();
    let mut absolute = match path.peek()?.as_str() {
        "crate" => {
            path.next();
            Module::new()
        }
        "self" | "super" => module.clone(),
        _ => return None,
    };
    while let Some(step) = path.next_if(|step| ["self", "super"].contains(&step.as_str())) {
        if step == "super" {
            absolute.pop();
        }
    }
    absolute.extend(path);
    Some(absolute)
}

/// All paths in a source that begin in its crate.
fn named(text: &str) -> Vec<Vec<String>> {
    let (mut found, mut rest, mut before) = (Vec::new(), text, ' ');
    while let Some(first) = rest.chars().next() {
        let is_begin = !before.is_alphanumeric() && !['_', ':', '$'].contains(&before);
        let is_path = ["crate::", "super::", "self::"].iter().any(|head| rest.starts_with(head));
        if is_begin && is_path {
            let length = tree_length(rest);
            leaves(&rest[..length], &[], &mut found);
            (before, rest) = (' ', &rest[length..]);
        } else {
            (before, rest) = (first, &rest[first.len_utf8()..]);
        }
    }
    found
}

/// How long a path is that begins here, with what it has in braces.
fn tree_length(text: &str) -> usize {
    let mut depth = 0;
    let ends = |(_, character): &(usize, char)| {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ => {}
        }
        let belongs = character.is_alphanumeric() || ['_', ':', '{', '}', '*'].contains(character);
        depth == 0 && (!belongs || *character == '}')
    };
    text.char_indices().find(ends).map_or(text.len(), |(at, character)| match character {
        '}' if text[..at].contains('{') => at + 1,
        _ => at,
    })
}

/// The paths of a tree like `a::{b, c::d}`.
fn leaves(tree: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let steps = |path: &str| -> Vec<String> {
        let path = path.split(" as ").next().unwrap_or_default();
        path.split("::").map(str::trim).filter(|step| !step.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, body)) = tree.split_once('{') else {
        let path = [before, &steps(tree)].concat();
        return if path.len() > before.len() {
            found.push(path)
        };
    };
    let head = [before, &steps(head)].concat();
    let body = body.trim_end().strip_suffix('}').unwrap_or(body);
    let (mut depth, mut begin) = (0, 0);
    for (at, character) in body.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                leaves(&body[begin..at], &head, found);
                begin = at + 1;
            }
            _ => {}
        }
    }
    leaves(&body[begin..], &head, found);
}

/// The largest set of files that all lead to each other.
fn longest_circle<'a>(edges: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> Vec<&'a Module> {
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = edges
        .keys()
        .map(|&from| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(file) = next.pop() {
                next.extend(edges[file].iter().filter(|to| seen.insert(**to)));
            }
            (from, seen)
        })
        .collect();
    let circle = |file: &&'a Module| -> Vec<&'a Module> {
        reach[*file].iter().filter(|to| reach[**to].contains(*file)).copied().collect()
    };
    edges.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> BTreeMap<Module, String> {
        let module = |name: &str| name.split("::").map(str::to_owned).collect();
        files.iter().map(|(name, text)| (module(name), code(text))).collect()
    }

    #[test]
    fn files_that_lead_to_each_other_are_a_circle() {
        let texts = texts(&[
            ("a", "use crate::b::{self, c::Item as Other};\n"),
            ("b", "fn f() { super::d::g() }\n"),
            ("b::c", "use crate::e::E;\n"),
            ("d", "fn g(it: &crate::a::A) {}\n// crate::e::E\n"),
            ("e", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\nfn h() {}\n"),
        ]);
        let edges = edges(&texts);
        let circle = longest_circle(&edges);
        assert_eq!(circle, [&vec!["a".to_owned()], &vec!["b".into()], &vec!["d".into()]]);
        assert_eq!(edges[&vec!["a".to_owned()]].len(), 2, "b and b::c");
    }

    #[test]
    fn paths_end_where_they_end() {
        let of = |text: &str| named(text).iter().map(|path| path.join("::")).collect::<Vec<_>>();
        assert_eq!(of("$crate::a::b(crate::c::d::<T>(x))"), ["crate::c::d"]);
        assert_eq!(
            of("use super::{a::B, c::{D, E}};"),
            ["super::a::B", "super::c::D", "super::c::E"]
        );
        assert_eq!(of("match x { crate::A { b } => 1 }"), ["crate::A"]);
        assert!(of("mycrate::a; no").is_empty());
    }
}
