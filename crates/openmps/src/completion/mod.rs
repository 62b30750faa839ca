//! Completions: what may stand where the cursor is.
//!
//! A shell's script asks `openmps complete NAME WORD...`, whose last word is the begun one. So the
//! shells agree with the definitions of the commands, and with what runs at the moment: process
//! ids, groups ([`live`]). The answer's first line says what the shell is to add of its own
//! ([`More`]); then come words, each with a tab and what it is.

mod live;
mod shell_words;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::builder::ValueHint;
use clap::{Arg, Command};
use clap_complete::Shell;

use crate::{examples, installation};
use live::Kind;

const BASH: &str = include_str!("openmps.bash");
const ZSH: &str = include_str!("openmps.zsh");
const FISH: &str = include_str!("openmps.fish");

/// Arguments whose values are known while they are there, by their names in [`crate::cli`].
const LIVE: &[(&str, Kind)] = &[
    ("client", Kind::Client),
    ("server", Kind::Server),
    ("user", Kind::User),
    ("group", Kind::Group),
    ("reservation", Kind::Reservation),
    ("release", Kind::Reservation),
    ("close", Kind::Socket),
    ("device", Kind::Device),
    ("pid", Kind::Client),
    ("to", Kind::Device),
    ("drained", Kind::Device),
];

/// A word, and what it is.
type Word = (String, String);

/// What the shell adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum More {
    Nothing,
    Files,
    /// Names of programs, and files.
    Programs,
}

/// What may stand somewhere.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    more: More,
    words: Vec<Word>,
}

impl Found {
    fn words(words: Vec<Word>) -> Self {
        Self { more: More::Nothing, words }
    }
}

