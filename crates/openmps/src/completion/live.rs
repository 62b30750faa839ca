//! What runs at the moment, as words for a shell.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::Duration;

use control::directories::Directories;
use control::frontend::Frontend;
use link::printable_prefix;
use link::wire::ui::DaemonState;

use super::Word;

/// Somebody has pressed a key: a daemon that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Of a command line so much is shown.
const SHOWN_CHARACTERS: usize = 60;

/// Of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Client,
    Server,
    /// With a server.
    User,
    Group,
    Reservation,
    /// The directory of a group's socket.
    Socket,
    Device,
}

/// Those that the daemon knows; none where no daemon answers.
pub(super) fn values(kind: Kind) -> Vec<Word> {
    let (sender, state) = channel();
    std::thread::spawn(move || {
        let asked = Frontend::connect(&Directories::from_environment());
        let _ = sender.send(asked.and_then(|mut daemon| daemon.state()));
    });
    match state.recv_timeout(PATIENCE) {
        Ok(Ok(state)) => words(&state, kind),
        _ => Vec::new(),
    }
}

fn words(state: &DaemonState, kind: Kind) -> Vec<Word> {
    let clients = || state.servers.iter().flat_map(|server| &server.snapshot.clients);
    let found: BTreeMap<String, String> = match kind {
        Kind::Client => clients()
            .map(|client| {
                (client.pid.to_string(), printable_prefix(&client.command, SHOWN_CHARACTERS))
            })
            .collect(),
        Kind::Server => {
            let servers = state.servers.iter();
            servers.map(|it| (it.pid.to_string(), format!("server of user {}", it.uid))).collect()
        }
        Kind::User => {
            state.servers.iter().map(|it| (it.uid.to_string(), "user".to_owned())).collect()
        }
        Kind::Group => {
            let limited = state.groups.iter().map(|group| group.name.clone());
            let named = clients().filter_map(|client| client.group.clone());
            limited.chain(named).map(|name| (name, "group".to_owned())).collect()
        }
        Kind::Reservation => {
            let all = state.reservations.iter();
            all.map(|it| (it.name.clone(), format!("{} SMs", it.multiprocessors))).collect()
        }
        Kind::Socket => {
            let all = state.sockets.iter();
            all.map(|it| (it.directory.clone(), format!("group {}", it.group))).collect()
        }
        Kind::Device => {
            let devices = state.servers.iter().flat_map(|it| (0..).zip(&it.snapshot.devices));
            devices.map(|(index, it): (u32, _)| (index.to_string(), it.name.clone())).collect()
        }
    };
    found.into_iter().filter(|(word, _)| is_plain(word)).map(shown).collect()
}

/// A shell puts a word where it is run: what clients call their groups may be anything.
fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/@+:-".contains(c);
    !word.starts_with('-') && word.chars().all(is_plain)
}

fn shown((word, what): Word) -> Word {
    (word, link::printable(&what).replace('\t', " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::wire::daemon::{ClientSnapshot, ServerSnapshot, ServerStatus};
    use link::wire::ui::ServerState;

    #[test]
    fn what_a_shell_would_run_is_no_word() {
        let client = |pid, group: &str| ClientSnapshot {
            pid,
            group: Some(group.to_owned()),
            command: "x\ty\n".into(),
            ..Default::default()
        };
        let clients = vec![client(7, "jobs/1"), client(8, "$(reboot)"), client(9, "-rf")];
        let snapshot = ServerSnapshot { clients, ..Default::default() };
        let server =
            ServerState { pid: 3, uid: 5, status: ServerStatus::Active, snapshot, silent: false };
        let state = DaemonState {
            daemon_pid: 1,
            log_directory: None,
            servers: vec![server],
            groups: Vec::new(),
            reservations: Vec::new(),
            drained: Vec::new(),
            sockets: Vec::new(),
            holders: Vec::new(),
        };
        let of = |kind| words(&state, kind).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
        assert_eq!(of(Kind::Group), ["jobs/1"]);
        assert_eq!(of(Kind::Client), ["7", "8", "9"]);
        assert_eq!((of(Kind::Server), of(Kind::User)), (vec!["3".into()], vec!["5".into()]));
        assert!(words(&state, Kind::Client).iter().all(|(_, what)| !what.contains(['\t', '\n'])));
    }
}
