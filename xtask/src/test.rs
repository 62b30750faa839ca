//! `cargo xtask test`: everything that must hold before a change is accepted.
//!
//! It prints what it runs and closes with `N passed, N failed` alone on a line. A step that is no
//! test runner, like the formatter, counts as one test.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdout};
use std::iter;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use cuda_abi::record::VARIABLE;

use crate::aarch64;
use crate::chromium;
use crate::command;
use crate::compat;
use crate::container_tools;
use crate::deb;
use crate::debian::Unpacked;
use crate::dependencies;
use crate::dist::{self, Build, Dist};
use crate::hecbench;
use crate::images;
use crate::nvidia_shell::{self, Release};
use crate::paths::Paths;
use crate::programs;
use crate::prometheus;
use crate::proofs;
use crate::prose;
use crate::ptx;
use crate::rooms;
use crate::rpm;
use crate::same_build;
use crate::slurm;
use crate::suites::{self, Suites, Tier, Totals};
use crate::systems;
use crate::tarball;
use crate::test_targets;
use crate::tree::{self, Tree};
use crate::wheel;

/// What to test.
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// Also what takes many minutes
    #[arg(long)]
    full: bool,
    /// Only tests whose names contain this; formatter, lints and step counts are skipped. `suites`:
    /// CuPy's and numba-cuda's own tests alone
    filter: Option<String>,
}

/// Threads of a test runner. The black-box tests mostly wait for other processes.
const BLACK_BOX_THREADS: &str = "--test-threads=2";

/// Kept by black-box tests for the daemons that they start.
const BATCHING_VARIABLE: &str = "OPENMPS_BATCHING";

/// Tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

/// One step of the whole.
struct Step {
    name: &'static str,
    counts: Counts,
    calls: Calls,
    batching: Batching,
    arguments: Vec<String>,
}

/// A step that needs no other process.
type Check = fn(&Paths) -> Result<()>;

/// A kind of package, of the product's files.
type PackageCheck = fn(&Paths, &Tree) -> Result<()>;

/// How a step's tests are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    /// The step is one test.
    AsOne,
    /// Its runners print `test result:` lines.
    ByRunner,
}

/// Which calls of the driver are recorded, for the table of proofs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Calls {
    OfUnitTests,
    OfPrograms,
    Unrecorded,
}

/// Whether launches go together under the daemons that black-box tests start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Batching {
    /// Unless our own environment says otherwise, where it pays.
    Default,
    Off,
}

/// What came of the steps so far.
struct Report {
    /// When each began.
    begun: Vec<(&'static str, Instant)>,
    total: Count,
    failed_steps: Vec<&'static str>,
    /// What runners said of tests that failed.
    failures: Vec<String>,
}

impl Report {
    /// Steps that take less are not in the table of times.
    const SHORTEST_S: u64 = 10;

    fn begin(&mut self, step: &'static str) {
        announce(step);
        self.begun.push((step, Instant::now()));
    }

    fn add(&mut self, step: &'static str, count: Count) {
        self.total.passed += count.passed;
        self.total.failed += count.failed;
        if count.failed > 0 {
            self.failed_steps.push(step);
        }
    }

    /// A step that is one test.
    fn add_outcome(&mut self, step: &'static str, outcome: Result<()>) {
        let count = match outcome {
            Ok(()) => Count { passed: 1, failed: 0 },
            Err(error) => {
                println!("{error:#}");
                Count { passed: 0, failed: 1 }
            }
        };
        self.add(step, count);
    }

