//! What a launch does with the nodes of an executable graph: lanes, markers, and graphs that a
//! condition chooses.
//!
//! A lane is a stream of the engine. The first is the stream of the launch, the others belong to
//! the executable graph; a node continues the lane of one of its dependencies where it can, and
//! waits for the others by markers. A chain therefore needs no marker at all.
//!
//! The graphs of a conditional node are sections of their own, with the node's lane as their first.
//! They are planned when the node's turn has come: a task reads the condition and goes on with the
//! operations of the graph that is chosen, and, in a loop, with itself.

use std::sync::Arc;

use cuda_abi::graph::conditional::{Conditional, chosen};
use cuda_abi::graph::snapshot::Snapshot;
use cuda_abi::types::CUgraphConditionalNodeType;

use super::kinds::NodeKind;
use crate::api::answer::Answer;
use crate::api::driver::Driver;
use crate::device::fault::Sticky;
use crate::device::marker::Marker;
use crate::device::ops::{self, Op, Task};

/// Most lanes of a section; more branches than this share them.
const MOST_LANES: usize = 64;

/// Nodes that are done together: all of a graph, or all of one that a condition chooses.
#[derive(Debug, Clone, Default)]
pub(super) struct Section {
    pub(super) steps: Vec<Step>,
    /// Its lanes, among those of the executable graph.
    lanes: Vec<usize>,
}

/// One node of an executable graph.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// Handle of the node that it was made of.
    pub(super) key: usize,
    pub(super) kind: NodeKind,
    /// Places of what it runs after.
    after: Vec<usize>,
    /// Among those of its section.
    lane: usize,
    /// Whether a step of another lane waits for it.
    is_awaited: bool,
    pub(super) is_enabled: bool,
    /// The graphs of a conditional node.
    bodies: Vec<Arc<Section>>,
}

/// What all sections of one launch need.
pub(super) struct Run {
    pub(super) driver: &'static Driver,
    /// Engine streams.
    pub(super) lanes: Vec<u64>,
    /// Of the stream of the launch.
    pub(super) priority: i32,
    pub(super) uses_node_priority: bool,
}

impl Section {
    /// The section of a whole graph, and how many lanes it and all sections in it take.
    pub(super) fn root(source: &Snapshot<NodeKind>) -> (Self, usize) {
        let mut lane_count = 1;
        let root = Self::new(source, 0, &mut lane_count);
        (root, lane_count)
    }

    /// A section whose first lane is given; takes further lanes from `lane_count` on.
    fn new(source: &Snapshot<NodeKind>, first_lane: usize, lane_count: &mut usize) -> Self {
        let steps = source.flatten().into_iter().map(|flat| Step {
            key: flat.key,
            kind: flat.kind,
            after: flat.after,
            lane: 0,
            is_awaited: false,
            is_enabled: true,
            bodies: Vec::new(),
        });
        let mut steps: Vec<Step> = steps.collect();
        let own = assign_lanes(&mut steps);
        let lanes: Vec<usize> =
            std::iter::once(first_lane).chain(*lane_count..*lane_count + own - 1).collect();
        *lane_count += own - 1;
        for step in &mut steps {
            if let NodeKind::Conditional(_) = &step.kind {
                // One of them is done at a time, but each has branches of its own.
                let bodies = source.inside(step.key).iter();
                step.bodies = bodies
                    .map(|body| Arc::new(Self::new(body, lanes[step.lane], lane_count)))
                    .collect();
            }
        }
        Self { steps, lanes }
    }

    /// Values that conditions have when a launch begins, by handle.
    pub(super) fn defaults(&self) -> Vec<(u64, u32)> {
        let mut values = Vec::new();
        for step in &self.steps {
            if let NodeKind::Conditional(conditional) = &step.kind {
                let condition = &conditional.condition;
                values.extend(condition.default.map(|value| (condition.handle, value)));
            }
            values.extend(step.bodies.iter().flat_map(|body| body.defaults()));
        }
        values
    }

    /// A step of a section in this one.
    pub(super) fn find_inside(&self, key: usize) -> Option<&Step> {
        self.steps.iter().flat_map(|step| &step.bodies).find_map(|body| {
            body.steps.iter().find(|step| step.key == key).or_else(|| body.find_inside(key))
        })
    }

    /// The same, to be changed; launches that are under way keep what they have.
    pub(super) fn find_inside_mut(&mut self, key: usize) -> Option<&mut Step> {
        let bodies = self.steps.iter_mut().flat_map(|step| &mut step.bodies);
        for body in bodies {
            let place = body.steps.iter().position(|step| step.key == key);
            if place.is_none() && body.find_inside(key).is_none() {
                continue;
            }
            let body = Arc::make_mut(body);
            return match place {
                Some(place) => body.steps.get_mut(place),
                None => body.find_inside_mut(key),
            };
        }
        None
    }

