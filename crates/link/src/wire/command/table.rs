//! The one list of commands: a row each, with the body, the answer and the facts.
//!
//! A row is
//!
//! ```text
//! OPCODE = NUMBER, BODY => ANSWER;
//!     DOES, ORDER, MEMORY, TIME, REFUSAL, TRAIL, REPEAT, CONTENT, ROLE, EFFECT ON THE JOURNAL;
//! ```
//!
//! [`super::facts`] says what the columns mean. To add a command, add its row and its body: the
//! compiler then names [`Request`]'s readers, of which the executor's `State::perform` does the
//! work. A number, a body and an answer never change, and no number is used again: libraries in
//! containers have them ([`crate::wire::version`]). So a new command has a new number, and needs a
//! new version.

use zerocopy::FromBytes;

use super::super::array::{
    ArrayCopy, ArrayCreate, ArrayLevel, ArrayMemoryReply, ArrayNumber, TextureCreate, TextureHandle,
};
use super::super::graph::{
    ConditionalNode, GraphCondition, GraphConditionReply, GraphCreate, GraphDestroy, GraphEnable,
    GraphHomeDestroy, GraphLaunch, GraphSet, GraphUpload,
};
use super::super::partition::{
    DescriptionReply, PartitionCreate, PartitionDrop, PartitionReply, PartitionTake,
    ResourceDescribe, ResourceGet, ResourceSplit, ResourceSplitReply, SmResource,
};
use super::super::peer::{PeerMap, PeerShow, PeerUnmap, StreamWaitPeer};
use super::super::query::{
    ClusterOccupancy, ClusterReply, TensorMapAddress, TensorMapEncode, TensorMapReply,
};
use super::super::sharing::{
    EventNumber, OpenEvent, OpenMemoryReply, ShareMemory, Token, UnshareMemory,
};
use super::super::trace::TraceControl;
use super::super::virtual_memory::{
    AddressFree, AddressReply, AddressReserve, MemoryCreate, MemoryCreateReply, MemoryMap,
    MemoryNumber, MemorySetAccess, MemoryUnmap,
};
use super::facts::{
    Again, Content, Does, Effect, Facts, Keeps, Memory, Order, Part, Refusal, Repeat, Role, Time,
    Trail, first, hash, last, pair,
};
use super::memory::*;
use super::module::*;
use super::rows::{commands, effect, holds_stream, key};
use super::stream::*;
use super::{LimitGet, LimitReply, LimitSet};
#[cfg(test)]
use crate::wire::version::described::{Described, Layout};