/// Prints the script for a shell, of both names.
///
/// # Errors
/// Standard output.
pub(crate) fn script(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    match shell {
        Shell::Bash => out.write_all(BASH.as_bytes())?,
        Shell::Zsh => out.write_all(ZSH.as_bytes())?,
        Shell::Fish => out.write_all(FISH.as_bytes())?,
        other => clap_complete::generate(other, &mut examples::command(), "openmps", &mut out),
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers a script: the name of the command, and its words up to the cursor.
///
/// # Errors
/// Standard output.
pub(crate) fn complete(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some((name, words)) = words.split_first() else { return Ok(ExitCode::SUCCESS) };
    let found = found(name, words, &live::values);
    let begun = words.last().map_or("", String::as_str);
    let mut out = io::stdout();
    let more = match found.more {
        More::Nothing => "nothing",
        More::Files => "files",
        More::Programs => "programs",
    };
    writeln!(out, "{more}")?;
    for (word, what) in found.words.iter().filter(|(word, _)| word.starts_with(begun)) {
        writeln!(out, "{word}\t{what}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What may stand at the end of these words.
fn found(name: &str, words: &[String], live: &dyn Fn(Kind) -> Vec<Word>) -> Found {
    // bash makes three words of `--client=4711`.
    let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "=").collect();
    let Some((begun, before)) = words.split_last() else {
        return Found::words(Vec::new());
    };
    if name == installation::ORIGINAL_NAME {
        return shell_words::found(begun, before, live);
    }
    let mut command = examples::command();
    command.build();
    of_command(&command, begun, before, live)
}

fn of_command(
    mut command: &Command,
    begun: &str,
    before: &[&str],
    live: &dyn Fn(Kind) -> Vec<Word>,
) -> Found {
    let (mut pending, mut positionals): (Option<&Arg>, usize) = (None, 0);
    let mut rest = before.iter();
    while let Some(word) = rest.next() {
        if let Some(arg) = pending.take()
            && (!is_optional(arg) || !word.starts_with('-'))
        {
            continue;
        }
        if let Some(option) = word.strip_prefix('-').filter(|option| !option.is_empty()) {
            let is_whole = option.contains('=') || *word == "--";
            pending = option_named(command, word).filter(|arg| !is_whole && takes_a_word(arg));
            continue;
        }
        match command.find_subcommand(word) {
            Some(sub) if positionals == 0 && sub.get_name() == "control" => {
                return shell_words::found(begun, rest.as_slice(), live);
            }
            Some(sub) if positionals == 0 => command = sub,
            _ => positionals += 1,
        }
    }
    if let Some(arg) = pending
        && (!is_optional(arg) || !begun.starts_with('-'))
    {
        return values(arg, "", live);
    }
    if let Some((option, _)) = begun.split_once('=').filter(|_| begun.starts_with("--")) {
        let found =
            option_named(command, option).map(|arg| values(arg, &format!("{option}="), live));
        return found.unwrap_or(Found::words(Vec::new()));
    }
    let positional = command.get_positionals().nth(positionals);
    let positional = positional
        .or_else(|| command.get_positionals().last().filter(|last| last.is_trailing_var_arg_set()));
    let is_of_a_program = positional.is_some_and(Arg::is_trailing_var_arg_set) && positionals > 0;
    if begun.starts_with('-') && !is_of_a_program {
        return Found::words(options(command));
    }
    let mut found = match positional {
        Some(program) if program.is_trailing_var_arg_set() => {
            let more = if positionals == 0 { More::Programs } else { More::Files };
            Found { more, words: Vec::new() }
        }
        Some(_) if command.get_name() == "man" => Found::words(command_names(&examples::command())),
        Some(argument) => values(argument, "", live),
        None => Found::words(Vec::new()),
    };
    if positionals == 0 {
        found.words.extend(command_names(command));
    }
    found
}

fn command_names(command: &Command) -> Vec<Word> {
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let about = |sub: &Command| sub.get_about().map(ToString::to_string).unwrap_or_default();
    shown.map(|sub| (sub.get_name().to_owned(), about(sub))).collect()
}

fn options(command: &Command) -> Vec<Word> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let words = shown.flat_map(|arg| {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let long = arg.get_long().map(|long| format!("--{long}"));
        let short = arg.get_short().map(|short| format!("-{short}"));
        long.into_iter().chain(short).map(move |word| (word, help.clone()))
    });
    words.collect()
}

fn option_named<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let long = word.strip_prefix("--");
    command.get_arguments().find(|arg| match long {
        Some(long) => {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        }
        None => {
            arg.get_short().is_some_and(|short| word.strip_prefix('-') == Some(&short.to_string()))
        }
    })
}

/// Whether its value is another word.
fn takes_a_word(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|count| count.takes_values()) && !arg.is_require_equals_set()
}

fn is_optional(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|count| count.min_values() == 0)
}

