//! What is in the binaries: a bill of materials (CycloneDX 1.5) of the packages that cargo links
//! into the product, with their licences and checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::command;
use crate::paths::Paths;
use crate::portable;
use crate::tree::VERSION;

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

/// Of no kind: linked in. Others are for builds and tests.
#[derive(Debug, Deserialize)]
struct Kind {
    kind: Option<String>,
}

/// The bill of materials.
///
/// # Errors
/// When cargo's words are not understood.
pub(crate) fn make(paths: &Paths) -> Result<Value> {
    let platform = ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let metadata: Metadata = command::metadata(paths, &platform)?;
    let lock = fs::read_to_string(paths.root.join("Cargo.lock"))?;
    document(&metadata, &checksums(&lock))
}

fn document(metadata: &Metadata, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let linked = linked(metadata);
    let mut components = Vec::new();
    let mut packages: Vec<&Package> =
        metadata.packages.iter().filter(|package| linked.contains(package.id.as_str())).collect();
    packages.sort_by_key(|package| (&package.name, &package.version));
    for package in packages {
        let Package { name, version, license, source, .. } = package;
        let license = license.as_deref().unwrap_or_default().replace('/', " OR ");
        ensure!(!license.is_empty(), "{name} {version} has no licence");
        let mut component = json!({
            "type": "library",
            "name": name,
            "version": version,
            "licenses": [{ "expression": license }],
        });
        if source.is_some() {
            let checksum = checksums.get(&(name.clone(), version.clone()));
            let checksum = checksum.with_context(|| format!("{name} {version} has no checksum"))?;
            component["purl"] = format!("pkg:cargo/{name}@{version}").into();
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        components.push(component);
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "name": "openmps",
            "version": VERSION,
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        } },
        "components": components,
    }))
}

/// The packages that end up in the product.
fn linked(metadata: &Metadata) -> BTreeSet<&str> {
    let is_product = |package: &&Package| {
        package.source.is_none() && portable::PACKAGES.contains(&package.name.as_str())
    };
    let mut left: Vec<&str> =
        metadata.packages.iter().filter(is_product).map(|package| package.id.as_str()).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = left.pop() {
        if !found.insert(id) {
            continue;
        }
        let nodes = metadata.resolve.nodes.iter().filter(|node| node.id == id);
        for dependency in nodes.flat_map(|node| &node.deps) {
            if dependency.dep_kinds.iter().any(|kind| kind.kind.is_none()) {
                left.push(&dependency.pkg);
            }
        }
    }
    found
}

/// The checksums of a Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let entry = |block: &str| {
        Some(((field(block, "name")?, field(block, "version")?), field(block, "checksum")?))
    };
    lock.split("[[package]]").filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_with_its_checksum_and_nothing_else() {
        let metadata = json!({
            "packages": [
                { "id": "a", "name": "openmps", "version": "0.1.0", "license": "MIT", "source": null },
                { "id": "b", "name": "used", "version": "1.0.0", "license": "MIT/Apache-2.0", "source": "registry" },
                { "id": "c", "name": "tests", "version": "1.0.0", "license": "MIT", "source": "registry" },
                { "id": "d", "name": "other", "version": "1.0.0", "license": "MIT", "source": null },
            ],
            "resolve": { "nodes": [
                { "id": "a", "deps": [
                    { "pkg": "b", "dep_kinds": [{ "kind": null }, { "kind": "dev" }] },
                    { "pkg": "c", "dep_kinds": [{ "kind": "dev" }] },
                ] },
                { "id": "b", "deps": [{ "pkg": "a", "dep_kinds": [{ "kind": null }] }] },
            ] },
        });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        let lock = "[[package]]\nname = \"used\"\nversion = \"1.0.0\"\nchecksum = \"12ab\"\n\n[[package]]\nname = \"openmps\"\nversion = \"0.1.0\"\n";
        let document = document(&metadata, &checksums(lock)).unwrap();
        let components = document["components"].as_array().unwrap();
        let names: Vec<_> = components.iter().map(|component| &component["name"]).collect();
        assert_eq!(names, ["openmps", "used"]);
        assert_eq!(components[1]["hashes"][0]["content"], "12ab");
        assert_eq!(components[1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert!(super::document(&metadata, &BTreeMap::new()).is_err());
    }
}
