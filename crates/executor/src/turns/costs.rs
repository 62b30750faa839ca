//! What a session's launches cost, as far as samples ([`super::meter`]) have said: by function, and
//! by graph.
//!
//! A sample is the time between two events on the device. It contains what the host took between
//! recording them, if the stream had nothing else to do meanwhile: the driver's lock, the gate, a
//! thread that was not run, the first launch of a function. So a sample says that a piece costs no
//! more than the whole, and no less than the whole without the host's part. Both are kept: who is
//! to be bounded is judged by the most, and what may go together with others by the least, since
//! what goes by itself has the long samples, and would go by itself for ever.

use std::collections::HashMap;
use std::time::Duration;

/// Of what certainly takes no longer, one sample is enough.
const SHORT_NS: u32 = 10_000;
/// A sample of which the host's part is no more than this is certain.
const CERTAIN: u32 = 4;
/// Uncertain samples after which a piece is taken for known.
const MOST_TRIES: u8 = 8;
/// Samples from which on the least counts: one may have been taken while the host did nothing for
/// long.
const LEAST_COUNTS: u8 = 3;

/// What is launched, for what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Function(u32),
    Graph(u32),
}

/// What a sample has said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    /// Between the events, by the device's clock.
    pub(crate) took: Duration,
    /// From before the first was recorded until after the last was, by the host's.
    pub(crate) host: Duration,
    /// Nobody else had work on the device.
    pub(crate) alone: bool,
}

/// What samples have said of one piece.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// 0: nothing.
    most_ns: u32,
    least_ns: u32,
    samples: u8,
    is_certain: bool,
}

impl Cost {
    /// In company a sample contains what others did meanwhile: it can only say that a piece costs
    /// less than was thought.
    fn learn(&mut self, timed: Timed) {
        let in_ns = |time: Duration| u32::try_from(time.as_nanos()).unwrap_or(u32::MAX).max(1);
        let at_most = in_ns(timed.took);
        let at_least = in_ns(timed.took.saturating_sub(timed.host));
        if self.most_ns == 0 {
            (self.most_ns, self.least_ns) = (at_most, at_least);
        }
        let raised = |before: u32| match timed.alone {
            true => before + at_least.saturating_sub(before) / 4,
            false => before,
        };
        self.most_ns = raised(self.most_ns).min(at_most);
        self.least_ns = raised(self.least_ns).min(at_least).min(self.most_ns);
        self.samples = self.samples.saturating_add(1);
        self.is_certain |= at_most <= SHORT_NS
            || (timed.alone && timed.host.saturating_mul(CERTAIN) <= timed.took);
    }
}

/// What launches cost, as samples said.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    functions: Vec<Cost>,
    graphs: HashMap<u32, Cost>,
}

impl Costs {
    fn find(&self, piece: Piece) -> Option<Cost> {
        let known = match piece {
            Piece::Function(number) => self.functions.get(number as usize).copied(),
            Piece::Graph(number) => self.graphs.get(&number).copied(),
        };
        known.filter(|cost| cost.most_ns > 0)
    }

    /// Nanoseconds that a piece takes at most, if anything is known of it.
    pub(crate) fn of(&self, piece: Piece) -> Option<u64> {
        self.find(piece).map(|cost| cost.most_ns.into())
    }

    /// Nanoseconds that a piece takes at least; 0 where nothing is known of it.
    pub(crate) fn at_least(&self, piece: Piece) -> u64 {
        self.find(piece).map_or(0, |cost| cost.least_ns.into())
    }

    /// Whether a piece may take less than so long, as far as is known.
    pub(crate) fn may_take_less(&self, piece: Piece, than_ns: u64) -> bool {
        self.find(piece).is_some_and(|cost| {
            let counts = match cost.samples >= LEAST_COUNTS {
                true => cost.least_ns,
                false => cost.most_ns,
            };
            u64::from(counts) < than_ns
        })
    }

    /// Whether one sample in a while is enough for a piece.
    pub(crate) fn is_settled(&self, piece: Piece) -> bool {
        self.find(piece).is_some_and(|cost| cost.is_certain || cost.samples >= MOST_TRIES)
    }

