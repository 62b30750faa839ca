//! What a client puts into the ring.
//!
//! A command is a [`Header`], the struct of its opcode, and what that struct says follows it; its length is a multiple of
//! [`ALIGN`]. Streams, events, modules, functions and regions are named by small numbers *that the client chooses*, so that making
//! one needs no answer; the executor keeps a table for each and refuses numbers beyond its bounds. The ring is one total order: a number may be used
//! again as soon as its destruction has been posted.
//!
//! *Posted* commands get no answer: what fails sets the session's error, except a launch that the driver refuses, which is reported once. *Called* ones get a [`super::layout::CallSlot`].

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Alignment and granularity of commands in the ring.
pub const ALIGN: usize = 16;
/// Longest command: a launch with 32 KiB of parameters and its attributes.
pub const MAX_COMMAND_BYTES: usize = 64 * 1024;
/// Longest of what follows a header.
pub const PAYLOAD_LIMIT_BYTES: usize = MAX_COMMAND_BYTES - size_of::<Header>();
/// [`Header::call_slot`] of a posted command.
pub const NO_CALL: u16 = u16::MAX;
/// Events have numbers below this.
pub const MAX_EVENTS: u32 = 1 << 20;
/// Modules have numbers below this.
pub const MAX_MODULES: u32 = 1 << 16;
/// Functions have numbers below this; the executor's table is as long as the highest number in use.
pub const MAX_FUNCTIONS: u32 = 1 << 20;
/// Regions that a session may have at a time.
pub const MAX_REGIONS: usize = 1 << 16;
/// Stream slot of the client's legacy default stream. It, and it alone, is ordered with all blocking streams.
pub const LEGACY_STREAM: u32 = 0;
/// Separates the PTX texts of an image that are to be linked when it is loaded; a comment.
pub const LINKED_TEXTS: &str = "\n//@@openmps-linked-text@@\n";

/// Starts every command.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Header {
    /// An [`Opcode`].
    pub opcode: u16,
    /// Index of the call slot, or [`NO_CALL`].
    pub call_slot: u16,
    /// Length of the whole command.
    pub size_bytes: u32,
    /// The context it belongs to: [`super::attach::ContextOpened::context_id`].
    pub context: u32,
    /// Zero.
    pub reserved: u32,
}

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
    /// Called: [`EventElapsedReply`].
    EventElapsed = 23,
    /// Called: [`GrowReply`]: more device memory in the window.
    Grow = 30,
    /// Called: gives a grant back; the client has waited for its own work first.
    Release = 31,
    /// Called: [`MemoryInfoReply`].
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
    /// Posted: `cuStreamWaitValue`; takes a [`StreamWriteValue`]. Held in software, as a wait that another client must end may not hold a hardware
    /// queue.
    StreamWaitValue = 44,
    /// Called: [`ModuleLoadReply`].
    ModuleLoad = 50,
    /// Posted.
    ModuleUnload = 51,
    /// Called: [`FunctionGetReply`].
    FunctionGet = 52,
    /// Called: [`GlobalGetReply`].
    GlobalGet = 53,
    /// Called.
    FunctionSetAttribute = 54,
    /// Called: names of all kernels, NUL-terminated, [`NamesReply`] first.
    ModuleKernels = 55,
    /// Called: [`OccupancyReply`].
    Occupancy = 56,
    /// Called: [`FunctionAttributesReply`].
    FunctionAttributes = 57,
    /// Posted.
    Launch = 60,
    /// Called: [`OutputReply`]: what the session's kernels have printed.
    OutputTake = 61,
    /// Called: [`LimitReply`].
    LimitGet = 70,
    /// Called.
    LimitSet = 71,
    /// Called: makes an executable graph of a description: [`super::graph`], which has the structs of these opcodes.
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
    /// Called: [`super::query::ClusterReply`].
    ClusterOccupancy = 100,
    /// Called: [`super::query::TensorMapReply`].
    TensorMapEncode = 101,
    /// Called: [`super::virtual_memory::AddressReply`].
    AddressReserve = 110,
    /// Called; nothing is mapped there.
    AddressFree = 111,
    /// Called: memory without an address, under the number that the client chose.
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
    /// Called: [`super::array::TextureHandle`].
    TextureCreate = 124,
    /// Called; the client has waited for its own work first.
    TextureDestroy = 125,
    /// Called: [`super::sharing::Token`].
    ShareMemory = 130,
    /// Posted: nobody else may open it.
    UnshareMemory = 131,
    /// Called, with a [`super::sharing::Token`]: [`super::sharing::OpenMemoryReply`].
    OpenMemory = 132,
    /// Called, with a [`super::sharing::Token`]; the client has waited for its own work first.
    CloseMemory = 133,
    /// Called: [`super::sharing::Token`].
    ShareEvent = 134,
    /// Called.
    OpenEvent = 135,
    /// Called: CUDA_SUCCESS or CUDA_ERROR_NOT_READY.
    EventQuery = 136,
}

