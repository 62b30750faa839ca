//! The loops that are measured, as in the study of a real GPU that the project rests on.

use crate::driver::Kernel;
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
    /// 8 kernels that fill all SMs twelve times over, then a wait: what a share of the SMs is
    /// worth.
    Fill,
    /// 4 kernels of 8 blocks of 128 threads that compute, then a wait: what of a device's power is
    /// lost by sharing it.
    Work,
    /// What programs mix: a copy to the device, memory taken and given back in stream order, a
    /// fill, six kernels, an event, a copy to the host, a wait.
    Mixed,
    /// Every 2 ms a module with a variable is loaded, its kernel run and waited for, and unloaded.
    Load,
    /// The same with a module without variables.
    Reload,
    /// Processes, one after the other, that end after a first kernel.
    Starts,
    /// What it takes to hand work over: see [`posting`](crate::posting).
    Post,
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
    /// Which kernel.
    pub kernel: Kernel,
    /// Launches of one iteration.
    pub launches: u32,
    /// Iterations between two waits for the stream; 0: only at the end.
    pub iterations_per_wait: u32,
}

impl Workload {
    /// Every workload.
    pub const ALL: [Self; 14] = [
        Self::Tiny,
        Self::Empty,
        Self::Lat,
        Self::Infer,
        Self::Fill,
        Self::Work,
        Self::Mixed,
        Self::Load,
        Self::Reload,
        Self::Starts,
        Self::Post,
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
            Self::Work => "work",
            Self::Mixed => "mixed",
            Self::Load => "load",
            Self::Reload => "reload",
            Self::Starts => "starts",
            Self::Post => "post",
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
        matches!(self, Self::Calls | Self::Memory | Self::Post)
    }

    /// Whether it gives a time for each kind of call, and no rate of kernels.
    pub fn is_call_by_call(self) -> bool {
        matches!(self, Self::Calls | Self::Memory | Self::Post | Self::Start)
    }

    /// Its launches, if it is made of launches alone.
    pub fn shape(self) -> Option<Shape> {
        let shape = match self {
            Self::Calls
            | Self::Memory
            | Self::Start
            | Self::Mixed
            | Self::Load
            | Self::Reload
            | Self::Starts
            | Self::Post => return None,
            Self::Work => Shape {
                blocks: 8,
                threads: 128,
                kernel: Kernel::Work { steps: 2_000 },
                launches: 4,
                iterations_per_wait: 1,
            },
            Self::Tiny => Shape {
                blocks: 8,
                threads: 128,
                kernel: Kernel::Spin { cycles: 17_000 },
                launches: 1,
                iterations_per_wait: 0,
            },
            Self::Empty => Shape {
                blocks: 1,
                threads: 32,
                kernel: Kernel::Empty,
                launches: 1,
                iterations_per_wait: 0,
            },
            Self::Lat => Shape {
                blocks: 1,
                threads: 32,
                kernel: Kernel::Empty,
                launches: 1,
                iterations_per_wait: 1,
            },
            Self::Infer => Shape {
                blocks: 16,
                threads: 128,
                kernel: Kernel::Spin { cycles: 8_500 },
                launches: 20,
                iterations_per_wait: 1,
            },
            // On a device of 132 SMs twelve rounds, and on any part of it so many that the last,
            // incomplete one counts little.
            Self::Fill => Shape {
                blocks: 3168,
                threads: 1024,
                kernel: Kernel::Spin { cycles: 20_000 },
                launches: 8,
                iterations_per_wait: 1,
            },
        };
        Some(shape)
    }
}
