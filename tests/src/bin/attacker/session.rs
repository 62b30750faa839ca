//! A client with a context on device 0 that posts what it likes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use bench::hostile::raw_session::attach;
use link::call::CallSlots;
use link::ring::Producer;
use link::session_memory::SessionMemory;
use link::socket::Connection;
use link::spin::Spin;
use link::wire::attach::{ClientReply, ClientRequest, RegionFile, RequestedLimits, Window};
use link::wire::command::{NO_CALL, Opcode, RegionMap};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use zerocopy::IntoBytes;

use crate::PATIENCE;

pub(crate) struct Session {
    /// To the server.
    pub(crate) connection: Connection,
    /// To the executor.
    pub(crate) socket: Connection,
    pub(crate) window: Window,
    /// How far its streams are.
    pub(crate) completions: OwnedFd,
    memory: Arc<SessionMemory>,
    producer: Producer,
    slots: CallSlots,
}

impl Session {
    pub(crate) fn open(daemon: &Path) -> Result<Self> {
        let connection = attach(daemon, RequestedLimits::default())?;
        let wanted = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
        connection.send(&wanted, &[], PATIENCE)?;
        let reply = connection.receive::<ClientReply>(PATIENCE)?;
        let ClientReply::ContextOpened(opened) = reply.message else {
            bail!("no context: {:?}", reply.message);
        };
        let [memory, completions, socket] = <[OwnedFd; 3]>::try_from(reply.descriptors)
            .map_err(|all| anyhow::anyhow!("{} descriptors", all.len()))?;
        let memory = Arc::new(SessionMemory::map(memory.as_fd())?);
        Ok(Self {
            connection,
            socket: Connection::from_socket(socket)?,
            window: opened.host_window,
            completions,
            producer: Producer::new(Arc::clone(&memory)),
            slots: CallSlots::new(Arc::clone(&memory)),
            memory,
        })
    }

    /// What the server has said of its end, as a `CUresult`; 0: nothing.
    pub(crate) fn error(&self) -> u32 {
        self.memory.error()
    }

    /// Takes back what the server has said of its end.
    pub(crate) fn forget_error(&self) {
        self.memory.shared().session_error.0.store(0, Ordering::SeqCst);
    }

    /// Posts a command without an answer.
    pub(crate) fn post(&mut self, opcode: Opcode, parts: &[&[u8]]) -> Result<()> {
        let connection = &self.connection;
        let mut alive = || !connection.is_closed();
        Ok(self.producer.post(opcode, NO_CALL, 1, parts, &mut alive)?)
    }

    /// Waits until all that was posted is taken.
    pub(crate) fn ping(&mut self) -> Result<String> {
        Ok(format!("pinged {}", self.call(Opcode::Ping, &[])?.0))
    }

    /// Has a command done; its code and its answer.
    pub(crate) fn call(&mut self, opcode: Opcode, parts: &[&[u8]]) -> Result<(u32, Vec<u8>)> {
        let connection = &self.connection;
        let mut alive = || !connection.is_closed();
        let call = self.slots.claim()?;
        self.producer.post(opcode, call.slot(), 1, parts, &mut alive)?;
        let mut reply = Vec::new();
        let code = call
            .wait(&mut Spin::default(), &mut reply, &mut alive)
            .with_context(|| format!("{opcode:?}"))?;
        Ok((code, reply))
    }

    /// Has a file mapped as a region of the window, at this offset. 0: done.
    pub(crate) fn map(
        &mut self,
        file: BorrowedFd<'_>,
        offset: u64,
        size_bytes: u64,
        kind: u32,
    ) -> Result<u32> {
        let address = self.window.base + offset;
        self.socket.send(&RegionFile { address }, &[file], PATIENCE)?;
        let region = RegionMap { address, size_bytes, kind, reserved: 0 };
        Ok(self.call(Opcode::RegionMap, &[region.as_bytes()])?.0)
    }
}
