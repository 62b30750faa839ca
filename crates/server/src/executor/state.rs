//! What one session has in the executor, and the dispatch of its commands. Each family of commands has a file of its own.

use super::Shared;
use super::array::Arrays;
use super::array_contents::Contents;
use super::claims::Claimed;
use super::context::Context;
use super::failure::Failure;
use super::flight::Flight;
use super::graph::Graphs;
use super::guard::Guard;
use super::holding::Holding;
use super::memory::Memory;
use super::meter::Meter;
use super::module::Modules;
use super::moving::Moved;
use super::pacing::Pacing;
use super::peer::Peers;
use super::printing::Printing;
use super::recording::{InUse, Records};
use super::repeating::Repeating;
use super::resharing::{Mover, Resharing};
use super::session_handle::SessionHandle;
use super::session_partitions::SessionPartitions;
use super::sharing::Sharing;
use super::stream::Streams;
use super::texture::Objects;
use super::tracing::Tracing;
use super::virtual_memory::VirtualMemory;
use super::waiting::Batches;
use super::watching::Watched;
use crate::counters::Counters;
use crate::driver::Driver;
use crate::history::{History, is_worth_noting};
use crate::standing::Standing;
use cuda_abi::types::*;
use link::ring::Command;
use link::wire::command::{self as wire, LEGACY_STREAM, Opcode};
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::FromBytes;

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its answer can be given.
    Done,
    /// The caller waits for work: the answer comes then.
    Await(Awaited),
}

/// What a caller waits for. Never a driver's handle: another thread of the client may end the stream meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// All work of a stream of the client's.
    Stream(u32),
    /// Copies apart from the client's streams.
    SideStream,
}

/// One session's objects.
pub(crate) struct State {
    pub(super) shared: Arc<Shared>,
    pub(super) handle: Arc<SessionHandle>,
    pub(super) flight: Arc<Flight>,
    pub(super) counter_slot: usize,
    pub(super) streams: Streams,
    pub(super) events: HashMap<u32, Arc<CUevent>>,
    pub(super) graphs: Graphs,
    pub(super) batches: Batches,
    pub(super) memory: Memory,
    pub(super) modules: Modules,
    pub(super) virtual_memory: VirtualMemory,
    pub(super) watched: Watched,
    pub(super) arrays: Arrays,
    pub(super) contents: Contents,
    pub(super) objects: Objects,
    /// Values of the driver's that it has had in another executor.
    pub(super) claimed: Claimed,
    pub(super) sharing: Sharing,
    pub(super) peers: Peers,
    pub(super) partitions: SessionPartitions,
    pub(super) resharing: Resharing,
    pub(super) mover: Arc<Mover>,
    pub(super) holding: Holding,
    /// Device memory that is in host memory.
    pub(super) moved: Moved,
    /// Stack per thread that every context has.
    pub(super) default_stack_bytes: u64,
    /// Local memory per thread, beyond that, which is counted for this client.
    pub(super) local_bytes: u64,
    /// The log says that this session was refused a limit of the context.
    pub(super) limit_refusal_is_said: bool,
    /// For copies that wait for no stream of the client's.
    pub(super) side_stream: Option<CUstream>,
    pub(super) printing: Printing,
    pub(super) meter: Meter,
    pub(super) tracing: Option<Box<Tracing>>,
    pub(super) pacing: Pacing,
    pub(super) guard: Guard,
    pub(super) repeating: Repeating,
    /// How far it is, for the keeper and the next executor.
    pub(super) standing: Standing,
    /// What it consists of, for the next executor.
    pub(super) records: Records,
    /// The code of the module that was just unloaded, if graphs name it.
    pub(super) unloaded_in_use: InUse,
    /// The function launched last, for the log.
    pub(super) last_function: Option<u32>,
    /// The answer being made.
    pub(super) reply: Vec<u8>,
}

