//! `cargo xtask proofs`: what COMPATIBILITY.md says about where a function is proven, against what
//! the programs called.
//!
//! The tests record the calls (`cuda_abi::record`) below `target/calls`, in files
//! `PROGRAM/LIBRARY.VARIANT` of a symbol a line. `tests/proofs.tsv` names up to three programs for
//! each function, of different kinds, and `tests/unproven.tsv` the functions that no program calls,
//! with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cuda_abi::classes::{Classes, Library, Route};
use cuda_abi::functions::FUNCTIONS;
use cuda_abi::proofs::{self, Key, Proofs};

use crate::compat;
use crate::paths::Paths;

/// The programs that called a function with success.
type Recorded = BTreeMap<Key, BTreeSet<String>>;

/// Where the tests record.
pub(crate) fn directory(paths: &Paths) -> PathBuf {
    paths.target.join("calls")
}

/// Where the software GPU's own tests record; each test program there is one proof.
pub(crate) fn unit_tests_directory(paths: &Paths) -> PathBuf {
    directory(paths).join(UNIT_TESTS)
}

const UNIT_TESTS: &str = "softcuda/tests";

/// Kinds of programs, the best proof first: what is small and asks for one thing before what asks
/// for many.
const KINDS: [&str; 8] =
    ["driver_api/", "cuda/", "cudarc", "numba/", "cupy/", "kernels/", UNIT_TESTS, "executor"];

/// How many programs are named for a function.
const MOST: usize = 3;

/// Forgets what was recorded, so that a run of all tests rests on nothing older.
///
/// # Errors
/// When the directory cannot be emptied.
pub(crate) fn clear(paths: &Paths) -> Result<()> {
    let directory = directory(paths);
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::create_dir_all(unit_tests_directory(paths)).context("cannot create the place for calls")
}

/// The two lists as they are checked in.
///
/// # Errors
/// When one cannot be read or is not understood.
pub(crate) fn read(paths: &Paths) -> Result<Proofs> {
    let text = |name: &str| {
        let path = paths.root.join("tests").join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    Ok(Proofs::parse(&text("proofs.tsv")?, &text("unproven.tsv")?)?)
}

/// Writes the list from what was recorded, and COMPATIBILITY.md; says which functions have neither
/// proof nor reason.
///
/// # Errors
/// When nothing was recorded, or a file cannot be written.
pub(crate) fn update(paths: &Paths) -> Result<()> {
    let recorded = recorded(paths)?;
    if recorded.is_empty() {
        bail!("no call was recorded: run `cargo xtask test` first");
    }
    let programs = recorded.iter().map(|(key, programs)| (*key, chosen(programs)));
    let proofs = Proofs { programs: programs.collect(), reasons: BTreeMap::new() };
    let path = paths.root.join("tests/proofs.tsv");
    fs::write(&path, proofs.render())
        .with_context(|| format!("cannot write {}", path.display()))?;
    forget_reasons(paths, &proofs)?;
    compat::run(paths, compat::Mode::Write)?;
    for fault in faults(paths, &recorded)? {
        println!("{fault}");
    }
    Ok(())
}

/// Takes functions that have a proof now off the list of those that have none.
fn forget_reasons(paths: &Paths, proofs: &Proofs) -> Result<()> {
    let path = paths.root.join("tests/unproven.tsv");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let is_proven = |line: &&str| {
        let mut fields = line.split('\t');
        let (library, symbol) = (fields.next(), fields.next().unwrap_or_default());
        let library = Library::ALL.into_iter().find(|found| Some(found.name()) == library);
        library
            .and_then(|library| proofs::key(library, symbol))
            .is_some_and(|key| proofs.programs.contains_key(&key))
    };
    let kept: String =
        text.lines().filter(|line| !is_proven(line)).map(|line| format!("{line}\n")).collect();
    fs::write(&path, kept).with_context(|| format!("cannot write {}", path.display()))
}

/// Compares the lists with what was recorded.
///
/// # Errors
/// When a named program did not call its function, or a function is on neither list.
pub(crate) fn check(paths: &Paths) -> Result<()> {
    let faults = faults(paths, &recorded(paths)?)?;
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

fn faults(paths: &Paths, recorded: &Recorded) -> Result<Vec<String>> {
    let proofs = read(paths)?;
    let mut faults = Vec::new();
    for ((library, symbol), programs) in &proofs.programs {
        let seen = recorded.get(&(*library, *symbol));
        for program in programs {
            if !seen.is_some_and(|seen| seen.contains(program)) {
                let library = library.name();
                faults.push(format!(
                    "{library}: {program} did not call {symbol} with success, as tests/proofs.tsv says"
                ));
            }
        }
    }
    for library in Library::ALL {
        let list = paths.root.join("crates").join(library.name()).join("functions.tsv");
        let classes = Classes::read(library, &list)?;
        for function in FUNCTIONS.iter().filter(|f| classes.route(f) != Route::Absent) {
            let known = !proofs.programs(library, function).is_empty()
                || proofs.reason(library, function).is_some();
            if !known {
                faults.push(format!(
                    "{}: no program calls {} with success: write one, or tell tests/unproven.tsv why not",
                    library.name(),
                    function.symbol
                ));
            }
        }
    }
    Ok(faults)
}

/// The best program of each kind.
fn chosen(programs: &BTreeSet<String>) -> Vec<String> {
    let best = KINDS.iter().filter_map(|kind| programs.iter().find(|name| name.starts_with(kind)));
    best.take(MOST).cloned().collect()
}

fn recorded(paths: &Paths) -> Result<Recorded> {
    let root = directory(paths);
    let mut recorded = Recorded::new();
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot read {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if let Some((library, program)) = origin(&root, &path) {
                for symbol in fs::read_to_string(&path)?.lines() {
                    let key = proofs::key(library, symbol);
                    let key = key.with_context(|| format!("{}: {symbol:?}", path.display()))?;
                    recorded.entry(key).or_default().insert(program.clone());
                }
            }
        }
    }
    Ok(recorded)
}

/// Which library a file is about, and the name of the program.
fn origin(root: &Path, file: &Path) -> Option<(Library, String)> {
    let program = file.parent()?.strip_prefix(root).ok()?.to_str()?;
    let (library, variant) = file.file_name()?.to_str()?.split_once('.')?;
    let library = Library::ALL.into_iter().find(|found| found.name() == library)?;
    if program == UNIT_TESTS {
        // Cargo's name of a test program ends with a hash.
        let (test, _hash) = variant.rsplit_once('-')?;
        return Some((library, format!("{program}/{test}")));
    }
    Some((library, program.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use cuda_abi::classes::Library;

    use super::{chosen, origin};

    #[test]
    fn one_program_of_each_kind_is_named() {
        let programs =
            ["executor", "cuda/b", "cuda/a", "softcuda/tests/x", "cupy/m", "driver_api/z"];
        let programs: BTreeSet<_> = programs.map(str::to_owned).into();
        assert_eq!(chosen(&programs), ["driver_api/z", "cuda/a", "cupy/m"]);
    }

    #[test]
    fn files_tell_their_origin() {
        let of = |file: &str| origin(Path::new("/t/calls"), &Path::new("/t/calls").join(file));
        let program = |library, name: &str| Some((library, name.to_owned()));
        assert_eq!(of("cuda/scan/client.scan.shared"), program(Library::Client, "cuda/scan"));
        assert_eq!(
            of("softcuda/tests/softcuda.graphs-0f3a"),
            program(Library::Software, "softcuda/tests/graphs")
        );
        assert_eq!(of("cuda/scan/notes"), None);
    }
}