commands! {
    /// Called: answers at once with nothing. For measuring, and to see that all earlier commands
    /// were taken.
    Ping = 1, () => ();
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Node, none();
    /// Posted.
    StreamCreate = 10, StreamCreate => ();
        Other, Apart, Spares, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.stream.into(), AsBefore, Others);
    /// Posted: once its work is done.
    StreamDestroy = 11, StreamDestroy => ();
        Other, End{stream}, Spares, Short, Session, Told, Ends, Plain, Command,
        ends([StreamCreate], |it, _| it.stream.into());
    /// Posted: writes a value to the stream's completion word after all earlier work of the stream.
    Signal = 12, Signal => ();
        Question, Signal{stream}, Spares, Short, Session, Silent, Again, Plain, Command, none();
    /// Posted: later work of the stream waits for the event's last record.
    StreamWaitEvent = 13, StreamWaitEvent => ();
        Other, Wait{stream, event}, Spares, Short, Session, Told, Again, Plain, Node, none();
    /// Called: answers when the driver says that all earlier work of the stream is done, with the
    /// driver's word.
    StreamSynchronize = 14, StreamSynchronize => ();
        Other, Work{stream}, Spares, Short, Session, Silent, Never, Plain, Command, none();
    /// Posted.
    EventCreate = 20, EventCreate => ();
        Other, Apart, Spares, Short, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.event.into(), AsBefore, Others);
    /// Posted.
    EventDestroy = 21, EventDestroy => ();
        Other, Apart, Spares, Short, Session, Told, Ends, Plain, Command,
        ends([EventCreate, ShareEvent, OpenEvent], |it, _| it.event.into());
    /// Posted: records, then signals the stream with the value.
    EventRecord = 22, EventRecord => ();
        Question, Record{stream, event}, Spares, Short, Session, Silent, Again, Plain, Node, none();
    /// Called: [`super::EventElapsedReply`].
    EventElapsed = 23, EventElapsed => EventElapsedReply;
        Other, Apart, Spares, Short, Session, Silent, Never, Plain, Command, none();
    /// Called: [`super::GrowReply`]: more device memory in the window.
    Grow = 30, Grow => GrowReply;
        Other, Apart, Spares, Long, Session, Told, Never, Plain, Command,
        makes_by_answer(Answer, |it| it.address, Special, Memory);
    /// Called: gives a grant back; the client has waited for its own work first.
    Release = 31, Release => ();
        Other, Apart, SparesAndTakes, Long, Session, Told, Never, Plain, Command,
        ends([Grow, PeerShow], |it, _| it.address);
    /// Called: [`super::MemoryInfoReply`].
    MemoryInfo = 32, () => MemoryInfoReply;
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Command, none();
    /// Called: maps a file of the client into the executor at the same address; the descriptor
    /// waits in the session socket.
    RegionMap = 33, RegionMap => ();
        Other, Apart, Spares, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.address, Special, Pinned);
    /// Called: the client has waited for its own work first.
    RegionUnmap = 34, RegionUnmap => ();
        Other, Apart, SparesAndTakes, Long, Session, Told, Never, Plain, Command,
        ends([RegionMap], |it, _| it.address);
    /// Posted.
    Copy = 40, Copy => ();
        Copy, Work{stream}, Needs, Short, Session, Told, Again, Plain, Node, none();
    /// Posted.
    Copy3d = 41, Copy3d => ();
        Copy, Work{stream}, Needs, Short, Session, Told, Never, Plain, Node, none();
    /// Posted.
    Fill = 42, Fill => ();
        Fill, Work{stream}, Needs, Short, Session, Told, Again, Plain, Node, none();
    /// Posted: `cuStreamWriteValue`.
    StreamWriteValue = 43, StreamWriteValue => ();
        Other, Work{stream}, Needs, Short, Session, Told, Never, Plain, Node, none();
    /// Posted: `cuStreamWaitValue`; takes a [`super::StreamWriteValue`]. Held in software, as a
    /// wait that another client must end may not hold a hardware
    /// queue.
    StreamWaitValue = 44, StreamWriteValue => ();
        Other, Value{stream, value_bytes, address, value, flags}, Needs, Short, Session, Told, Never, Plain, Command, none();
    /// Called: [`super::ModuleLoadReply`].
    ModuleLoad = 50, ModuleLoad => ModuleLoadReply;
        Other, Apart, Needs, Long, Session, Told, Never, ToDriver, Command,
        makes(Command, |it, _| it.module.into(), Special, Code);
    /// Posted.
    ModuleUnload = 51, ModuleUnload => ();
        Other, Apart, NeedsAndTakes, Long, Session, Told, Ends, Plain, Command,
        ends([ModuleLoad], |it, _| it.module.into());
    /// Called: [`super::FunctionGetReply`].
    FunctionGet = 52, FunctionGet => FunctionGetReply;
        Other, Apart, Spares, Long, Session, Told, Never, ToDriver, Command,
        makes(Command, |it, _| it.function.into(), AsBefore, Code);
    /// Called: [`super::GlobalGetReply`].
    GlobalGet = 53, GlobalGet => GlobalGetReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(CommandAndAnswer, |it, entry| pair(it.module, hash(entry) as u32),
              SameAnswer("the address of a variable"), Code);
    /// Called; posted where the client knows that every driver takes the value.
    FunctionSetAttribute = 54, FunctionSetAttribute => ();
        Other, Apart, Spares, Long, Alone, Told, Never, Plain, Command,
        makes(Command, |it, _| pair(it.function, it.attribute as u32), AsBefore, Code);
    /// Called: names of all kernels, NUL-terminated, [`super::NamesReply`] first.
    ModuleKernels = 55, ModuleKernels => NamesReply;
        Other, Apart, Spares, Long, Session, Told, Never, Plain, Command, none();
    /// Called: [`super::OccupancyReply`].
    Occupancy = 56, Occupancy => OccupancyReply;
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Command, none();
    /// Called: [`super::FunctionAttributesReply`].
    FunctionAttributes = 57, FunctionAttributes => FunctionAttributesReply;
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Command, none();
    /// Posted.
    Launch = 60, Launch => ();
        Kernel, Work{stream}, Needs, Short, Alone, Silent, Again, Plain, Node, none();
    /// Called: [`super::OutputReply`]: what the session's kernels have printed.
    OutputTake = 61, () => OutputReply;
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Command, none();
    /// Called: [`super::LimitReply`].
    LimitGet = 70, LimitGet => LimitReply;
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Command, none();
    /// Called.
    LimitSet = 71, LimitSet => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.limit.into(), AsBefore, Others);
    /// Called: makes an executable graph of a description: [`super::super::graph`], which has the
    /// structs of these opcodes.
    GraphCreate = 80, GraphCreate => ();
        Other, Apart, Needs, Long, Session, Told, Never, ToDriver, Command,
        makes(Command, |it, _| it.graph.into(), Special, Graphs);
    /// Posted: once its launches are done.
    GraphDestroy = 81, GraphDestroy => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        ends([GraphCreate], |it, _| it.graph.into());
    /// Posted.
    GraphLaunch = 82, GraphLaunch => ();
        Graph, Graph{stream, graph}, Needs, Short, Alone, Silent, Never, Plain, Command, none();
    /// Posted: makes the next launch cheaper.
    GraphUpload = 83, GraphUpload => ();
        Other, Work{stream}, Needs, Long, Alone, Told, Never, Plain, Command, none();
    /// Posted: gives a node other work of its kind.
    GraphSet = 84, GraphSet => ();
        Other, Apart, Needs, Long, Alone, Told, Never, Plain, Command,
        makes(Command, |it, _| pair(it.graph, it.node), AsBefore, Graphs);
    /// Posted: leaves a node out, or takes it in again.
    GraphEnable = 85, GraphEnable => ();
        Other, Apart, Needs, Long, Alone, Told, Never, Plain, Command,
        makes(Command, |it, _| pair(it.graph, it.node), AsBefore, Graphs);
    /// Called: makes a condition for a graph that is described later;
    /// [`super::super::graph::GraphConditionReply`].
    GraphCondition = 86, GraphCondition => GraphConditionReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes_by_answer(CommandAndAnswer, |it| it.handle, Special, Others);
    /// Posted: no graph will be described there any more.
    GraphHomeDestroy = 87, GraphHomeDestroy => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        ends([GraphCondition], |it, _| it.home.into());
    /// No command, but a node's work: [`super::super::graph::ConditionalNode`].
    GraphConditional = 88, ConditionalNode => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Node, none();
    /// Called: [`super::super::query::ClusterReply`].
    ClusterOccupancy = 100, ClusterOccupancy => ClusterReply;
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Command, none();
    /// Called: [`super::super::query::TensorMapReply`].
    TensorMapEncode = 101, TensorMapEncode => TensorMapReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command, none();
    /// Called: [`super::super::query::TensorMapReply`].
    TensorMapAddress = 102, TensorMapAddress => TensorMapReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command, none();
    /// Called: [`super::super::virtual_memory::AddressReply`].
    AddressReserve = 110, AddressReserve => AddressReply;
        Other, Apart, Spares, Long, Session, Told, Never, Plain, Command,
        thing(Memory);
    /// Called; nothing is mapped there.
    AddressFree = 111, AddressFree => ();
        Other, Apart, Spares, Long, Session, Told, Never, Plain, Command, none();
    /// Called: [`super::super::virtual_memory::MemoryCreateReply`]: memory without an address,
    /// under the number that the client chose.
    MemoryCreate = 112, MemoryCreate => MemoryCreateReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        thing(Memory);
    /// Called; what is mapped stays until it is unmapped.
    MemoryRelease = 113, MemoryNumber => ();
        Other, Apart, Spares, Long, Session, Told, Never, Plain, Command,
        thing(Others);
    /// Called.
    MemoryMap = 114, MemoryMap => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        thing(Memory);
    /// Called; the client has waited for its own work first.
    MemoryUnmap = 115, MemoryUnmap => ();
        Other, Apart, SparesAndTakes, Long, Session, Told, Never, Plain, Command, none();
    /// Called.
    MemorySetAccess = 116, MemorySetAccess => ();
        Other, Apart, NeedsAndTakes, Long, Session, Told, Never, Plain, Command,
        thing(Memory);
    /// Called: the memory's descriptor has been sent over the session socket when the answer comes.
    MemoryExport = 117, MemoryNumber => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command, none();
    /// Called; the descriptor waits in the session socket.
    MemoryImport = 118, MemoryNumber => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        thing(Memory);
    /// Called.
    ArrayCreate = 120, ArrayCreate => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.array.into(), AsBefore, Others);
    /// Called; the client has waited for its own work first.
    ArrayDestroy = 121, ArrayNumber => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        ends([ArrayCreate], |it, _| it.array.into());
    /// Called: `cuMipmappedArrayGetLevel`.
    ArrayLevel = 122, ArrayLevel => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.array.into(), AsBefore, Others);
    /// Posted.
    ArrayCopy = 123, ArrayCopy => ();
        Copy, Work{stream}, Needs, Short, Session, Told, Never, Plain, Command, none();
    /// Called: [`super::super::array::TextureHandle`].
    TextureCreate = 124, TextureCreate => TextureHandle;
        Other, Apart, Needs, Long, Session, Told, Never, ToDriver, Command,
        makes_by_answer(CommandAndAnswer, TextureHandle::key, Special, Others);
    /// Called; the client has waited for its own work first.
    TextureDestroy = 125, TextureHandle => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        ends([TextureCreate], |it, _| it.key());
    /// Called: [`super::super::array::ArrayMemoryReply`], of an array or a mipmapped array.
    ArrayMemory = 126, ArrayNumber => ArrayMemoryReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command, none();
    /// Called: [`super::super::sharing::Token`].
    ShareMemory = 130, ShareMemory => Token;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(CommandAndAnswer, |it, _| it.address, Special, Others);
    /// Posted: nobody else may open it.
    UnshareMemory = 131, UnshareMemory => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        ends([ShareMemory], |it, _| it.address);
    /// Called, with a [`super::super::sharing::Token`]: [`super::super::sharing::OpenMemoryReply`].
    OpenMemory = 132, Token => OpenMemoryReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |_, entry| hash(entry), Never, Others);
    /// Called, with a [`super::super::sharing::Token`]; the client has waited for its own work
    /// first.
    CloseMemory = 133, Token => ();
        Other, Apart, NeedsAndTakes, Long, Session, Told, Never, Plain, Command,
        ends([OpenMemory], |_, entry| hash(entry));
    /// Called: [`super::super::sharing::Token`].
    ShareEvent = 134, EventNumber => Token;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(CommandAndAnswer, |it, _| it.event.into(), Special, Others);
    /// Called.
    OpenEvent = 135, OpenEvent => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.event.into(), Never, Others);
    /// Called: CUDA_SUCCESS or CUDA_ERROR_NOT_READY.
    EventQuery = 136, EventNumber => ();
        Other, Apart, Spares, Long, Session, Silent, Never, Plain, Command, none();
    /// Called: [`super::super::partition::SmResource`]: the SMs of a partition;
    /// [`super::super::partition`] has the structs of these opcodes.
    ResourceGet = 140, ResourceGet => SmResource;
        Other, Apart, Needs, Long, Session, Silent, Never, Plain, Command,
        makes(CommandAndAnswer, |_, entry| hash(entry),
              SameAnswer("a set of multiprocessors"), Others);
    /// Called: [`super::super::partition::ResourceSplitReply`].
    ResourceSplit = 141, ResourceSplit => ResourceSplitReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(CommandAndAnswer, |_, entry| hash(entry),
              SameAnswer("a set of multiprocessors"), Others);
    /// Called: [`super::super::partition::DescriptionReply`].
    ResourceDescribe = 142, ResourceDescribe => DescriptionReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(CommandAndAnswer, |_, entry| hash(entry),
              SameAnswer("a set of multiprocessors"), Others);
    /// Called: [`super::super::partition::PartitionReply`]: a green context of what was described.
    PartitionCreate = 143, PartitionCreate => PartitionReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.partition.into(), AsBefore, Others);
    /// Called: [`super::super::partition::PartitionReply`]: so many SMs, wherever the executor
    /// finds them.
    PartitionTake = 144, PartitionTake => PartitionReply;
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.partition.into(), AsBefore, Others);
    /// Posted: the streams that run in it go on.
    PartitionDrop = 145, PartitionDrop => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        ends([PartitionCreate, PartitionTake], |it, _| it.partition.into());
    /// Called: memory of another device of the client, mapped here; [`super::super::peer`] has the
    /// structs of these opcodes.
    PeerMap = 150, PeerMap => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.address, Special, Others);
    /// Called; the client has waited for its own work first.
    PeerUnmap = 151, PeerUnmap => ();
        Other, Apart, NeedsAndTakes, Long, Session, Told, Never, Plain, Command,
        ends([PeerMap], |it, _| it.address);
    /// Called: a grant of this session stays where it is, for [`Opcode::PeerMap`] in a session of
    /// another device.
    PeerShow = 152, PeerShow => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command,
        makes(Command, |it, _| it.address, AsBefore, Others);
    /// Posted: later work of the stream waits until a stream of another device of the client has
    /// come so far.
    StreamWaitPeer = 153, StreamWaitPeer => ();
        Other, Peer{stream, device, slot, value}, Spares, Long, Session, Told, Never, Plain, Command, none();
    /// Called: from here on the device's work is told in the ring whose file waits in the session
    /// socket; see [`super::super::trace`].
    TraceStart = 160, TraceControl => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command, none();
    /// Called: no longer; the ring is closed when all of it has been told.
    TraceStop = 161, TraceControl => ();
        Other, Apart, Needs, Long, Session, Told, Never, Plain, Command, none();
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn opcode_numbers_are_unique_and_reversible() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode as u16), Some(opcode));
        }
        assert_eq!(Opcode::from_number(0), None);
    }

    #[test]
    fn what_ends_finds_what_was_made() {
        let key = |opcode: Opcode, entry: &[u8]| match opcode.facts().journal {
            Effect::Makes { key, .. } | Effect::Ends { key, .. } => key(entry),
            _ => panic!("{opcode:?} has no key"),
        };
        let map = PeerMap { device: 1, key: 2, address: 3, ..PeerMap::default() };
        let unmap = PeerUnmap { address: 3, size_bytes: 4 };
        let (made, ended) = (Opcode::PeerMap, Opcode::PeerUnmap);
        assert_eq!(key(made, map.as_bytes()), key(ended, unmap.as_bytes()));
        let handle = TextureHandle { handle: 7, object: 1, ..TextureHandle::default() };
        let entry = [TextureCreate::default().as_bytes(), handle.as_bytes()].concat();
        let (made, ended) = (Opcode::TextureCreate, Opcode::TextureDestroy);
        assert_eq!(key(made, &entry), key(ended, handle.as_bytes()));
        let token = Token { words: [5, 6] };
        let (made, ended) = (Opcode::OpenMemory, Opcode::CloseMemory);
        assert_eq!(key(made, token.as_bytes()), key(ended, token.as_bytes()));
        assert_eq!(key(ended, &[1, 2]), None, "too short");
    }

    #[test]
    fn what_ends_names_what_makes() {
        for opcode in Opcode::ALL {
            if let Effect::Ends { makers, .. } = opcode.facts().journal {
                let makes = |maker: &Opcode| matches!(maker.facts().journal, Effect::Makes { .. });
                assert!(makers.iter().all(makes), "{opcode:?}");
            }
        }
    }
}
