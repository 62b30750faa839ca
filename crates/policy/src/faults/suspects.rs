//! Which code has faulted, or may have, and is to run apart from others' for a while.
//!
//! Code is known by its owner, its kernel's name and its image ([`Code`]). When one client alone
//! can have made a fault, its kernels are the culprit's. When several can, all are suspects, or
//! those alone that launched their kernels for the first time: most kernels that fault do so then,
//! and kernels that run all the time are in flight whenever others' fault. A fault of a suspect
//! alone decides: the others of the fault before are cleared.
//!
//! What ran in one session, or in sessions that had a kernel in common, is a *party*: it runs apart
//! together. So clients that all run the same code need one context.

use link::printable;
use link::wire::owner::Owner;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Kernels that are remembered at most: of whoever has the most the oldest goes. A session has some
/// thirty in flight at most, and seldom more than one or two different ones.
const MOST_KNOWN: usize = 128;
/// Suspects that have worked apart for this part of the time for which code stays apart are
/// cleared.
const CLEARED_AFTER: u32 = 10;
/// Names are cut off after so much.
pub const NAME_BYTES: usize = 128;

/// A kernel of an owner's.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Code {
    /// Stands for the owner and the kernel's name.
    pub kernel: u64,
    /// Stands for the image.
    pub image: u64,
}

impl Code {
    /// The first word.
    pub fn kernel(owner: &Owner, name: &str) -> u64 {
        // As it is read from the history.
        let name = name.as_bytes();
        let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES)]);
        hash(&(owner, printable(&name)))
    }

    /// The second: of an image's length, beginning and end.
    pub fn image(length: u64, beginning: &[u8], end: &[u8]) -> u64 {
        hash(&(length, beginning, end))
    }
}

/// The same in all processes of an executable. Who makes two images of one hash sets itself apart.
fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Code that runs apart together. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Culprit,
    /// Since the fault of this number.
    Suspect(u64),
}

#[derive(Clone, Debug)]
struct Known {
    code: Code,
    owner: Owner,
    party: Party,
    standing: Standing,
    until: Instant,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Suspects {
    known: Vec<Known>,
    faults: u64,
    parties: u64,
}

/// A session that may have faulted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accused {
    /// Whose.
    pub owner: Owner,
    /// What it had in flight.
    pub code: Vec<Code>,
    /// It had launched none of that before, as far as is known.
    pub is_new: bool,
}

impl Suspects {
    /// Takes note of a fault that one of these has made. What is known stays so for `lasts`.
    pub fn note(&mut self, accused: &[Accused], now: Instant, lasts: Duration) {
        self.expire(now);
        self.faults += 1;
        // Who has faulted before, and could not be apart, has done it again.
        let has_faulted = |it: &&Accused| it.code.iter().any(|code| self.is_culprit(*code));
        let proven: Vec<Accused> = accused.iter().filter(has_faulted).cloned().collect();
        let new: Vec<Accused> = accused.iter().filter(|it| it.is_new).cloned().collect();
        let (accused, standing) = match (proven.as_slice(), new.as_slice(), accused) {
            ([], _, [_]) | ([_], _, _) => {
                let culprit = if proven.is_empty() { accused } else { &proven };
                self.clear_others(culprit);
                (culprit, Standing::Culprit)
            }
            ([], [], all) => (all, Standing::Suspect(self.faults)),
            ([], new, _) => (new, Standing::Suspect(self.faults)),
            // Which of them it was does not matter.
            (_, _, _) => return,
        };
        for Accused { owner, code, .. } in accused {
            let party = self.party_for(code);
            for &code in code {
                self.known.retain(|known| known.code != code);
                let (owner, until) = (owner.clone(), now + lasts);
                self.known.push(Known { code, owner, party, standing, until });
                self.bound();
            }
        }
    }

    /// Clears those who were suspects with a culprit.
    fn clear_others(&mut self, accused: &[Accused]) {
        let is_here = |code| accused.iter().any(|it| it.code.contains(&code));
        let earlier = self.known.iter().filter(|known| is_here(known.code));
        let earlier: BTreeSet<u64> = earlier
            .filter_map(|known| match known.standing {
                Standing::Suspect(fault) => Some(fault),
                Standing::Culprit => None,
            })
            .collect();
        self.known.retain(|known| match known.standing {
            Standing::Suspect(fault) => !earlier.contains(&fault) || is_here(known.code),
            Standing::Culprit => true,
        });
    }

