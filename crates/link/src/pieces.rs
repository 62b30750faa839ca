//! Messages that are longer than a packet: their text goes in pieces, and is put together again by
//! whoever receives them.

use crate::wire::MAX_PACKET_BYTES;
use serde::{Deserialize, Serialize};

/// Text in one piece. In a packet of JSON each of its bytes is two at most, as control characters
/// are written in others already.
const PIECE_BYTES: usize = MAX_PACKET_BYTES / 2 - 1024;

/// One piece of a message's JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// How much of the text has gone before, in bytes; 0 begins a new message.
    pub offset: usize,
    /// It.
    pub text: String,
    /// Whether another one follows.
    pub more: bool,
}

impl Piece {
    /// The piece of a text that begins there; absent where it has ended.
    pub fn of(text: &str, offset: usize) -> Option<Self> {
        let rest = text.get(offset..).filter(|rest| !rest.is_empty())?;
        let length = rest.floor_char_boundary(PIECE_BYTES);
        let more = length < rest.len();
        Some(Self { offset, text: rest[..length].to_owned(), more })
    }

    /// All of a text's.
    pub fn all(text: &str) -> impl Iterator<Item = Self> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let piece = Self::of(text, next)?;
            next += piece.text.len();
            Some(piece)
        })
    }
}

/// Why pieces are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    /// It does not follow the one before.
    #[error("a piece of a message is missing")]
    Missing,
    /// Nobody sends so much.
    #[error("a message is longer than {0} bytes")]
    TooLong(usize),
}

/// The pieces of one message that have come.
#[derive(Debug)]
pub struct Assembly {
    text: String,
    most_bytes: usize,
}

impl Assembly {
    /// For messages of at most so many bytes.
    pub fn new(most_bytes: usize) -> Self {
        Self { text: String::new(), most_bytes }
    }

    /// Takes the next piece; the message's text, once it is complete.
    ///
    /// # Errors
    /// [`PieceError`]; what had come is forgotten then.
    pub fn add(&mut self, piece: Piece) -> Result<Option<String>, PieceError> {
        if piece.offset == 0 {
            self.text.clear();
        }
        if piece.offset != self.text.len() {
            self.text = String::new();
            return Err(PieceError::Missing);
        }
        if self.text.len() + piece.text.len() > self.most_bytes {
            self.text = String::new();
            return Err(PieceError::TooLong(self.most_bytes));
        }
        self.text.push_str(&piece.text);
        Ok((!piece.more).then(|| std::mem::take(&mut self.text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_arrives_in_pieces_that_fit() {
        let text = "\"ü\\".repeat(MAX_PACKET_BYTES / 3);
        let mut assembly = Assembly::new(text.len());
        let mut whole = None;
        let mut count = 0;
        for piece in Piece::all(&text) {
            assert!(whole.is_none());
            assert!(serde_json::to_vec(&piece).unwrap().len() + 100 < MAX_PACKET_BYTES);
            whole = assembly.add(piece).unwrap();
            count += 1;
        }
        assert!(count > 1 && whole.as_ref() == Some(&text));
        let mut small = Assembly::new(text.len() - 1);
        let refused = Piece::all(&text).find_map(|piece| small.add(piece).err());
        assert_eq!(refused, Some(PieceError::TooLong(text.len() - 1)));
    }

    #[test]
    fn a_new_message_takes_the_place_of_one_that_broke_off() {
        let piece = |offset, text: &str, more| Piece { offset, text: text.into(), more };
        let mut assembly = Assembly::new(100);
        assert_eq!(assembly.add(piece(0, "ab", true)), Ok(None));
        assert_eq!(assembly.add(piece(0, "cd", true)), Ok(None));
        assert_eq!(assembly.add(piece(2, "e", false)), Ok(Some("cde".into())));
        assert_eq!(assembly.add(piece(3, "f", false)), Err(PieceError::Missing));
        assert_eq!(assembly.add(piece(0, "", false)), Ok(Some(String::new())));
    }
}
