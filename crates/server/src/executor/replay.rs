//! Making a session again that another executor has served: its memory is mapped, its files are registered, and the commands of its journal are done once
//! more, through the same functions as before.
//!
//! What cannot be made again as it was, so that the client would notice, is an error: the keeper then tells the client. Which kinds these are is in
//! docs/faults.md.

use super::failure::Failure;
use super::images;
use super::state::State;
use super::variables::VALUES;
use super::virtual_journal::Thing;
use crate::executor_link::{FromExecutor, Heirloom};
use crate::journal::Entry;
use crate::log::log_server;
use cuda_abi::types::CUresult;
use link::ring::Command;
use link::wire::command::{
    GlobalGetReply, GrowReply, Header, ModuleLoad, NO_CALL, Opcode, RegionMap,
};
use link::wire::graph::GraphCreate;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, HashMap};
use zerocopy::{FromBytes, IntoBytes};

/// What the keeper has of a session.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    /// First address or key, length, descriptor.
    pub(super) grants: Grants,
    pub(super) files: HashMap<u64, OwnedFd>,
}

impl Estate {
    pub(super) fn add(&mut self, heirlooms: Vec<Heirloom>, descriptors: Vec<OwnedFd>) {
        for (heirloom, file) in heirlooms.into_iter().zip(descriptors) {
            match heirloom {
                Heirloom::Grant { address, size_bytes } => {
                    self.grants.insert(address, (size_bytes, file));
                }
                Heirloom::File { number } => {
                    self.files.insert(number, file);
                }
            }
        }
    }
}

/// Memory by its first address or key: length and descriptor.
pub(super) type Grants = BTreeMap<u64, (u64, OwnedFd)>;

/// What a session is made of again: entries of its journal and where they are, and its memory.
pub(super) type Past = (Vec<(u64, Entry)>, Grants);

/// Why a session cannot be made again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("an entry of its journal has the opcode {0}, which does not exist")]
    Unknown(u16),
    #[error("the command {opcode:?} cannot be done again")]
    Unsupported { opcode: Opcode },
    #[error("the command {opcode:?} failed when it was done again: {failure:?}")]
    Failed { opcode: Opcode, failure: Failure },
    #[error("{0} came out otherwise than before")]
    Different(&'static str),
}

impl State {
    /// Does all that the journal says.
    pub(super) fn replay(
        &mut self,
        entries: Vec<(u64, Entry)>,
        mut grants: Grants,
    ) -> Result<(), ReplayError> {
        self.records.replaying = true;
        let mut result = Ok(());
        for (place, entry) in entries {
            if entry.opcode == VALUES {
                let restored = self.restore_variables(&entry.body);
                result = restored.map_err(|_| ReplayError::Different("a variable"));
                if result.is_err() {
                    break;
                }
                self.records.adopt_values(&entry.body, place);
                continue;
            }
            let Some(opcode) = Opcode::from_number(entry.opcode) else {
                result = Err(ReplayError::Unknown(entry.opcode));
                break;
            };
            result = self.redo(opcode, &entry, &mut grants);
            if result.is_err() {
                break;
            }
            match opcode {
                Opcode::ModuleUnload => {
                    let library = self.unloaded_in_use.take();
                    self.records.adopt_unload(&entry.body, place, library);
                }
                _ => self.records.adopt(opcode, &entry.body, place),
            }
        }
        self.records.replaying = false;
        self.reply.clear();
        // Else the next executor may need all of it.
        result?;
        self.end_remaking();
        // Granted by a command that was not answered, and will be done again.
        for address in grants.into_keys() {
            self.shared.tell(&FromExecutor::Released { session: self.handle.id, address });
        }
        let unneeded: Vec<u64> = std::mem::take(&mut self.records.files).into_keys().collect();
        if !unneeded.is_empty() {
            let session = self.handle.id;
            self.shared.tell(&FromExecutor::LetGo { session, numbers: unneeded });
        }
        Ok(())
    }

