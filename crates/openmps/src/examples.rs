//! Examples of every command, which its help and its manual page end with.

use clap::{Command, CommandFactory};

use crate::cli::Cli;

/// By command: what it is called with, and what that does.
type Examples = &'static [(&'static str, &'static [(&'static str, &'static str)])];

const EXAMPLES: Examples = &[
    (
        "openmps",
        &[("openmps run -- ./my_program", "run a program; `openmps run --help` says more")],
    ),
    (
        "openmps run",
        &[
            (
                "openmps run -- python3 train.py",
                "as a client; a daemon is started if there is none",
            ),
            (
                "openmps run --memory 4G --sm-percent 25 -- ./solve",
                "with 4 GiB and a quarter of the SMs",
            ),
            ("openmps run --softcuda -- ./my_program", "on the software GPU"),
        ],
    ),
    ("openmps env", &[("eval \"$(openmps env)\"", "all programs of this shell become clients")]),
    (
        "openmps ps",
        &[
            ("openmps ps", "the clients, and the faults of the last ten minutes"),
            ("openmps ps --faults", "all faults that the servers remember"),
            ("openmps ps --native", "processes with the library that are no clients"),
        ],
    ),
    (
        "openmps status",
        &[("openmps status --json", "the daemon, servers and devices, for a program")],
    ),
    (
        "openmps top",
        &[
            ("openmps top", "GPUs and clients, live; ? lists the keys"),
            ("openmps top --once", "one look, as plain lines"),
            ("openmps top --web", "a page for a browser on this machine"),
        ],
    ),
    (
        "openmps trace",
        &[
            ("openmps trace -o run.json.gz -- ./my_program", "record a program from its start"),
            ("openmps trace --client 4711 --seconds 5", "record a client that runs"),
        ],
    ),
    (
        "openmps limit",
        &[
            ("openmps limit", "the limits that are in force, and who is in which group"),
            ("openmps limit --client 4711 --memory 4G --sm-percent 50", "new limits for a client"),
            ("openmps limit --group jobs --memory 0", "no limit of memory for a group"),
        ],
    ),
    (
        "openmps reserve",
        &[
            ("openmps reserve serving --sms 16", "keep 16 SMs of device 0"),
            ("openmps reserve --release serving", "give them up"),
        ],
    ),
    (
        "openmps move",
        &[
            ("openmps move --pid 4711 --to 1", "a running program goes on on GPU 1"),
            ("openmps move --group jobs --to GPU-1c2d", "all programs of a group"),
        ],
    ),
    (
        "openmps drain",
        &[
            ("openmps drain 0", "all programs leave GPU 0, and none begins there"),
            ("openmps drain --undo 0", "programs begin there again"),
        ],
    ),
    (
        "openmps socket",
        &[
            (
                "openmps socket /run/openmps/jobs --group jobs --memory 8G",
                "a socket for a container",
            ),
            ("openmps socket --close /run/openmps/jobs", "close it"),
        ],
    ),
    ("openmps logs", &[("openmps logs -f server", "the servers' log, and what is added to it")]),
    (
        "openmps doctor",
        &[
            ("openmps doctor", "what keeps programs from running under OpenMPS"),
            ("openmps doctor ./my_program", "and whether this one could"),
        ],
    ),
    (
        "openmps config",
        &[
            ("openmps config", "every setting and where it comes from"),
            ("openmps config --check ./config.toml", "whether a file is in order"),
        ],
    ),
    (
        "openmps cdi",
        &[("openmps cdi -o /etc/cdi/openmps.json", "for Docker, Podman and Kubernetes")],
    ),
    (
        "openmps kubernetes",
        &[("openmps kubernetes device-plugin", "offer shares of this node's GPUs")],
    ),
    (
        "openmps kubernetes device-plugin",
        &[(
            "openmps kubernetes device-plugin --config /etc/openmps/plugin.toml",
            "offer what the file says",
        )],
    ),
    (
        "openmps bench",
        &[
            ("openmps bench --workload lat --clients 1,8", "launches that are waited for"),
            ("openmps bench --workload calls", "what driver calls cost"),
        ],
    ),
    (
        "openmps bench chaos",
        &[(
            "openmps bench chaos --minutes 10 --clients 8",
            "faults beside clients that must not notice",
        )],
    ),
    (
        "openmps slurm",
        &[("openmps slurm prolog", "in Slurm's Prolog; docs/slurm.md has the whole")],
    ),
    (
        "openmps slurm prolog",
        &[("openmps slurm prolog --shards-per-gpu 8", "in Slurm's Prolog, as root")],
    ),
    ("openmps slurm epilog", &[("openmps slurm epilog", "in Slurm's Epilog, as root")]),
    ("openmps slurm task-prolog", &[("openmps slurm task-prolog", "in Slurm's TaskProlog")]),
    (
        "openmps pbs",
        &[("openmps pbs prologue \"$@\"", "in the prologue; docs/pbs.md has the whole")],
    ),
    ("openmps pbs prologue", &[("openmps pbs prologue \"$@\"", "in mom_priv/prologue, as root")]),
    ("openmps pbs epilogue", &[("openmps pbs epilogue \"$@\"", "in mom_priv/epilogue, as root")]),
    (
        "openmps pbs environment",
        &[("eval \"$(openmps pbs environment)\"", "in a file of /etc/profile.d")],
    ),
    (
        "openmps control",
        &[
            ("openmps control -d", "start the daemon in the background"),
            ("openmps control get_server_list", "one command of the control shell"),
        ],
    ),
    (
        "openmps completions",
        &[(
            "openmps completions bash > ~/.local/share/bash-completion/completions/openmps",
            "for bash",
        )],
    ),
    (
        "openmps man",
        &[
            ("openmps man run | man -l -", "the page of a command"),
            ("openmps man --directory ./man1", "all pages, as files"),
        ],
    ),
    ("openmps version", &[("openmps version", "the version")]),
];

