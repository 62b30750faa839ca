//! A kernel of a module: what is known of it, what is asked once, what can be set.

use crate::code::answers::Answers;
use crate::code::attributes::Attributes;
use crate::code::function_settings::{Bounds, FunctionSettings};
use crate::context::Context;
use crate::context::backend::Backend;
use crate::context::device::Device;
use crate::result::Result;
use cuda_abi::types::{CUfunction_attribute, CUresult};
use link::wire::command::{
    FunctionAttribute, FunctionAttributes, FunctionAttributesReply, FunctionGetReply,
    FunctionSetAttribute, LaunchAttribute, Occupancy, OccupancyReply, Opcode, Parameter,
};
use link::wire::query::{ClusterOccupancy, ClusterReply};
use std::ffi::CString;
use std::sync::{Arc, OnceLock};
use zerocopy::{FromBytes, IntoBytes};

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) token: usize,
    /// Handle of its module.
    pub(crate) module: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) wire_id: u32,
    pub(crate) number: u32,
    pub(crate) name: CString,
    /// Handle of the library's kernel that it is the function of, if it is.
    pub(crate) kernel: OnceLock<usize>,
    pub(crate) parameters: Vec<Parameter>,
    /// Length of the packed parameters.
    pub(crate) packed_bytes: usize,
    /// It can print.
    pub(crate) prints: bool,
    pub(super) settings: FunctionSettings,
    pub(super) occupancy: Answers<OccupancyQuestion, OccupancyReply>,
    /// By the question's bytes, attributes included.
    pub(super) clusters: Answers<Vec<u8>, ClusterReply>,
}

/// Threads of a block, dynamic shared bytes, flags, greatest block.
type OccupancyQuestion = (u32, u64, u32, u32);

/// Whether it can print, its parameters, its attributes.
pub(super) type Described = (bool, Vec<Parameter>, Attributes);

/// A function as the executor describes it.
pub(super) fn described(reply: &[u8]) -> Option<Described> {
    let (counts, rest) = FunctionGetReply::read_from_prefix(reply).ok()?;
    let (parameters, rest) =
        <[Parameter]>::ref_from_prefix_with_elems(rest, counts.parameters as usize).ok()?;
    let attributes = attributes(rest, counts.attributes as usize)?;
    Some((counts.prints != 0, parameters.to_vec(), attributes))
}

/// Length of a kernel's packed parameters.
pub(super) fn packed_bytes(parameters: &[Parameter]) -> usize {
    parameters.iter().map(|p| (p.offset + p.size_bytes) as usize).max().unwrap_or(0)
}

fn attributes(bytes: &[u8], count: usize) -> Option<Attributes> {
    let (attributes, _) = <[FunctionAttribute]>::ref_from_prefix_with_elems(bytes, count).ok()?;
    Some(attributes.iter().map(|a| (a.attribute, a.value)).collect())
}

impl Function {
    /// A cached attribute: CUDA_ERROR_INVALID_VALUE for what the driver does not know.
    pub(crate) fn attribute(&self, attribute: CUfunction_attribute) -> Result<i32> {
        self.settings.get(attribute).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// A cached attribute that counts something.
    pub(crate) fn count(&self, attribute: CUfunction_attribute) -> Option<u32> {
        self.attribute(attribute).ok().and_then(|value| u32::try_from(value).ok())
    }

    /// Sets an attribute (a `CUfunction_attribute`, or the wire's own numbers): see
    /// [`crate::code::function_settings`]. `device` is its context's.
    pub(crate) fn set_attribute(&self, device: &Device, attribute: i32, value: i32) -> Result {
        let (backend, id) = self.context.backend()?;
        if self.settings.has(attribute, value) {
            return backend.session.check();
        }
        let bounds = Bounds::of(device);
        let body = FunctionSetAttribute { function: self.number, attribute, value, reserved: 0 };
        let _changing = self.settings.lock();
        if self.settings.is_valid(bounds, attribute, value) {
            backend.session.post(id, Opcode::FunctionSetAttribute, &body)?;
            self.settings.note_posted(attribute, value);
        } else {
            backend.session.call(id, Opcode::FunctionSetAttribute, &[body.as_bytes()])?;
            let read = self.read_attributes(backend, id)?;
            self.settings.note_driver(attribute, value, &read);
        }
        self.occupancy.forget();
        self.clusters.forget();
        Ok(())
    }

    /// All attributes as the driver has them.
    fn read_attributes(&self, backend: &Backend, id: u32) -> Result<Attributes> {
        let body = FunctionAttributes { function: self.number, reserved: 0 };
        let reply = backend.session.call(id, Opcode::FunctionAttributes, &[body.as_bytes()])?;
        FunctionAttributesReply::read_from_prefix(&reply)
            .ok()
            .and_then(|(count, rest)| attributes(rest, count.attributes as usize))
            .ok_or(CUresult::ERROR_MPS_RPC_FAILURE)
    }

    /// Occupancy, asked once per question.
    pub(crate) fn occupancy(&self, question: Occupancy) -> Result<OccupancyReply> {
        let key = (
            question.block_threads,
            question.dynamic_shared_bytes,
            question.flags,
            question.block_limit,
        );
        self.occupancy.find_or_ask(key, || {
            let (backend, id) = self.context.backend()?;
            let body = Occupancy { function: self.number, ..question };
            backend.session.call_for(id, Opcode::Occupancy, &[body.as_bytes()])
        })
    }

    /// What a launch with these attributes could have of clusters and shared memory, asked once per
    /// question: the driver's answer is about the whole device, whatever a client's share of it.
    pub(crate) fn cluster_occupancy(
        &self,
        question: ClusterOccupancy,
        attributes: &[LaunchAttribute],
    ) -> Result<i32> {
        let body = ClusterOccupancy { function: self.number, ..question };
        let parts = [body.as_bytes(), attributes.as_bytes()];
        let reply = self.clusters.find_or_ask(parts.concat(), || {
            let (backend, id) = self.context.backend()?;
            backend.session.call_for(id, Opcode::ClusterOccupancy, &parts)
        });
        reply.map(|reply| reply.value)
    }
}
