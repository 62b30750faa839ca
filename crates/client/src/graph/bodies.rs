//! Graphs of conditional nodes, as an executable graph has them.
//!
//! They lie flat behind the graph's own nodes, section by section, in the order in which the
//! executor is told of them; it counts nodes through all sections.

use super::encoding::{Encoded, encode};
use super::kinds::NodeKind;
use super::plan::Step;
use cuda_abi::graph::snapshot::Snapshot;
use link::wire::command::Opcode;
use link::wire::graph::{ConditionalNode, DescriptionWriter};
use std::collections::HashMap;
use zerocopy::IntoBytes;

/// All sections but the first, which is the graph itself.
#[derive(Clone, Default)]
pub(super) struct Bodies {
    sections: Vec<Vec<Step>>,
    /// By conditional node: the numbers of its sections.
    of: HashMap<usize, Vec<u32>>,
}

impl Bodies {
    /// The graphs of all conditional nodes among `steps`, and of those in them.
    pub(super) fn of(source: &Snapshot<NodeKind>, steps: &[Step]) -> Self {
        let mut bodies = Self::default();
        bodies.collect(source, steps);
        bodies
    }

    fn collect(&mut self, source: &Snapshot<NodeKind>, steps: &[Step]) {
        for step in steps.iter().filter(|step| matches!(step.kind, NodeKind::Conditional(_))) {
            for body in source.inside(step.key) {
                let own: Vec<Step> = body.flatten().into_iter().map(Step::from).collect();
                self.sections.push(own.clone());
                let number = self.sections.len() as u32;
                self.of.entry(step.key).or_default().push(number);
                self.collect(body, &own);
            }
        }
    }

    /// How many graphs there are.
    pub(super) fn count(&self) -> u32 {
        self.sections.len() as u32
    }

    /// All steps.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.sections.iter().flatten()
    }

    /// A step, and its place behind the first section's nodes.
    pub(super) fn find(&self, key: usize) -> Option<(usize, &Step)> {
        self.steps().enumerate().find(|(_, step)| step.key == key)
    }

    /// A step.
    pub(super) fn find_mut(&mut self, key: usize) -> Option<&mut Step> {
        self.sections.iter_mut().flatten().find(|step| step.key == key)
    }

    /// The executor's part of a step, here or in the graph itself.
    pub(super) fn encode(&self, step: &Step) -> Encoded {
        let NodeKind::Conditional(conditional) = &step.kind else { return encode(&step.kind) };
        let sections = self.of.get(&step.key).map(Vec::as_slice).unwrap_or_default();
        let node = ConditionalNode {
            handle: conditional.condition.handle,
            kind: conditional.type_.0,
            bodies: sections.len() as u32,
        };
        Encoded {
            opcode: Opcode::GraphConditional,
            body: [node.as_bytes(), sections.as_bytes()].concat(),
        }
    }

    /// The sections' descriptions, in order; `None` if one is larger than an executor takes.
    pub(super) fn describe(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for section in &self.sections {
            let mut writer = DescriptionWriter::default();
            for step in section {
                let encoded = self.encode(step);
                writer.add(encoded.opcode, &[&encoded.body]);
            }
            for (place, step) in section.iter().enumerate() {
                step.after.iter().for_each(|&before| writer.depend(before as u32, place as u32));
            }
            bytes.extend(writer.finish()?);
        }
        Some(bytes)
    }
}
