//! What one session has in the executor, and the dispatch of its commands. Each family of commands
//! has a file of its own.

use super::failure::Failure;
use super::session_handle::SessionHandle;
use crate::Shared;
use crate::code::guard::Guard;
use crate::code::module::Modules;
use crate::context::Context;
use crate::memory::Memory;
use crate::memory::peer::Peers;
use crate::memory::virtual_memory::VirtualMemory;
use crate::objects::array::Arrays;
use crate::objects::array_contents::Contents;
use crate::objects::claims::Claimed;
use crate::objects::event::PastTimes;
use crate::objects::graph::Graphs;
use crate::objects::printing::Printing;
use crate::objects::sharing::Sharing;
use crate::objects::stream::Streams;
use crate::objects::texture::Objects;
use crate::recovery::recording::{InUse, Records};
use crate::recovery::relocation::Relocation;
use crate::recovery::repeating::Repeating;
use crate::residency::moving::Moved;
use crate::sms::resharing::{Mover, Resharing};
use crate::sms::session_partitions::SessionPartitions;
use crate::submit::holding::Holding;
use crate::submit::retired::Retired;
use crate::submit::waiting::Batches;
use crate::submit::watching::Watched;
use crate::turns::flight::Flight;
use crate::turns::meter::Meter;
use crate::turns::pacing::Pacing;
use crate::watch::tracing::Tracing;
use cuda_abi::types::*;
use executor_link::counters::Counters;
use executor_link::driver::Driver;
use executor_link::history::History;
use executor_link::log::log_server;
use executor_link::standing::Standing;
use link::ring::Command;
use link::wire::command::{self as wire, LEGACY_STREAM, Opcode, Request, Trail};
use std::collections::HashMap;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its answer can be given.
    Done,
    /// The caller waits for all work of this stream of the client's: the answer comes then. Never a
    /// driver's handle: another thread of the client may end the stream meanwhile.
    Await(u32),
}

/// One session's objects.
pub(crate) struct State {
    pub(crate) shared: Arc<Shared>,
    pub(crate) handle: Arc<SessionHandle>,
    pub(crate) flight: Arc<Flight>,
    pub(crate) counter_slot: usize,
    pub(crate) streams: Streams,
    pub(crate) events: HashMap<u32, Arc<CUevent>>,
    pub(crate) graphs: Graphs,
    pub(crate) retired: Retired,
    pub(crate) batches: Batches,
    pub(crate) memory: Memory,
    pub(crate) modules: Modules,
    pub(crate) virtual_memory: VirtualMemory,
    pub(crate) watched: Watched,
    pub(crate) arrays: Arrays,
    pub(crate) contents: Contents,
    pub(crate) objects: Objects,
    /// Values of the driver's that it has had in another executor.
    pub(crate) claimed: Claimed,
    pub(crate) sharing: Sharing,
    pub(crate) peers: Peers,
    pub(crate) partitions: SessionPartitions,
    pub(crate) resharing: Resharing,
    pub(crate) mover: Arc<Mover>,
    pub(crate) holding: Holding,
    /// Device memory that is in host memory.
    pub(crate) moved: Moved,
    /// Stack per thread that every context has.
    pub(crate) default_stack_bytes: u64,
    /// Local memory per thread, beyond that, which is counted for this client.
    pub(crate) local_bytes: u64,
    /// The log says that this session was refused a limit of the context.
    pub(crate) limit_refusal_is_said: bool,
    /// For copies that wait for no stream of the client's.
    pub(crate) side_stream: Option<CUstream>,
    pub(crate) printing: Printing,
    pub(crate) meter: Meter,
    pub(crate) tracing: Option<Box<Tracing>>,
    pub(crate) pacing: Pacing,
    pub(crate) guard: Guard,
    pub(crate) repeating: Repeating,
    /// How far it is, for the keeper and the next executor.
    pub(crate) standing: Standing,
    /// What it consists of, for the next executor.
    pub(crate) records: Records,
    /// The code of the module that was just unloaded, if graphs name it.
    pub(crate) unloaded_in_use: InUse,
    /// The function launched last, for the log.
    pub(crate) last_function: Option<u32>,
    /// The answer being made.
    pub(crate) reply: Vec<u8>,
    pub(crate) relocation: Relocation,
    pub(crate) past_times: PastTimes,
}