    /// Takes a sample into account.
    pub(crate) fn learn(&mut self, piece: Piece, timed: Timed) {
        let cost = match piece {
            Piece::Function(number) => {
                let place = number as usize;
                if self.functions.len() <= place {
                    self.functions.resize(place + 1, Cost::default());
                }
                &mut self.functions[place]
            }
            Piece::Graph(number) => self.graphs.entry(number).or_default(),
        };
        cost.learn(timed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Piece = Piece::Function(3);
    /// What a piece that goes together with others takes less than.
    const LASTS_NS: u64 = 20_000;

    fn alone(took_us: u64, host_us: u64) -> Timed {
        let (took, host) = (Duration::from_micros(took_us), Duration::from_micros(host_us));
        Timed { took, host, alone: true }
    }

    fn in_company(took_us: u64, host_us: u64) -> Timed {
        Timed { alone: false, ..alone(took_us, host_us) }
    }

    fn learned(samples: &[Timed]) -> Costs {
        let mut costs = Costs::default();
        samples.iter().for_each(|&sample| costs.learn(PIECE, sample));
        costs
    }

    #[test]
    fn a_stall_of_the_host_is_not_the_kernels() {
        for timed in [alone, in_company] {
            let costs = learned(&[timed(6, 4), timed(2_000, 1_996)]);
            assert_eq!(costs.of(PIECE), Some(6_000));
            assert!(costs.may_take_less(PIECE, LASTS_NS));
        }
    }

    #[test]
    fn a_first_sample_that_a_stall_made_long_is_not_the_last() {
        let mut costs = learned(&[alone(2_000, 1_996)]);
        assert_eq!(costs.of(PIECE), Some(2_000_000), "it may be so");
        assert!(!costs.may_take_less(PIECE, LASTS_NS) && !costs.is_settled(PIECE));
        costs.learn(PIECE, alone(6, 4));
        assert_eq!(costs.of(PIECE), Some(6_000));
        assert!(costs.may_take_less(PIECE, LASTS_NS) && costs.is_settled(PIECE));
    }

    #[test]
    fn what_is_slow_to_submit_by_itself_may_go_with_others() {
        // Threads of many clients meet in the driver's lock: 5 us of work, 30 us to submit it, each
        // time.
        let mut costs = Costs::default();
        let mut tries = 0;
        while !costs.may_take_less(PIECE, LASTS_NS) {
            costs.learn(PIECE, in_company(35, 30));
            tries += 1;
            assert!(tries < 10, "it would go by itself for ever");
        }
        assert_eq!(costs.of(PIECE), Some(35_000), "nobody knows that it takes less");
        // As one of twenty, which took 100 us together.
        costs.learn(PIECE, in_company(5, 1));
        assert_eq!(costs.of(PIECE), Some(5_000));
    }

    #[test]
    fn what_lasts_does_not_go_with_others() {
        let costs = learned(&[alone(2_000, 6); 3]);
        assert!(!costs.may_take_less(PIECE, LASTS_NS) && costs.is_settled(PIECE));
        // The gate was closed for a while, three times.
        let costs = learned(&[in_company(7_000, 5_000); 3]);
        assert!(!costs.may_take_less(PIECE, LASTS_NS));
    }

    #[test]
    fn what_takes_longer_than_before_is_found_out_alone_only() {
        let shared = learned(&[alone(5, 1), in_company(900, 5), in_company(900, 5)]);
        assert_eq!(shared.of(PIECE), Some(5_000));
        let mut apart = learned(&[alone(5, 1)]);
        (0..20).for_each(|_| apart.learn(PIECE, alone(900, 5)));
        assert!(apart.of(PIECE).unwrap() > 800_000);
        assert!(!apart.may_take_less(PIECE, LASTS_NS));
    }

    #[test]
    fn samples_in_company_are_asked_for_again_but_not_for_ever() {
        let mut costs = Costs::default();
        for _ in 0..MOST_TRIES {
            assert!(!costs.is_settled(PIECE));
            costs.learn(PIECE, in_company(600, 5));
        }
        assert!(costs.is_settled(PIECE));
        assert!(!costs.is_settled(Piece::Graph(3)));
    }
}
