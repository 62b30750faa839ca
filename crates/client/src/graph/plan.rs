//! Who does what of an executable graph: the executor's graphs, and between them what this process
//! does itself.
//!
//! A *segment* is a graph of the executor's and the host work that follows it. Steps are put into
//! the earliest segment that their dependencies allow. A copy with a pageable end takes the detour
//! over a *bounce buffer* that the executor reaches. Pure but for the buffers, whose addresses it
//! is given.

use super::encoding::{Encoded, encode, encode_copy};
use super::kinds::{CopyWork, NodeKind};
use crate::copy::shape::{End, Extent};
use cuda_abi::graph::snapshot::Flat;
use cuda_abi::graph::user_object::HostWork;

/// One node of the flattened graph, after those at the places in `after`.
#[derive(Clone)]
pub(super) struct Step {
    /// Handle of the node that it was made of.
    pub(super) key: usize,
    pub(super) kind: NodeKind,
    pub(super) after: Vec<usize>,
    pub(super) is_enabled: bool,
}

impl From<Flat<NodeKind>> for Step {
    fn from(flat: Flat<NodeKind>) -> Self {
        Self { key: flat.key, kind: flat.kind, after: flat.after, is_enabled: true }
    }
}

/// Which ends of a copy only this process reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pageable {
    pub(super) to: bool,
    pub(super) from: bool,
}

/// Host work.
#[derive(Clone, Copy, Debug)]
pub(super) enum HostAction {
    Call(HostWork),
    Copy { to: End, from: End, extent: Extent },
}

/// Where a step's work is.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    /// Host work before the executor's, by segment.
    pub(super) before: Option<(usize, HostAction)>,
    /// The executor's: segment, place of the node there, and what it does.
    pub(super) device: Option<(usize, u32, Encoded)>,
    /// Host work afterwards.
    pub(super) after: Option<(usize, HostAction)>,
}

/// What a segment's graph consists of.
#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    /// Steps, in order.
    pub(super) device: Vec<usize>,
    /// Steps with host work, in order.
    pub(super) host: Vec<usize>,
}

/// The whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) parts: Vec<Parts>,
    pub(super) segments: Vec<Segment>,
}

/// What a step does, part by part. `bounce` is the address of its bounce buffer.
pub(super) fn parts_of(
    kind: &NodeKind,
    pageable: Pageable,
    bounce: u64,
) -> (Option<HostAction>, Option<Encoded>, Option<HostAction>) {
    match kind {
        NodeKind::Host(work) => (Some(HostAction::Call(*work)), None, None),
        NodeKind::Memcpy(work) if pageable != Pageable::default() => {
            let CopyWork { to, from, extent, .. } = *work;
            let dense = dense(bounce, extent);
            let straight = HostAction::Copy { to, from, extent };
            match pageable {
                Pageable { to: true, from: true } => (Some(straight), None, None),
                Pageable { from: true, .. } => {
                    let taken = HostAction::Copy { to: dense, from, extent };
                    (Some(taken), Some(encode_copy(to, dense, extent)), None)
                }
                _ => {
                    let given = HostAction::Copy { to, from: dense, extent };
                    (None, Some(encode_copy(dense, from, extent)), Some(given))
                }
            }
        }
        _ => (None, Some(encode(kind)), None),
    }
}

fn dense(address: u64, extent: Extent) -> End {
    let Extent { width_bytes, height, .. } = extent;
    End { address, pitch_bytes: width_bytes, slice_bytes: width_bytes * height }
}

/// Puts every step into segments. Times are counted in halves of segments: even ones are the
/// executor's, odd ones the host's.
pub(super) fn plan(
    steps: &[Step],
    what: impl Fn(usize) -> (Option<HostAction>, Option<Encoded>, Option<HostAction>),
) -> Plan {
    let mut plan = Plan::default();
    let mut done: Vec<usize> = Vec::with_capacity(steps.len());
    for (place, step) in steps.iter().enumerate() {
        let mut time = step.after.iter().map(|&before| done[before]).max().unwrap_or(0);
        let (before, device, after) = what(place);
        let mut parts = Parts::default();
        if let Some(action) = before {
            time |= 1;
            parts.before = Some((time / 2, action));
            plan.segment(time / 2).host.push(place);
        }
        if let Some(encoded) = device {
            time = time.next_multiple_of(2);
            let segment = plan.segment(time / 2);
            parts.device = Some((time / 2, segment.device.len() as u32, encoded));
            segment.device.push(place);
        }
        if let Some(action) = after {
            time |= 1;
            parts.after = Some((time / 2, action));
            plan.segment(time / 2).host.push(place);
        }
        done.push(time);
        plan.parts.push(parts);
    }
    plan
}

