//! Modules, their functions and variables, launches and what they print.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::wire_struct;

wire_struct! {
    /// See [`super::Opcode::ModuleLoad`]. The image lies in a region of this client and may change
    /// under the reader's hands.
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
    /// Answer to [`super::Opcode::ModuleLoad`], also when it failed; `info_bytes` and then
    /// `error_bytes` of log follow.
    struct ModuleLoadReply {
        /// Length of the information log.
        info_bytes: u32,
        /// Length of the error log.
        error_bytes: u32,
    }
    /// See [`super::Opcode::ModuleUnload`].
    struct ModuleUnload {
        /// Number.
        module: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::FunctionGet`]; `name_bytes` of name follow.
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
    /// Answer to [`super::Opcode::FunctionGet`]; `parameters` times [`Parameter`] follow, then
    /// `attributes` times [`FunctionAttribute`].
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
    /// Answer to [`super::Opcode::OutputTake`]; the text follows.
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
    /// See [`super::Opcode::FunctionAttributes`]: all attributes afresh.
    struct FunctionAttributes {
        /// Number.
        function: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`super::Opcode::FunctionAttributes`]; so many [`FunctionAttribute`] follow.
    struct FunctionAttributesReply {
        /// How many.
        attributes: u32,
        /// Zero.
        reserved: u32,
    }
    /// See [`super::Opcode::FunctionSetAttribute`].
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
    /// See [`super::Opcode::GlobalGet`]; `name_bytes` of name follow.
    struct GlobalGet {
        /// The module.
        module: u32,
        /// Length of the name.
        name_bytes: u32,
    }
    /// Answer to [`super::Opcode::GlobalGet`]. From then on the client may name this range in
    /// copies.
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
    /// See [`super::Opcode::ModuleKernels`].
    struct ModuleKernels {
        /// The module.
        module: u32,
        /// Zero.
        reserved: u32,
    }
    /// Answer to [`super::Opcode::ModuleKernels`]; the names follow, each ended by NUL.
    struct NamesReply {
        /// How many.
        names: u32,
        /// Their length in all.
        size_bytes: u32,
    }
    /// See [`super::Opcode::Occupancy`].
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
    /// Answer to [`super::Opcode::Occupancy`].
    struct OccupancyReply {
        /// Blocks per SM; for a search: the smallest grid that fills the device.
        blocks: i32,
        /// Threads per block that were found or given.
        block_threads: i32,
    }
    /// See [`super::Opcode::Launch`]; `attributes` times [`LaunchAttribute`] follow, then
    /// `parameter_bytes` of packed parameters.
    struct Launch {
        /// Number of the function.
        function: u32,
        /// Slot; in a graph's node the partition that it runs in.
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
}

/// [`FunctionSetAttribute::attribute`] that stands for `cuFuncSetCacheConfig`.
pub const CACHE_CONFIG: i32 = -1;
