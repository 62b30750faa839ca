//! An executable kernel, and why there may be none.

use super::code::Function;

/// One kernel parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelParam {
    /// Offset in the parameter buffer, bytes.
    pub offset_bytes: u32,
    /// Size, bytes.
    pub size_bytes: u32,
}

/// An executable kernel and what the driver API says about it.
#[derive(Debug)]
pub struct Kernel {
    /// Name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<KernelParam>,
    /// Length of the parameter buffer, bytes.
    pub param_bytes: u32,
    /// Static shared memory per block, bytes.
    pub static_shared_bytes: u32,
    /// Local memory per thread of the kernel and the deepest call it makes without recursion,
    /// bytes.
    pub local_bytes: u32,
    /// Registers per thread as the driver would report them (an estimate, 16 to 255).
    pub registers: u32,
    /// Most threads per block: `.maxntid`/`.reqntid`, else 1024.
    pub max_threads_per_block: u32,
    /// `.reqntid`, when given.
    pub required_block: Option<[u32; 3]>,
    /// `.reqnctapercluster`, when given.
    pub required_cluster: Option<[u32; 3]>,
    /// `.minnctapersm`, when given.
    pub min_blocks_per_sm: Option<u32>,
    /// Bytes of `.const` variables of the program.
    pub const_bytes: u32,
    /// PTX ISA version as major * 10 + minor, e.g. 90 for 9.0.
    pub ptx_version: u32,
    /// `.target` number, e.g. 86 for sm_86.
    pub target: u32,
    /// Its executable form.
    pub(super) code: KernelCode,
}

/// Executable code of a kernel.
#[derive(Debug)]
pub(super) struct KernelCode {
    /// By program-wide function number; those that the kernel cannot reach are missing.
    pub(super) functions: Vec<Option<Box<Function>>>,
    /// Number of the kernel's own function.
    pub(super) entry: usize,
    /// Whether the call graph has cycles or calls through pointers, so that the stack's depth is
    /// open.
    pub(super) recursive: bool,
}

/// Why a kernel cannot be handed out.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No such entry.
    #[error("no kernel named {0}")]
    NotFound(String),
    /// The entry exists, but contains something that cannot be executed.
    #[error("kernel {name} cannot be executed: line {line}: {reason}")]
    Unsupported {
        /// Kernel name.
        name: String,
        /// PTX line of the obstacle.
        line: u32,
        /// What it is.
        reason: String,
    },
    /// [`Program::bind`](super::Program::bind) was not called yet.
    #[error("kernel {0}: the program's globals have no addresses yet")]
    Unbound(String),
}
