//! How work gets to the driver.
//!
//! | file | concept |
//! |---|---|
//! | `submission`, `submitted` | the way to the driver, for all kinds of work; what they differ in |
//! | `launch`, `copy` | one kernel; one copy or fill |
//! | `waiting`, `gathering`, `batch` | launches that wait for those behind them, for how long, and go together |
//! | `chain`, `chain_stock`, `chain_submission`, `lengths` | what they go as: graphs that are kept and used again |
//! | `small_copies`, `own_kernels` | copies in chains, and our own kernels that do them |
//! | `nearness`, `backlog` | who waits for a launch, and how far a stream is ahead |
//! | `holding`, `probe` | streams that wait for a value in memory |
//! | `watching` | streams that wait for one of another device |
//! | `retired` | graphs that nothing names, and that may still run |

pub(crate) mod backlog;
pub(crate) mod batch;
pub(crate) mod chain;
pub(crate) mod chain_stock;
pub(crate) mod chain_submission;
pub(crate) mod copy;
pub(crate) mod gathering;
pub(crate) mod holding;
pub(crate) mod launch;
pub(crate) mod lengths;
pub(crate) mod nearness;
pub(crate) mod own_kernels;
pub(crate) mod probe;
pub(crate) mod retired;
pub(crate) mod small_copies;
pub(crate) mod submission;
pub(crate) mod submitted;
pub(crate) mod waiting;
pub(crate) mod watching;