impl State {
    pub(super) fn context(&self) -> &Context {
        &self.shared.context
    }

    pub(super) fn driver(&self) -> Driver {
        self.shared.context.driver()
    }

    pub(super) fn counters(&self) -> &Counters {
        self.shared.counters.slot(self.counter_slot)
    }

    /// Its last calls, for whoever looks for a culprit.
    pub(super) fn history(&self) -> &History {
        self.shared.counters.history(self.counter_slot)
    }

    pub(super) fn check(&self, result: CUresult) -> Result<(), Failure> {
        Ok(self.shared.context.check(result)?)
    }

    pub(super) fn stream_for_work(&mut self, slot: u32) -> Result<CUstream, Failure> {
        self.note_work();
        self.open_legacy(slot)?;
        self.repeating.note_other(slot, self.records.position);
        self.streams.for_work(&self.shared.context, slot)
    }

    /// The driver's stream that a caller waits for.
    pub(super) fn awaited_stream(&self, awaited: Awaited) -> Option<CUstream> {
        match awaited {
            Awaited::Stream(slot) => self.streams.handle(slot),
            Awaited::SideStream => self.side_stream,
        }
    }

    /// The session's default stream is made when it is first used.
    fn open_legacy(&mut self, slot: u32) -> Result<(), Failure> {
        if slot != LEGACY_STREAM {
            return Ok(());
        }
        let priority = self.stream_priority(0);
        let completed = || self.handle.words.completed(slot);
        let share = || self.partitions.own();
        self.streams.open_legacy(&self.shared.context, priority, share, completed)
    }

    /// Refuses a signal that the client may not ask for now.
    pub(super) fn check_signal(&mut self, slot: u32, value: u64) -> Result<(), Failure> {
        self.open_legacy(slot)?;
        self.streams.check_signal(slot, value)
    }

    /// Makes the device write `value`, which was checked, to the stream's completion word after all its earlier work.
    pub(super) fn signal(&mut self, slot: u32, value: u64) -> Result<(), Failure> {
        let stream = self.streams.for_signal(&self.shared.context, slot, value)?;
        self.history().signal(slot, value);
        self.handle.note_streams(self.streams.slots());
        let address = self.memory.completion_address(slot);
        // SAFETY: a word of the completion file, which is registered for as long as the session lives.
        self.check(unsafe { self.driver().cuStreamWriteValue64_v2(stream, address, value, 0) })
    }

    /// The error that answers everything, once there is one.
    pub(super) fn ended(&self) -> Option<CUresult> {
        // In a lost context not every driver would say so to every call.
        self.handle.ended().or(self.context().lost())
    }

    /// Why nothing more is done for the client, who has left if there is no other reason.
    pub(super) fn ending(&self) -> Failure {
        Failure::Cuda(self.ended().unwrap_or(CUresult::ERROR_MPS_CLIENT_TERMINATED))
    }

    /// Does one command, or keeps it until what it waits for is there.
    pub(super) fn obey(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        match self.ended() {
            Some(code) => Err(Failure::Cuda(code)),
            None if self.admit(command)? => self.execute(command),
            None => Ok(Outcome::Done),
        }
    }

    /// Does one command; its answer, if any, is in `self.reply`.
    pub(super) fn execute(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        match self.is_traced() {
            true => self.execute_traced(command),
            false => self.execute_now(command),
        }
    }

    pub(super) fn execute_now(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        self.reply.clear();
        let number = command.header.opcode;
        let Some(opcode) = Opcode::from_number(number) else {
            return Err(Failure::Protocol(format!("opcode {number} does not exist")));
        };
        if is_worth_noting(opcode) {
            self.history().call(opcode);
        }
        let outcome = self.perform_noted(opcode, command)?;
        self.record(opcode, command.body)?;
        Ok(outcome)
    }

