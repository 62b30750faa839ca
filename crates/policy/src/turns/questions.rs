//! Questions for values in memory that takes time to read: put at any time, read together in
//! rounds, answered after a round.
//!
//! Everybody's question is in every round, so that nobody's answer is lost to another's question.

use super::holds::{Value, Width};
use std::collections::{BTreeMap, BTreeSet};

/// Where a value is, and how wide it is.
pub type Place = (u64, Width);

/// See the module's description.
#[derive(Debug, Default)]
pub struct Questions {
    put: BTreeSet<Place>,
    /// In the order in which they are read.
    asked: Vec<Place>,
    answers: BTreeMap<Place, u64>,
}

impl Questions {
    /// What was read there in the last round, once; puts the question for the next one.
    pub fn ask(&mut self, value: &Value) -> Option<u64> {
        let place = (value.address, value.width);
        self.put.insert(place);
        self.answers.remove(&place)
    }

    /// Whether a round is under way.
    pub fn is_under_way(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Begins a round with the questions that `may_read` allows, `most` at most, unless one is
    /// under way: what is to be read.
    pub fn begin(&mut self, most: usize, may_read: impl Fn(Place) -> bool) -> &[Place] {
        if self.is_under_way() {
            return &[];
        }
        let put = std::mem::take(&mut self.put).into_iter();
        self.asked = put.filter(|&place| may_read(place)).take(most).collect();
        &self.asked
    }

    /// Ends the round; `read` gives what was read, by its index in the round.
    pub fn end(&mut self, read: impl Fn(usize) -> u64) {
        let asked = std::mem::take(&mut self.asked).into_iter().enumerate();
        self.answers = asked.map(|(index, place)| (place, read(index))).collect();
    }

    /// Gives the round up.
    pub fn abandon(&mut self) {
        self.asked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::holds::Test;
    use super::*;

    fn value(address: u64) -> Value {
        Value { address, width: Width::Bits32, test: Test::Equal, operand: 1 }
    }

    #[test]
    fn all_who_ask_are_answered_in_every_round() {
        let mut questions = Questions::default();
        let (first, second) = (value(0x1000), value(0x2000));
        for round in 0..3 {
            let answers = [questions.ask(&first), questions.ask(&second)];
            let expected = if round == 0 { [None; 2] } else { [Some(round), Some(round + 10)] };
            assert_eq!(answers, expected);
            let asked = questions.begin(8, |_| true).to_vec();
            assert_eq!(asked, [(0x1000, Width::Bits32), (0x2000, Width::Bits32)]);
            questions.end(|place| round + 1 + 10 * place as u64);
            assert!(!questions.is_under_way());
        }
    }

    #[test]
    fn what_may_not_be_read_any_more_is_left_out() {
        let mut questions = Questions::default();
        questions.ask(&value(0x1000));
        questions.ask(&value(0x2000));
        assert_eq!(questions.begin(8, |(at, _)| at != 0x1000), [(0x2000, Width::Bits32)]);
        questions.ask(&value(0x3000));
        assert!(questions.begin(8, |_| true).is_empty(), "one round at a time");
        questions.abandon();
        assert_eq!(questions.begin(8, |_| true), [(0x3000, Width::Bits32)]);
        questions.end(|_| 5);
        assert_eq!(questions.ask(&value(0x3000)), Some(5));
        assert_eq!(questions.ask(&value(0x3000)), None, "each answer once");
    }
}
