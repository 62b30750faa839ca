//! Completions in a real bash, beside a real daemon; and manual pages as `man` shows them.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use openmps_tests::wait::PATIENCE;
use openmps_tests::{Daemon, Runtime, Sandbox, process};

/// What bash offers at the end of these words.
fn offered(sandbox: &Sandbox, words: &[&str]) -> Result<Vec<String>> {
    let openmps = sandbox.installation.openmps();
    let directory = openmps.parent().and_then(|path| path.to_str()).context("no directory")?;
    let script = "PATH=$1:$PATH; shift; source <(openmps completions bash)
        COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1))
        complete -p \"$1\" | grep -q _openmps || exit 9
        _openmps; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = sandbox.command("/bin/bash", Runtime::Softcuda);
    command.args(["-c", script, "bash", directory]).args(words);
    let printed = process::run(&mut command, PATIENCE)?;
    Ok(printed.success()?.lines().map(str::to_owned).collect())
}

#[test]
fn bash_offers_commands_and_what_runs() -> Result<()> {
    let daemon = Daemon::start(Sandbox::new()?)?;
    let sandbox = daemon.sandbox();
    let mut client = daemon.puppet_with(&[("OPENMPS_GROUP", "crew-one")])?;
    client.must("open")?;
    let mut sly = daemon.puppet_with(&[("OPENMPS_GROUP", "$(touch${IFS}sly)")])?;
    sly.must("open")?;
    let (pid, other) = (client.pid().to_string(), sly.pid().to_string());
    let server = daemon.server()?.pid.to_string();
    let mut both = vec![pid.clone(), other];
    both.sort();
    for (words, wanted) in [
        (&["openmps", "limit", "--client", ""][..], both),
        (&["openmps", "limit", "--client", "=", &pid], vec![pid.clone()]),
        (&["openmps", "limit", "--group", ""], vec!["crew-one".to_owned()]),
        (&["openmps", "trac"], vec!["trace".to_owned()]),
        (&["openmps", "run", "--priority", "b"], vec!["below-normal".to_owned()]),
        (&["openmps", "control", "get_client_list", ""], vec![server.clone()]),
        (&["nvidia-cuda-mps-control", "get_server_l"], vec!["get_server_list".to_owned()]),
        (&["nvidia-cuda-mps-control", "get_server_status", ""], vec![server.clone()]),
        (&["nvidia-cuda-mps-control", "terminate_client", &server, &pid], vec![pid.clone()]),
    ] {
        let found = offered(sandbox, words)?;
        ensure!(found == wanted, "{words:?}: {found:?}");
    }
    let programs = offered(sandbox, &["openmps", "run", "--", "bas"])?;
    ensure!(programs.iter().any(|word| word == "bash"), "{programs:?}");
    sly.dismiss()?;
    client.dismiss()
}

#[test]
fn without_a_daemon_there_are_the_commands() -> Result<()> {
    let sandbox = Sandbox::new()?;
    ensure!(offered(&sandbox, &["openmps", "limit", "--client", ""])? == [""]);
    ensure!(offered(&sandbox, &["nvidia-cuda-mps-control", "qu"])? == ["quit"]);
    Ok(())
}

/// Bold letters are printed twice, with a step back between.
fn without_overstrikes(text: &str) -> String {
    text.chars().fold(String::new(), |mut plain, c| {
        match c {
            '\u{8}' => plain.truncate(plain.len() - plain.chars().last().map_or(0, char::len_utf8)),
            c => plain.push(c),
        }
        plain
    })
}

/// Debian's man-db has groff and tbl; a system without them has no pages to show.
#[test]
fn manual_pages_have_their_tables() -> Result<()> {
    let sandbox = Sandbox::new()?;
    if process::run(Command::new("groff").arg("--version"), PATIENCE).is_err() {
        eprintln!("manual pages: NOT TRIED: there is no groff");
        return Ok(());
    }
    let pages = sandbox.directory().join("man1");
    let mut command = sandbox.command(sandbox.installation.openmps(), Runtime::OpenMps);
    process::run(command.arg("man").arg("--directory").arg(&pages), PATIENCE)?.success()?;
    for name in ["openmps-run.1", "nvidia-cuda-mps-control.1"] {
        let mut command = Command::new("groff");
        command.args(["-t", "-man", "-Tutf8", "-ww", "-rLL=80n", "-P-c"]).arg(pages.join(name));
        let page = process::run(&mut command, PATIENCE)?;
        ensure!(page.stderr.is_empty(), "{name}: {}", page.stderr);
        let page = without_overstrikes(page.success()?);
        // Both columns on one line.
        let is_row = |line: &str| {
            let mut words = line.split_whitespace();
            let words = (words.next(), words.next());
            words.0.is_some_and(|word| word.contains("CUDA_MPS_PIPE_DIRECTORY"))
                && words.1.is_some_and(|word| word.eq_ignore_ascii_case("where"))
        };
        ensure!(page.lines().any(is_row), "{name}: {page}");
        ensure!(page.contains("EXIT STATUS"), "{name}: {page}");
    }
    Ok(())
}