    fn redo(
        &mut self,
        opcode: Opcode,
        entry: &Entry,
        grants: &mut Grants,
    ) -> Result<(), ReplayError> {
        let failed = |failure| ReplayError::Failed { opcode, failure };
        let body = entry.body.as_slice();
        if let Some(thing) = Thing::read(opcode, body) {
            return self.remake(thing, entry.file, grants);
        }
        match opcode {
            Opcode::Grow => {
                let (granted, _) = parse::<GrowReply>(opcode, body)?;
                let memory = grants.remove(&granted.address);
                let memory = memory.filter(|(size_bytes, _)| *size_bytes == granted.size_bytes);
                let (_, file) = memory.ok_or(ReplayError::Different("a grant"))?;
                self.regain(&file, granted).map_err(failed)
            }
            Opcode::RegionMap => {
                let file = self.take_file(entry.file)?;
                let (wanted, _) = parse::<RegionMap>(opcode, body)?;
                self.map_region(wanted, file).map_err(failed)
            }
            Opcode::ModuleLoad => {
                let file = self.take_file(entry.file)?;
                let (wanted, _) = parse::<ModuleLoad>(opcode, body)?;
                let read = |file: &OwnedFd| images::read(rustix::fd::AsFd::as_fd(file));
                let image = read(&file).map_err(|code| failed(code.into()))?;
                let wanted = ModuleLoad { log_bytes: 0, ..wanted };
                self.reply.clear();
                self.load_image(wanted, image, Some(file)).map_err(failed)
            }
            Opcode::GraphCreate => {
                let file = self.take_file(entry.file)?;
                let (wanted, _) = parse::<GraphCreate>(opcode, body)?;
                let read = images::read(rustix::fd::AsFd::as_fd(&file));
                let description = read.map_err(|code| failed(code.into()))?;
                self.make_graph(wanted, &description).map_err(failed)
            }
            Opcode::GlobalGet => {
                self.do_again(opcode, body).map_err(failed)?;
                // A pointer that the client may have stored anywhere.
                let answer = body.len().checked_sub(size_of::<GlobalGetReply>());
                let before = answer.and_then(|at| body.get(at..));
                let is_same = before.is_some_and(|before| before == self.reply.as_slice());
                is_same.then_some(()).ok_or(ReplayError::Different("the address of a variable"))
            }
            Opcode::ResourceGet | Opcode::ResourceSplit | Opcode::ResourceDescribe => {
                self.do_again(opcode, body).map_err(failed)?;
                let is_same = body.ends_with(&self.reply);
                is_same.then_some(()).ok_or(ReplayError::Different("a set of multiprocessors"))
            }
            Opcode::StreamCreate
            | Opcode::EventCreate
            | Opcode::FunctionGet
            | Opcode::FunctionSetAttribute
            | Opcode::LimitSet
            | Opcode::ModuleUnload
            | Opcode::GraphSet
            | Opcode::GraphEnable
            | Opcode::PartitionCreate
            | Opcode::PartitionTake => self.do_again(opcode, body).map_err(failed),
            _ => Err(ReplayError::Unsupported { opcode }),
        }
    }

    fn do_again(&mut self, opcode: Opcode, body: &[u8]) -> Result<(), Failure> {
        let size_bytes = (size_of::<Header>() + body.len()) as u32;
        let header = Header {
            opcode: opcode as u16,
            call_slot: NO_CALL,
            size_bytes,
            context: 0,
            reserved: 0,
        };
        self.execute(&Command { header, body }).map(drop)
    }

    pub(super) fn take_file(&mut self, number: u64) -> Result<OwnedFd, ReplayError> {
        self.records.files.remove(&number).ok_or(ReplayError::Different("a file"))
    }

    /// Maps memory that the session was granted before.
    fn regain(&mut self, file: &OwnedFd, granted: GrowReply) -> Result<(), Failure> {
        let GrowReply { address, size_bytes } = granted;
        self.map_grant(file, address, size_bytes)?;
        self.handle.allowance.hold(size_bytes);
        self.memory.grants.insert(address, size_bytes);
        let _ = self.memory.addressable.insert(address, size_bytes);
        Ok(())
    }

    /// Says in the log why the session cannot go on, and ends it.
    pub(super) fn give_up_replay(&self, error: &ReplayError) {
        log_server!("{} cannot go on after the fault: {error}", self.handle.label);
        self.handle.end(CUresult::ERROR_LAUNCH_FAILED.0);
    }
}

fn parse<T: FromBytes + IntoBytes>(opcode: Opcode, body: &[u8]) -> Result<(T, &[u8]), ReplayError> {
    T::read_from_prefix(body).map_err(|_| ReplayError::Unknown(opcode as u16))
}
