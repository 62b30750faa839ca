//! The control daemon: supervisor of servers, the control shell of the original, logs.
//!
//! - [`core`]: what is decided, with no I/O and no clock;
//! - [`daemon`]: sockets, processes, files around it;
//! - [`frontend`]: the shell's other side, as a program's user meets it;
//! - [`prepared`]: settings made before there is a daemon;
//! - [`trusted_path`]: what files and directories are believed;
//! - [`listening`]: whether a socket of the file system is in use;
//! - [`zombies`]: whether a process has ended that nobody can wait for;
//! - [`variables`]: those of the environment that are mistyped;
//! - [`values`], [`directories`], [`log`]: what these share.
//!
//! Behaviour follows NVIDIA's MPS guide (sections 2.3.5, 3.3, 4.1, 4.2) and, in wording, the
//! control utility of driver 580; deviations are noted where they are made.

pub mod core;
pub mod daemon;
pub mod directories;
pub mod frontend;
pub mod http;
pub mod listening;
pub mod log;
pub mod metrics;
pub mod prepared;
pub mod trusted_path;
pub mod zombies;
