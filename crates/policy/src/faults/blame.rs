//! Whose fault it was: the client that is known to be the one, else the only one with work on the
//! device, else all that had some, as suspects. The address that was touched decides nothing, since
//! no driver tells it.
//!
//! When the executor itself ends unexpectedly nothing is known: what a client's work has done to it
//! may show while another's is served. Then only who was there alone is the culprit, and all others
//! that it was doing something for are suspects.

use link::wire::fault::Blame;

/// What is known of one client when a context is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Situation {
    /// Launches of it that are not known to have ended.
    pub in_flight: usize,
    /// A command of it was being done.
    pub in_command: bool,
    /// It is known to be the one: it was to be killed, or broke off by itself.
    pub is_target: bool,
}

/// How a context was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Work of a client ended it, or was ended with it.
    ByWork,
    /// The process ended, nobody knows why.
    Unexplained,
}

/// The verdict, and which of the clients it is on.
pub fn blame(loss: Loss, clients: &[Situation]) -> (Blame, Vec<usize>) {
    let those = |is: fn(&Situation) -> bool| -> Vec<usize> {
        (0..clients.len()).filter(|&index| is(&clients[index])).collect()
    };
    let target = those(|client| client.is_target);
    if !target.is_empty() {
        return (Blame::Culprit, target);
    }
    let doing = match loss {
        Loss::ByWork => those(|client| client.in_flight > 0),
        Loss::Unexplained => those(|client| client.in_flight > 0 || client.in_command),
    };
    match (doing.as_slice(), loss) {
        (_, _) if clients.len() == 1 => (Blame::Culprit, vec![0]),
        ([], _) => (Blame::Nobody, Vec::new()),
        ([_], Loss::ByWork) => (Blame::Culprit, doing),
        _ => (Blame::Suspects, doing),
    }
}

#[cfg(test)]
mod tests {
    use super::{Blame, Loss, Situation, blame};

    const IDLE: Situation = Situation { in_flight: 0, in_command: false, is_target: false };
    const FLYING: Situation = Situation { in_flight: 2, ..IDLE };
    const CALLING: Situation = Situation { in_command: true, ..IDLE };

    #[test]
    fn one_with_work_is_the_culprit_and_several_are_suspects() {
        let blame = |clients: &[Situation]| blame(Loss::ByWork, clients);
        assert_eq!(blame(&[IDLE, FLYING, IDLE]), (Blame::Culprit, vec![1]));
        assert_eq!(blame(&[FLYING, IDLE, FLYING]), (Blame::Suspects, vec![0, 2]));
        assert_eq!(blame(&[FLYING, CALLING]), (Blame::Culprit, vec![0]));
        assert_eq!(blame(&[IDLE, IDLE]), (Blame::Nobody, vec![]));
        assert_eq!(blame(&[IDLE]), (Blame::Culprit, vec![0]), "nobody else is there");
        assert_eq!(blame(&[]), (Blame::Nobody, vec![]));
    }

    #[test]
    fn who_was_to_be_killed_is_no_suspect_but_known() {
        let target = Situation { is_target: true, ..IDLE };
        for loss in [Loss::ByWork, Loss::Unexplained] {
            assert_eq!(blame(loss, &[FLYING, target, FLYING]), (Blame::Culprit, vec![1]));
        }
    }

    #[test]
    fn an_end_without_a_reason_has_no_culprit_among_several() {
        let blame = |clients: &[Situation]| blame(Loss::Unexplained, clients);
        assert_eq!(blame(&[IDLE, FLYING]), (Blame::Suspects, vec![1]), "it may be the victim");
        assert_eq!(blame(&[CALLING, FLYING, IDLE]), (Blame::Suspects, vec![0, 1]));
        assert_eq!(blame(&[CALLING, IDLE]), (Blame::Suspects, vec![0]));
        assert_eq!(blame(&[IDLE, IDLE]), (Blame::Nobody, vec![]));
        assert_eq!(blame(&[CALLING]), (Blame::Culprit, vec![0]), "nobody else is there");
    }
}
