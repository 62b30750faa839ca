//! Memory and events of other processes (`cuIpc*`, pointers of exported pools): of clients of the
//! same server, on the same device.
//!
//! A handle holds a token that the executor gave out and that nobody can guess. What it names has
//! the same address in every client, so opening is a permission and no mapping.

use crate::client::Client;
use crate::memory::memory_map::{Area, Kind};
use crate::result::Result;
use crate::thread::current;
use cuda_abi::types::CUresult;
use link::wire::command::Opcode;
use link::wire::sharing::{OpenMemoryReply, ShareMemory, Token, UnshareMemory};
use std::sync::PoisonError;
use zerocopy::IntoBytes;

const INVALID: CUresult = CUresult::ERROR_INVALID_VALUE;

/// What a handle is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Thing {
    Memory = 1,
    Event = 2,
}

/// What the 64 bytes of a handle say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) thing: Thing,
    /// The server's number of the device.
    pub(crate) device: u32,
    /// Who gave it out.
    client_id: u64,
    pub(crate) token: [u64; 2],
}

/// Handles of native drivers begin otherwise.
const MAGIC: [u8; 8] = *b"openmps\x01";

impl Handle {
    /// A handle of this process.
    pub(crate) fn new(client: &Client, thing: Thing, device: u32, token: [u64; 2]) -> Self {
        Self { thing, device, client_id: client.client_id, token }
    }

    pub(crate) fn to_bytes(self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = self.thing as u8;
        bytes[12..16].copy_from_slice(&self.device.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.client_id.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.token[0].to_le_bytes());
        bytes[32..40].copy_from_slice(&self.token[1].to_le_bytes());
        bytes
    }

    /// Reads a handle; CUDA_ERROR_INVALID_VALUE for one of another kind, CUDA_ERROR_NOT_SUPPORTED
    /// for what a native driver gave out, to which this process's device memory belongs as little
    /// as the other way round.
    pub(crate) fn from_bytes(bytes: [u8; 64], thing: Thing) -> Result<Self> {
        if bytes[..8] != MAGIC {
            crate::error!(
                "an IPC handle is refused that no client of OpenMPS gave out: between a client and a native process share descriptors of cuMemCreate memory"
            );
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        if bytes[8] != thing as u8 {
            return Err(INVALID);
        }
        let word = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(word)
        };
        let device = (word(8) >> 32) as u32;
        Ok(Self { thing, device, client_id: word(16), token: [word(24), word(32)] })
    }

    /// Whether this very process gave it out.
    pub(crate) fn is_own(&self, client: &Client) -> bool {
        self.client_id == client.client_id
    }
}

/// The handle of the device allocation that an address lies in.
pub(crate) fn share(client: &Client, address: u64) -> Result<Handle> {
    let area = client.memory.find(address).ok_or(INVALID)?;
    if !matches!(area.kind, Kind::Device | Kind::Pool { .. }) {
        return Err(INVALID);
    }
    let context = client.context(area.context)?;
    let (backend, id) = context.backend()?;
    // What was posted to it must not come after what others do to it.
    let body = ShareMemory { address: area.base, size_bytes: area.size_bytes };
    let token: Token = backend.session.call_for(id, Opcode::ShareMemory, &[body.as_bytes()])?;
    client.shared.lock().unwrap_or_else(PoisonError::into_inner).insert(area.base);
    let device = client.device(area.device)?.index;
    Ok(Handle::new(client, Thing::Memory, device, token.words))
}

/// An allocation is being freed: nobody else may open it from now on.
pub(crate) fn unshare(client: &Client, area: &Area) -> Result {
    let was_shared =
        client.shared.lock().unwrap_or_else(PoisonError::into_inner).remove(&area.base);
    if !was_shared {
        return Ok(());
    }
    let context = client.context(area.context)?;
    let (backend, id) = context.backend()?;
    backend.session.post(id, Opcode::UnshareMemory, &UnshareMemory { address: area.base })
}

/// Opens another client's memory in the current context; the same address each time, closed as
/// often as opened.
pub(crate) fn open(client: &Client, handle: Handle) -> Result<u64> {
    if handle.is_own(client) {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let context = current::owner()?;
    if client.device(context.device)?.index != handle.device {
        crate::error!("memory of another process is on another device than the current context");
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    let (backend, id) = context.backend()?;
    let body = Token { words: handle.token };
    let reply: OpenMemoryReply =
        backend.session.call_for(id, Opcode::OpenMemory, &[body.as_bytes()])?;
    let mut opened = client.opened.lock().unwrap_or_else(PoisonError::into_inner);
    let count = opened.entry(reply.address).or_insert(0);
    *count += 1;
    if *count == 1 {
        let kind = Kind::Opened { token: handle.token };
        let (token, device) = (context.token, context.device);
        client.memory.insert(Area::new(reply.address, reply.size_bytes, kind, token, device));
    }
    Ok(reply.address)
}

/// Closes what [`open`] gave, once all work is done that could use it.
pub(crate) fn close(client: &Client, address: u64) -> Result {
    let area = client.memory.find(address).filter(|area| area.base == address).ok_or(INVALID)?;
    let Kind::Opened { token } = area.kind else { return Err(INVALID) };
    let mut opened = client.opened.lock().unwrap_or_else(PoisonError::into_inner);
    let count = opened.get_mut(&address).ok_or(INVALID)?;
    *count -= 1;
    if *count == 0 {
        opened.remove(&address);
        client.memory.remove(address, |area| matches!(area.kind, Kind::Opened { .. }));
    }
    drop(opened);
    close_once(client, &area, token)
}

fn close_once(client: &Client, area: &Area, token: [u64; 2]) -> Result {
    let context = client.context(area.context)?;
    let (backend, id) = context.backend()?;
    backend.session.wait_all(0)?;
    let body = Token { words: token };
    backend.session.call(id, Opcode::CloseMemory, &[body.as_bytes()]).map(drop)
}

/// Closes memory whose context ends, however often it was opened.
pub(crate) fn close_all(client: &Client, area: &Area, token: [u64; 2]) -> Result {
    let count = client.opened.lock().unwrap_or_else(PoisonError::into_inner).remove(&area.base);
    for _ in 0..count.unwrap_or(0) {
        close_once(client, area, token)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_survive_their_bytes_and_others_are_refused() {
        let handle =
            Handle { thing: Thing::Memory, device: 7, client_id: 1 << 40, token: [u64::MAX, 3] };
        assert_eq!(Handle::from_bytes(handle.to_bytes(), Thing::Memory), Ok(handle));
        assert!(Handle::from_bytes(handle.to_bytes(), Thing::Event).is_err());
        assert!(Handle::from_bytes([0; 64], Thing::Memory).is_err());
    }
}
