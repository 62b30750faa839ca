//! More of what all clients share than one should have.

use std::path::Path;
use std::sync::mpsc;

use anyhow::{Context, Result, ensure};
use link::shm;
use link::wire::attach::{ClientReply, ClientRequest};
use link::wire::command::{Grow, GrowReply, ModuleLoad, Opcode, REGION_PLAIN};
use link::wire::sharing::{ShareMemory, Token};
use link::wire::virtual_memory::{AddressReserve, MemoryFile, MemoryNumber};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, SealFlags};
use zerocopy::{FromBytes, IntoBytes};

use crate::PATIENCE;
use crate::session::Session;

const MEMORY_BYTES: u64 = 4096;

/// Opens contexts over one connection until there are no more; says how many there are.
pub(crate) fn contexts(session: &Session, count: u64) -> Result<String> {
    let wanted = ClientRequest::OpenContext { device: 0, active_thread_percentage: None };
    for opened in 0..count {
        session.connection.send(&wanted, &[], PATIENCE)?;
        match session.connection.receive::<ClientReply>(PATIENCE)?.message {
            ClientReply::ContextOpened(_) => {}
            ClientReply::Refused(refusal) => {
                return Ok(format!("opened {opened} then {}", refusal.code));
            }
            other => return Ok(format!("opened {opened} then {other:?}")),
        }
    }
    Ok(format!("opened {count}"))
}

/// Sessions whose client leaves while this one uses their memory; says how many there were.
pub(crate) fn leave_behind(daemon: &Path, session: &mut Session, count: u64) -> Result<String> {
    for left in 0..count {
        let mut leaver = match Session::open(daemon) {
            Ok(leaver) => leaver,
            Err(error) => return Ok(format!("left {left} then {error:#}")),
        };
        let grow = Grow { size_bytes: MEMORY_BYTES };
        let (code, reply) = leaver.call(Opcode::Grow, &[grow.as_bytes()])?;
        ensure!(code == 0, "no memory: {code}");
        let (grown, _) = GrowReply::read_from_prefix(&reply).ok().context("a short answer")?;
        let share = ShareMemory { address: grown.address, size_bytes: MEMORY_BYTES };
        let (code, reply) = leaver.call(Opcode::ShareMemory, &[share.as_bytes()])?;
        ensure!(code == 0, "not shared: {code}");
        let (token, _) = Token::read_from_prefix(&reply).ok().context("a short answer")?;
        let (code, _) = session.call(Opcode::OpenMemory, &[token.as_bytes()])?;
        ensure!(code == 0, "not opened: {code}");
    }
    Ok(format!("left {count}"))
}

/// Has as many addresses reserved as can be had, the longest ranges first; says how many ranges.
pub(crate) fn reserve_all(session: &mut Session) -> Result<String> {
    let mut count = 0;
    for exponent in (25..44).rev() {
        while reserve(session, 1 << exponent)? == 0 {
            count += 1;
        }
    }
    Ok(format!("reserved {count}"))
}

pub(crate) fn reserve(session: &mut Session, size_bytes: u64) -> Result<u32> {
    let reserve = AddressReserve { size_bytes, alignment_bytes: 0 };
    Ok(session.call(Opcode::AddressReserve, &[reserve.as_bytes()])?.0)
}

/// Has files without pages loaded as code, by several sessions at once.
pub(crate) fn load_nothing(daemon: &Path, sessions: u64, size_bytes: u64) -> Result<String> {
    let (sender, answers) = mpsc::channel();
    for _ in 0..sessions {
        let mut session = Session::open(daemon)?;
        let file = shm::create("attack", size_bytes)?;
        ensure!(session.map(file.as_fd(), 0, size_bytes, REGION_PLAIN)? == 0, "no region");
        let sender = sender.clone();
        std::thread::spawn(move || {
            let load = ModuleLoad {
                module: 0,
                optimization_level: u32::MAX,
                max_registers: 0,
                log_bytes: 0,
                address: session.window.base,
                size_bytes,
            };
            sender.send(session.call(Opcode::ModuleLoad, &[load.as_bytes()]).map(|it| it.0))
        });
    }
    let codes = (0..sessions).map(|_| answers.recv_timeout(PATIENCE)?);
    Ok(format!("loaded {:?}", codes.collect::<Result<Vec<u32>>>()?))
}

/// Has so many files imported that say that they are memory of the software GPU; says how many were
/// taken.
pub(crate) fn import_made_up(session: &mut Session, count: u32, size_bytes: u64) -> Result<String> {
    for memory in 0..count {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("softcuda-device-0 x", flags)?;
        rustix::fs::ftruncate(&file, size_bytes)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        session.socket.send(&MemoryFile { memory }, &[file.as_fd()], PATIENCE)?;
        let number = MemoryNumber { memory, reserved: 0 };
        let (code, _) = session.call(Opcode::MemoryImport, &[number.as_bytes()])?;
        if code != 0 {
            return Ok(format!("imported {memory} then {code}"));
        }
    }
    Ok(format!("imported {count}"))
}