/// What a value may be, behind `before` in the same word.
fn values(arg: &Arg, before: &str, live: &dyn Fn(Kind) -> Vec<Word>) -> Found {
    let words: Vec<Word> = match LIVE.iter().find(|(id, _)| arg.get_id() == id) {
        Some((_, kind)) => live(*kind),
        None => {
            let possible = arg.get_possible_values().into_iter().filter(|it| !it.is_hide_set());
            possible
                .map(|it| {
                    let help = it.get_help().map(ToString::to_string).unwrap_or_default();
                    (it.get_name().to_owned(), help)
                })
                .collect()
        }
    };
    let words = words.into_iter().map(|(word, what)| (format!("{before}{word}"), what)).collect();
    let is_path = |name: &str| ["FILE", "PATH", "DIRECTORY", "SOCKET"].contains(&name);
    let names = arg.get_value_names().unwrap_or_default();
    let hints = [ValueHint::AnyPath, ValueHint::FilePath, ValueHint::DirPath];
    let is_file = names.iter().any(|name| is_path(name)) || hints.contains(&arg.get_value_hint());
    Found { more: if is_file { More::Files } else { More::Nothing }, words }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(kind: Kind) -> Vec<Word> {
        vec![(format!("a-{kind:?}").to_lowercase(), String::new())]
    }

    fn at(line: &str) -> (More, Vec<String>) {
        let mut words = line.split(' ').map(str::to_owned);
        let name = words.next().unwrap();
        let found = found(&name, &words.collect::<Vec<_>>(), &live);
        (found.more, found.words.into_iter().map(|(word, _)| word).collect())
    }

    #[test]
    fn words_are_those_of_the_definitions_and_of_what_runs() {
        let one = |word: &str| (More::Nothing, vec![word.to_owned()]);
        for (line, wanted) in [
            ("openmps limit --client ", "a-client"),
            ("openmps limit --client = ", "a-client"),
            ("openmps limit --client=", "--client=a-client"),
            ("openmps limit --json --server ", "a-server"),
            ("openmps limit --user ", "a-user"),
            ("openmps move --pid ", "a-client"),
            ("openmps move --pid 7 --to ", "a-device"),
            ("openmps drain ", "a-device"),
            ("openmps limit --client 7 --device ", "a-device"),
            ("openmps run --group ", "a-group"),
            ("openmps run --softcuda --reservation ", "a-reservation"),
            ("openmps reserve --release ", "a-reservation"),
            ("openmps trace --client ", "a-client"),
            ("openmps control get_client_list ", "a-server"),
            ("nvidia-cuda-mps-control terminate_client ", "a-server"),
            ("nvidia-cuda-mps-control terminate_client 7 ", "a-client"),
            ("nvidia-cuda-mps-control start_server -uid ", "a-user"),
            ("nvidia-cuda-mps-control set_device_pinned_mem_limit 7 ", "a-device"),
            ("nvidia-cuda-mps-control ps -p ", "a-server"),
        ] {
            assert_eq!(at(line), one(wanted), "{line}");
        }
        let has = |line: &str, words: &[&str]| {
            let (_, found) = at(line);
            assert!(
                words.iter().all(|word| found.iter().any(|it| it == word)),
                "{line}: {found:?}"
            );
        };
        has("openmps ", &["run", "top", "control"]);
        has("openmps top --", &["--web", "--interval"]);
        has("openmps top --web --", &["--once"]);
        has("openmps run --priority ", &["normal", "below-normal"]);
        has("openmps run --", &["--memory", "--gpu"]);
        has("openmps slurm ", &["prolog", "epilog"]);
        has("openmps logs ", &["control", "server"]);
        has("openmps man ", &["run", "top"]);
        has("nvidia-cuda-mps-control ", &["get_server_list", "quit", "ps"]);
        has("nvidia-cuda-mps-control -", &["-d", "--daemon", "--metrics"]);
        has("nvidia-cuda-mps-control quit -", &["-t"]);
        has("nvidia-cuda-mps-control device_query --", &["--csv"]);
        assert_eq!(at("openmps run ").0, More::Programs);
        assert_eq!(at("openmps run --memory 4G -- ").0, More::Programs);
        assert_eq!(at("openmps run -- python "), (More::Files, Vec::new()));
        assert_eq!(at("openmps run -- python --"), (More::Files, Vec::new()));
        assert_eq!(at("openmps socket --close ").0, More::Files);
        assert_eq!(at("openmps config --check ").0, More::Files);
        assert_eq!(at("openmps limit --memory "), (More::Nothing, Vec::new()));
        assert_eq!(at("openmps nonsense --what "), (More::Nothing, Vec::new()));
    }

    #[test]
    fn every_live_argument_is_one_of_a_command() {
        fn ids(command: &Command, found: &mut Vec<String>) {
            found.extend(command.get_arguments().map(|arg| arg.get_id().to_string()));
            command.get_subcommands().for_each(|sub| ids(sub, found));
        }
        let mut found = Vec::new();
        ids(&examples::command(), &mut found);
        for (id, _) in LIVE {
            assert!(found.iter().any(|known| known == id), "{id}");
        }
    }
}
