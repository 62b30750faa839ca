//! A cooperative kernel's node: a launch that is captured.
//!
//! Under an H200's driver (580.159) a graph with such a kernel was invalid when its node was added
//! and then given the attribute, and valid when its program captured the same launch natively
//! (`programs/cuda/mixed_commands.cu`). So the launch is captured into the graph, with all its
//! attributes.

use super::{Code, with_kernel};
use crate::context::Context;
use crate::session::failure::Failure;
use crate::session::state::State;
use crate::sms::partition::Partition;
use cuda_abi::types::*;
use link::wire::command::Launch;
use std::ptr;

/// A stream that nothing but one capture uses.
struct Capturing<'a> {
    context: &'a Context,
    stream: CUstream,
}

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        let _ = self.context.end_stream(self.stream);
    }
}

/// Whether a kernel's blocks all run at the same time.
pub(super) fn is_cooperative(attributes: &[CUlaunchAttribute]) -> bool {
    let mut asked = attributes.iter().filter(|it| it.id == CUlaunchAttributeID::COOPERATIVE);
    // SAFETY: a plain number, of an attribute that is one; all its bytes were written.
    asked.any(|attribute| unsafe { attribute.value.cooperative } != 0)
}

impl State {
    /// Adds a kernel's node by way of a capture; its attributes are set.
    pub(super) fn capture_kernel(
        &self,
        graph: CUgraph,
        after: &[CUgraphNode],
        (shape, code, parameters): (&Launch, Code, &[u8]),
        attributes: &[CUlaunchAttribute],
        partition: Option<&Partition>,
    ) -> Result<CUgraphNode, Failure> {
        let driver = self.driver();
        let capturing =
            Capturing { context: self.context(), stream: self.stream_to_capture(partition)? };
        let stream = capturing.stream;
        // Of no concern to other threads.
        let mode = CUstreamCaptureMode::RELAXED;
        let first = super::super::array(after);
        // SAFETY: live handles of this session, a stream that nothing else uses, checked
        // parameters, and attributes without handles.
        self.context().gate.between(|| unsafe {
            let (data, count) = (ptr::null(), after.len());
            self.check(
                driver.cuStreamBeginCaptureToGraph(stream, graph, first, data, count, mode),
            )?;
            let mut attributes = attributes.to_vec();
            let launched = with_kernel(shape, code, parameters, |kernel| {
                let config = CUlaunchConfig {
                    gridDimX: kernel.gridDimX,
                    gridDimY: kernel.gridDimY,
                    gridDimZ: kernel.gridDimZ,
                    blockDimX: kernel.blockDimX,
                    blockDimY: kernel.blockDimY,
                    blockDimZ: kernel.blockDimZ,
                    sharedMemBytes: kernel.sharedMemBytes,
                    hStream: stream,
                    attrs: attributes.as_mut_ptr(),
                    numAttrs: attributes.len() as u32,
                };
                // A launch takes a kernel for a function: that of the stream's context.
                let function = match code {
                    Code::Function(function) => function,
                    Code::Kernel(kernel, _) => CUfunction(kernel.0),
                };
                driver.cuLaunchKernelEx(&config, function, ptr::null_mut(), kernel.extra)
            });
            let (mut nodes, mut count) = (ptr::null(), 0);
            let (mut status, unasked) = (CUstreamCaptureStatus::default(), ptr::null_mut());
            let told = driver.cuStreamGetCaptureInfo_v3(
                stream,
                &mut status,
                unasked,
                ptr::null_mut(),
                &mut nodes,
                ptr::null_mut(),
                &mut count,
            );
            // What comes next in the stream is after the launch alone.
            let node = (told.is_success() && count == 1).then(|| nodes.read());
            let mut same = CUgraph::NULL;
            let ended = driver.cuStreamEndCapture(stream, &mut same);
            self.check(launched)?;
            self.check(told)?;
            self.check(ended)?;
            node.ok_or(Failure::Cuda(CUresult::ERROR_UNKNOWN))
        })
    }

    fn stream_to_capture(&self, partition: Option<&Partition>) -> Result<CUstream, Failure> {
        if let Some(partition) = partition {
            return partition.stream(self.context(), 0);
        }
        Ok(self.context().new_stream(0)?)
    }
}