    /// Prints what came of all, the counts last.
    fn print(&self) {
        if !self.failures.is_empty() {
            announce("failures, once more");
            self.failures.iter().for_each(|line| println!("{line}"));
        }
        let Some((_, start)) = self.begun.first() else { return };
        let ends = self.begun.iter().skip(1).map(|(_, begun)| *begun).chain([Instant::now()]);
        println!();
        for ((step, begun), end) in self.begun.iter().zip(ends) {
            let took_s = (end - *begun).as_secs();
            if took_s >= Self::SHORTEST_S {
                println!("{took_s:5} s  {step}");
            }
        }
        println!("{:5} s", start.elapsed().as_secs());
        if !self.failed_steps.is_empty() {
            println!("failed: {}", self.failed_steps.join(", "));
        }
        println!("{} passed, {} failed", self.total.passed, self.total.failed);
    }
}

/// Runs all steps, also after one has failed.
///
/// # Errors
/// When a test failed, or the product or the programs cannot be built.
pub(crate) fn run(paths: &Paths, options: &Test) -> Result<()> {
    let mut report = Report {
        begun: Vec::new(),
        total: Count::default(),
        failed_steps: Vec::new(),
        failures: Vec::new(),
    };
    let is_whole = options.filter.is_none();
    if is_whole {
        for (name, check) in CHECKS {
            report.begin(name);
            report.add_outcome(name, check(paths));
        }
        proofs::clear(paths)?;
    }
    let is_suites = options.filter.as_deref() == Some(SUITES);
    let black_box = test_targets::words(paths, BLACK_BOX_PACKAGE)?;
    for step in if is_suites { Vec::new() } else { steps(options, black_box) } {
        if step.name == BLACK_BOX {
            report.begin("product and CUDA programs");
            let dist = dist::build(paths, Build::Portable)?;
            programs::build(paths, &dist)?;
            if let Unpacked::Skipped(why) = slurm::ensure(paths)? {
                println!("no test bed of Slurm: {why}");
            }
            container_tools::ensure(paths);
            prometheus::ensure(paths);
            if options.full {
                chromium::ensure(paths);
            }
        }
        report.begin(step.name);
        let (count, told) = run_step(paths, &step)?;
        report.failures.extend(told);
        report.add(step.name, count);
    }
    if is_whole {
        let tree = tree::build(paths, &Dist::at(paths))?;
        for (name, check) in PACKAGES.into_iter().chain(FULL.into_iter().filter(|_| options.full)) {
            report.begin(name);
            report.add_outcome(name, check(paths, &tree));
        }
    }
    if is_whole || is_suites {
        report.begin(SUITES);
        let tier = if options.full { Tier::Full } else { Tier::Quick };
        match suites::run(paths, &Suites::for_test(tier)) {
            Ok(Totals { passed, failed }) => report.add(SUITES, Count { passed, failed }),
            Err(error) => report.add_outcome(SUITES, Err(error)),
        }
    }
    if is_whole {
        report.begin(PROOFS);
        report.add_outcome(PROOFS, proofs::check(paths));
    }
    report.print();
    if report.total.failed > 0 {
        bail!("not all tests passed");
    }
    if report.total.passed == 0 {
        bail!(
            "no test ran: is {:?} part of a test's name?",
            options.filter.as_deref().unwrap_or("")
        );
    }
    Ok(())
}

/// What is made of the product that was tested, and tried.
const PACKAGES: [(&str, PackageCheck); 5] = [
    ("Python package", python_package),
    ("archive", archive),
    ("rpm", rpm::test),
    ("container images", images::test),
    ("Debian package", debian_package),
];
const BLACK_BOX: &str = "black-box tests";
const BLACK_BOX_PACKAGE: &str = "openmps-tests";
const MODELS: &str = "orderings under a model checker";
const WITHOUT_BATCHING: &str = "black-box tests without batching";
const PROGRAMS_WITHOUT_BATCHING: &str = "CUDA programs without batching";
/// As a filter it means this step alone.
const SUITES: &str = "suites";
const GENERATED: &str = "generated files";
const PROSE: &str = "style of the documents";
const DEPENDENCIES: &str = "dependencies";
const ROOMS: &str = "folders and circles";
/// What is checked before anything is built.
const CHECKS: [(&str, Check); 4] = [
    (GENERATED, generated_files),
    (PROSE, prose::check),
    (DEPENDENCIES, dependencies::check),
    (ROOMS, rooms::check),
];
const PROOFS: &str = "proofs of COMPATIBILITY.md";

/// What is checked in although it is made from something else.
fn generated_files(paths: &Paths) -> Result<()> {
    compat::run(paths, compat::Mode::Check)?;
    ptx::check(paths)
}

fn python_package(paths: &Paths, tree: &Tree) -> Result<()> {
    let wheel = wheel::build(paths, tree)?;
    let bytes = fs::read(&wheel)?;
    ensure!(bytes == fs::read(wheel::build(paths, tree)?)?, "made twice, it is not the same");
    wheel::check(paths, &wheel)
}

/// What takes many minutes besides.
const FULL: [(&str, PackageCheck); 5] = [
    ("NVIDIA's control shell", nvidia_shell),
    ("other systems", other_systems),
    ("the same build elsewhere", same_build),
    ("aarch64", for_aarch64),
    ("HeCBench", hecbench),
];

/// A minute with each release that ours follows.
fn nvidia_shell(paths: &Paths, _: &Tree) -> Result<()> {
    [Release::R550, Release::R555]
        .into_iter()
        .try_for_each(|release| nvidia_shell::fuzz(paths, release, 60, None))
}

fn for_aarch64(paths: &Paths, tree: &Tree) -> Result<()> {
    aarch64::check(paths, tree)
}

fn hecbench(paths: &Paths, _: &Tree) -> Result<()> {
    hecbench::check(paths)
}

fn same_build(paths: &Paths, _: &Tree) -> Result<()> {
    same_build::check(paths)
}

fn other_systems(paths: &Paths, _: &Tree) -> Result<()> {
    systems::check(paths)
}

fn archive(paths: &Paths, tree: &Tree) -> Result<()> {
    let archive = tarball::build(paths, tree)?;
    let bytes = fs::read(&archive)?;
    ensure!(bytes == fs::read(tarball::build(paths, tree)?)?, "made twice, it is not the same");
    tarball::check(paths, &archive)
}

fn debian_package(paths: &Paths, tree: &Tree) -> Result<()> {
    if !deb::is_possible() {
        println!("not tried: this system has no dpkg-deb");
        return Ok(());
    }
    let package = deb::build(paths, tree)?;
    let bytes = fs::read(&package)?;
    ensure!(bytes == fs::read(deb::build(paths, tree)?)?, "made twice, it is not the same");
    deb::check(paths, &package)?;
    deb::check_in_fresh_systems(paths, &package)
}

/// All steps, in order; `black_box_targets` are cargo's words for the tests of real processes.
fn steps(options: &Test, black_box_targets: Vec<String>) -> Vec<Step> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut unit = words(&["test", "--workspace", "--exclude", BLACK_BOX_PACKAGE]);
    unit.extend(words(&["--no-fail-fast"]));
    let mut black_box = words(&["test", "--workspace", "--no-fail-fast"]);
    black_box.extend(black_box_targets);
    unit.extend(options.filter.clone());
    black_box.extend(options.filter.clone());
    black_box.extend(words(&["--", BLACK_BOX_THREADS]));
    if options.full {
        unit.extend(words(&["--", "--include-ignored"]));
        black_box.extend(words(&["--include-ignored"]));
    }
    let step = |name, counts, calls, arguments| Step {
        name,
        counts,
        calls,
        batching: Batching::Default,
        arguments,
    };
    let by_runner = |name, calls, arguments| step(name, Counts::ByRunner, calls, arguments);
    let mut steps = Vec::new();
    if options.filter.is_none() {
        let format = words(&["fmt", "--all", "--check"]);
        steps.push(step("format", Counts::AsOne, Calls::Unrecorded, format));
        let lints = words(&["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"]);
        steps.push(step("lints", Counts::AsOne, Calls::Unrecorded, lints));
    }
    steps.push(by_runner("unit tests", Calls::OfUnitTests, unit));
    let mut models = words(&["test", "--workspace", "--features=link/loom", "--test=model"]);
    models.extend(options.filter.clone());
    steps.push(by_runner(MODELS, Calls::Unrecorded, models));
    steps.push(by_runner(BLACK_BOX, Calls::OfPrograms, black_box.clone()));
    let (name, again) = match options.full {
        true => (WITHOUT_BATCHING, black_box),
        false => (PROGRAMS_WITHOUT_BATCHING, programs_attached(options)),
    };
    let again = by_runner(name, Calls::Unrecorded, again);
    steps.push(Step { batching: Batching::Off, ..again });
    steps
}

