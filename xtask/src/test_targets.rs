//! The words that make cargo build the integration tests of one package.
//!
//! Cargo compiles a dependency once more for each set of its features, and the set depends on the
//! packages that are to be built. So all steps of the tests choose among the targets of the whole
//! workspace: what one has compiled, the next finds.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::command;
use crate::paths::Paths;

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// `--test=NAME` for each integration test of a package.
///
/// # Errors
/// When cargo does not say what there is, or another package has a test of the same name, which
/// would be built and run as well.
pub(crate) fn words(paths: &Paths, package: &str) -> Result<Vec<String>> {
    let metadata: Metadata = command::metadata(paths, &["--no-deps"])?;
    let words: Vec<String> =
        names(&metadata.packages, package)?.iter().map(|name| format!("--test={name}")).collect();
    ensure!(!words.is_empty(), "{package} has no integration tests");
    Ok(words)
}

fn names<'a>(packages: &'a [Package], package: &str) -> Result<BTreeSet<&'a str>> {
    let (own, others): (Vec<&Package>, Vec<&Package>) =
        packages.iter().partition(|each| each.name == package);
    let own = tests(&own);
    let twice: Vec<&str> = tests(&others).intersection(&own).copied().collect();
    let names = twice.join(", ");
    ensure!(twice.is_empty(), "rename one: {package} and another package have the tests {names}");
    Ok(own)
}

fn tests<'a>(packages: &[&'a Package]) -> BTreeSet<&'a str> {
    let targets = packages.iter().flat_map(|package| &package.targets);
    let tests = targets.filter(|target| target.kind.iter().any(|kind| kind == "test"));
    tests.map(|target| target.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, tests: &[&str]) -> Package {
        let target =
            |name: &str, kind: &str| Target { name: name.to_owned(), kind: vec![kind.to_owned()] };
        let mut targets: Vec<Target> = tests.iter().map(|test| target(test, "test")).collect();
        targets.push(target(name, "lib"));
        Package { name: name.to_owned(), targets }
    }

    #[test]
    fn only_tests_of_the_package_are_named() {
        let packages = [package("ours", &["b", "a"]), package("other", &["c"])];
        assert_eq!(Vec::from_iter(names(&packages, "ours").unwrap()), ["a", "b"]);
    }

    #[test]
    fn a_name_that_two_packages_have_is_refused() {
        let packages = [package("ours", &["a", "b"]), package("other", &["b"])];
        let said = names(&packages, "ours").unwrap_err().to_string();
        assert!(said.ends_with("have the tests b"), "{said}");
    }
}
