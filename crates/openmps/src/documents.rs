//! `openmps man` and `openmps completions`: made from the same definitions as `--help`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

use crate::cli::{EXIT_STATUS, ManualPages, VARIABLES};
use crate::{examples, original, output};

/// Prints the manual page of `openmps` or of one of its commands, in roff; or writes all of them.
///
/// # Errors
/// No such command; standard output, or a file.
pub(crate) fn manual(options: &ManualPages) -> anyhow::Result<ExitCode> {
    let mut all = examples::command();
    all.build();
    if let Some(directory) = &options.directory {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        write_pages(&all, "openmps", directory)?;
        let page = alias_page();
        output::write(&directory.join(format!("{}.1", original::NAME)), &page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let page = match options.command.as_deref() {
        None => page(&all, "openmps")?,
        Some(name) if name == original::NAME => alias_page(),
        Some(name) => {
            let found = all
                .find_subcommand(name)
                .with_context(|| format!("there is no command `{name}`"))?;
            page(found, &format!("openmps {name}"))?
        }
    };
    io::stdout().write_all(page.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Pages of a command and of all below it: `openmps-run.1`.
fn write_pages(command: &Command, path: &str, directory: &Path) -> anyhow::Result<()> {
    let file = format!("{}.1", path.replace(' ', "-"));
    output::write(&directory.join(file), &page(command, path)?)?;
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    for sub in shown.filter(|sub| sub.get_name() != "help") {
        write_pages(sub, &format!("{path} {}", sub.get_name()), directory)?;
    }
    Ok(())
}

fn page(command: &Command, path: &str) -> anyhow::Result<String> {
    let man = Man::new(command.clone()).title(path.replace(' ', "-"));
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8(text).context("a manual page of other bytes")?;
    let examples = examples::of(path).iter().map(|(call, does)| (*does, *call));
    text.push_str(".SH EXAMPLES\n");
    for (does, call) in examples {
        text.push_str(&format!(
            ".PP\n{}:\n.PP\n.RS 4\n.EX\n{}\n.EE\n.RE\n",
            roff(does),
            roff(call)
        ));
    }
    push_terms(&mut text, "ENVIRONMENT", VARIABLES);
    push_terms(&mut text, "EXIT STATUS", EXIT_STATUS);
    Ok(text)
}

/// A section of names with what each means.
fn push_terms(text: &mut String, title: &str, terms: &[(&str, &str)]) {
    text.push_str(&format!(".SH \"{title}\"\n"));
    for (name, meaning) in terms {
        text.push_str(&format!(".TP\n\\fB{}\\fR\n{}\n", roff(name), roff(meaning)));
    }
}

/// The page of the control utility, from its help.
fn alias_page() -> String {
    let name = original::NAME;
    let mut text = format!(
        ".TH {name} 1 \"\" \"OpenMPS {}\"\n.SH NAME\n{name} \\- OpenMPS control daemon and its shell\n",
        env!("CARGO_PKG_VERSION")
    );
    text.push_str(&format!(".SH SYNOPSIS\n\\fB{name}\\fR [options] [command]\n.SH DESCRIPTION\n"));
    for line in original::HELP.lines() {
        let title = line
            .strip_suffix(':')
            .filter(|title| title.chars().all(|c| c.is_ascii_uppercase() || c == ' '));
        let term = line.strip_prefix("  ").and_then(|term| term.trim_start().split_once("  "));
        match (title, term) {
            (Some(title), _) => text.push_str(&format!(".SH \"{title}\"\n")),
            (None, Some((term, meaning))) => {
                let (term, meaning) = (roff(term), roff(meaning.trim_start()));
                text.push_str(&format!(".TP\n\\fB{term}\\fR\n{meaning}\n"));
            }
            (None, None) if line.is_empty() => {}
            (None, None) => text.push_str(&format!(".PP\n{}\n", roff(line.trim_start()))),
        }
    }
    push_terms(&mut text, "EXIT STATUS", original::EXIT_STATUS);
    text.push_str(".SH \"SEE ALSO\"\n\\fBopenmps\\fR(1)\n");
    text
}

/// A line as roff prints it.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // A dot or a quote in front would be a request.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Prints completions.
///
/// # Errors
/// None; the signature is that of all commands.
pub(crate) fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    clap_complete::generate(shell, &mut examples::command(), "openmps", &mut io::stdout());
    Ok(ExitCode::SUCCESS)
}

/// Prints the version.
///
/// # Errors
/// None; the signature is that of all commands.
pub(crate) fn version() -> anyhow::Result<ExitCode> {
    print!("{}", examples::command().render_version());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_tables() {
        let place = tempfile::tempdir().unwrap();
        let options = ManualPages { command: None, directory: Some(place.path().join("man1")) };
        manual(&options).unwrap();
        let names = ["openmps", "openmps-run", "openmps-slurm-prolog", "nvidia-cuda-mps-control"];
        for name in names {
            let page = place.path().join("man1").join(format!("{name}.1"));
            let page = std::fs::read_to_string(page).unwrap();
            assert!(page.contains(&format!(".TH {name} 1")), "{name}: {page}");
            assert!(page.contains("\n.SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\n"), "{name}: {page}");
            let variable = "\n.TP\n\\fBCUDA_MPS_PIPE_DIRECTORY\\fR\n";
            assert!(page.contains(variable), "{name}: {page}");
            assert!(page.contains("EXAMPLE"), "{name}: {page}");
        }
        let count = std::fs::read_dir(place.path().join("man1")).unwrap().count();
        assert!(count > 25, "{count} pages");
    }
}