/// The CUDA programs under OpenMPS alone.
fn programs_attached(options: &Test) -> Vec<String> {
    let mut arguments = vec!["test", "--workspace", "--test=programs"];
    arguments.extend(options.filter.as_deref());
    arguments.extend(["--", BLACK_BOX_THREADS, "--skip=::softcuda", "--skip=::no_daemon"]);
    arguments.into_iter().map(str::to_owned).collect()
}

fn announce(step: &str) {
    println!("\n=== {step}");
}

/// Runs cargo, shows its output as it comes, and counts. Returns what runners said of tests that
/// failed, too.
fn run_step(paths: &Paths, step: &Step) -> Result<(Count, Vec<String>)> {
    let mut child = cargo(paths, step)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start cargo for {}", step.name))?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut count = Count::default();
    let mut failures = Failures::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("cannot read cargo's output")?;
        writeln!(stdout(), "{line}")?;
        failures.look_at(&line);
        if step.counts == Counts::ByRunner
            && let Some(more) = parse_result(&line)
        {
            count.passed += more.passed;
            count.failed += more.failed;
        }
    }
    let success = child.wait()?.success();
    match (success, step.counts) {
        (true, Counts::AsOne) => count.passed += 1,
        // What did not even compile or crashed outside of a test has no line of its own.
        (false, _) if count.failed == 0 => count.failed += 1,
        _ => {}
    }
    let told = if success { Vec::new() } else { failures.told(step.name) };
    Ok((count, told))
}

