//! Whose a series is: labels of which there are few over time, unlike processes.

use link::printable_prefix;
use link::wire::daemon::ClientSnapshot;

use super::exposition::Labels;

/// Of a name so much is a label.
const NAME_CHARACTERS: usize = 256;

/// A user, a group, and what sets clients apart from others.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Whose {
    uid: u32,
    /// Empty: none.
    group: String,
    /// Empty: it shares the executor of all that nothing sets apart.
    domain: String,
}

impl Whose {
    pub(super) fn of(client: &ClientSnapshot) -> Self {
        let name = |name: &Option<String>| name.as_deref().map(name_label).unwrap_or_default();
        Self {
            uid: client.uid,
            group: name(&client.group),
            domain: without_processes(&name(&client.domain)),
        }
    }

    pub(super) fn labels(&self) -> Labels {
        vec![
            ("user", self.uid.to_string()),
            ("group", self.group.clone()),
            ("domain", self.domain.clone()),
        ]
    }
}

/// A name as a label.
pub(super) fn name_label(name: &str) -> String {
    printable_prefix(name, NAME_CHARACTERS)
}

/// Where each process is apart the domains have the processes' numbers in their names
/// (`OPENMPS_ISOLATION=process`): `process 12` is `process`.
fn without_processes(domain: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for word in domain.split(' ') {
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        let follows_process =
            kept.last().is_some_and(|last| last.ends_with("process") || last.ends_with("client"));
        if !(is_number && follows_process) {
            kept.push(word);
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_process_id_is_in_a_label() {
        for (domain, label) in [
            ("", ""),
            ("training", "training"),
            ("process 12", "process"),
            ("client 7", "client"),
            ("a@process 12", "a@process"),
            ("group g in process 12", "group g in process"),
            ("user 1000", "user 1000"),
            ("/system.slice/job 12", "/system.slice/job 12"),
        ] {
            assert_eq!(without_processes(domain), label);
        }
    }
}