    /// Appends the operations of doing it once.
    pub(super) fn plan(&self, run: &Arc<Run>, plan: &mut Vec<(u64, Op)>) -> Answer {
        let lanes: Vec<u64> = self.lanes.iter().map(|&lane| run.lanes[lane]).collect();
        if lanes.len() > 1 {
            let start = Arc::new(Marker::default());
            plan.push((lanes[0], Op::Record(start.clone())));
            plan.extend(lanes[1..].iter().map(|&lane| (lane, Op::Wait(start.clone()))));
        }
        let mut ends: Vec<Option<Arc<Marker>>> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let lane = lanes[step.lane];
            let others = step.after.iter().filter(|&&place| self.steps[place].lane != step.lane);
            plan.extend(
                others.filter_map(|&place| ends[place].clone()).map(|end| (lane, Op::Wait(end))),
            );
            if step.is_enabled {
                plan.extend(step.ops(run)?.into_iter().map(|op| (lane, op)));
            }
            let end = step.is_awaited.then(Arc::<Marker>::default);
            plan.extend(end.iter().map(|end| (lane, Op::Record(end.clone()))));
            ends.push(end);
        }
        for &lane in lanes.iter().skip(1) {
            let end = Arc::new(Marker::default());
            plan.push((lane, Op::Record(end.clone())));
            plan.push((lanes[0], Op::Wait(end)));
        }
        Ok(())
    }
}

impl Step {
    fn ops(&self, run: &Arc<Run>) -> Answer<Vec<Op>> {
        if let NodeKind::Conditional(conditional) = &self.kind {
            let decision = Decision {
                run: run.clone(),
                conditional: conditional.clone(),
                bodies: self.bodies.clone(),
            };
            return Ok(vec![Op::Task(Box::new(decision))]);
        }
        let own = self.kind.own_priority().filter(|_| run.uses_node_priority);
        self.kind.ops(run.driver, own.unwrap_or(run.priority))
    }
}

/// A conditional node whose turn has come.
#[derive(Clone)]
struct Decision {
    run: Arc<Run>,
    conditional: Arc<Conditional<NodeKind>>,
    bodies: Vec<Arc<Section>>,
}

impl Task for Decision {
    fn step(&mut self) -> ops::Step {
        let type_ = self.conditional.type_;
        let value = self.run.driver.engine.conditions.get(self.conditional.condition.handle);
        let body = chosen(type_, self.bodies.len(), value).and_then(|place| self.bodies.get(place));
        let Some(body) = body else { return ops::Step::Done };
        let mut plan = Vec::new();
        if body.plan(&self.run, &mut plan).is_err() {
            // Something that the graph names is gone.
            return ops::Step::Fault(Sticky::LaunchFailed);
        }
        if type_ == CUgraphConditionalNodeType::WHILE
            && let Some(&lane) = body.lanes.first()
        {
            plan.push((self.run.lanes[lane], Op::Task(Box::new(self.clone()))));
        }
        ops::Step::Then(plan)
    }
}

/// The values that conditions have when a launch begins.
pub(super) struct Defaults {
    pub(super) driver: &'static Driver,
    pub(super) values: Vec<(u64, u32)>,
}

impl Task for Defaults {
    fn step(&mut self) -> ops::Step {
        for &(handle, value) in &self.values {
            self.driver.engine.conditions.set(handle, value);
        }
        ops::Step::Done
    }
}

/// Spreads steps over lanes and returns how many lanes that takes.
fn assign_lanes(steps: &mut [Step]) -> usize {
    // The last step of each lane.
    let mut tails: Vec<usize> = Vec::new();
    for place in 0..steps.len() {
        let continued = tails.iter().position(|tail| steps[place].after.contains(tail));
        let lane = match continued {
            Some(lane) => lane,
            None if tails.len() < MOST_LANES => {
                tails.push(place);
                tails.len() - 1
            }
            None => place % MOST_LANES,
        };
        tails[lane] = place;
        steps[place].lane = lane;
        for index in 0..steps[place].after.len() {
            let before = steps[place].after[index];
            if steps[before].lane != lane {
                steps[before].is_awaited = true;
            }
        }
    }
    tails.len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(after: &[&[usize]]) -> (Vec<usize>, usize) {
        let step = |after: &&[usize]| Step {
            key: 0,
            kind: NodeKind::Empty,
            after: after.to_vec(),
            lane: 0,
            is_awaited: false,
            is_enabled: true,
            bodies: Vec::new(),
        };
        let mut steps: Vec<Step> = after.iter().map(step).collect();
        let count = assign_lanes(&mut steps);
        (steps.iter().map(|step| step.lane).collect(), count)
    }

    #[test]
    fn a_chain_is_one_lane_and_a_branch_another() {
        assert_eq!(lanes(&[&[], &[0], &[1]]), (vec![0, 0, 0], 1));
        assert_eq!(lanes(&[&[], &[0], &[0], &[1, 2]]), (vec![0, 0, 1, 0], 2));
        assert_eq!(lanes(&[]), (vec![], 1));
    }

    #[test]
    fn more_branches_than_lanes_share_them() {
        let after: Vec<&[usize]> = vec![&[]; 3 * MOST_LANES];
        let (lanes, count) = lanes(&after);
        assert_eq!(count, MOST_LANES);
        assert!(lanes.iter().all(|lane| *lane < MOST_LANES));
    }
}
