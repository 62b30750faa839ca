//! The simulated device: memory, streams, events and SMs, below the C ABI and above PTX execution.
//!
//! | file | concept |
//! |---|---|
//! | [`config`] | the environment variables that describe the device |
//! | [`properties`] | limits and names of a device |
//! | [`memory`] | addresses, allocations, who may touch what |
//! | [`engine`], [`dispatch`], [`ops`], [`marker`] | streams: order, start and end of operations |
//! | [`machine`] | memory and contexts of all processes that share the devices |
//! | [`footprint`], [`grid`], [`sm`], [`placement`] | launches: blocks placed on SMs under occupancy limits, least virtual time first |
//! | [`sm_sets`] | groups of SMs: green contexts and limits |
//! | [`worker`] | the threads that run slices of blocks and pieces of copies, and the host-callback thread |
//! | [`textures`] | texture and surface units |
//! | [`transfer`] | copies and fills |
//! | [`conditions`] | values that decide about conditional nodes of graphs |
//! | [`numbers`] | handles of which kernels are given the values |
//! | [`services`] | console and heap of a context's kernels |
//! | [`fault`] | sticky errors and their log line |
//!
//! Scheduling: two or more workers take the SM with the least virtual time, run one slice of one of
//! its resident blocks, and add what was executed to the SM's time. The share of each set of SMs is
//! therefore exact, whatever the number of host cores.

pub(crate) mod clock;
pub(crate) mod conditions;
pub(crate) mod config;
pub(crate) mod dispatch;
pub(crate) mod engine;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod footprint;
pub(crate) mod grid;
pub(crate) mod machine;
pub(crate) mod marker;
pub(crate) mod memory;
pub(crate) mod numbers;
pub(crate) mod ops;
pub(crate) mod placement;
pub(crate) mod properties;
pub(crate) mod services;
pub(crate) mod sm;
pub(crate) mod sm_sets;
pub(crate) mod textures;
pub(crate) mod transfer;
pub(crate) mod worker;