/// What runners say of failed tests, found in the output of a step. A log is often cut to its end,
/// so that it is said again there.
#[derive(Default)]
struct Failures {
    /// From a runner's `failures:` to its result.
    found: Vec<String>,
    is_inside: Inside,
    /// The end of the output: all there is of a runner that crashed.
    last: VecDeque<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Inside {
    #[default]
    Tests,
    Failures,
}

impl Failures {
    const MOST_LINES: usize = 300;
    const LAST_LINES: usize = 15;

    fn look_at(&mut self, line: &str) {
        if line == "failures:" {
            self.is_inside = Inside::Failures;
        }
        if self.is_inside == Inside::Failures && self.found.len() < Self::MOST_LINES {
            self.found.push(line.to_owned());
        }
        if line.starts_with("test result: ") {
            self.is_inside = Inside::Tests;
        }
        self.last.push_back(line.to_owned());
        if self.last.len() > Self::LAST_LINES {
            self.last.pop_front();
        }
    }

    fn told(self, step: &str) -> Vec<String> {
        let lines = if self.found.is_empty() { self.last.into() } else { self.found };
        let title = format!("--- {step}");
        iter::once(title).chain(lines).collect()
    }
}

fn cargo(paths: &Paths, step: &Step) -> Command {
    let mut cargo = command::cargo();
    cargo.current_dir(&paths.root).args(&step.arguments).stdin(Stdio::null());
    // Where a test failed is in its message; traces through the runner only hide it.
    cargo.env("RUST_BACKTRACE", "0");
    // The software GPU's debug build has one instruction set unless told.
    cargo.env("OPENMPS_SOFT_LEVELS", "all");
    match step.calls {
        Calls::OfUnitTests => cargo.env(VARIABLE, proofs::unit_tests_directory(paths)),
        Calls::OfPrograms => cargo.env(VARIABLE, proofs::directory(paths)),
        Calls::Unrecorded => cargo.env_remove(VARIABLE),
    };
    if step.batching == Batching::Off {
        cargo.env(BATCHING_VARIABLE, "off");
    }
    cargo
}

/// `test result: ok. 3 passed; 1 failed; ...`
fn parse_result(line: &str) -> Option<Count> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let number = |word: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse::<u64>().ok())
    };
    Some(Count { passed: number(" passed")?, failed: number(" failed")? })
}

#[cfg(test)]
mod tests {
    use super::{BLACK_BOX, Batching, Count, Failures, Test, parse_result, steps};

    fn told(output: &str) -> Vec<String> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.look_at(line));
        failures.told("unit tests")
    }

    #[test]
    fn failures_are_told_again_and_nothing_else() {
        let ran = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nwhy\n\nfailures:\n    a\n\ntest result: FAILED. 0 passed; 1 failed;";
        let told =
            told(&format!("{ran}\nrunning 1 test\ntest b ... ok\ntest result: ok. 1 passed;"));
        assert_eq!(told[..2], ["--- unit tests", "failures:"]);
        assert!(told.contains(&"why".to_owned()), "{told:?}");
        assert!(told.last().unwrap().starts_with("test result: FAILED"), "{told:?}");
    }

    #[test]
    fn of_a_runner_that_crashed_its_last_lines_are_told() {
        let lines: Vec<String> = (0..40).map(|number| format!("test {number} ... ok")).collect();
        let told = told(&lines.join("\n"));
        assert_eq!(told.len(), 1 + Failures::LAST_LINES);
        assert_eq!(told.last().unwrap(), "test 39 ... ok");
    }

    #[test]
    fn a_full_run_has_all_black_box_tests_with_batching_and_without() {
        let targets = vec!["--test=programs".to_owned()];
        let steps = steps(&Test { full: true, filter: None }, targets);
        let black_box = steps.iter().find(|step| step.name == BLACK_BOX).unwrap();
        let without: Vec<_> = steps.iter().filter(|step| step.batching == Batching::Off).collect();
        assert!(black_box.batching == Batching::Default);
        assert_eq!(without.len(), 1);
        assert_eq!(without[0].arguments, black_box.arguments);
    }

    #[test]
    fn results_are_read_from_the_runners_closing_line() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s";
        assert_eq!(parse_result(line), Some(Count { passed: 12, failed: 3 }));
        assert_eq!(parse_result("test scan ... ok"), None);
        assert_eq!(parse_result("test result: ok. nothing"), None);
    }
}