impl State {
    pub(crate) fn context(&self) -> &Context {
        &self.shared.context
    }

    pub(crate) fn driver(&self) -> Driver {
        self.shared.context.driver()
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.shared.counters.slot(self.counter_slot)
    }

    /// Its last calls, for whoever looks for a culprit.
    pub(crate) fn history(&self) -> &History {
        self.shared.counters.history(self.counter_slot)
    }

    pub(crate) fn check(&self, result: CUresult) -> Result<(), Failure> {
        Ok(self.shared.context.check(result)?)
    }

    /// Answers with this, behind what was answered before.
    pub(crate) fn answer(
        &mut self,
        answer: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Result<(), Failure> {
        self.reply.extend_from_slice(answer.as_bytes());
        Ok(())
    }

    pub(crate) fn stream_for_work(&mut self, slot: u32) -> Result<CUstream, Failure> {
        self.note_work();
        self.open_legacy(slot)?;
        self.repeating.note_other(slot, self.records.position);
        self.streams.for_work(&self.shared.context, slot)
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
    pub(crate) fn check_signal(&mut self, slot: u32, value: u64) -> Result<(), Failure> {
        self.open_legacy(slot)?;
        self.streams.check_signal(slot, value)
    }

    /// Makes the device write `value`, which was checked, to the stream's completion word after all
    /// its earlier work.
    pub(crate) fn signal(&mut self, slot: u32, value: u64) -> Result<(), Failure> {
        let stream = self.streams.for_signal(&self.shared.context, slot, value)?;
        self.history().signal(slot, value);
        self.handle.note_streams(self.streams.slots());
        let address = self.memory.completion_address(slot);
        // SAFETY: a word of the completion file, which is registered for as long as the session
        // lives.
        self.check(unsafe { self.driver().cuStreamWriteValue64_v2(stream, address, value, 0) })
    }

    /// Whether there is work that is not known to have ended.
    pub(crate) fn may_work(&self) -> bool {
        self.streams.in_flight(|slot| self.handle.words.completed(slot))
    }

    /// Whether all work has ended; asks the driver where it is not known.
    pub(crate) fn has_ended(&mut self) -> bool {
        let words = &self.handle.words;
        self.streams.have_ended(&self.shared.context, |slot| words.completed(slot))
    }

    /// Whether nothing is to be waited for any more.
    pub(crate) fn is_given_up(&self) -> bool {
        self.handle.gives_up() || self.context().lost().is_some()
    }

    /// The error that answers everything, once there is one.
    pub(crate) fn ended(&self) -> Option<CUresult> {
        // In a lost context not every driver would say so to every call.
        self.handle.ended().or(self.context().lost())
    }

    /// Why nothing more is done for the client, who has left if there is no other reason.
    pub(crate) fn ending(&self) -> Failure {
        Failure::Cuda(self.ended().unwrap_or(CUresult::ERROR_MPS_CLIENT_TERMINATED))
    }

    /// Does one command, or keeps it until what it waits for is there.
    pub(crate) fn obey(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        match self.ended() {
            Some(code) => Err(Failure::Cuda(code)),
            None if self.admit(command)? => self.execute(command),
            None => Ok(Outcome::Done),
        }
    }

    /// The same for a command of the ring, which may be left to another executor.
    pub(crate) fn obey_or_leave(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        self.relocation.is_possible = true;
        let mut result = self.obey(command);
        self.relocation.is_possible = false;
        if let Err(Failure::Elsewhere) = result
            && let Err(hindrance) = self.prepare_to_leave()
        {
            log_server!("{} stays in its context, for {hindrance}", self.handle.label);
            result = self.obey(command);
        }
        result
    }

    /// Does one command; its answer, if any, is in `self.reply`.
    pub(crate) fn execute(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        match self.is_traced() {
            true => self.execute_traced(command),
            false => self.execute_now(command),
        }
    }

    pub(crate) fn execute_now(&mut self, command: &Command<'_>) -> Result<Outcome, Failure> {
        self.reply.clear();
        let number = command.header.opcode;
        let Some(opcode) = Opcode::from_number(number) else {
            return Err(Failure::Protocol(format!("opcode {number} does not exist")));
        };
        if opcode.facts().trail == Trail::Told {
            self.history().call(opcode);
        }
        let outcome = self.perform_noted(opcode, command)?;
        debug_assert!(
            self.reply.len() >= opcode.facts().answer_bytes,
            "{opcode:?} says too little"
        );
        self.record(opcode, command.body)?;
        Ok(outcome)
    }

    pub(crate) fn perform(
        &mut self,
        opcode: Opcode,
        command: &Command<'_>,
    ) -> Result<Outcome, Failure> {
        if opcode.facts().memory.is_taken() {
            self.end_probing();
        }
        match read(opcode, command)? {
            Request::Ping(..) => Ok(()),
            Request::StreamCreate(wanted, _) => self.stream_create(wanted),
            Request::StreamDestroy(wanted, _) => {
                self.forget_stream_chains(wanted.stream);
                self.streams.destroy(&self.shared.context, wanted.stream)
            }
            Request::Signal(wire::Signal { stream, value, .. }, _) => {
                self.check_signal(stream, value)?;
                self.signal(stream, value)
            }
            Request::StreamSynchronize(wanted, _) => {
                self.stream_for_work(wanted.stream)?;
                return Ok(Outcome::Await(wanted.stream));
            }
            Request::StreamWaitEvent(wanted, _) => self.stream_wait_event(wanted),
            Request::EventCreate(wanted, _) => self.event_create(wanted),
            Request::EventDestroy(wanted, _) => self.event_destroy(wanted),
            Request::EventRecord(wanted, _) => self.event_record(wanted),
            Request::EventElapsed(wanted, _) => self.event_elapsed(wanted),
            Request::Grow(wanted, _) => self.grow(wanted),
            Request::Release(wanted, _) => self.release(wanted),
            Request::MemoryInfo(..) => self.memory_info(),
            Request::RegionMap(wanted, _) => self.region_map(wanted),
            Request::RegionUnmap(wanted, _) => self.region_unmap(wanted),
            Request::Copy(wanted, _) => self.copy(wanted),
            Request::Copy3d(wanted, _) => self.copy_3d(wanted),
            Request::Fill(wanted, _) => self.fill(wanted),
            Request::StreamWriteValue(wanted, _) => self.stream_write_value(wanted),
            // Its turn has come, so the value is there: nothing is left to do.
            Request::StreamWaitValue(..) | Request::StreamWaitPeer(..) => Ok(()),
            Request::ModuleLoad(wanted, _) => self.module_load(wanted),
            Request::ModuleUnload(wanted, _) => self.module_unload(wanted),
            Request::FunctionGet(wanted, rest) => self.function_get(wanted, rest),
            Request::GlobalGet(wanted, rest) => self.global_get(wanted, rest),
            Request::FunctionSetAttribute(wanted, _) => self.function_set_attribute(wanted),
            Request::ModuleKernels(wanted, _) => self.module_kernels(wanted),
            Request::Occupancy(wanted, _) => self.occupancy(wanted),
            Request::FunctionAttributes(wanted, _) => self.function_attributes(wanted),
            Request::Launch(wanted, rest) => self.launch(&wanted, rest, None),
            Request::OutputTake(..) => self.output_take(),
            Request::GraphCreate(wanted, _) => self.graph_create(wanted),
            Request::GraphDestroy(wanted, _) => self.graph_destroy(wanted),
            Request::GraphLaunch(wanted, _) => self.graph_launch(wanted),
            Request::GraphUpload(wanted, _) => self.graph_upload(wanted),
            Request::GraphSet(wanted, rest) => self.graph_set(wanted, rest),
            Request::GraphEnable(wanted, _) => self.graph_enable(wanted),
            Request::GraphCondition(wanted, _) => self.graph_condition(wanted),
            Request::GraphHomeDestroy(wanted, _) => self.graph_home_destroy(wanted),
            Request::GraphConditional(..) => {
                Err(Failure::Protocol("a conditional node is no command".into()))
            }
            Request::LimitGet(wanted, _) => self.limit_get(wanted),
            Request::LimitSet(wanted, _) => self.limit_set(wanted),
            Request::ClusterOccupancy(wanted, rest) => self.cluster_occupancy(wanted, rest),
            Request::TensorMapEncode(wanted, _) => self.tensor_map_encode(wanted),
            Request::TensorMapAddress(wanted, _) => self.tensor_map_address(wanted),
            Request::AddressReserve(wanted, _) => self.address_reserve(wanted),
            Request::AddressFree(wanted, _) => self.address_free(wanted),
            Request::MemoryCreate(wanted, _) => self.memory_create(wanted),
            Request::MemoryRelease(wanted, _) => self.memory_release(wanted),
            Request::MemoryMap(wanted, _) => self.memory_map(wanted),
            Request::MemoryUnmap(wanted, _) => self.memory_unmap(wanted),
            Request::MemorySetAccess(wanted, _) => self.memory_set_access(wanted),
            Request::MemoryExport(wanted, _) => self.memory_export(wanted),
            Request::MemoryImport(wanted, _) => self.memory_import(wanted),
            Request::ShareMemory(wanted, _) => self.share_memory(wanted),
            Request::UnshareMemory(wanted, _) => self.unshare_memory(wanted),
            Request::OpenMemory(wanted, _) => self.open_memory(wanted),
            Request::CloseMemory(wanted, _) => self.close_memory(wanted),
            Request::ShareEvent(wanted, _) => self.share_event(wanted),
            Request::OpenEvent(wanted, _) => self.open_event(wanted),
            Request::EventQuery(wanted, _) => self.event_query(wanted),
            Request::ResourceGet(wanted, _) => self.resource_get(wanted),
            Request::ResourceSplit(wanted, _) => self.resource_split(wanted),
            Request::ResourceDescribe(wanted, rest) => self.resource_describe(wanted, rest),
            Request::PartitionCreate(wanted, _) => self.partition_create(wanted),
            Request::PartitionTake(wanted, _) => self.partition_take(wanted),
            Request::PartitionDrop(wanted, _) => self.partition_drop(wanted),
            Request::PeerShow(wanted, _) => self.peer_show(wanted),
            Request::PeerMap(wanted, _) => self.peer_map(wanted),
            Request::PeerUnmap(wanted, _) => self.peer_unmap(wanted),
            Request::TraceStart(..) => self.trace_start(),
            Request::TraceStop(..) => {
                self.end_tracing();
                Ok(())
            }
            Request::ArrayCreate(wanted, _) => self.array_create(wanted),
            Request::ArrayDestroy(wanted, _) => self.array_destroy(wanted),
            Request::ArrayLevel(wanted, _) => self.array_level(wanted),
            Request::ArrayMemory(wanted, _) => self.array_memory(wanted),
            Request::ArrayCopy(wanted, _) => self.array_copy(wanted),
            Request::TextureCreate(wanted, _) => self.texture_create(wanted),
            Request::TextureDestroy(wanted, _) => self.texture_destroy(wanted),
        }?;
        Ok(Outcome::Done)
    }
}

/// What a command asks for.
pub(crate) fn read<'a>(opcode: Opcode, command: &Command<'a>) -> Result<Request<'a>, Failure> {
    Request::read(opcode, command.body).ok_or_else(|| {
        let length = command.body.len();
        Failure::Protocol(format!("the command {opcode:?} has only {length} bytes"))
    })
}