/// The commands with their examples.
pub(crate) fn command() -> Command {
    with_examples(Cli::command(), "openmps")
}

fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|it| it.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}");
        command.mut_subcommand(name, |sub| with_examples(sub, &path))
    });
    let examples = text(path);
    match command.get_after_help() {
        _ if examples.is_empty() => command,
        Some(more) => {
            let more = more.to_string();
            command.after_help(format!("{examples}\n\n{more}"))
        }
        None => command.after_help(examples),
    }
}

/// The examples of a command of this path, as its help shows them; empty: it has none.
fn text(path: &str) -> String {
    let lines = of(path).iter().map(|(call, does)| format!("\n  {call}\n      {does}"));
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("Examples:{lines}") }
}

/// Calls of a command of this path, and what each does.
pub(crate) fn of(path: &str) -> &'static [(&'static str, &'static str)] {
    EXAMPLES.iter().find(|(of, _)| *of == path).map_or(&[], |(_, examples)| examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(command: &Command, path: &str, all: &mut Vec<String>) {
        all.push(path.to_owned());
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            if sub.get_name() != "help" {
                paths(sub, &format!("{path} {}", sub.get_name()), all);
            }
        }
    }

    #[test]
    fn every_help_has_an_example_and_every_example_a_command() {
        let mut all = Vec::new();
        paths(&command(), "openmps", &mut all);
        for path in &all {
            let words: Vec<&str> = path.split(' ').skip(1).collect();
            let mut command = command();
            let sub = words
                .iter()
                .fold(&mut command, |command, word| command.find_subcommand_mut(word).unwrap());
            let help = sub.render_long_help().to_string();
            assert!(help.contains("Examples:\n  "), "{path}: {help}");
        }
        for (path, _) in EXAMPLES {
            assert!(all.iter().any(|known| known == path), "{path} is no command");
        }
    }

    /// What an example says is taken: options that are renamed are renamed here, too.
    #[test]
    fn examples_are_understood() {
        for (path, examples) in EXAMPLES {
            for (call, _) in *examples {
                let call = call.trim_start_matches("eval \"$(").trim_end_matches(")\"");
                let call = call.split(" | ").next().unwrap().split(" > ").next().unwrap();
                assert!(call.starts_with(*path) || *path == "openmps", "{path}: {call}");
                let words = call.split(' ').map(|word| word.trim_matches('"'));
                if let Err(error) = command().try_get_matches_from(words) {
                    panic!("{call}: {error}");
                }
            }
        }
    }
}
