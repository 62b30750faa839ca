//! `openmps man` and `openmps completions`: made from the same definitions as `--help`.

use std::io;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::Cli;

/// Prints the manual page of `openmps` or of one of its commands, in roff.
///
/// # Errors
/// No such command; standard output.
pub(crate) fn manual_page(command: Option<&str>) -> anyhow::Result<ExitCode> {
    let mut all = Cli::command();
    all.build();
    // Pages of commands are titled openmps-run and so on.
    let page = match command {
        None => clap_mangen::Man::new(all),
        Some(name) => {
            let found = all
                .find_subcommand(name)
                .with_context(|| format!("there is no command `{name}`"))?;
            clap_mangen::Man::new(found.clone()).title(format!("openmps-{name}"))
        }
    };
    page.render(&mut io::stdout())?;
    Ok(ExitCode::SUCCESS)
}

/// Prints completions.
///
/// # Errors
/// None; the signature is that of all commands.
pub(crate) fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    clap_complete::generate(shell, &mut Cli::command(), "openmps", &mut io::stdout());
    Ok(ExitCode::SUCCESS)
}

/// Prints the version.
///
/// # Errors
/// None; the signature is that of all commands.
pub(crate) fn version() -> anyhow::Result<ExitCode> {
    print!("{}", Cli::command().render_version());
    Ok(ExitCode::SUCCESS)
}
