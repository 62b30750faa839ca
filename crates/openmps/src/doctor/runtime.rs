//! Which CUDA runtimes a program and this machine have, as far as files say it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::Finding;
use super::tested::{Runtime, Tested, numbers};

const SUBJECT: &str = "CUDA runtime";
const LIBRARY: &str = "libcudart.so.";
/// In each program that has the runtime in itself.
const STATIC_MARK: &[u8] = b"libcudart_static_";
/// As much of a program's file is looked at. Names of libraries are near the start.
const MOST_PROGRAM_BYTES: u64 = 64 << 20;
/// Longest version behind the library's name.
const MOST_VERSION_BYTES: usize = 16;

/// The runtime that a program names.
pub(super) fn of_program(program: &Path) -> Vec<Finding> {
    let Ok(bytes) = start_of(program) else { return Vec::new() };
    let shown = program.display();
    let named = named(&bytes);
    if !named.is_empty() {
        let finding = |runtime: Runtime| {
            let (tested, name) = runtime.judge();
            tested.finding(SUBJECT, format!("{shown} uses {name}"))
        };
        return named.into_iter().map(finding).collect();
    }
    vec![Finding::ok(
        SUBJECT,
        match find(&bytes, STATIC_MARK) {
            Some(_) => {
                format!("{shown} has one linked in, whose version its file does not say")
            }
            None => format!("{shown} names none: what it loads when it runs is not known"),
        },
    )]
}

fn start_of(program: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(program)?.take(MOST_PROGRAM_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Versions of the shared library that are named in a file, each once.
fn named(bytes: &[u8]) -> Vec<Runtime> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while let Some(at) = find(rest, LIBRARY.as_bytes()) {
        rest = &rest[at + LIBRARY.len()..];
        let version = &rest[..rest.len().min(MOST_VERSION_BYTES)];
        // Names end with a zero byte.
        let end = version.iter().position(|&byte| byte == 0);
        let version = end.and_then(|end| str::from_utf8(&version[..end]).ok());
        found.extend(version.and_then(by_name));
    }
    found.sort();
    found.dedup();
    found
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|window| window == word)
}

/// What the end of the library's name says: `12`, `11.0`, `12.4.127`.
fn by_name(version: &str) -> Option<Runtime> {
    // All of CUDA 11 have this name.
    if version == "11.0" {
        return Some(Runtime { major: 11, minor: None });
    }
    match numbers(version) {
        Some((major, minor)) => Some(Runtime { major, minor: Some(minor) }),
        None => Some(Runtime { major: version.parse().ok()?, minor: None }),
    }
}

/// The runtimes in the directories where programs that are started from here look.
pub(super) fn of_machine() -> Vec<Finding> {
    let found = in_directories(&directories(|name| std::env::var_os(name)));
    if found.is_empty() {
        return vec![Finding::ok(SUBJECT, "no shared one is installed: programs bring theirs")];
    }
    let finding = |(runtime, path): (Runtime, PathBuf)| {
        let (tested, name): (Tested, String) = runtime.judge();
        tested.finding(SUBJECT, format!("{name} is in {}", path.display()))
    };
    found.into_iter().map(finding).collect()
}

/// Each version once, with the first place that has it.
fn in_directories(directories: &[PathBuf]) -> Vec<(Runtime, PathBuf)> {
    let mut found = BTreeMap::new();
    for directory in directories {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let is_library =
                entry.file_name().to_str().is_some_and(|name| name.starts_with(LIBRARY));
            // A link leads to the file whose name has the whole version.
            let Some(path) = is_library.then(|| entry.path().canonicalize().ok()).flatten() else {
                continue;
            };
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            let runtime = name.strip_prefix(LIBRARY).and_then(by_name);
            if let Some(runtime) = runtime {
                found.entry(runtime).or_insert_with(|| directory.clone());
            }
        }
    }
    found.into_iter().collect()
}

