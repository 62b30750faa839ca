//! Checks a described node as the command would be that it stands for.

use super::{Code, Node, Work};
use crate::session::failure::{Failure, INVALID};
use crate::session::state::State;
use crate::submit::copy::{extent_bytes, volume_bytes};
use crate::submit::launch::split;
use cuda_abi::graph::params::write_of;
use cuda_abi::types::*;
use link::wire::command::{
    Copy, Copy3d, EventRecord, Fill, Launch, Opcode, StreamWaitEvent, StreamWriteValue,
};
use link::wire::graph::ConditionalNode;
use std::sync::Arc;
use zerocopy::FromBytes;

fn body<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Failure> {
    T::read_from_prefix(bytes)
        .map_err(|_| Failure::Protocol("a graph's node is shorter than its command".into()))
}

impl State {
    /// Checks a described node.
    pub(super) fn check_node<'a>(
        &self,
        described: &link::wire::graph::Node<'a>,
    ) -> Result<(Node, Work<'a>), Failure> {
        let mut node = Node::new(described.opcode);
        let bytes = described.body;
        let work = match described.opcode {
            Opcode::Launch => {
                let (shape, rest) = body::<Launch>(bytes)?;
                let (mut attributes, parameters) = split(&shape, rest)?;
                self.map_priorities(&mut attributes);
                let function = self.modules.function(shape.function)?;
                // The driver takes what its kernel has, whatever the client says.
                let parameters = parameters.get(..function.parameter_bytes as usize);
                let parameters = parameters.ok_or(CUresult::ERROR_INVALID_VALUE)?;
                node.function = Some(shape.function);
                node.prints = function.prints;
                node.frame_bytes = function.frame_bytes;
                node.parameter_bytes = function.parameter_bytes;
                node.library = Some(self.modules.library_of(function)?);
                node.attributes = attributes.iter().map(|attribute| attribute.id).collect();
                node.place = shape.stream;
                node.partition = self.partitions.find(shape.stream)?;
                let code = match &node.partition {
                    Some(partition) => Code::Kernel(function.kernel, partition.context()),
                    None => Code::Function(function.handle),
                };
                let parameters = self.present_parameters(parameters);
                Work::Kernel { shape, code, parameters, attributes }
            }
            Opcode::Copy => {
                let (Copy { destination, source, size_bytes, .. }, _) = body(bytes)?;
                let whole = Copy3d {
                    destination,
                    source,
                    width_bytes: size_bytes,
                    height: 1,
                    depth: 1,
                    ..Default::default()
                };
                Work::Copy(Box::new(self.check_copy(&mut node, whole)?))
            }
            Opcode::Copy3d => Work::Copy(Box::new(self.check_copy(&mut node, body(bytes)?.0)?)),
            Opcode::Fill => Work::Fill(self.check_fill(&mut node, body(bytes)?.0)?),
            Opcode::EventRecord => {
                let (EventRecord { event, .. }, _) = body(bytes)?;
                node.event_number = Some(event);
                Work::Record(*node.event.insert(self.graph_event(event)?).as_ref())
            }
            Opcode::StreamWaitEvent => {
                let (StreamWaitEvent { event, .. }, _) = body(bytes)?;
                node.event_number = Some(event);
                Work::Wait(*node.event.insert(self.graph_event(event)?).as_ref())
            }
            Opcode::StreamWriteValue => {
                let (words, rest) = bytes.as_chunks::<{ size_of::<StreamWriteValue>() }>();
                if !rest.is_empty() {
                    return Err(Failure::Protocol("a graph's node has half a value".into()));
                }
                let words = words.iter().map(|word| {
                    let word = zerocopy::transmute!(*word);
                    self.check_write(&mut node, word)
                });
                Work::Write(words.collect::<Result<_, _>>()?)
            }
            Opcode::GraphConditional => {
                let (ConditionalNode { handle, kind, bodies }, rest) = body(bytes)?;
                let (sections, rest) = rest.as_chunks::<4>();
                if sections.len() != bodies as usize || !rest.is_empty() {
                    return Err(Failure::Protocol(
                        "a conditional node does not say what its graphs are".into(),
                    ));
                }
                Work::Conditional {
                    handle,
                    type_: CUgraphConditionalNodeType(kind),
                    sections: sections.iter().map(|number| u32::from_ne_bytes(*number)).collect(),
                }
            }
            // The description has no others.
            _ => Work::Empty,
        };
        Ok((node, work))
    }

    /// Notes the addresses of variables that a node gives its kernel.
    pub(crate) fn give_to_node(
        &mut self,
        described: &link::wire::graph::Node<'_>,
    ) -> Result<(), Failure> {
        if described.opcode != Opcode::Launch || self.memory.followed.is_empty() {
            return Ok(());
        }
        let (shape, rest) = body::<Launch>(described.body)?;
        let (_, parameters) = split(&shape, rest)?;
        self.give_addresses(parameters)
    }

    /// An event for a node, which keeps it; events of several processes are absent.
    fn graph_event(&self, number: u32) -> Result<Arc<CUevent>, Failure> {
        if self.is_shared_event(number) {
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        self.kept_event(number)
    }

    /// Where it is what the node reads or writes.
    fn touch(&self, node: &mut Node, at: u64, size_bytes: u64) -> Result<u64, Failure> {
        let present = self.reach(at, size_bytes)?;
        node.touches.push((at, size_bytes));
        Ok(present)
    }

    fn check_copy(&self, node: &mut Node, wanted: Copy3d) -> Result<CUDA_MEMCPY3D, Failure> {
        let Copy3d { destination, source, width_bytes, height, depth, .. } = wanted;
        if width_bytes == 0 || height == 0 || depth == 0 {
            return Err(INVALID);
        }
        // The driver's structure counts rows from slice to slice.
        let rows = |pitch: u64, slice: u64| match depth {
            1 => Ok(height),
            _ if pitch > 0 && slice.is_multiple_of(pitch) => Ok(slice / pitch),
            _ => Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED)),
        };
        let pitch = |pitch: u64| if height == 1 && depth == 1 { width_bytes } else { pitch };
        let (to_pitch, from_pitch) =
            (pitch(wanted.destination_pitch_bytes), pitch(wanted.source_pitch_bytes));
        let extent = |pitch, slice| volume_bytes(width_bytes, height, depth, pitch, slice);
        let to = extent(to_pitch, wanted.destination_slice_bytes).ok_or(INVALID)?;
        let from = extent(from_pitch, wanted.source_slice_bytes).ok_or(INVALID)?;
        let destination = self.touch(node, destination, to)?;
        let source = self.touch(node, source, from)?;
        node.copied_bytes = width_bytes.saturating_mul(height).saturating_mul(depth);
        Ok(CUDA_MEMCPY3D {
            srcMemoryType: CUmemorytype::UNIFIED,
            srcDevice: source,
            srcPitch: from_pitch as usize,
            srcHeight: rows(from_pitch, wanted.source_slice_bytes)? as usize,
            dstMemoryType: CUmemorytype::UNIFIED,
            dstDevice: destination,
            dstPitch: to_pitch as usize,
            dstHeight: rows(to_pitch, wanted.destination_slice_bytes)? as usize,
            WidthInBytes: width_bytes as usize,
            Height: height as usize,
            Depth: depth as usize,
            ..Default::default()
        })
    }

    fn check_fill(
        &self,
        node: &mut Node,
        wanted: Fill,
    ) -> Result<CUDA_MEMSET_NODE_PARAMS, Failure> {
        let Fill { element_bytes, destination, pitch_bytes, width, height, value, .. } = wanted;
        if !matches!(element_bytes, 1 | 2 | 4) || width == 0 || height == 0 {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let row_bytes = width.checked_mul(element_bytes.into()).ok_or(INVALID)?;
        let extent = extent_bytes(row_bytes, height, 1, pitch_bytes, 0).ok_or(INVALID)?;
        let destination = self.touch(node, destination, extent)?;
        Ok(CUDA_MEMSET_NODE_PARAMS {
            dst: destination,
            pitch: pitch_bytes as usize,
            value,
            elementSize: element_bytes,
            width: width as usize,
            height: height as usize,
        })
    }

    fn check_write(
        &self,
        node: &mut Node,
        wanted: StreamWriteValue,
    ) -> Result<CUstreamBatchMemOpParams, Failure> {
        let StreamWriteValue { value_bytes, address, value, flags, .. } = wanted;
        if value_bytes == 0 {
            let mut barrier = CUstreamBatchMemOpParams::default();
            barrier.memoryBarrier.operation = CUstreamBatchMemOpType::BARRIER;
            return Ok(barrier);
        }
        let operation = match value_bytes {
            4 => CUstreamBatchMemOpType::WRITE_VALUE_32,
            8 => CUstreamBatchMemOpType::WRITE_VALUE_64,
            _ => return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE)),
        };
        let address = self.touch(node, address, value_bytes.into())?;
        Ok(write_of(operation, address, value, flags))
    }
}
