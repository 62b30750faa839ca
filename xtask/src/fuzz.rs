//! `cargo xtask random` and `cargo xtask fuzz`: the software GPU's random programs, and the fuzz
//! targets, for as long as wished.
//!
//! Both are ordinary tests, which every test run executes for a few seconds; here they get their
//! size and seed by environment variables. Optimised, so that softcuda's handlers for all
//! instruction sets are compiled and chosen from.

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::command;
use crate::nvidia_shell::{self, Release};
use crate::paths::Paths;

/// Random PTX programs against the slow reference
#[derive(Debug, Args)]
pub(crate) struct Random {
    /// How many programs
    #[arg(long, default_value_t = 100_000)]
    count: u64,
    /// Repeats a run; a fresh one is printed
    #[arg(long)]
    seed: Option<u64>,
}

/// One fuzz target
#[derive(Debug, Args)]
pub(crate) struct Fuzz {
    target: Target,
    /// How long
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Repeats a run; a fresh one is printed
    #[arg(long)]
    seed: Option<u64>,
    /// For `shell`: of which driver NVIDIA's shell is
    #[arg(long, default_value = "550")]
    release: Release,
}

/// What is fuzzed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Mutated PTX into module load, library load and the linker
    Ptx,
    /// Mutated fatbins and cubins into the same
    Fatbin,
    /// Mutated kernels, executed
    Kernels,
    /// Mutated messages to the control daemon's socket
    Control,
    /// Mutated commands in a client's ring, to an executor on the software GPU
    Ring,
    /// Mutated messages of a user's server to the daemon
    Server,
    /// Mutated messages of an executor to its keeper
    Executor,
    /// Mutated messages, lines, settings, jobs and configuration files into what reads them
    Texts,
    /// Random scripts to NVIDIA's control shell and to ours, which must answer alike
    Shell,
}

impl Target {
    /// Cargo's arguments: where the tests are, and their name. `None`: it is no test of cargo's.
    fn tests(self) -> Option<Vec<&'static str>> {
        let one = |package, target, test| vec![package, "--test", target, "--", "--exact", test];
        Some(match self {
            Target::Shell => return None,
            Target::Ptx => one("--package=softcuda", "fuzz", "ptx"),
            Target::Fatbin => one("--package=softcuda", "fuzz", "images"),
            Target::Kernels => one("--package=softcuda", "fuzz", "kernels"),
            Target::Control => {
                one("--package=control", "daemon", "mutated_messages_change_nothing")
            }
            Target::Server => {
                one("--package=control", "server_words", "mutated_words_of_a_server_change_nothing")
            }
            Target::Executor => {
                one("--package=server", "black_box", "mutated_words_of_an_executor_end_it_at_most")
            }
            Target::Ring => {
                one("--package=server", "black_box", "mutated_commands_end_their_writer_at_most")
            }
            Target::Texts => {
                let mut all =
                    vec!["--package=control", "--package=openmps", "--package=kubernetes"];
                all.extend(["--", "mutated_texts"]);
                all
            }
        })
    }
}

/// Runs the random programs.
///
/// # Errors
/// When one of them computes something else than the reference.
pub(crate) fn random(paths: &Paths, options: &Random) -> Result<()> {
    let name = "a_hundred_thousand_random_programs_compute_what_the_reference_does";
    let count = [("OPENMPS_TEST_COUNT", Some(options.count))];
    let test = ["--package=softcuda", "--test", "random", "--", "--exact", name];
    run(paths, &test, &count, options.seed)
}

/// Runs a fuzz target.
///
/// # Errors
/// When an input breaks it; the output names a file with the input.
pub(crate) fn fuzz(paths: &Paths, options: &Fuzz) -> Result<()> {
    let seconds = [("OPENMPS_FUZZ_SECONDS", Some(options.seconds))];
    match options.target.tests() {
        Some(tests) => run(paths, &tests, &seconds, options.seed),
        None => nvidia_shell::fuzz(paths, options.release, options.seconds, options.seed),
    }
}

fn run(
    paths: &Paths,
    tests: &[&str],
    variables: &[(&str, Option<u64>)],
    seed: Option<u64>,
) -> Result<()> {
    let mut cargo = command::cargo();
    cargo.current_dir(&paths.root);
    cargo.args(["test", "--release", "--quiet"]).args(tests).arg("--include-ignored");
    for (name, value) in variables.iter().chain(&[("OPENMPS_TEST_SEED", seed)]) {
        if let Some(value) = value {
            cargo.env(name, value.to_string());
        }
    }
    command::run(&mut cargo)
}
