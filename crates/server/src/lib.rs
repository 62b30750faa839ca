//! The OpenMPS server.
//!
//! [`keeper`] is the process that a daemon starts for a user: it answers clients on their sockets,
//! creates their device memory (without a CUDA context) and starts one [`executor`] per device, a
//! process of its own that owns the device's primary context and serves each client's ring with a
//! session thread. Between the two lies [`executor_link`]. Who may have what is decided in
//! [`policy`], plain code without I/O. What a client sees is `link::wire`.
//!
//! [`probe`] looks at a driver for those who ask why nothing runs.
//!
//! An executor is disposable: what its sessions have is the keeper's, or written down where it
//! survives (`journal`, `standing`), so that another one takes over after a fault ([`keeper`]'s
//! `takeover`).
//!
//! Not here yet: private executors.

mod captured;
mod counters;
mod driver;
pub mod executor;
mod executor_link;
mod history;
mod image_hash;
mod journal;
pub mod keeper;
mod log;
mod numbers;
pub mod policy;
pub mod probe;
mod redo;
mod standing;
