//! What is run, what must pass, and what is left out: the tables in `tests/suites`.
//!
//! A *function* is a test function with all its parametrised cases, named `CLASS::FUNCTION`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::paths::Paths;

/// A library whose own tests are run, or whose kernels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Suite {
    /// CuPy, by pytest.
    Cupy,
    /// numba-cuda, by unittest.
    Numba,
    /// Kernels that Triton compiles, by unittest: our own module, as Triton's need PyTorch.
    Triton,
}

impl Suite {
    pub(super) const ALL: [Self; 3] = [Self::Cupy, Self::Numba, Self::Triton];

    /// As in the tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cupy => "cupy",
            Self::Numba => "numba",
            Self::Triton => "triton",
        }
    }
}

/// When a module is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// In every test run.
    Quick,
    /// With `--full` only.
    Full,
}

/// What the server must have seen of a module under OpenMPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Its process was attached, and its kernels ran there.
    Kernels,
    /// Its process was attached; its tests launch no kernel.
    Attached,
}

/// One test module, run whole but for the functions that are left out.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) suite: Suite,
    /// A path below CuPy's source, or a Python module.
    pub(super) name: String,
    pub(super) tier: Tier,
    pub(super) proof: Proof,
    /// Functions that must pass, with the number of their cases that do.
    pub(super) passing: BTreeMap<String, u64>,
    /// Functions that are not run.
    pub(super) excluded: BTreeSet<String>,
}

/// Reads the tables.
///
/// # Errors
/// When one is missing or says what is not understood.
pub(super) fn read(paths: &Paths) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    for row in table(paths, "modules.tsv", 4)? {
        modules.push(Module {
            suite: suite(&row[0])?,
            name: row[1].clone(),
            tier: match row[2].as_str() {
                "quick" => Tier::Quick,
                "full" => Tier::Full,
                other => bail!("modules.tsv: {other:?} is neither quick nor full"),
            },
            proof: match row[3].as_str() {
                "kernels" => Proof::Kernels,
                "attached" => Proof::Attached,
                other => bail!("modules.tsv: {other:?} is neither kernels nor attached"),
            },
            passing: BTreeMap::new(),
            excluded: BTreeSet::new(),
        });
    }
    for suite in Suite::ALL {
        for row in table(paths, &passing_name(suite), 3)? {
            let cases = row[2].parse().with_context(|| format!("no number: {:?}", row[2]))?;
            find(&mut modules, suite, &row[0])?.passing.insert(row[1].clone(), cases);
        }
    }
    for row in table(paths, "excluded.tsv", 4)? {
        let module = find(&mut modules, suite(&row[0])?, &row[1])?;
        if row[3].is_empty() {
            bail!("excluded.tsv: {} of {} has no reason", row[2], row[1]);
        }
        module.excluded.insert(row[2].clone());
    }
    Ok(modules)
}

/// Writes a suite's pass list.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(paths: &Paths, suite: Suite, modules: &[Module]) -> Result<()> {
    let mut text =
        "# Written by `cargo xtask suites --update`: module, function, cases that pass.\n"
            .to_owned();
    for module in modules.iter().filter(|module| module.suite == suite) {
        for (function, cases) in &module.passing {
            writeln!(text, "{}\t{function}\t{cases}", module.name)?;
        }
    }
    let path = directory(paths).join(passing_name(suite));
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn suite(name: &str) -> Result<Suite> {
    let found = Suite::ALL.into_iter().find(|suite| suite.name() == name);
    found.with_context(|| format!("there is no suite {name:?}"))
}

fn find<'a>(modules: &'a mut [Module], suite: Suite, name: &str) -> Result<&'a mut Module> {
    let found = modules.iter_mut().find(|module| module.suite == suite && module.name == name);
    found.with_context(|| format!("{name} is not in modules.tsv"))
}

fn passing_name(suite: Suite) -> String {
    format!("{}-passing.tsv", suite.name())
}

fn directory(paths: &Paths) -> PathBuf {
    paths.root.join("tests/suites")
}

/// The rows of a table: fields between tabs, lines that begin with `#` are comments.
fn table(paths: &Paths, name: &str, columns: usize) -> Result<Vec<Vec<String>>> {
    let path = directory(paths).join(name);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let row: Vec<String> = line.split('\t').map(str::to_owned).collect();
        if row.len() != columns {
            bail!("{name}: {columns} fields expected: {line:?}");
        }
        rows.push(row);
    }
    Ok(rows)
}
