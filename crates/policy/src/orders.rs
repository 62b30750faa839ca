//! What somebody was told last, and how far it is: who wishes the same again waits for the same
//! answer.
//!
//! Orders are numbered from 1 and carried out in this order; each is answered once it is in force,
//! or with why it is not.

/// Orders to one who carries them out; `W` is what can be wished.
#[derive(Debug)]
pub struct Orders<W> {
    wish: W,
    latest: u64,
    state: State,
}

/// How far the latest order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InForce,
    Awaited,
    Refused,
}

/// What is left to be done for a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it is in force.
    Nothing,
    /// The answer to this order, which was given before, is to be awaited.
    Await(u64),
    /// This order is to be given, and its answer to be awaited.
    Give(u64),
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in force.
    Done,
    /// It is not, or not everywhere.
    Refused,
}

impl<W: PartialEq> Orders<W> {
    /// To one who begins with this.
    pub fn new(wish: W) -> Self {
        Self { wish, latest: 0, state: State::InForce }
    }

    /// What was wished last.
    pub fn wish(&self) -> &W {
        &self.wish
    }

    /// Wishes something; says what that takes.
    pub fn wish_for(&mut self, wish: W) -> Step {
        match self.state {
            State::InForce if self.wish == wish => Step::Nothing,
            State::Awaited if self.wish == wish => Step::Await(self.latest),
            _ => Step::Give(self.order(wish)),
        }
    }

    /// Makes an order of a wish, be it in force or not.
    pub fn order(&mut self, wish: W) -> u64 {
        self.wish = wish;
        self.latest += 1;
        self.state = State::Awaited;
        self.latest
    }

    /// An order was answered; those before it have been.
    pub fn answered(&mut self, order: u64, outcome: Outcome) {
        if order == self.latest && self.state == State::Awaited {
            self.state = match outcome {
                Outcome::Done => State::InForce,
                Outcome::Refused => State::Refused,
            };
        }
    }

    /// Somebody else carries out orders from now on, and begins with this.
    pub fn begin_anew(&mut self, wish: W) {
        self.wish = wish;
        self.state = State::InForce;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wishes_the_same_again_waits_for_the_same_answer() {
        let mut orders = Orders::new(100);
        assert_eq!(orders.wish_for(100), Step::Nothing);
        assert_eq!(orders.wish_for(50), Step::Give(1));
        assert_eq!(orders.wish_for(50), Step::Await(1));
        // Of the beginning.
        orders.answered(0, Outcome::Done);
        assert_eq!(orders.wish_for(50), Step::Await(1));
        orders.answered(1, Outcome::Done);
        assert_eq!(orders.wish_for(50), Step::Nothing);
    }

    #[test]
    fn the_answer_to_an_order_is_none_to_a_later_one() {
        let mut orders = Orders::new(100);
        assert_eq!(orders.wish_for(50), Step::Give(1));
        assert_eq!(orders.wish_for(100), Step::Give(2));
        orders.answered(1, Outcome::Done);
        assert_eq!(orders.wish_for(100), Step::Await(2));
        assert_eq!(orders.order(100), 3);
        orders.answered(2, Outcome::Done);
        assert_eq!(orders.wish_for(100), Step::Await(3));
    }

    #[test]
    fn what_was_refused_is_tried_again() {
        let mut orders = Orders::new(100);
        assert_eq!(orders.wish_for(50), Step::Give(1));
        orders.answered(1, Outcome::Refused);
        assert_eq!(orders.wish_for(50), Step::Give(2));
        orders.answered(2, Outcome::Done);
        assert_eq!((orders.wish_for(50), *orders.wish()), (Step::Nothing, 50));
    }

    #[test]
    fn a_successor_owes_no_answers() {
        let mut orders = Orders::new(100);
        assert_eq!(orders.wish_for(75), Step::Give(1));
        orders.begin_anew(50);
        assert_eq!(orders.wish_for(50), Step::Nothing);
        assert_eq!(orders.wish_for(25), Step::Give(2));
        orders.answered(1, Outcome::Done);
        assert_eq!(orders.wish_for(25), Step::Await(2));
    }
}
