//! A small wrapper over the CUDA driver API, for programs that stand for other people's programs:
//! it opens `libcuda.so.1` by name as they do and declares the functions itself, so that a wrong
//! declaration in the product does not hide behind the same wrong declaration in its tests.
//!
//! [`api`] is the functions, [`Context`] and its children the safe side of them. A launch stays
//! `unsafe`.

pub mod api;
mod context;
mod memory;

pub use context::{Context, Function, LaunchShape, Module, Stream};
pub use memory::{DeviceBuffer, Element, Parameter, PinnedBuffer};

/// A call that did not go well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library or one of its functions is missing.
    #[error("cannot use libcuda.so.1: {0}; put a CUDA driver's directory into LD_LIBRARY_PATH")]
    Library(#[from] libloading::Error),
    /// A driver function returned a `CUresult` that is not success.
    #[error("{call} returned {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// Its `CUresult`.
        code: u32,
        /// The code's name, as the driver gives it.
        name: String,
    },
    /// Two lengths that must agree do not.
    #[error("{given} elements were given for a buffer of {expected}")]
    Length {
        /// What the caller passed.
        given: usize,
        /// What the buffer holds.
        expected: usize,
    },
    /// A launch with more parameters than this wrapper passes on.
    #[error(
        "{given} kernel parameters are more than the {} that are supported",
        context::MAX_PARAMETERS
    )]
    TooManyParameters {
        /// What the caller passed.
        given: usize,
    },
    /// A name with a NUL byte inside.
    #[error("a name or a text for the driver contains a NUL byte")]
    InteriorNul(#[from] std::ffi::NulError),
}

impl Error {
    /// The `CUresult` of a failed call.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}
