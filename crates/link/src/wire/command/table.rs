//! The opcodes: which struct follows a [`Header`](super::Header), and whether an answer does.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// What to do. The struct of the same name follows the header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $number,)* }

        impl Opcode {
            /// The opcode of a number, if there is one.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Every opcode.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

opcodes! {
    /// Called: answers at once with nothing. For measuring, and to see that all earlier commands were taken.
    Ping = 1,
    /// Posted.
    StreamCreate = 10,
    /// Posted: once its work is done.
    StreamDestroy = 11,
    /// Posted: writes a value to the stream's completion word after all earlier work of the stream.
    Signal = 12,
    /// Posted: later work of the stream waits for the event's last record.
    StreamWaitEvent = 13,
    /// Called: answers when the driver says that all earlier work of the stream is done, with the driver's word.
    StreamSynchronize = 14,
    /// Posted.
    EventCreate = 20,
    /// Posted.
    EventDestroy = 21,
    /// Posted: records, then signals the stream with the value.
    EventRecord = 22,
    /// Called: [`super::EventElapsedReply`].
    EventElapsed = 23,
    /// Called: [`super::GrowReply`]: more device memory in the window.
    Grow = 30,
    /// Called: gives a grant back; the client has waited for its own work first.
    Release = 31,
    /// Called: [`super::MemoryInfoReply`].
    MemoryInfo = 32,
    /// Called: maps a file of the client into the executor at the same address; the descriptor waits in the session socket.
    RegionMap = 33,
    /// Called: the client has waited for its own work first.
    RegionUnmap = 34,
    /// Posted.
    Copy = 40,
    /// Posted.
    Copy3d = 41,
    /// Posted.
    Fill = 42,
    /// Posted: `cuStreamWriteValue`.
    StreamWriteValue = 43,
    /// Posted: `cuStreamWaitValue`; takes a [`super::StreamWriteValue`]. Held in software, as a wait that another client must end may not hold a hardware
    /// queue.
    StreamWaitValue = 44,
    /// Called: [`super::ModuleLoadReply`].
    ModuleLoad = 50,
    /// Posted.
    ModuleUnload = 51,
    /// Called: [`super::FunctionGetReply`].
    FunctionGet = 52,
    /// Called: [`super::GlobalGetReply`].
    GlobalGet = 53,
    /// Called; posted where the client knows that every driver takes the value.
    FunctionSetAttribute = 54,
    /// Called: names of all kernels, NUL-terminated, [`super::NamesReply`] first.
    ModuleKernels = 55,
    /// Called: [`super::OccupancyReply`].
    Occupancy = 56,
    /// Called: [`super::FunctionAttributesReply`].
    FunctionAttributes = 57,
    /// Posted.
    Launch = 60,
    /// Called: [`super::OutputReply`]: what the session's kernels have printed.
    OutputTake = 61,
    /// Called: [`super::LimitReply`].
    LimitGet = 70,
    /// Called.
    LimitSet = 71,
    /// Called: makes an executable graph of a description: [`super::super::graph`], which has the structs of these opcodes.
    GraphCreate = 80,
    /// Posted: once its launches are done.
    GraphDestroy = 81,
    /// Posted.
    GraphLaunch = 82,
    /// Posted: makes the next launch cheaper.
    GraphUpload = 83,
    /// Posted: gives a node other work of its kind.
    GraphSet = 84,
    /// Posted: leaves a node out, or takes it in again.
    GraphEnable = 85,
    /// Called: makes a condition for a graph that is described later; [`super::super::graph::GraphConditionReply`].
    GraphCondition = 86,
    /// Posted: no graph will be described there any more.
    GraphHomeDestroy = 87,
    /// No command, but a node's work: [`super::super::graph::ConditionalNode`].
    GraphConditional = 88,
    /// Called: [`super::super::query::ClusterReply`].
    ClusterOccupancy = 100,
    /// Called: [`super::super::query::TensorMapReply`].
    TensorMapEncode = 101,
    /// Called: [`super::super::query::TensorMapReply`].
    TensorMapAddress = 102,
    /// Called: [`super::super::virtual_memory::AddressReply`].
    AddressReserve = 110,
    /// Called; nothing is mapped there.
    AddressFree = 111,
    /// Called: [`super::super::virtual_memory::MemoryCreateReply`]: memory without an address, under the number that the client chose.
    MemoryCreate = 112,
    /// Called; what is mapped stays until it is unmapped.
    MemoryRelease = 113,
    /// Called.
    MemoryMap = 114,
    /// Called; the client has waited for its own work first.
    MemoryUnmap = 115,
    /// Called.
    MemorySetAccess = 116,
    /// Called: the memory's descriptor has been sent over the session socket when the answer comes.
    MemoryExport = 117,
    /// Called; the descriptor waits in the session socket.
    MemoryImport = 118,
    /// Called: a copy that waits for no stream of the client's; answered when it is done.
    CopyNow = 119,
    /// Called.
    ArrayCreate = 120,
    /// Called; the client has waited for its own work first.
    ArrayDestroy = 121,
    /// Called: `cuMipmappedArrayGetLevel`.
    ArrayLevel = 122,
    /// Posted.
    ArrayCopy = 123,
    /// Called: [`super::super::array::TextureHandle`].
    TextureCreate = 124,
    /// Called; the client has waited for its own work first.
    TextureDestroy = 125,
    /// Called: [`super::super::array::ArrayMemoryReply`], of an array or a mipmapped array.
    ArrayMemory = 126,
    /// Called: [`super::super::sharing::Token`].
    ShareMemory = 130,
    /// Posted: nobody else may open it.
    UnshareMemory = 131,
    /// Called, with a [`super::super::sharing::Token`]: [`super::super::sharing::OpenMemoryReply`].
    OpenMemory = 132,
    /// Called, with a [`super::super::sharing::Token`]; the client has waited for its own work first.
    CloseMemory = 133,
    /// Called: [`super::super::sharing::Token`].
    ShareEvent = 134,
    /// Called.
    OpenEvent = 135,
    /// Called: CUDA_SUCCESS or CUDA_ERROR_NOT_READY.
    EventQuery = 136,
    /// Called: [`super::super::partition::SmResource`]: the SMs of a partition; [`super::super::partition`] has the structs of these opcodes.
    ResourceGet = 140,
    /// Called: [`super::super::partition::ResourceSplitReply`].
    ResourceSplit = 141,
    /// Called: [`super::super::partition::DescriptionReply`].
    ResourceDescribe = 142,
    /// Called: [`super::super::partition::PartitionReply`]: a green context of what was described.
    PartitionCreate = 143,
    /// Called: [`super::super::partition::PartitionReply`]: so many SMs, wherever the executor finds them.
    PartitionTake = 144,
    /// Posted: the streams that run in it go on.
    PartitionDrop = 145,
    /// Posted: later work of the stream waits until a stream of another device of the client has come so far.
    StreamWaitPeer = 153,
    /// Called: a grant of this session stays where it is, for [`Opcode::PeerMap`] in a session of another device.
    PeerShow = 152,
    /// Called: memory of another device of the client, mapped here; [`super::super::peer`] has the structs of these opcodes.
    PeerMap = 150,
    /// Called; the client has waited for its own work first.
    PeerUnmap = 151,
    /// Called: from here on the device's work is told in the ring whose file waits in the session socket; see [`super::super::trace`].
    TraceStart = 160,
    /// Called: no longer; the ring is closed when all of it has been told.
    TraceStop = 161,
}

#[cfg(test)]
mod tests {
    use super::Opcode;

    #[test]
    fn opcode_numbers_are_unique_and_reversible() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(opcode as u16), Some(opcode));
        }
        assert_eq!(Opcode::from_number(0), None);
    }
}