macro_rules! wire_struct {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* })*
    };
}

wire_struct! {
    /// See [`Opcode::StreamCreate`].
    struct StreamCreate {
        /// Slot, from 1.
        stream: u32,
        /// `CU_STREAM_*` flags.
        flags: u32,
        /// Priority as CUDA counts it.
        priority: i32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::StreamDestroy`].
    struct StreamDestroy {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::Signal`].
    struct Signal {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
        /// Greater than every value before it in this slot.
        value: u64,
    }
    /// See [`Opcode::StreamSynchronize`].
    struct StreamSynchronize {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::StreamWaitEvent`].
    struct StreamWaitEvent {
        /// Slot of the stream that waits.
        stream: u32,
        /// Number of the event.
        event: u32,
        /// `CU_EVENT_WAIT_*` flags.
        flags: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::EventCreate`].
    struct EventCreate {
        /// Number.
        event: u32,
        /// `CU_EVENT_*` flags.
        flags: u32,
    }
    /// See [`Opcode::EventDestroy`].
    struct EventDestroy {
        /// Number.
        event: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::EventRecord`].
    struct EventRecord {
        /// Number.
        event: u32,
        /// Slot.
        stream: u32,
        /// For the stream's completion word.
        value: u64,
    }
    /// See [`Opcode::EventElapsed`].
    struct EventElapsed {
        /// The earlier event.
        start: u32,
        /// The later one.
        end: u32,
    }
    /// Answer to [`Opcode::EventElapsed`].
    struct EventElapsedReply {
        /// Milliseconds, as CUDA counts them.
        milliseconds: f32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::Grow`].
    struct Grow {
        /// At least this much.
        size_bytes: u64,
    }
    /// Answer to [`Opcode::Grow`].
    struct GrowReply {
        /// First address, inside the device window.
        address: u64,
        /// Length; a multiple of the driver's granularity.
        size_bytes: u64,
    }
    /// See [`Opcode::Release`].
    struct Release {
        /// First address of a grant.
        address: u64,
        /// Length of that grant.
        size_bytes: u64,
    }
    /// Answer to [`Opcode::MemoryInfo`].
    struct MemoryInfoReply {
        /// What this client can still take.
        free_bytes: u64,
        /// The device's memory.
        total_bytes: u64,
    }
    /// See [`Opcode::RegionMap`].
    struct RegionMap {
        /// First address, inside the host window, page-aligned.
        address: u64,
        /// Length, whole pages; the file is exactly as long.
        size_bytes: u64,
        /// [`REGION_PLAIN`] or [`REGION_PINNED`].
        kind: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::RegionUnmap`].
    struct RegionUnmap {
        /// First address.
        address: u64,
        /// Length.
        size_bytes: u64,
    }
    /// See [`Opcode::Copy`]. Either end lies in device memory or in a pinned region of this client.
    struct Copy {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
        /// To.
        destination: u64,
        /// From.
        source: u64,
        /// Length.
        size_bytes: u64,
    }
    /// See [`Opcode::Copy3d`]: `height * depth` rows.
    struct Copy3d {
        /// Slot.
        stream: u32,
        /// Zero.
        reserved: u32,
        /// To.
        destination: u64,
        /// Bytes from row to row.
        destination_pitch_bytes: u64,
        /// Bytes from slice to slice.
        destination_slice_bytes: u64,
        /// From.
        source: u64,
        /// Bytes from row to row.
        source_pitch_bytes: u64,
        /// Bytes from slice to slice.
        source_slice_bytes: u64,
        /// Bytes of a row.
        width_bytes: u64,
        /// Rows of a slice.
        height: u64,
        /// Slices.
        depth: u64,
    }
    /// See [`Opcode::Fill`].
    struct Fill {
        /// Slot.
        stream: u32,
        /// 1, 2 or 4.
        element_bytes: u32,
        /// To.
        destination: u64,
        /// Bytes from row to row; unused when `height` is 1.
        pitch_bytes: u64,
        /// Elements of a row.
        width: u64,
        /// Rows.
        height: u64,
        /// What to write.
        value: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::StreamWriteValue`] and [`Opcode::StreamWaitValue`].
    struct StreamWriteValue {
        /// Slot.
        stream: u32,
        /// 4 or 8.
        value_bytes: u32,
        /// Where.
        address: u64,
        /// What.
        value: u64,
        /// `CU_STREAM_WRITE_VALUE_*` or `CU_STREAM_WAIT_VALUE_*` flags.
        flags: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::ModuleLoad`]. The image lies in a region of this client and may change under the reader's hands.
    struct ModuleLoad {
        /// Number.
        module: u32,
        /// JIT: `CU_JIT_OPTIMIZATION_LEVEL`, or `u32::MAX`.
        optimization_level: u32,
        /// JIT: `CU_JIT_MAX_REGISTERS`, or 0.
        max_registers: u32,
        /// Room for the logs that the caller wants.
        log_bytes: u32,
        /// First address of the image.
        address: u64,
        /// Its length.
        size_bytes: u64,
    }
    /// Answer to [`Opcode::ModuleLoad`], also when it failed; `info_bytes` and then `error_bytes` of log follow.
    struct ModuleLoadReply {
        /// Length of the information log.
        info_bytes: u32,
        /// Length of the error log.
        error_bytes: u32,
    }
    /// See [`Opcode::ModuleUnload`].
    struct ModuleUnload {
        /// Number.
        module: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::FunctionGet`]; `name_bytes` of name follow.
    struct FunctionGet {
        /// The module.
        module: u32,
        /// The number that the function gets.
        function: u32,
        /// Length of the name.
        name_bytes: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`Opcode::FunctionGet`]; `parameters` times [`Parameter`] follow, then `attributes` times [`FunctionAttribute`].
    struct FunctionGetReply {
        /// How many parameters the kernel has.
        parameters: u32,
        /// How many attributes follow.
        attributes: u32,
        /// 1 if the kernel's module uses device `printf`, else 0.
        prints: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`Opcode::OutputTake`]; the text follows.
    struct OutputReply {
        /// Length of the text.
        size_bytes: u32,
        /// 1 if there is more, or kernels that can print have not ended; else 0.
        more: u32,
    }
    /// One kernel parameter: where it goes in the packed buffer.
    struct Parameter {
        /// Byte offset.
        offset: u32,
        /// Length.
        size_bytes: u32,
    }
    /// One `CUfunction_attribute`.
    struct FunctionAttribute {
        /// Which.
        attribute: i32,
        /// Its value.
        value: i32,
    }
    /// See [`Opcode::FunctionAttributes`]: all attributes afresh.
    struct FunctionAttributes {
        /// Number.
        function: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`Opcode::FunctionAttributes`]; so many [`FunctionAttribute`] follow.
    struct FunctionAttributesReply {
        /// How many.
        attributes: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::FunctionSetAttribute`].
    struct FunctionSetAttribute {
        /// Number.
        function: u32,
        /// `CUfunction_attribute`, or [`CACHE_CONFIG`].
        attribute: i32,
        /// Its value.
        value: i32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::GlobalGet`]; `name_bytes` of name follow.
    struct GlobalGet {
        /// The module.
        module: u32,
        /// Length of the name.
        name_bytes: u32,
    }
    /// Answer to [`Opcode::GlobalGet`]. From then on the client may name this range in copies.
    struct GlobalGetReply {
        /// First address.
        address: u64,
        /// Length.
        size_bytes: u64,
        /// 1 for a `__managed__` variable, else 0.
        managed: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`Opcode::CopyNow`].
    struct CopyNow {
        /// To.
        destination: u64,
        /// From.
        source: u64,
        /// Length.
        size_bytes: u64,
    }
    /// See [`Opcode::ModuleKernels`].
    struct ModuleKernels {
        /// The module.
        module: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`Opcode::ModuleKernels`]; the names follow, each ended by NUL.
    struct NamesReply {
        /// How many.
        names: u32,
        /// Their length in all.
        size_bytes: u32,
    }
    /// See [`Opcode::Occupancy`].
    struct Occupancy {
        /// Number of the function.
        function: u32,
        /// Threads per block; 0: find the best, no more than `block_limit`.
        block_threads: u32,
        /// Dynamic shared memory per block.
        dynamic_shared_bytes: u64,
        /// `CU_OCCUPANCY_*` flags.
        flags: u32,
        /// See `block_threads`; 0: none.
        block_limit: u32,
    }
    /// Answer to [`Opcode::Occupancy`].
    struct OccupancyReply {
        /// Blocks per SM; for a search: the smallest grid that fills the device.
        blocks: i32,
        /// Threads per block that were found or given.
        block_threads: i32,
    }
    /// See [`Opcode::Launch`]; `attributes` times [`LaunchAttribute`] follow, then `parameter_bytes` of packed parameters.
    struct Launch {
        /// Number of the function.
        function: u32,
        /// Slot.
        stream: u32,
        /// Blocks.
        grid: [u32; 3],
        /// Threads per block.
        block: [u32; 3],
        /// Dynamic shared memory per block.
        dynamic_shared_bytes: u32,
        /// Bytes of packed parameters.
        parameter_bytes: u32,
        /// How many attributes.
        attributes: u32,
        /// Zero.
        reserved: u32,
    }
    /// `CUlaunchAttribute` as it is in memory: the id, padding, 64 bytes of value.
    struct LaunchAttribute {
        /// `CUlaunchAttributeID`.
        id: u32,
        /// Zero.
        reserved: u32,
        /// The union's bytes; handles in it are the client's numbers.
        value: [u64; 8],
    }
    /// See [`Opcode::LimitGet`].
    struct LimitGet {
        /// `CUlimit`.
        limit: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`Opcode::LimitGet`].
    struct LimitReply {
        /// Its value.
        value: u64,
    }
    /// See [`Opcode::LimitSet`].
    struct LimitSet {
        /// `CUlimit`.
        limit: u32,
        /// Zero.
        reserved: u32,
        /// Its new value.
        value: u64,
    }
}

/// [`RegionMap::kind`]: read by the executor only (module images).
pub const REGION_PLAIN: u32 = 0;
/// [`RegionMap::kind`]: registered with the device: copies and kernels reach it.
pub const REGION_PINNED: u32 = 1;
/// [`FunctionSetAttribute::attribute`] that stands for `cuFuncSetCacheConfig`.
pub const CACHE_CONFIG: i32 = -1;

pub(super) use wire_struct;

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
