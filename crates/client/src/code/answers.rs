//! What the executor has answered about a function: kept until the function changes.

use crate::result::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Answers that are kept; programs ask few questions of a kernel.
const MOST_ANSWERS: usize = 64;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Answers<Q, A>(Mutex<Kept<Q, A>>);

#[derive(Debug)]
struct Kept<Q, A> {
    /// How often the function has changed.
    changes: u64,
    /// Latest last.
    answers: Vec<(Q, A)>,
}

impl<Q, A> Default for Answers<Q, A> {
    fn default() -> Self {
        Self(Mutex::new(Kept { changes: 0, answers: Vec::new() }))
    }
}

impl<Q: PartialEq, A: Copy> Answers<Q, A> {
    fn lock(&self) -> MutexGuard<'_, Kept<Q, A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer that is kept, or what `ask` finds.
    pub(crate) fn find_or_ask(&self, question: Q, ask: impl FnOnce() -> Result<A>) -> Result<A> {
        let kept = self.lock();
        if let Some((_, answer)) = kept.answers.iter().rev().find(|(asked, _)| *asked == question) {
            return Ok(*answer);
        }
        let changes = kept.changes;
        drop(kept);
        let answer = ask()?;
        let mut kept = self.lock();
        // Of what has changed meanwhile it may be an answer about before.
        if kept.changes == changes {
            if kept.answers.len() == MOST_ANSWERS {
                kept.answers.remove(0);
            }
            kept.answers.push((question, answer));
        }
        Ok(answer)
    }

    /// The function has changed.
    pub(crate) fn forget(&self) {
        let mut kept = self.lock();
        kept.changes += 1;
        kept.answers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_abi::types::CUresult;

    #[test]
    fn a_question_is_asked_once_until_the_function_changes() {
        let answers = Answers::default();
        assert_eq!(answers.find_or_ask(1, || Ok(10)), Ok(10));
        assert_eq!(answers.find_or_ask(1, || Ok(11)), Ok(10));
        assert_eq!(answers.find_or_ask(2, || Ok(20)), Ok(20));
        answers.forget();
        assert_eq!(answers.find_or_ask(1, || Ok(12)), Ok(12));
    }

    #[test]
    fn an_error_is_not_kept() {
        let answers = Answers::default();
        let wrong = CUresult::ERROR_INVALID_VALUE;
        assert_eq!(answers.find_or_ask(1, || Err(wrong)), Err(wrong));
        assert_eq!(answers.find_or_ask(1, || Ok(10)), Ok(10));
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let answers = Answers::default();
        let old = answers.find_or_ask(1, || {
            answers.forget();
            Ok(10)
        });
        assert_eq!(old, Ok(10));
        assert_eq!(answers.find_or_ask(1, || Ok(11)), Ok(11));
    }

    #[test]
    fn few_answers_are_kept() {
        let answers = Answers::default();
        for question in 0..=MOST_ANSWERS {
            assert_eq!(answers.find_or_ask(question, || Ok(0)), Ok(0));
        }
        assert_eq!(answers.find_or_ask(MOST_ANSWERS, || Ok(1)), Ok(0));
        assert_eq!(answers.find_or_ask(0, || Ok(1)), Ok(1), "the oldest is gone");
    }
}
