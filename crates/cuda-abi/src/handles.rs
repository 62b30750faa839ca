//! Handle values with a meaning of their own, and constants that are no plain numbers in C.

use crate::generated::types::*;

impl CUstream {
    /// The legacy default stream, by name.
    pub const LEGACY: Self = Self(1);
    /// The calling thread's default stream, by name.
    pub const PER_THREAD: Self = Self(2);
}

/// In a launch's `extra` list: ends it.
pub const CU_LAUNCH_PARAM_END: usize = 0;
/// In a launch's `extra` list: the next element points to the packed parameters.
pub const CU_LAUNCH_PARAM_BUFFER_POINTER: usize = 1;
/// In a launch's `extra` list: the next element points to the size of the packed parameters.
pub const CU_LAUNCH_PARAM_BUFFER_SIZE: usize = 2;

/// Stands for the host where a device is asked for.
pub const CU_DEVICE_CPU: CUdevice = -1;
/// No device.
pub const CU_DEVICE_INVALID: CUdevice = -2;
