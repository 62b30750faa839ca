//! The openmps executable.
//!
//! One file, several faces: as `nvidia-cuda-mps-control` it is the original's control utility
//! ([`original`]); as `openmps` it runs programs under OpenMPS ([`run`], [`environment`]), measures
//! ([`bench`]), makes clients of containers ([`cdi`]), changes shares ([`shares`]), records what
//! clients do ([`trace`]), shows what runs ([`show`], [`top`], [`logs`]) and what is wrong
//! ([`doctor`]), says what may be typed ([`completion`]), does a node's part for batch systems
//! ([`slurm`], [`pbs`], [`batch`]), and is, behind hidden subcommands, the processes that the
//! daemon starts ([`internal`]).

mod arguments;
mod batch;
mod bench;
mod cdi;
mod chaos;
mod cli;
mod completion;
mod config;
mod doctor;
mod documents;
mod environment;
mod examples;
mod installation;
mod internal;
mod kubernetes_plugin;
mod logs;
mod moves;
#[cfg(test)]
#[path = "../../control/tests/mutated/mod.rs"]
mod mutated;
mod natives;
mod original;
mod output;
mod pbs;
mod program;
mod run;
mod servable;
mod shares;
mod show;
mod slurm;
mod sockets;
mod top;
mod trace;
mod wanted;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Commands whose standard error nobody reads who could mend a variable.
const NOT_FOR_PEOPLE: &[&str] = &[
    "server",
    "executor",
    "probe-driver",
    "complete",
    "bench-worker",
    "chaos-worker",
    "slurm",
    "pbs",
    "kubernetes",
];

/// Exit status of a command that failed.
const FAILURE: u8 = 1;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let rest: Vec<OsString> = arguments.collect();
    if internal::is_server_or_executor(&rest) {
        // Nothing comes before it: as long as this has one thread and has read nothing.
        if let Err(error) = internal::become_its_user(&rest) {
            eprintln!("openmps: {error}");
            return ExitCode::from(FAILURE);
        }
        internal::shut_to_debuggers();
    }
    // Before anything can be wrong: whatever fails a job's prolog takes the node out of service.
    if slurm::is_no_business(&rest) || pbs::is_no_business(&rest) {
        return ExitCode::SUCCESS;
    }
    // A server has what the daemon gave it. To begin again would open it to its user once more.
    let is_inner = internal::is_server_or_executor(&rest);
    // Comes back only without a file, with one that adds nothing, or with a wrong one.
    let configuration = if is_inner { Ok(()) } else { config::apply() };
    let looks_at_it = ["doctor", "config"];
    let complain =
        !std::env::args().nth(1).is_some_and(|word| looks_at_it.contains(&word.as_str()));
    if complain && let Err(error) = &configuration {
        eprintln!("openmps: {error:#}");
        return ExitCode::from(FAILURE);
    }
    let word = rest.first().and_then(|word| word.to_str()).unwrap_or_default();
    if !NOT_FOR_PEOPLE.contains(&word) && !control::daemon::is_background_half() {
        name_wrong_variables();
    }
    if Path::new(&name).file_name().is_some_and(|name| name == installation::ORIGINAL_NAME) {
        return original::main(rest, original::ExitStatus::AsTheOriginal);
    }
    // `control` has options that no library parses (`-multiuser-server`), so it is looked for
    // first.
    if let Some((command, rest)) = rest.split_first()
        && command == "control"
    {
        return original::main(rest.to_vec(), original::ExitStatus::Honest);
    }
    // Its words are another command line's.
    if let Some((command, words)) = rest.split_first()
        && command == "complete"
    {
        // Nobody reads what went wrong: there are no words then.
        return completion::complete(words).unwrap_or(ExitCode::from(FAILURE));
    }
    let command = arguments::parse().command;
    if is_for_people(&command)
        && let Err(error) = end_with_the_reader()
    {
        eprintln!("openmps: {error}");
        return ExitCode::from(FAILURE);
    }
    let result = match command {
        cli::Command::Run(run) => run::run(run),
        cli::Command::Env(env) => environment::print_exports(&env),
        cli::Command::Ps(view) => show::ps(&view),
        cli::Command::Status(view) => show::status(view.format()),
        cli::Command::Top(options) => top::top(&options),
        cli::Command::Trace(options) => trace::trace(options),
        cli::Command::Limit(options) => shares::limit(&options),
        cli::Command::Reserve(options) => shares::reserve(&options),
        cli::Command::Move(options) => moves::move_clients(&options),
        cli::Command::Drain(options) => moves::drain(&options),
        cli::Command::Socket(options) => sockets::socket(&options),
        cli::Command::Logs(options) => logs::logs(&options),
        cli::Command::Doctor(options) => doctor::doctor(&options, configuration),
        cli::Command::Kubernetes(options) => kubernetes_plugin::kubernetes(options),
        cli::Command::Config(options) => config::show(&options),
        cli::Command::ProbeDriver(options) => doctor::probe(&options.path),
        cli::Command::Cdi(options) => cdi::cdi(&options),
        cli::Command::Bench(options) => bench::bench(options),
        cli::Command::BenchWorker(options) => bench::worker(options),
        cli::Command::ChaosWorker(options) => chaos::worker(options),
        cli::Command::Completions(options) => completion::script(options.shell),
        cli::Command::Man(options) => documents::manual(&options),
        cli::Command::Version => documents::version(),
        cli::Command::Slurm(options) => slurm::slurm(options),
        cli::Command::Pbs(options) => pbs::pbs(options),
        cli::Command::Control(_) => unreachable_control(),
        cli::Command::Server(server) => internal::server(server),
        cli::Command::Executor(executor) => internal::executor(executor),
    };
    result.unwrap_or_else(|error| {
        eprintln!("openmps: {error:#}");
        ExitCode::from(FAILURE)
    })
}

/// Says which variables nothing reads, or cannot be read. The library in somebody's program says
/// nothing of them.
fn name_wrong_variables() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut lines = settings::unknown(names);
    lines.extend(settings::malformed(|name| std::env::var(name).ok()));
    lines.iter().for_each(|line| eprintln!("openmps: warning: {}", link::printable(line)));
}

/// Whether a command ends when nobody reads what it writes, as `head` leaves it; hooks and servers
/// go on, and so does a page when a browser goes.
fn is_for_people(command: &cli::Command) -> bool {
    use cli::Command as C;
    if let C::Top(top) = command {
        return top.web.is_none();
    }
    !matches!(
        command,
        C::Slurm(_) | C::Pbs(_) | C::Kubernetes(_) | C::Server(_) | C::Executor(_) | C::Trace(_)
    )
}

/// Lets SIGPIPE do what it does by default. The runtime ignores it, and what is printed then
/// panics.
fn end_with_the_reader() -> std::io::Result<()> {
    let always = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_default(signal_hook::consts::SIGPIPE, always)?;
    Ok(())
}

/// `control` is in the definitions for the sake of help and completions; options before it lead
/// here.
fn unreachable_control() -> anyhow::Result<ExitCode> {
    anyhow::bail!("`control` comes first: openmps control [OPTION] [COMMAND]")
}
