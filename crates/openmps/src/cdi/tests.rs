//! The specification against the rules of the CDI's SPEC.md and JSON schema, as far as versions up
//! to 0.3.0 have them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

/// Checks a document; what is wrong with it.
fn check(document: &Value) -> Result<(), String> {
    let fields = object(document, &["cdiVersion", "kind", "devices", "containerEdits"])?;
    for required in ["cdiVersion", "kind", "devices"] {
        fields.get(required).ok_or(format!("{required} is missing"))?;
    }
    if string(&document["cdiVersion"])? != "0.3.0" {
        return Err("cdiVersion".to_owned());
    }
    kind(string(&document["kind"])?)?;
    let mut names = BTreeSet::new();
    for device in array(&document["devices"])? {
        object(device, &["name", "containerEdits"])?;
        let name = string(&device["name"])?;
        let inner = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
        if !is_enclosed(name) || !name.chars().all(inner) || !names.insert(name) {
            return Err(format!("device {name}"));
        }
        edits(&device["containerEdits"])?;
    }
    if names.is_empty() {
        return Err("no devices".to_owned());
    }
    document.get("containerEdits").map_or(Ok(()), edits)
}

/// A DNS subdomain of 253 characters at most, `/`, and a class of 63 at most; dots in the class
/// came with version 0.6.0.
fn kind(kind: &str) -> Result<(), String> {
    let wrong = || format!("kind {kind}");
    let (vendor, class) = kind.split_once('/').ok_or_else(wrong)?;
    let label = |label: &str| {
        is_enclosed(label)
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let fine_class = is_enclosed(class)
        && class.len() <= 63
        && class.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    let fine = vendor.len() <= 253 && vendor.split('.').all(label) && fine_class;
    if fine { Ok(()) } else { Err(wrong()) }
}

fn is_enclosed(name: &str) -> bool {
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    outer(name.chars().next()) && outer(name.chars().next_back())
}

fn edits(edits: &Value) -> Result<(), String> {
    let fields = object(edits, &["env", "deviceNodes", "hooks", "mounts"])?;
    if fields.is_empty() {
        return Err("a device without edits".to_owned());
    }
    for variable in fields.get("env").map_or(Ok(&[][..]), array)? {
        let (name, _) = string(variable)?.split_once('=').ok_or("a variable without =")?;
        if name.is_empty() {
            return Err("a variable without a name".to_owned());
        }
    }
    for mount in fields.get("mounts").map_or(Ok(&[][..]), array)? {
        // `type` came with version 0.4.0.
        object(mount, &["hostPath", "containerPath", "options"])?;
        for path in [&mount["hostPath"], &mount["containerPath"]] {
            if !string(path)?.starts_with('/') {
                return Err(format!("{path} is not absolute"));
            }
        }
        for option in array(&mount["options"])? {
            string(option)?;
        }
    }
    Ok(())
}

fn object<'a>(
    value: &'a Value,
    known: &[&str],
) -> Result<&'a serde_json::Map<String, Value>, String> {
    let fields = value.as_object().ok_or(format!("{value} is no object"))?;
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(format!("{unknown} is no field of version 0.3.0")),
        None => Ok(fields),
    }
}

fn array(value: &Value) -> Result<&[Value], String> {
    value.as_array().map(Vec::as_slice).ok_or(format!("{value} is no array"))
}

fn string(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or(format!("{value} is no string"))
}

fn example(search: LibrarySearch) -> Specification {
    let profiles = ["quarter", "7b.large"]
        .map(|name| (name.to_owned(), PathBuf::from("/run/mps/profiles").join(name)));
    let (pipe, libraries) = (Path::new("/run/mps"), Path::new("/opt/lib/openmps"));
    spec::specification(pipe, &profiles, libraries, search).unwrap()
}

#[test]
fn what_is_printed_keeps_to_the_specification() {
    for search in [LibrarySearch::Default, LibrarySearch::Variable] {
        let text = written(&example(search), Language::Json).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        check(&document).unwrap();
        let names: Vec<_> =
            array(&document["devices"]).unwrap().iter().map(|d| &d["name"]).collect();
        assert_eq!(names, ["all", "quarter", "7b.large"]);
        let quarter = &document["devices"][1]["containerEdits"]["mounts"][0];
        assert_eq!(quarter["hostPath"], "/run/mps/profiles/quarter");
        assert_eq!(quarter["containerPath"], spec::PIPE_DIRECTORY_INSIDE);
        // A GPU's device nodes, hooks and a shared /dev/shm are what nobody needs.
        assert!(!text.contains("/dev") && !text.contains("hooks"), "{text}");
    }
}

#[test]
fn the_check_finds_mistakes() {
    let fine = serde_json::to_value(example(LibrarySearch::Default)).unwrap();
    let changed = |path: &str, value: Value| {
        let mut document = fine.clone();
        *document.pointer_mut(path).unwrap() = value;
        document
    };
    let mount = "/devices/0/containerEdits/mounts/0";
    for (path, value) in [
        ("/cdiVersion", "1".into()),
        ("/kind", "share".into()),
        ("/kind", "openmps.dev/a.b".into()),
        ("/devices", Value::Array(Vec::new())),
        ("/devices/0/name", "all-".into()),
        ("/devices/1/name", "all".into()),
        ("/containerEdits/env/0", "NAME".into()),
        (&format!("{mount}/hostPath"), "run".into()),
        (&format!("{mount}/options"), "ro".into()),
        (
            mount,
            serde_json::json!({"hostPath": "/a", "containerPath": "/b", "options": [], "type": "bind"}),
        ),
    ] {
        assert!(check(&changed(path, value.clone())).is_err(), "{path}: {value}");
    }
}

#[test]
fn a_file_is_written_as_its_name_says() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cdi/openmps.yaml");
    let options =
        |format| Cdi { format, output: Some(file.clone()), library_search: LibrarySearch::Default };
    assert_eq!(language(&options(None)), Language::Yaml);
    assert_eq!(language(&options(Some(Language::Json))), Language::Json);
    replace(&file, "one").unwrap();
    replace(&file, "two").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "two");
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn both_languages_say_the_same() {
    let text = written(&example(LibrarySearch::Default), Language::Yaml).unwrap();
    assert!(text.starts_with("---\ncdiVersion: \"0.3.0\"\n"), "{text}");
    let device = "  - containerEdits:\n      mounts:\n        - containerPath: \"/run/openmps\"\n          hostPath: \"/run/mps/profiles/quarter\"\n";
    assert!(text.contains(device), "{text}");
    assert!(text.contains("    name: \"quarter\"\n"), "{text}");
}