/// Where toolkits, distributions, virtual environments and conda put it.
fn directories(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let search_path = variable("LD_LIBRARY_PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> =
        std::env::split_paths(&search_path).filter(|path| path.is_absolute()).collect();
    directories.extend(variable("CONDA_PREFIX").map(|prefix| Path::new(&prefix).join("lib")));
    if let Some(environment) = variable("VIRTUAL_ENV") {
        for python in below(&Path::new(&environment).join("lib"), "python3") {
            for package in below(&python.join("site-packages/nvidia"), "cu") {
                directories.push(package.join("lib"));
            }
        }
    }
    for toolkit in below(Path::new("/usr/local"), "cuda") {
        directories.push(toolkit.join("lib64"));
    }
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    directories.extend(["/usr/lib64", &multiarch].map(PathBuf::from));
    directories
}

/// Entries of a directory whose names start so, in their order.
fn below(directory: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(start)))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::Verdict;
    use super::*;

    #[test]
    fn runtimes_are_read_from_a_programs_file() {
        let place = tempfile::tempdir().unwrap();
        let program = |name: &str, contents: &[u8]| {
            let path = place.path().join(name);
            fs::write(&path, contents).unwrap();
            of_program(&path).into_iter().map(|it| (it.verdict, it.text)).collect::<Vec<_>>()
        };
        let said = program("tested", b"\0libcudart.so.12\0cudaMalloc\0libcudart.so.12\0");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].0 == Verdict::Ok && said[0].1.contains("12.x (tested: 12.9)"), "{said:?}");
        let said = program("eleven", b"\0libcudart.so.11.0\0");
        assert!(said[0].0 == Verdict::Ok && said[0].1.contains("11.x (tested: 11.8)"), "{said:?}");
        let said = program("old", b"\0libcudart.so.10.2\0libcudart.so.13\0");
        assert!(said[0].0 == Verdict::Note && said[0].1.contains("10.2: not tested"), "{said:?}");
        assert!(said[1].0 == Verdict::Ok && said[1].1.contains("13.x"), "{said:?}");
        assert!(program("static", b"libcudart_static_01")[0].1.contains("linked in"));
        for nothing in [&b"libcudart.so.%d\0"[..], b"libcudart.so.", b"#!/bin/sh\n", b""] {
            assert!(program("nothing", nothing)[0].1.contains("names none"));
        }
        assert_eq!(of_program(Path::new("/nowhere")), []);
    }

    #[test]
    fn runtimes_are_found_where_they_are_installed() {
        let place = tempfile::tempdir().unwrap();
        let (toolkit, venv) = (place.path().join("toolkit"), place.path().join("venv"));
        let wheel = venv.join("lib/python3.12/site-packages/nvidia/cuda_runtime/lib");
        for directory in [&toolkit, &wheel] {
            fs::create_dir_all(directory).unwrap();
        }
        fs::write(toolkit.join("libcudart.so.12.4.127"), "").unwrap();
        symlink("libcudart.so.12.4.127", toolkit.join("libcudart.so.12")).unwrap();
        symlink("nowhere", toolkit.join("libcudart.so.14")).unwrap();
        fs::write(toolkit.join("libcudart_static.a"), "").unwrap();
        fs::write(wheel.join("libcudart.so.13"), "").unwrap();
        let directories = directories(|name| match name {
            "LD_LIBRARY_PATH" => Some(toolkit.clone().into()),
            "VIRTUAL_ENV" => Some(venv.clone().into()),
            _ => None,
        });
        // What this machine has is beside it.
        let found = in_directories(&directories);
        let place_of = |major, minor| {
            let runtime = Runtime { major, minor };
            found.iter().find(|(is, _)| *is == runtime).map(|(_, path)| path.clone())
        };
        assert_eq!(place_of(12, Some(4)), Some(toolkit));
        assert_eq!(place_of(13, None), Some(wheel));
        assert_eq!(place_of(14, None), None);
    }
}
