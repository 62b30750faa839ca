//! What a session's launches cost, as far as samples ([`super::meter`]) have said: by function, and by graph.

use std::collections::HashMap;
use std::time::Duration;

/// What is launched, for what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Function(u32),
    Graph(u32),
}

/// What launches cost, as samples said. Of a piece that was never sampled the session's average is taken, once there is one.
#[derive(Debug, Default)]
pub(super) struct Costs {
    /// Nanoseconds by function, 0: unknown.
    functions: Vec<u32>,
    graphs: HashMap<u32, u32>,
}

impl Costs {
    pub(super) fn of(&self, piece: Piece) -> Option<u64> {
        let known = match piece {
            Piece::Function(number) => self.functions.get(number as usize).copied(),
            Piece::Graph(number) => self.graphs.get(&number).copied(),
        };
        known.filter(|&cost| cost > 0).map(u64::from)
    }

    /// In company a sample contains what others did meanwhile: it can only say that a piece costs less than was thought.
    pub(super) fn learn(&mut self, piece: Piece, sample: Duration, alone: bool) {
        let sample = u32::try_from(sample.as_nanos()).unwrap_or(u32::MAX).max(1);
        let known = match piece {
            Piece::Function(number) => {
                let place = number as usize;
                if self.functions.len() <= place {
                    self.functions.resize(place + 1, 0);
                }
                &mut self.functions[place]
            }
            Piece::Graph(number) => self.graphs.entry(number).or_default(),
        };
        *known = match *known {
            0 => sample,
            before if sample < before || !alone => sample.min(before),
            before => before + (sample - before) / 4,
        };
    }
}
