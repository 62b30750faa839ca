//! Whose fault it was: the client that is known to be the one, else the only one with work on the device, else all that had some, as suspects. The
//! address that was touched decides nothing, since no driver tells it.

use link::wire::fault::Blame;

/// What is known of one client when a context is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Situation {
    /// Launches of it that are not known to have ended.
    pub in_flight: usize,
    /// It is known to be the one: it was to be killed, or broke off by itself.
    pub is_target: bool,
}

/// The verdict, and which of the clients it is on.
pub fn blame(clients: &[Situation]) -> (Blame, Vec<usize>) {
    let those = |is: fn(&Situation) -> bool| -> Vec<usize> {
        (0..clients.len()).filter(|&index| is(&clients[index])).collect()
    };
    let target = those(|client| client.is_target);
    if !target.is_empty() {
        return (Blame::Culprit, target);
    }
    let flying = those(|client| client.in_flight > 0);
    match flying.as_slice() {
        [] if clients.len() == 1 => (Blame::Culprit, vec![0]),
        [] => (Blame::Nobody, Vec::new()),
        [_] => (Blame::Culprit, flying),
        _ => (Blame::Suspects, flying),
    }
}

#[cfg(test)]
mod tests {
    use super::{Blame, Situation, blame};

    const IDLE: Situation = Situation { in_flight: 0, is_target: false };
    const FLYING: Situation = Situation { in_flight: 2, ..IDLE };

    #[test]
    fn one_with_work_is_the_culprit_and_several_are_suspects() {
        assert_eq!(blame(&[IDLE, FLYING, IDLE]), (Blame::Culprit, vec![1]));
        assert_eq!(blame(&[FLYING, IDLE, FLYING]), (Blame::Suspects, vec![0, 2]));
        assert_eq!(blame(&[IDLE, IDLE]), (Blame::Nobody, vec![]));
        assert_eq!(blame(&[IDLE]), (Blame::Culprit, vec![0]), "nobody else is there");
        assert_eq!(blame(&[]), (Blame::Nobody, vec![]));
    }

    #[test]
    fn who_was_to_be_killed_is_no_suspect_but_known() {
        let target = Situation { is_target: true, ..IDLE };
        assert_eq!(blame(&[FLYING, target, FLYING]), (Blame::Culprit, vec![1]));
    }
}
