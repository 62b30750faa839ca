//! `cargo xtask suites`: CuPy's and numba-cuda's own tests, natively on the software GPU and under
//! OpenMPS.
//!
//! Whole modules are run (`tests/suites/modules.tsv`) less the functions that `excluded.tsv` names
//! with the reason. A function on the pass list that does not pass is a failure, as is one whose
//! two results differ, and a module of which no kernel was counted by the server (or, where none is
//! launched, whose process was not attached). What passes and is not on the list is reported;
//! `--update` puts it there.

mod daemon;
mod install;
mod lists;
mod outcome;
mod run;

use std::collections::VecDeque;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use self::daemon::Daemon;
pub(crate) use self::lists::Tier;
use self::lists::{Module, Suite};
use self::outcome::{Verdict, judge};
use self::run::{Mode, Place};
use crate::dist::{self, Build};
use crate::paths::Paths;

/// Which of them, and whether the lists are to be written.
#[derive(Debug, Args)]
pub(crate) struct Suites {
    /// All modules of the list, not the quick ones only
    #[arg(long)]
    full: bool,
    /// Put the functions that pass in both modes on the pass list, and take those that do not off
    /// it
    #[arg(long)]
    update: bool,
    /// Only modules whose names contain this
    module: Option<String>,
}

impl Suites {
    /// All modules that `cargo xtask test` runs.
    pub(crate) fn for_test(tier: Tier) -> Self {
        Self { full: tier == Tier::Full, update: false, module: None }
    }
}

/// Functions passed and faults found, both modes together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// Two processes at a time are enough for two cores, and bound what they take of a larger machine.
const MOST_WORKERS: usize = 4;

/// Builds the product, installs the libraries and runs their tests.
///
/// # Errors
/// When something cannot be built, installed or started. Tests that fail are counted.
pub(crate) fn run(paths: &Paths, options: &Suites) -> Result<Totals> {
    let dist = dist::build(paths, Build::Portable)?;
    let tier = if options.full { Tier::Full } else { Tier::Quick };
    let libraries = install::ensure(paths, tier)?;
    let place = Place { paths, dist: &dist, libraries: &libraries };
    let mut modules = lists::read(paths)?;
    let wanted = |module: &Module| {
        (options.full || module.tier == Tier::Quick)
            && options.module.as_ref().is_none_or(|part| module.name.contains(part))
    };
    let queue: VecDeque<Module> = modules.iter().filter(|module| wanted(module)).cloned().collect();
    if queue.is_empty() {
        bail!("no module of tests/suites/modules.tsv is wanted");
    }
    let results = in_parallel(&place, queue)?;
    let mut totals = Totals::default();
    for (module, verdict) in &results {
        totals.passed += verdict.passed;
        totals.failed += verdict.faults.len() as u64;
        if let Some(known) = modules
            .iter_mut()
            .find(|known| known.suite == module.suite && known.name == module.name)
        {
            known.passing.retain(|function, _| {
                !verdict.faults.iter().any(|fault| fault.starts_with(&format!("{function} ")))
            });
            known.passing.extend(verdict.news.clone());
        }
    }
    if options.update {
        for suite in Suite::ALL {
            lists::write(paths, suite, &modules)?;
        }
    }
    Ok(totals)
}

/// Runs all modules on a few threads, each with a daemon of its own: a module whose kernels fault
/// disturbs no other.
fn in_parallel(place: &Place<'_>, queue: VecDeque<Module>) -> Result<Vec<(Module, Verdict)>> {
    let workers = thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
    let (queue, results) = (Mutex::new(queue), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        let daemon = Daemon::start(place.dist)?;
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(module) = next() {
            let verdict = both_modes(place, &module, &daemon);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((module, verdict));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        for worker in running {
            match worker.join() {
                Ok(result) => result?,
                Err(_) => bail!("a thread that runs tests panicked"),
            }
        }
        Ok(())
    })?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn both_modes(place: &Place<'_>, module: &Module, daemon: &Daemon) -> Verdict {
    let start = Instant::now();
    let calls = run::calls_directory(place, module);
    let forget_calls = || _ = fs::remove_dir_all(&calls);
    forget_calls();
    let verdict = match (
        run::module(place, module, Mode::Native),
        run::module(place, module, Mode::Attached(daemon)),
    ) {
        (Ok(native), Ok(attached)) => judge(module, &native, &attached),
        (native, attached) => {
            let error = |mode: &str, result: Result<_>| {
                result.err().map(|error| format!("{mode}: {error:#}"))
            };
            let faults = error("natively", native).into_iter();
            let faults = faults.chain(error("under OpenMPS", attached)).collect();
            Verdict { faults, ..Verdict::default() }
        }
    };
    // A test run without `--full` checks the table of proofs, so that a module which it leaves out
    // is no proof.
    if !verdict.faults.is_empty() || module.tier == Tier::Full {
        forget_calls();
    }
    let mut text = format!(
        "{} {}: {} passed, {} faults, {} s",
        module.suite.name(),
        module.name,
        verdict.passed,
        verdict.faults.len(),
        start.elapsed().as_secs()
    );
    for fault in &verdict.faults {
        text.push_str(&format!("\n    {fault}"));
    }
    for (function, cases) in &verdict.news {
        text.push_str(&format!("\n    not on the list, but passes: {function} ({cases} cases)"));
    }
    println!("{text}");
    verdict
}
