//! Which of the driver's stream priorities a client's streams get (MPS guide, 2.3.8: a client's
//! priorities are mapped to a range of its own, so that all streams of a normal client go before
//! all of one below normal; the example there is checked below).
//!
//! Drivers number them from `least` (0) down to `greatest` (-5 on today's): smaller goes first. The
//! client sees the numbers that it gave.

use super::fairness::Rank;
use serde::{Deserialize, Serialize};

/// Whether a client's launches go before all that others have queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Class {
    /// They take their turn.
    #[default]
    Throughput,
    /// They do.
    Latency,
}

/// The driver's priority of a stream that its client gave `wanted`, from a range (least, greatest).
/// A third of the range is for clients below normal, the greatest alone for the latency class, the
/// rest for the others; in a range of two the latter share the greater one.
pub fn stream_priority(wanted: i32, rank: Rank, class: Class, range: (i32, i32)) -> i32 {
    let (least, greatest) = range;
    let levels = (least - greatest).max(0);
    if levels == 0 {
        return least;
    }
    let below = (levels / 3).max(0);
    let (from, to) = match (class, rank) {
        (Class::Latency, _) => return greatest,
        (Class::Throughput, Rank::BelowNormal) => (least, least - below),
        (Class::Throughput, Rank::Normal) => {
            (least - below - 1, (greatest + 1).min(least - below - 1))
        }
    };
    let wanted = wanted.clamp(greatest, least);
    // Both ranges from their least on: the same place in the narrower one, rounded down.
    let place = (least - wanted) * (from - to + 1) / (levels + 1);
    from - place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_stream_of_a_normal_client_goes_before_those_below_normal() {
        for range in [(0, -5), (0, -2), (0, -1), (0, -7)] {
            let of = |wanted, rank| stream_priority(wanted, rank, Class::Throughput, range);
            for low in range.1..=range.0 {
                for high in range.1..=range.0 {
                    assert!(of(low, Rank::Normal) < of(high, Rank::BelowNormal), "{range:?}");
                }
                for rank in [Rank::Normal, Rank::BelowNormal] {
                    assert!((range.1..=range.0).contains(&of(low, rank)));
                    assert!(low == range.0 || of(low, rank) <= of(low + 1, rank), "in order");
                }
                let latency = stream_priority(low, Rank::Normal, Class::Latency, range);
                assert!(latency <= of(low, Rank::Normal));
            }
        }
    }

    #[test]
    fn a_range_of_six_leaves_normal_clients_three_and_the_latency_class_its_own() {
        let normal = [0, -1, -2, -3, -4, -5]
            .map(|wanted| stream_priority(wanted, Rank::Normal, Class::Throughput, (0, -5)));
        assert_eq!(normal, [-2, -2, -3, -3, -4, -4]);
        let below = [0, -3, -5]
            .map(|wanted| stream_priority(wanted, Rank::BelowNormal, Class::Throughput, (0, -5)));
        assert_eq!(below, [0, -1, -1]);
        assert_eq!(stream_priority(0, Rank::Normal, Class::Latency, (0, -5)), -5);
        assert_eq!(stream_priority(-3, Rank::Normal, Class::Throughput, (0, 0)), 0);
    }
}
