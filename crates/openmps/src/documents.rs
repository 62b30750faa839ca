//! `openmps man` and `openmps version`: made from the same definitions as `--help`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Command;
use clap_mangen::Man;

use crate::cli::{EXIT_STATUS, ManualPages, variables};
use crate::{examples, installation, original, output};

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
        output::write(&directory.join(format!("{}.1", installation::ORIGINAL_NAME)), &page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let page = match options.command.as_deref() {
        None => page(&all, "openmps")?,
        Some(name) if name == installation::ORIGINAL_NAME => alias_page(),
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
    push_section(&mut text, "ENVIRONMENT", &variables());
    push_section(&mut text, "EXIT STATUS", EXIT_STATUS);
    Ok(with_tables(&text))
}

/// The first line tells programs that show the page to let tbl make its tables.
fn with_tables(page: &str) -> String {
    format!("'\\\" t\n{page}")
}

/// A section that is a table of names with what each means.
fn push_section(text: &mut String, title: &str, terms: &[(&str, impl AsRef<str>)]) {
    text.push_str(&format!(".SH \"{title}\"\n"));
    push_table(text, terms);
}

/// A table of names with what each means, which takes as many lines as it needs.
fn push_table(text: &mut String, terms: &[(&str, impl AsRef<str>)]) {
    // Narrow columns would have wide gaps otherwise.
    text.push_str(".ad l\n.nh\n.TS\ntab(@);\nlb lx.\n");
    for (name, meaning) in terms {
        text.push_str(&format!("{}@T{{\n{}\nT}}\n", roff(name), roff(meaning.as_ref())));
    }
    text.push_str(".TE\n.ad b\n.hy\n");
}

/// The page of the control utility, from its help.
fn alias_page() -> String {
    let name = installation::ORIGINAL_NAME;
    let mut text = format!(
        ".TH {name} 1 \"\" \"OpenMPS {}\"\n.SH NAME\n{name} \\- OpenMPS control daemon and its shell\n",
        env!("CARGO_PKG_VERSION")
    );
    text.push_str(&format!(".SH SYNOPSIS\n\\fB{name}\\fR [options] [command]\n.SH DESCRIPTION\n"));
    // Terms of the environment that are still to become a table.
    let (mut terms, mut is_environment) = (Vec::new(), false);
    for line in original::HELP.lines() {
        let title = line
            .strip_suffix(':')
            .filter(|title| title.chars().all(|c| c.is_ascii_uppercase() || c == ' '));
        let term = line.strip_prefix("  ").and_then(|term| term.trim_start().split_once("  "));
        match term {
            Some((term, meaning)) if is_environment => {
                terms.push((term, meaning.trim_start()));
                continue;
            }
            _ if !terms.is_empty() => push_table(&mut text, &std::mem::take(&mut terms)),
            _ => {}
        }
        is_environment = title.map_or(is_environment, |title| title == "ENVIRONMENT");
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
    push_section(&mut text, "EXIT STATUS", original::EXIT_STATUS);
    text.push_str(".SH \"SEE ALSO\"\n\\fBopenmps\\fR(1)\n");
    with_tables(&text)
}

/// A line as roff prints it.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // A dot or a quote in front would be a request.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
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
            assert!(page.starts_with("'\\\" t\n"), "{name}: {page}");
            let head = ".ad l\n.nh\n.TS\ntab(@);\nlb lx.\n";
            let exit_status = format!("\n.SH \"EXIT STATUS\"\n{head}0@T{{\n");
            assert!(page.contains(&exit_status), "{name}: {page}");
            let variable = &format!("\n.SH \"ENVIRONMENT\"\n{head}CUDA_MPS_PIPE_DIRECTORY@T{{\n");
            assert!(page.contains(variable), "{name}: {page}");
            assert!(page.contains("EXAMPLE"), "{name}: {page}");
        }
        let count = std::fs::read_dir(place.path().join("man1")).unwrap().count();
        assert!(count > 25, "{count} pages");
    }
}
