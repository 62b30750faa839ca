//! Answers to front ends that are longer than a packet: held until they are taken, of which there
//! are limits.

use std::time::{Duration, Instant};

use link::pieces::Piece;
use link::socket::{Connection as Socket, SocketError};
use link::wire::ui::UiReply;

/// A front end takes the next piece within this time.
const PIECE_LIMIT: Duration = Duration::from_secs(10);
/// What is held for all users but root, and half of which for one of them. A first answer of
/// whatever length is held for everybody.
const MOST_HELD_BYTES: usize = 256 << 20;

/// An answer on its way.
#[derive(Debug)]
pub(super) struct LongAnswer {
    text: String,
    sent_bytes: usize,
    /// It is closed then, unless another piece was taken.
    pub(super) deadline: Instant,
}

/// How far an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Some,
    All,
}

impl LongAnswer {
    /// An answer for this user; none, if too much is held already: `held` has the user and the
    /// length of each.
    pub(super) fn new(reply: &UiReply, uid: u32, held: &[(u32, usize)]) -> Option<Self> {
        let text = serde_json::to_string(reply).ok()?;
        let of = |wanted: Option<u32>| -> usize {
            let counted = held.iter().filter(|(of, _)| wanted.is_none_or(|wanted| wanted == *of));
            counted.map(|(_, bytes)| bytes).sum()
        };
        let (own, all) = (of(Some(uid)), of(None));
        let has_room = uid == 0
            || own == 0
            || (own + text.len() <= MOST_HELD_BYTES / 2 && all + text.len() <= MOST_HELD_BYTES);
        has_room.then(|| Self { text, sent_bytes: 0, deadline: Instant::now() + PIECE_LIMIT })
    }

    /// What is kept for it.
    pub(super) fn held_bytes(&self) -> usize {
        self.text.len()
    }

    /// Sends as much as the socket has room for.
    pub(super) fn send(&mut self, socket: &Socket) -> Result<Sent, SocketError> {
        while let Some(piece) = Piece::of(&self.text, self.sent_bytes) {
            let length = piece.text.len();
            match socket.send(&UiReply::Piece(piece), &[], Duration::ZERO) {
                Ok(()) => {
                    self.sent_bytes += length;
                    self.deadline = Instant::now() + PIECE_LIMIT;
                }
                Err(SocketError::TimedOut(_)) => return Ok(Sent::Some),
                Err(error) => return Err(error),
            }
        }
        Ok(Sent::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_answers_leave_room_for_others() {
        let reply = UiReply::Refused { message: "x".repeat(1000) };
        let fits = |uid, held: &[(u32, usize)]| LongAnswer::new(&reply, uid, held).is_some();
        let full = [(1, MOST_HELD_BYTES / 2)];
        assert!(!fits(1, &full));
        assert!(fits(2, &full) && fits(0, &full));
        let both = [(1, MOST_HELD_BYTES / 2), (2, MOST_HELD_BYTES / 2)];
        assert!(!fits(2, &both) && fits(3, &both) && fits(0, &both));
    }

    #[test]
    fn an_answer_goes_as_it_is_taken() {
        let (ours, theirs) = Socket::pair().unwrap();
        let message = "\"".repeat(4 << 20);
        let mut answer = LongAnswer::new(&UiReply::Refused { message: message.clone() }, 1, &[]);
        let answer = answer.as_mut().unwrap();
        let mut assembly = link::pieces::Assembly::new(64 << 20);
        let whole = loop {
            let _ = answer.send(&ours).unwrap();
            let received = theirs.receive::<UiReply>(PIECE_LIMIT).unwrap().message;
            let UiReply::Piece(piece) = received else { panic!("{received:?}") };
            if let Some(text) = assembly.add(piece).unwrap() {
                break text;
            }
        };
        let UiReply::Refused { message: came } = serde_json::from_str(&whole).unwrap() else {
            panic!("another answer");
        };
        assert_eq!(came, message);
        assert_eq!(answer.send(&ours).unwrap(), Sent::All);
    }
}
