//! The loops that are measured, as in the study of a real GPU that the project rests on.

use serde::{Deserialize, Serialize};

/// What a client does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// 8 blocks of 128 threads that spin 17,000 cycles, launched back to back.
    Tiny,
    /// An empty kernel, launched back to back.
    Empty,
    /// An empty kernel, then a wait for the stream.
    Lat,
    /// 20 kernels of 16 blocks of 128 threads that spin 8,500 cycles, then a wait.
    Infer,
    /// 8 kernels that fill all SMs twelve times over, then a wait: what a share of the SMs is worth.
    Fill,
    /// Calls that need no device, one kind after the other: see [`calls`](crate::calls).
    Calls,
    /// Copies, allocations and module loads, one kind after the other.
    Memory,
    /// From `cuInit` to the end of a first kernel, in a fresh process.
    Start,
}

/// One kind of launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks.
    pub blocks: u32,
    /// Threads per block.
    pub threads: u32,
    /// Clock cycles that each thread spins; 0 launches the empty kernel.
    pub spin_cycles: u64,
    /// Launches of one iteration.
    pub launches: u32,
    /// Iterations between two waits for the stream; 0: only at the end.
    pub iterations_per_wait: u32,
}

impl Workload {
    /// Every workload.
    pub const ALL: [Self; 8] = [
        Self::Tiny,
        Self::Empty,
        Self::Lat,
        Self::Infer,
        Self::Fill,
        Self::Calls,
        Self::Memory,
        Self::Start,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Empty => "empty",
            Self::Lat => "lat",
            Self::Infer => "infer",
            Self::Fill => "fill",
            Self::Calls => "calls",
            Self::Memory => "memory",
            Self::Start => "start",
        }
    }

    /// The workload of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// Whether one client does it again and again, so that the peers' clients can take turns.
    pub fn can_take_turns(self) -> bool {
        matches!(self, Self::Calls | Self::Memory)
    }

    /// Its launches, if it is made of launches.
    pub fn shape(self) -> Option<Shape> {
        let shape = match self {
            Self::Calls | Self::Memory | Self::Start => return None,
            Self::Tiny => Shape {
                blocks: 8,
                threads: 128,
                spin_cycles: 17_000,
                launches: 1,
                iterations_per_wait: 0,
            },
            Self::Empty => Shape {
                blocks: 1,
                threads: 32,
                spin_cycles: 0,
                launches: 1,
                iterations_per_wait: 0,
            },
            Self::Lat => Shape {
                blocks: 1,
                threads: 32,
                spin_cycles: 0,
                launches: 1,
                iterations_per_wait: 1,
            },
            Self::Infer => Shape {
                blocks: 16,
                threads: 128,
                spin_cycles: 8_500,
                launches: 20,
                iterations_per_wait: 1,
            },
            // On a device of 132 SMs twelve rounds, and on any part of it so many that the last, incomplete one counts little.
            Self::Fill => Shape {
                blocks: 3168,
                threads: 1024,
                spin_cycles: 20_000,
                launches: 8,
                iterations_per_wait: 1,
            },
        };
        Some(shape)
    }
}
