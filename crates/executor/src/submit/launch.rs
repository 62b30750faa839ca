//! Kernel launches and occupancy.

use super::submitted::{Launched, Shape, Submission, Submitted};
use super::waiting::Together;
use crate::code::module::Touch;
use crate::session::failure::Failure;
use crate::session::state::State;
use crate::turns::costs::Piece;
use cuda_abi::types::*;
use executor_link::history::NotedLaunch;
use link::wire::command::{Launch, LaunchAttribute, Occupancy, OccupancyReply, Opcode};
use std::ffi::c_void;
use std::ptr;
use zerocopy::{FromBytes, IntoBytes};

/// More than any driver knows.
pub(crate) const MAX_ATTRIBUTES: u32 = 32;

impl State {
    /// Launches a kernel, one that has waited in the batch or not.
    pub(crate) fn launch(
        &mut self,
        wanted: &Launch,
        rest: &[u8],
        waited: Option<Together<'_>>,
    ) -> Result<(), Failure> {
        let function = self.modules.function(wanted.function)?;
        let (handle, prints, frame_bytes) =
            (function.handle, function.prints, function.frame_bytes);
        if wanted.parameter_bytes < function.parameter_bytes {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let (mut attributes, parameters) = split(wanted, rest)?;
        let parameters = self.given(parameters)?;
        self.map_priorities(&mut attributes);
        let mut parameter_bytes = parameters.len();
        let mut extra = [
            ptr::without_provenance_mut::<c_void>(CU_LAUNCH_PARAM_BUFFER_POINTER),
            parameters.as_ptr().cast_mut().cast(),
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_BUFFER_SIZE),
            (&raw mut parameter_bytes).cast(),
            ptr::without_provenance_mut(CU_LAUNCH_PARAM_END),
        ];
        let extra = if parameters.is_empty() { ptr::null_mut() } else { extra.as_mut_ptr() };
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (wanted.grid, wanted.block);
        let shared_bytes = wanted.dynamic_shared_bytes;
        self.touch_variables(Touch::Function(wanted.function));
        let launched = Launched::Kernel(Shape::new(wanted, handle));
        let (slot, submitted) =
            (wanted.stream, Submitted::Piece(Piece::Function(wanted.function), launched));
        let submission = Submission { slot, submitted, prints, frame_bytes, waited, signal: None };
        self.submit(&submission, |state, stream| {
            state.note_launch(wanted);
            let driver = state.driver();
            if attributes.is_empty() {
                // SAFETY: a live function and stream of this session; the parameters are as long as
                // the kernel's.
                return unsafe {
                    driver.cuLaunchKernel(
                        handle,
                        grid_x,
                        grid_y,
                        grid_z,
                        block_x,
                        block_y,
                        block_z,
                        shared_bytes,
                        stream,
                        ptr::null_mut(),
                        extra,
                    )
                };
            }
            let config = CUlaunchConfig {
                gridDimX: grid_x,
                gridDimY: grid_y,
                gridDimZ: grid_z,
                blockDimX: block_x,
                blockDimY: block_y,
                blockDimZ: block_z,
                sharedMemBytes: shared_bytes,
                hStream: stream,
                attrs: attributes.as_mut_ptr(),
                numAttrs: attributes.len() as u32,
            };
            // SAFETY: as above; the attributes hold no handles.
            unsafe { driver.cuLaunchKernelEx(&config, handle, ptr::null_mut(), extra) }
        })?;
        self.last_function = Some(wanted.function);
        self.counters().count_kernels(1);
        Ok(())
    }

    /// Notes a launch that is about to be submitted.
    pub(crate) fn note_launch(&self, wanted: &Launch) {
        let Ok(function) = self.modules.function(wanted.function) else { return };
        let (grid, block) = (wanted.grid, wanted.block);
        let shared_bytes = wanted.dynamic_shared_bytes;
        let launch = NotedLaunch { kernel: &function.name, grid, block, shared_bytes };
        self.history().launch(Opcode::Launch, wanted.stream, &launch);
    }

    /// Gives launches with a priority of their own the driver's that is meant; see
    /// [`policy::turns::priorities`].
    pub(crate) fn map_priorities(&self, attributes: &mut [CUlaunchAttribute]) {
        let with_priority =
            |attribute: &&mut CUlaunchAttribute| attribute.id == CUlaunchAttributeID::PRIORITY;
        for attribute in attributes.iter_mut().filter(with_priority) {
            // SAFETY: a plain number, of an attribute that is a priority; all its bytes were
            // written.
            let wanted = unsafe { attribute.value.priority };
            attribute.value.priority = self.stream_priority(wanted);
        }
    }

    pub(crate) fn occupancy(&mut self, wanted: Occupancy) -> Result<(), Failure> {
        let Occupancy { function, block_threads, dynamic_shared_bytes, flags, block_limit } =
            wanted;
        let handle = self.modules.function(function)?.handle;
        let (mut blocks, mut threads) = (0, block_threads as i32);
        let shared_bytes = dynamic_shared_bytes as usize;
        let driver = self.driver();
        // SAFETY: a live function of this session; the results are written.
        self.check(unsafe {
            match block_threads {
                0 => driver.cuOccupancyMaxPotentialBlockSizeWithFlags(
                    &mut blocks,
                    &mut threads,
                    handle,
                    None,
                    shared_bytes,
                    block_limit as i32,
                    flags,
                ),
                _ => driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                    &mut blocks,
                    handle,
                    threads,
                    shared_bytes,
                    flags,
                ),
            }
        })?;
        self.answer(&OccupancyReply { blocks, block_threads: threads })
    }
}

/// The attributes and the parameters that follow a launch.
pub(crate) fn split<'a>(
    wanted: &Launch,
    mut rest: &'a [u8],
) -> Result<(Vec<CUlaunchAttribute>, &'a [u8]), Failure> {
    let short =
        || Failure::Protocol("a launch is shorter than its attributes and parameters".into());
    if wanted.attributes > MAX_ATTRIBUTES {
        return Err(Failure::Protocol(format!("a launch has {} attributes", wanted.attributes)));
    }
    let mut attributes = Vec::new();
    for _ in 0..wanted.attributes {
        let (attribute, after) = LaunchAttribute::read_from_prefix(rest).map_err(|_| short())?;
        rest = after;
        attributes.push(translate(&attribute)?);
    }
    let parameters = rest.get(..wanted.parameter_bytes as usize).ok_or_else(short)?;
    Ok((attributes, parameters))
}

/// A client's launch attribute as the driver takes it; those that hold handles are refused.
pub(crate) fn translate(attribute: &LaunchAttribute) -> Result<CUlaunchAttribute, Failure> {
    let id = CUlaunchAttributeID(attribute.id);
    // Those whose value holds a handle would let the driver follow a client's number.
    let holds_handle = [
        CUlaunchAttributeID::PROGRAMMATIC_EVENT,
        CUlaunchAttributeID::LAUNCH_COMPLETION_EVENT,
        CUlaunchAttributeID::DEVICE_UPDATABLE_KERNEL_NODE,
    ];
    if holds_handle.contains(&id) || id.0 >= CUlaunchAttributeID::MAX.0 {
        return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
    }
    let mut pad = [0; 64];
    for (to, from) in pad.iter_mut().zip(attribute.value.as_bytes()) {
        *to = *from as _;
    }
    Ok(CUlaunchAttribute { id, pad: [0; 4], value: CUlaunchAttributeValue { pad } })
}
