//! `cargo xtask dependencies`: what the project depends on, and whether it may and does.
//!
//! Every package has a licence that goes with ours and comes from the registry; none is there in
//! two versions but for the list here; every dependency that a crate declares is named in its
//! sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::command;
use crate::paths::Paths;

/// Licences under which a binary of ours may contain a package, without further conditions than a
/// notice.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// In two versions, since packages that we use have not agreed yet.
const TWICE: &[&str] = &["syn"];

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Default, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Default, Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
}

/// Checks all of it.
///
/// # Errors
/// What is wrong, a line each.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let Metadata { packages } = command::metadata(paths, &["--locked"])?;
    let mut wrong = faults(&packages);
    for package in packages.iter().filter(|package| package.source.is_none()) {
        let directory = package.manifest_path.parent().context("a manifest has no directory")?;
        let words = words(directory)?;
        wrong.extend(unused(package, &words));
    }
    if wrong.is_empty() {
        println!("{} packages: licences, sources, versions and uses are right", packages.len());
        return Ok(());
    }
    bail!("{}", wrong.join("\n"))
}

/// What is wrong with packages by what they say of themselves.
fn faults(packages: &[Package]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
        let Package { name, version, license, .. } = package;
        match &package.source {
            None => continue,
            Some(source) if source != REGISTRY => {
                wrong.push(format!("{name} {version} comes from {source}, not from the registry"));
            }
            Some(_) => {}
        }
        let said = license.as_deref().unwrap_or("nothing");
        if !is_accepted(said) {
            wrong.push(format!(
                "{name} {version} is licensed under {said}: if that goes with MIT OR Apache-2.0, \
                 add it to ACCEPTED in xtask/src/dependencies.rs"
            ));
        }
    }
    for (name, versions) in versions {
        let is_known = TWICE.contains(&name);
        if (versions.len() > 1) != is_known {
            wrong.push(format!(
                "{name} is there in {} version(s) ({}), and {} in TWICE of xtask/src/dependencies.rs",
                versions.len(),
                versions.into_iter().collect::<Vec<_>>().join(", "),
                if is_known { "stands" } else { "does not stand" },
            ));
        }
    }
    wrong
}

/// Whether an SPDX expression can be met with what is accepted. Older packages write `/` for `OR`.
fn is_accepted(expression: &str) -> bool {
    let expression = expression.replace(" / ", " OR ").replace('/', " OR ");
    let parts = expression.split(" AND ").map(|part| part.trim().trim_matches(['(', ')']));
    parts.into_iter().all(|part| part.split(" OR ").any(|one| ACCEPTED.contains(&one.trim())))
}

fn unused(package: &Package, words: &BTreeSet<String>) -> Vec<String> {
    let names = package.dependencies.iter().map(|dependency| {
        (dependency, dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_"))
    });
    let missing = names.filter(|(_, name)| !words.contains(name));
    let told = missing.map(|(dependency, _)| {
        format!("{} does not use {}: take it out of its Cargo.toml", package.name, dependency.name)
    });
    told.collect()
}

/// All words of all sources of a crate, those included that lie in another crate's folder.
fn words(directory: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            for entry in path.read_dir()? {
                left.push(entry?.path());
            }
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && seen.insert(path.canonicalize()?)
        {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            found.extend(text.split(|c| !is_part(c)).map(str::to_owned));
            let parent = path.parent().unwrap_or(directory);
            left.extend(included(&text).map(|file| parent.join(file)));
        }
    }
    Ok(found)
}

/// The files that a source names in `#[path = "..."]`.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split("#[path = \"").skip(1);
    after.filter_map(|rest| rest.split_once('"').map(|(file, _)| file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, license: &str, source: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            license: Some(license.into()),
            source: Some(source.into()),
            ..Package::default()
        }
    }

    #[test]
    fn expressions_are_met_or_not() {
        for accepted in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR X) AND Unicode-3.0"] {
            assert!(is_accepted(accepted), "{accepted}");
        }
        for refused in ["GPL-3.0", "MIT AND GPL-3.0", "nothing"] {
            assert!(!is_accepted(refused), "{refused}");
        }
    }

    #[test]
    fn what_is_foreign_unlicensed_or_there_twice_is_named() {
        let packages = [
            package("syn", "2.0.0", "MIT", REGISTRY),
            package("syn", "3.0.0", "MIT", REGISTRY),
            package("good", "1.0.0", "MIT", REGISTRY),
        ];
        assert_eq!(faults(&packages), Vec::<String>::new());
        let mut more = packages.into_iter().collect::<Vec<_>>();
        more.push(package("good", "2.0.0", "MIT", REGISTRY));
        more.push(package("taken", "1.0.0", "MIT", "git+https://example.org"));
        more.push(package("bound", "1.0.0", "GPL-3.0", REGISTRY));
        assert_eq!(faults(&more).len(), 3);
    }

    #[test]
    fn included_files_are_found() {
        let text = "#[cfg(test)]\n#[path = \"../../a/b.rs\"]\nmod b;\nfn c() {}";
        assert_eq!(included(text).collect::<Vec<_>>(), ["../../a/b.rs"]);
    }

    #[test]
    fn what_no_source_names_is_unused() {
        let uses = |name: &str| Dependency { name: name.into(), rename: None };
        let dependencies = vec![uses("serde-json"), uses("idle")];
        let package = Package { name: "ours".into(), dependencies, ..Package::default() };
        let words = BTreeSet::from(["serde_json".to_owned()]);
        assert_eq!(
            unused(&package, &words),
            ["ours does not use idle: take it out of its Cargo.toml"]
        );
    }
}