impl Plan {
    fn segment(&mut self, index: usize) -> &mut Segment {
        if self.segments.len() <= index {
            self.segments.resize_with(index + 1, Segment::default);
        }
        &mut self.segments[index]
    }

    /// Edges among the executor's nodes of a segment, by their places there.
    pub(super) fn edges<'a>(
        &'a self,
        steps: &'a [Step],
        segment: usize,
    ) -> impl Iterator<Item = (u32, u32)> + 'a {
        let place_in = move |step: usize| match &self.parts[step].device {
            Some((at, place, _)) if *at == segment => Some(*place),
            _ => None,
        };
        self.segments[segment].device.iter().flat_map(move |&step| {
            let after = steps[step].after.iter();
            after.filter_map(move |&before| Some((place_in(before)?, place_in(step)?)))
        })
    }

    /// The host work of a segment, in order, of steps that are done.
    pub(super) fn host_work(&self, steps: &[Step], segment: usize) -> Vec<HostAction> {
        let mut work = Vec::new();
        for &step in &self.segments[segment].host {
            if !steps[step].is_enabled {
                continue;
            }
            let parts = &self.parts[step];
            let of_segment = |part: &Option<(usize, HostAction)>| {
                part.filter(|(at, _)| *at == segment).map(|(_, action)| action)
            };
            work.extend(of_segment(&parts.before).or(of_segment(&parts.after)));
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Letters: `d` device, `h` host, `i` pageable to device, `o` device to pageable; with
    /// dependencies.
    fn planned(steps: &[(char, &[usize])]) -> (Vec<Step>, Plan) {
        let kinds: Vec<char> = steps.iter().map(|step| step.0).collect();
        let steps: Vec<Step> = steps
            .iter()
            .map(|(_, after)| Step {
                key: 0,
                kind: NodeKind::Empty,
                after: after.to_vec(),
                is_enabled: true,
            })
            .collect();
        let end = End::linear(8);
        let copy = HostAction::Copy { to: end, from: end, extent: Extent::linear(4) };
        let work = || Some(encode(&NodeKind::Empty));
        let plan = plan(&steps, |place| match kinds[place] {
            'h' => (Some(copy), None, None),
            'i' => (Some(copy), work(), None),
            'o' => (None, work(), Some(copy)),
            _ => (None, work(), None),
        });
        (steps, plan)
    }

    fn shape(plan: &Plan) -> Vec<(Vec<usize>, Vec<usize>)> {
        plan.segments.iter().map(|segment| (segment.device.clone(), segment.host.clone())).collect()
    }

    #[test]
    fn without_host_work_there_is_one_segment_with_all_edges() {
        let (steps, plan) = planned(&[('d', &[]), ('d', &[0]), ('d', &[0]), ('d', &[1, 2])]);
        assert_eq!(shape(&plan), [(vec![0, 1, 2, 3], vec![])]);
        let edges: Vec<_> = plan.edges(&steps, 0).collect();
        assert_eq!(edges, [(0, 1), (0, 2), (1, 3), (2, 3)]);
    }

    #[test]
    fn host_work_comes_between_what_it_waits_for_and_what_waits_for_it() {
        let (steps, plan) =
            planned(&[('d', &[]), ('h', &[0]), ('d', &[1]), ('d', &[]), ('h', &[2])]);
        assert_eq!(shape(&plan), [(vec![0, 3], vec![1]), (vec![2], vec![4])]);
        assert_eq!(plan.edges(&steps, 1).count(), 0, "the segments' order is enough");
        assert_eq!(plan.host_work(&steps, 0).len(), 1);
        let (_, plan) = planned(&[('h', &[]), ('h', &[0])]);
        assert_eq!(shape(&plan), [(vec![], vec![0, 1])]);
    }

    #[test]
    fn a_pageable_end_is_served_on_its_side_of_the_executor() {
        let (steps, plan) = planned(&[('i', &[]), ('d', &[0]), ('o', &[1]), ('h', &[2])]);
        assert_eq!(shape(&plan), [(vec![], vec![0]), (vec![0, 1, 2], vec![2, 3])]);
        assert_eq!(plan.edges(&steps, 1).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
        assert_eq!(plan.host_work(&steps, 1).len(), 2);
    }
}
