//! Contexts of all SMs, over which sessions are spread.
//!
//! Threads that submit work to streams of one context wait for that context's lock in the driver. A
//! green context of all SMs has a lock of its own, while code, memory and nodes of graphs stay
//! those of the primary context: what counts is where the *stream* was made. So each session makes
//! its streams in one lane. The primary context is a lane, too, and the first that is taken: a
//! session alone runs as it would without lanes. Sessions with a share of the SMs have green
//! contexts of their own ([`super::partition`]).
//!
//! Lanes are made when the executor starts, since making one waits for kernels that run.

use super::partition::{Partition, describe, device_resource};
use crate::context::Context;
use std::iter;
use std::sync::Arc;

/// How many there are beside the primary context. None unless set otherwise: launches with a wait
/// gain by them, and PyTorch loses (docs/performance.md).
///
/// On an H200 each takes some 5 MiB of memory, in the executor and in its standby, and more
/// than 4 gain little: launches with a wait of 8 clients, thousand/s: 579 with none, 753 with 3,
/// 798 with 4, 807 with 7.
fn wanted_lanes() -> usize {
    crate::setting(|variables| variables.number(&settings::LANES))
}

/// A session's lane, which it leaves by dropping this.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lane {
    /// `None`: the primary context.
    green: Option<Arc<Partition>>,
    /// Counts those that are here.
    member: Arc<()>,
}

impl Lane {
    /// Where its streams are made; `None`: in the primary context.
    pub(crate) fn green(&self) -> Option<&Partition> {
        self.green.as_deref()
    }
}

/// The lanes of an executor.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    all: Vec<Lane>,
}

impl Lanes {
    /// Those of a device on which nothing runs. Where the driver has no green contexts there is one
    /// lane.
    pub(crate) fn of_device(context: &Context) -> Self {
        let make = || {
            let mut whole = [device_resource(context)?];
            Partition::create(context, describe(context, &mut whole)?, None)
        };
        let green = (0..wanted_lanes()).map_while(|_| make().ok());
        let all = iter::once(None).chain(green.map(Some));
        let all = all.map(|green| Lane { green, member: Arc::default() });
        Self { all: all.collect() }
    }

    /// The lane that the fewest sessions have.
    pub(crate) fn take(&self) -> Lane {
        let least = self.all.iter().min_by_key(|lane| Arc::strong_count(&lane.member));
        least.cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{Lane, Lanes};
    use std::sync::Arc;

    #[test]
    fn sessions_go_where_the_fewest_are() {
        let lanes = Lanes { all: (0..3).map(|_| Lane::default()).collect() };
        let is_same = |one: &Lane, other: &Lane| Arc::ptr_eq(&one.member, &other.member);
        let first: Vec<Lane> = (0..3).map(|_| lanes.take()).collect();
        assert!(!is_same(&first[0], &first[1]) && !is_same(&first[1], &first[2]));
        let again = lanes.take();
        assert!(is_same(&again, &first[0]), "the primary context comes first");
        let [_, left, _] = <[Lane; 3]>::try_from(first).unwrap();
        let member = Arc::downgrade(&left.member);
        drop(left);
        let next = lanes.take();
        assert!(Arc::ptr_eq(&next.member, &member.upgrade().unwrap()), "one has left it");
    }

    #[test]
    fn without_green_contexts_all_are_in_the_primary_one() {
        let lanes = Lanes::default();
        assert!(lanes.take().green().is_none() && lanes.take().green().is_none());
    }
}
