//! A server, its executor and clients that speak the wire, over a real driver: the one that
//! `OPENMPS_NATIVE_DRIVER` names, else softcuda, which is built first.
//!
//! This program is also the server and the executor: it starts itself.

mod ahead;
mod executor_fuzz;
mod fake_client;
mod graphs;
mod keeping;
mod memory;
mod promises;
mod ring_fuzz;
mod server_log;
mod settings;
mod spilling;
mod takeover;
mod version_1;
mod waits;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments.peek().and_then(|first| first.to_str()) {
        Some("server") => server::keeper::main(arguments.skip(1)),
        Some("executor") => {
            takeover::wait_while_held();
            let arguments: Vec<_> = arguments.skip(1).collect();
            executor_fuzz::stand_between(&arguments)
                .unwrap_or_else(|| server::executor::main(arguments))
        }
        Some("record") => version_1::recorder::main(arguments.skip(1).collect()),
        _ => {
            run(&std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect::<Vec<_>>())
        }
    }
}

fn run(filters: &[String]) -> ExitCode {
    if std::env::args().any(|argument| argument == "--list") {
        tests().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<&Test> = tests()
        .filter(|(name, _)| {
            filters.is_empty() || filters.iter().any(|filter| name.contains(filter))
        })
        .collect();
    println!("\nrunning {} tests", wanted.len());
    let mut failed = 0;
    for (name, test) in &wanted {
        server_log::begin(name);
        let passed = std::panic::catch_unwind(test).is_ok();
        failed += usize::from(!passed);
        if !passed {
            println!("--- what the servers of {name} said\n{}---", server_log::text());
        }
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    let passed = wanted.len() - failed;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tests() -> impl Iterator<Item = &'static Test> {
    let all = [
        promises::ALL,
        settings::ALL,
        graphs::ALL,
        waits::ALL,
        takeover::ALL,
        ahead::ALL,
        spilling::ALL,
        keeping::ALL,
        memory::ALL,
        ring_fuzz::ALL,
        executor_fuzz::ALL,
        version_1::ALL,
    ];
    all.into_iter().flatten()
}

/// The driver under the server.
fn native_driver() -> &'static PathBuf {
    static DRIVER: OnceLock<PathBuf> = OnceLock::new();
    DRIVER.get_or_init(|| {
        if let Some(path) = std::env::var_os("OPENMPS_NATIVE_DRIVER") {
            return path.into();
        }
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let built = Command::new(env!("CARGO"))
            .args(["build", "-q", "-p", "softcuda", "--profile", profile])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "softcuda does not build");
        // .../target/debug/deps/black_box-HASH
        let program = std::env::current_exe().expect("this program's path");
        program.ancestors().nth(2).expect("the target directory").join("libsoftcuda.so")
    })
}
