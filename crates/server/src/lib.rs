//! The OpenMPS server.
//!
//! [`keeper`] is the process that a daemon starts for a user: it answers clients on their sockets,
//! creates their device memory (without a CUDA context) and starts one [`executor`] per device, a
//! process of its own that owns the device's primary context and serves each client's ring with a
//! session thread. Between the two lies `executor_link`. Who may have what is decided in
//! [`policy`], plain code without I/O. What a client sees is `link::wire`.
//!
//! [`probe`] looks at a driver for those who ask why nothing runs.

pub use keeper::probe;
pub use {executor, keeper, policy};