    pub(super) fn perform(
        &mut self,
        opcode: Opcode,
        command: &Command<'_>,
    ) -> Result<Outcome, Failure> {
        if takes_memory_away(opcode) {
            self.end_probing();
        }
        match opcode {
            Opcode::Ping => Ok(()),
            Opcode::StreamCreate => self.stream_create(parse(command)?.0),
            Opcode::StreamDestroy => {
                let wanted: wire::StreamDestroy = parse(command)?.0;
                self.forget_stream_chains(wanted.stream);
                self.streams.destroy(&self.shared.context, wanted.stream)
            }
            Opcode::Signal => {
                let wire::Signal { stream, value, .. } = parse(command)?.0;
                self.check_signal(stream, value)?;
                self.signal(stream, value)
            }
            Opcode::StreamSynchronize => {
                let slot = parse::<wire::StreamSynchronize>(command)?.0.stream;
                self.stream_for_work(slot)?;
                return Ok(Outcome::Await(Awaited::Stream(slot)));
            }
            Opcode::StreamWaitEvent => self.stream_wait_event(parse(command)?.0),
            Opcode::EventCreate => self.event_create(parse(command)?.0),
            Opcode::EventDestroy => self.event_destroy(parse(command)?.0),
            Opcode::EventRecord => self.event_record(parse(command)?.0),
            Opcode::EventElapsed => self.event_elapsed(parse(command)?.0),
            Opcode::Grow => self.grow(parse(command)?.0),
            Opcode::Release => self.release(parse(command)?.0),
            Opcode::MemoryInfo => self.memory_info(),
            Opcode::RegionMap => self.region_map(parse(command)?.0),
            Opcode::RegionUnmap => self.region_unmap(parse(command)?.0),
            Opcode::Copy => self.copy(parse(command)?.0),
            Opcode::Copy3d => self.copy_3d(parse(command)?.0),
            Opcode::Fill => self.fill(parse(command)?.0),
            Opcode::StreamWriteValue => self.stream_write_value(parse(command)?.0),
            // Its turn has come, so the value is there: nothing is left to do.
            Opcode::StreamWaitValue | Opcode::StreamWaitPeer => Ok(()),
            Opcode::ModuleLoad => self.module_load(parse(command)?.0),
            Opcode::ModuleUnload => self.module_unload(parse(command)?.0),
            Opcode::FunctionGet => {
                parse(command).and_then(|(wanted, rest)| self.function_get(wanted, rest))
            }
            Opcode::GlobalGet => {
                parse(command).and_then(|(wanted, rest)| self.global_get(wanted, rest))
            }
            Opcode::FunctionSetAttribute => self.function_set_attribute(parse(command)?.0),
            Opcode::ModuleKernels => self.module_kernels(parse(command)?.0),
            Opcode::Occupancy => self.occupancy(parse(command)?.0),
            Opcode::FunctionAttributes => self.function_attributes(parse(command)?.0),
            Opcode::Launch => parse(command).and_then(|(wanted, rest)| self.launch(wanted, rest)),
            Opcode::OutputTake => self.output_take(),
            Opcode::GraphCreate => self.graph_create(parse(command)?.0),
            Opcode::GraphDestroy => self.graph_destroy(parse(command)?.0),
            Opcode::GraphLaunch => self.graph_launch(parse(command)?.0),
            Opcode::GraphUpload => self.graph_upload(parse(command)?.0),
            Opcode::GraphSet => {
                parse(command).and_then(|(wanted, rest)| self.graph_set(wanted, rest))
            }
            Opcode::GraphEnable => self.graph_enable(parse(command)?.0),
            Opcode::GraphCondition => self.graph_condition(parse(command)?.0),
            Opcode::GraphHomeDestroy => self.graph_home_destroy(parse(command)?.0),
            Opcode::GraphConditional => {
                Err(Failure::Protocol("a conditional node is no command".into()))
            }
            Opcode::LimitGet => self.limit_get(parse(command)?.0),
            Opcode::LimitSet => self.limit_set(parse(command)?.0),
            Opcode::ClusterOccupancy => {
                parse(command).and_then(|(wanted, rest)| self.cluster_occupancy(wanted, rest))
            }
            Opcode::TensorMapEncode => self.tensor_map_encode(parse(command)?.0),
            Opcode::TensorMapAddress => self.tensor_map_address(parse(command)?.0),
            Opcode::AddressReserve => self.address_reserve(parse(command)?.0),
            Opcode::AddressFree => self.address_free(parse(command)?.0),
            Opcode::MemoryCreate => self.memory_create(parse(command)?.0),
            Opcode::MemoryRelease => self.memory_release(parse(command)?.0),
            Opcode::MemoryMap => self.memory_map(parse(command)?.0),
            Opcode::MemoryUnmap => self.memory_unmap(parse(command)?.0),
            Opcode::MemorySetAccess => self.memory_set_access(parse(command)?.0),
            Opcode::MemoryExport => self.memory_export(parse(command)?.0),
            Opcode::MemoryImport => self.memory_import(parse(command)?.0),
            Opcode::ShareMemory => self.share_memory(parse(command)?.0),
            Opcode::UnshareMemory => self.unshare_memory(parse(command)?.0),
            Opcode::OpenMemory => self.open_memory(parse(command)?.0),
            Opcode::CloseMemory => self.close_memory(parse(command)?.0),
            Opcode::ShareEvent => self.share_event(parse(command)?.0),
            Opcode::OpenEvent => self.open_event(parse(command)?.0),
            Opcode::EventQuery => self.event_query(parse(command)?.0),
            Opcode::ResourceGet => self.resource_get(parse(command)?.0),
            Opcode::ResourceSplit => self.resource_split(parse(command)?.0),
            Opcode::ResourceDescribe => {
                parse(command).and_then(|(wanted, rest)| self.resource_describe(wanted, rest))
            }
            Opcode::PartitionCreate => self.partition_create(parse(command)?.0),
            Opcode::PartitionTake => self.partition_take(parse(command)?.0),
            Opcode::PartitionDrop => self.partition_drop(parse(command)?.0),
            Opcode::PeerShow => self.peer_show(parse(command)?.0),
            Opcode::PeerMap => self.peer_map(parse(command)?.0),
            Opcode::PeerUnmap => self.peer_unmap(parse(command)?.0),
            Opcode::TraceStart => self.trace_start(),
            Opcode::TraceStop => {
                self.end_tracing();
                Ok(())
            }
            Opcode::CopyNow => return self.copy_now(parse(command)?.0),
            Opcode::ArrayCreate => self.array_create(parse(command)?.0),
            Opcode::ArrayDestroy => self.array_destroy(parse(command)?.0),
            Opcode::ArrayLevel => self.array_level(parse(command)?.0),
            Opcode::ArrayMemory => self.array_memory(parse(command)?.0),
            Opcode::ArrayCopy => self.array_copy(parse(command)?.0),
            Opcode::TextureCreate => self.texture_create(parse(command)?.0),
            Opcode::TextureDestroy => self.texture_destroy(parse(command)?.0),
        }?;
        Ok(Outcome::Done)
    }
}

/// Whether memory that a probe reads may be gone after such a command.
fn takes_memory_away(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Release
            | Opcode::RegionUnmap
            | Opcode::ModuleUnload
            | Opcode::MemoryUnmap
            | Opcode::MemorySetAccess
            | Opcode::CloseMemory
            | Opcode::PeerUnmap
    )
}

fn parse<'a, T: FromBytes>(command: &Command<'a>) -> Result<(T, &'a [u8]), Failure> {
    command.parse().ok_or_else(|| {
        let (opcode, length) = (command.header.opcode, command.body.len());
        Failure::Protocol(format!(
            "a command of opcode {opcode} has only {length} bytes after its header"
        ))
    })
}
