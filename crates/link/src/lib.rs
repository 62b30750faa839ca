//! What client, control daemon, server and executor say to each other.
//!
//! Two planes. The *control plane* is packets of JSON over `SOCK_SEQPACKET` Unix sockets, with
//! descriptors beside them ([`socket`]; messages in [`wire::daemon`], [`wire::attach`],
//! [`wire::ui`]): rare, readable, checked by `serde`. The *data plane* is a ring in a sealed
//! shared-memory file per session ([`wire::layout`], [`wire::command`]): plain structs, no
//! allocation, no system call while both sides are awake.
//!
//! A client maps the session's file ([`session_memory`]), posts commands ([`ring::Producer`]),
//! waits for answers ([`call::CallSlots`]) and for streams ([`completion::wait`]); an executor
//! takes commands ([`ring::Consumer`]) and answers ([`call::answer`]). Who waits spins ([`spin`]),
//! then sleeps ([`doorbell`], [`futex`]), never without a bound.
//!
//! A traced client, and its executor, write to rings of another kind ([`trace`]).
//!
//! Everything that arrives from a client is hostile: it is copied out of shared memory, checked,
//! then used. Descriptors and connections of clients are closed where nobody waits for it
//! ([`closer`]). A process of another user gets nothing that it was not given on purpose
//! ([`inheritance`]), and is that user's when nobody can come in between any more ([`user`]).

pub mod atomic;
pub mod bus_error;
pub mod c_library;
pub mod call;
pub mod closer;
pub mod completion;
pub mod doorbell;
pub mod futex;
pub mod inheritance;
pub mod pages;
pub mod peer;
pub mod pieces;
mod printable;
pub mod process_name;
pub mod random;
pub mod ring;
pub mod session_memory;
pub mod shm;
pub mod socket;
pub mod spin;
pub mod trace;
pub mod trust;
pub mod user;
pub mod user_namespace;
pub mod wire;

pub use printable::{is_printable, printable, printable_prefix};
