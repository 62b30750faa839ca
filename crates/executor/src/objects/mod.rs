//! What a session has besides memory and code.
//!
//! | file | concept |
//! |---|---|
//! | `stream`, `event`, `graph` | as CUDA has them |
//! | `array`, `texture` | arrays; texture and surface objects |
//! | `array_contents` | what is in arrays, saved for the next executor |
//! | `claims` | values that a driver makes up, and that must be the same in the next executor |
//! | `sharing` | memory and events of one session in another (CUDA IPC) |
//! | `printing` | what kernels print |
//! | `query` | questions that only the driver can answer |

pub(crate) mod array;
pub(crate) mod array_contents;
pub(crate) mod claims;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod printing;
pub(crate) mod query;
pub(crate) mod sharing;
pub(crate) mod stream;
pub(crate) mod texture;
