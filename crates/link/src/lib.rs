//! What client, control daemon, server and executor say to each other.
//!
//! Two planes. The *control plane* is packets of JSON over `SOCK_SEQPACKET` Unix sockets, with descriptors beside them
//! ([`wire::daemon`], [`wire::attach`], [`wire::ui`]): rare, readable, checked by `serde`. The *data plane* is a ring in a sealed
//! shared-memory file per session ([`wire::layout`], [`wire::command`]): plain structs, no allocation, no system call while
//! both sides are awake.
//!
//! Everything that arrives from a client is hostile: it is copied out of shared memory, checked, then used.

pub mod wire;
