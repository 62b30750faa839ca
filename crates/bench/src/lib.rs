//! What sharing costs and gains, measured beside the alternatives in one run.
//!
//! [`worker`] is the client: one process, one context, one stream, a loop. It is the same binary
//! for every [`peer`]: no MPS, NVIDIA's MPS where it is installed, OpenMPS; only the driver library
//! that it opens and the directory of the daemon differ. What it does is a [`workload`]: kernels, a
//! mix of work and other loops, what it takes to post work, [`calls`] that need not leave the
//! process, or copies and loads. [`chaos`] is about faults instead, and [`hostile`] has its
//! attackers. [`runner`] starts the workers of a run together, runs the peers in turn and
//! interleaved, and hands medians to [`report`].

pub mod calls;
pub mod chaos;
pub mod driver;
pub mod hostile;
mod loops;
mod memory;
pub mod peer;
mod posting;
pub mod report;
pub mod runner;
pub mod timer;
pub mod worker;
pub mod workload;
