//! What the driver gets in one call, and what of it matters on the way there.

use super::waiting::Together;
use crate::turns::costs::Piece;
use cuda_abi::types::CUfunction;
use link::wire::command::Launch;

/// How a kernel fills the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) function: CUfunction,
    pub(crate) blocks: u64,
    pub(crate) block_threads: u32,
    pub(crate) dynamic_shared_bytes: u32,
}

impl Shape {
    pub(crate) fn new(launch: &Launch, function: CUfunction) -> Self {
        let of = |sizes: [u32; 3]| -> u64 { sizes.map(u64::from).into_iter().product() };
        Self {
            function,
            blocks: of(launch.grid),
            block_threads: of(launch.block) as u32,
            dynamic_shared_bytes: launch.dynamic_shared_bytes,
        }
    }
}

/// What is launched, as far as it matters to others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Launched {
    Kernel(Shape),
    /// So many, which need not all fill the device, but may.
    Graph {
        kernels: u32,
    },
}

/// What the driver gets in one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Submitted<'a> {
    /// One thing.
    Piece(Piece, Launched),
    /// Kernels in a row, with their parameters, and small copies.
    Chain(Together<'a>),
}

impl Submitted<'_> {
    /// How many things samples are of.
    pub(crate) fn pieces(self) -> u32 {
        match self {
            Self::Piece(..) => 1,
            Self::Chain(launches) => launches.kernel_count() as u32,
        }
    }

    /// How many launches it counts for, of those that a stream may be ahead of the device.
    pub(crate) fn launches(self) -> u32 {
        match self {
            Self::Piece(_, Launched::Kernel(_)) => 1,
            Self::Piece(_, Launched::Graph { kernels }) => kernels.max(1),
            Self::Chain(launches) => launches.len() as u32,
        }
    }
}

/// Work on its way to the driver.
pub(crate) struct Submission<'a> {
    pub(crate) slot: u32,
    pub(crate) submitted: Submitted<'a>,
    pub(crate) prints: bool,
    /// Local memory per thread that its kernels have.
    pub(crate) frame_bytes: u32,
    /// The launches that it is of, where they have waited in the batch.
    pub(crate) waited: Option<Together<'a>>,
    /// The signal of its stream that goes with it.
    pub(crate) signal: Option<u64>,
}