    /// The party of a session: that of the sessions with which it has a kernel in common.
    fn party_for(&mut self, code: &[Code]) -> Party {
        let mut parties = BTreeSet::new();
        parties.extend(
            self.known.iter().filter(|it| code.contains(&it.code)).map(|known| known.party),
        );
        let Some(&party) = parties.first() else {
            self.parties += 1;
            return Party(self.parties);
        };
        self.known.iter_mut().filter(|it| parties.contains(&it.party)).for_each(|known| {
            known.party = party;
        });
        party
    }

    fn bound(&mut self) {
        if self.known.len() <= MOST_KNOWN {
            return;
        }
        let count = |owner: &Owner| self.known.iter().filter(|it| it.owner == *owner).count();
        let most = self.known.iter().max_by_key(|known| count(&known.owner));
        let most = most.map(|known| known.owner.clone());
        let oldest = self.known.iter().position(|known| Some(&known.owner) == most.as_ref());
        oldest.into_iter().for_each(|oldest| drop(self.known.remove(oldest)));
    }

    fn is_culprit(&self, code: Code) -> bool {
        let mut known = self.known.iter();
        known.any(|known| known.code == code && known.standing == Standing::Culprit)
    }

    /// Forgets who has not faulted for long; says whether there was any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.known.len();
        self.known.retain(|known| known.until > now);
        self.known.len() < before
    }

    /// A party has worked apart for so long without a fault; says whether it is cleared for that.
    pub fn has_worked(&mut self, party: Party, worked: Duration, lasts: Duration) -> bool {
        let is_proven = |known: &Known| known.party == party && known.standing == Standing::Culprit;
        if worked < lasts / CLEARED_AFTER || self.known.iter().any(is_proven) {
            return false;
        }
        let before = self.known.len();
        self.known.retain(|known| known.party != party);
        self.known.len() < before
    }

    /// What runs with nobody of a party: a session that has code of two goes where this is greater,
    /// to whoever is proven to have faulted, else to the later.
    pub fn rank(&self, party: Party) -> (bool, Party) {
        let is_proven = |known: &Known| known.party == party && known.standing == Standing::Culprit;
        (self.known.iter().any(is_proven), party)
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// With whom code runs apart, if it does.
    pub fn party(&self, code: Code) -> Option<Party> {
        self.known.iter().find(|known| known.code == code).map(|known| known.party)
    }

    /// Whether anything of a party is to run apart still.
    pub fn has(&self, party: Party) -> bool {
        self.known.iter().any(|known| known.party == party)
    }

    /// All that is to run apart.
    pub fn code(&self) -> Vec<Code> {
        self.known.iter().map(|known| known.code).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(600);

    fn code(number: u64) -> Code {
        Code { kernel: number, image: 1 }
    }

    fn session(uid: u32, numbers: &[u64]) -> Accused {
        let code = numbers.iter().map(|number| code(*number)).collect();
        Accused { owner: Owner::user(uid), code, is_new: false }
    }

    /// After these faults at one time.
    fn after(faults: &[&[Accused]]) -> (Suspects, Instant) {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        faults.iter().for_each(|accused| suspects.note(accused, now, LASTS));
        (suspects, now)
    }

    #[test]
    fn a_culprits_kernels_are_apart_until_it_has_not_faulted_for_long() {
        let (mut suspects, now) = after(&[&[session(1, &[1, 2])]]);
        let party = suspects.party(code(1)).unwrap();
        assert_eq!((suspects.party(code(2)), suspects.party(code(3))), (Some(party), None));
        assert!(!suspects.has_worked(party, LASTS, LASTS), "that is no proof");
        assert!(!suspects.expire(now + LASTS / 2));
        suspects.note(&[session(1, &[1])], now + LASTS / 2, LASTS);
        assert!(suspects.expire(now + LASTS));
        assert_eq!((suspects.party(code(1)), suspects.party(code(2))), (Some(party), None));
        assert!(suspects.expire(now + LASTS * 2) && !suspects.has(party) && suspects.is_empty());
    }

    #[test]
    fn suspects_are_apart_from_each_other_unless_they_run_the_same() {
        let (suspects, _) =
            after(&[&[session(1, &[1]), session(1, &[2]), session(1, &[3, 2]), session(1, &[3])]]);
        let of = |number| suspects.party(code(number)).unwrap();
        assert!(of(1) != of(2) && of(2) == of(3));
    }

    #[test]
    fn sessions_that_a_third_has_kernels_in_common_with_are_one_party() {
        let (suspects, _) = after(&[&[session(1, &[1]), session(1, &[2]), session(1, &[1, 2])]]);
        assert_eq!(suspects.party(code(1)), suspects.party(code(2)));
    }

    #[test]
    fn the_next_fault_decides_between_suspects() {
        let all = [session(1, &[1]), session(1, &[2]), session(1, &[3])];
        let (suspects, _) = after(&[&all, &all[..1]]);
        assert_eq!(suspects.code(), [code(1)]);
        // A fault with several again decides nothing: they may be two programs' faults.
        let (mut suspects, now) = after(&[&all[..2], &all[1..]]);
        assert_eq!(suspects.code(), [code(1), code(2), code(3)]);
        suspects.note(&all[2..], now, LASTS);
        assert_eq!(suspects.code(), [code(1), code(3)], "2 was a suspect with 3 last");
        assert!(suspects.rank(suspects.party(code(3)).unwrap()).0);
        assert!(!suspects.rank(suspects.party(code(1)).unwrap()).0);
    }

    #[test]
    fn who_launches_a_kernel_for_the_first_time_is_suspected_before_others() {
        let new = Accused { is_new: true, ..session(1, &[2]) };
        let (mut suspects, now) = after(&[&[session(1, &[1]), new.clone(), session(1, &[3])]]);
        assert_eq!(suspects.code(), [code(2)]);
        let party = suspects.party(code(2)).unwrap();
        assert!(!suspects.rank(party).0, "that is no proof");
        suspects.note(&[new], now, LASTS);
        assert!(suspects.rank(party).0);
    }

    #[test]
    fn nobody_is_suspected_beside_a_known_culprit() {
        let (mut suspects, now) = after(&[&[session(1, &[1])]]);
        suspects.note(&[session(1, &[2]), session(1, &[1]), session(2, &[3])], now, LASTS);
        assert_eq!(suspects.code(), [code(1)]);
        suspects.note(&[session(1, &[4])], now, LASTS);
        suspects.note(&[session(1, &[4]), session(1, &[1]), session(2, &[3])], now, LASTS);
        assert_eq!(suspects.code(), [code(1), code(4)]);
    }

    #[test]
    fn a_suspect_that_works_is_cleared() {
        let (mut suspects, _) = after(&[&[session(1, &[1]), session(1, &[2])]]);
        let party = suspects.party(code(1)).unwrap();
        assert!(!suspects.has_worked(party, LASTS / 11, LASTS));
        assert!(suspects.has_worked(party, LASTS / 10, LASTS));
        assert_eq!(suspects.code(), [code(2)]);
    }

    #[test]
    fn who_faults_with_ever_new_code_makes_its_own_forgotten() {
        let (mut suspects, now) = after(&[&[session(1, &[1])]]);
        for number in 2..1000 {
            suspects.note(&[session(2, &[number])], now, LASTS);
        }
        assert_eq!(suspects.code().len(), MOST_KNOWN);
        assert!(suspects.party(code(1)).is_some() && suspects.party(code(2)).is_none());
    }

    #[test]
    fn code_is_its_owners_and_its_names_are_as_the_history_has_them() {
        let [one, two] = [1, 2].map(Owner::user);
        assert_eq!(Code::kernel(&one, "k"), Code::kernel(&one, "k"));
        assert_ne!(Code::kernel(&one, "k"), Code::kernel(&two, "k"));
        assert_ne!(Code::kernel(&one, "k"), Code::kernel(&one, "l"));
        let long = "x".repeat(1000);
        assert_eq!(Code::kernel(&one, &long), Code::kernel(&one, &long[..NAME_BYTES]));
        assert_eq!(Code::kernel(&one, "k\n"), Code::kernel(&one, "k"), "as it is shown");
        assert_ne!(Code::image(1, b"a", b"a"), Code::image(1, b"a", b"b"));
    }
}
