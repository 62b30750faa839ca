//! Calls: commands whose answer is waited for.

use super::{Session, with_spin};
use crate::result::Result;
use cuda_abi::types::CUresult;
use link::call::CallError;
use link::wire::command::Opcode;
use zerocopy::FromBytes;

impl Session {
    /// Calls: posts and waits for the answer, success or not.
    pub(crate) fn call_raw(
        &self,
        context: u32,
        opcode: Opcode,
        parts: &[&[u8]],
    ) -> Result<(CUresult, Vec<u8>)> {
        self.check()?;
        let call = loop {
            match self.calls.claim() {
                Ok(call) => break call,
                Err(_) if !self.is_alive() => return Err(CUresult::ERROR_MPS_RPC_FAILURE),
                Err(_) => std::thread::yield_now(),
            }
        };
        let posted = self.put(&mut self.lock(), opcode, call.slot(), context, parts);
        if let Err(error) = posted {
            call.cancel_unposted();
            return Err(error);
        }
        let mut reply = Vec::new();
        let answered = with_spin(|spin| call.wait(spin, &mut reply, &mut || self.is_alive()));
        match answered {
            Ok(status) => Ok((CUresult(status), reply)),
            Err(CallError::PeerGone | CallError::NoFreeSlot) => {
                Err(self.check().err().unwrap_or(CUresult::ERROR_MPS_RPC_FAILURE))
            }
        }
    }

    /// Calls and returns the answer's bytes; what is not success is the error.
    pub(crate) fn call(&self, context: u32, opcode: Opcode, parts: &[&[u8]]) -> Result<Vec<u8>> {
        match self.call_raw(context, opcode, parts)? {
            (CUresult::SUCCESS, reply) => Ok(reply),
            (error, _) => Err(error),
        }
    }

    /// Calls and returns the answer's struct.
    pub(crate) fn call_for<R: FromBytes>(
        &self,
        context: u32,
        opcode: Opcode,
        parts: &[&[u8]],
    ) -> Result<R> {
        let reply = self.call(context, opcode, parts)?;
        R::read_from_prefix(&reply)
            .map(|(reply, _)| reply)
            .map_err(|_| CUresult::ERROR_MPS_RPC_FAILURE)
    }
}
