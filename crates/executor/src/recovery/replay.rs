//! Making a session again that another executor has served: its memory is mapped, its files are
//! registered, and the commands of its journal are done once more, through the same functions as
//! before.
//!
//! What cannot be made again as it was, so that the client would notice, is an error: the keeper
//! then tells the client. Which kinds these are is in docs/faults.md.

use crate::code::images;
use crate::code::module::GIVEN;
use crate::code::variables::VALUES;
use crate::memory::mapping;
use crate::memory::mapping::DeviceWindow;
use crate::memory::virtual_journal::Thing;
use crate::objects::array_contents::CONTENTS;
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::CUresult;
use executor_link::journal::Entry;
use executor_link::log::log_server;
use executor_link::messages::{FromExecutor, Heirloom};
use link::ring::Command;
use link::wire::array::{TextureCreate, TextureHandle};
use link::wire::command::{
    Again, Effect, GlobalGetReply, GrowReply, Header, ModuleLoad, NO_CALL, Opcode, Part, RegionMap,
};
use link::wire::graph::GraphCreate;
use link::wire::sharing::Token;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// What the keeper has of a session.
#[derive(Default)]
pub(crate) struct Estate {
    /// First address or key, length, descriptor.
    pub(crate) grants: Grants,
    pub(crate) files: HashMap<u64, OwnedFd>,
    /// What this executor has mapped of it while it stood by: no descriptors come for that.
    pub(crate) window: Option<DeviceWindow>,
}

impl Estate {
    pub(crate) fn add(&mut self, heirlooms: Vec<Heirloom>, descriptors: Vec<OwnedFd>) {
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
pub(crate) type Grants = BTreeMap<u64, (u64, OwnedFd)>;

/// What a session is made of again: entries of its journal and where they are, and its memory.
pub(crate) type Past = (Vec<(u64, Entry)>, Grants);

/// Why a session cannot be made again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
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
    pub(crate) fn replay(
        &mut self,
        entries: Vec<(u64, Entry)>,
        mut grants: Grants,
    ) -> Result<(), ReplayError> {
        self.records.replaying = true;
        let mut times = Times::start();
        let mut result = self.regain_grants(&entries, &mut grants);
        times.note(Opcode::Grow as u16);
        let is_condition =
            |(_, entry): &(u64, Entry)| entry.opcode == Opcode::GraphCondition as u16;
        let (conditions, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_condition);
        result = result.and_then(|()| self.remake_conditions(&conditions));
        for (place, entry) in conditions {
            self.records.adopt(Opcode::GraphCondition, &entry.body, place);
        }
        times.note(Opcode::GraphCondition as u16);
        let mut objects = Vec::new();
        for (place, entry) in entries {
            if result.is_err() {
                break;
            }
            times.note(entry.opcode);
            if entry.opcode == CONTENTS {
                let file = self.take_file(entry.file);
                result = file.and_then(|file| self.restore_array(&entry.body, file));
                self.records.adopt_contents(&entry.body, place);
                times.note(CONTENTS);
                continue;
            }
            if entry.opcode == VALUES {
                let restored = self.restore_variables(&entry.body);
                result = restored.map_err(|_| ReplayError::Different("a variable"));
                if result.is_ok() {
                    self.records.adopt_values(&entry.body, place);
                }
                times.note(VALUES);
                continue;
            }
            if entry.opcode == GIVEN {
                if !self.is_given_still_right(&entry.body) {
                    result = Err(ReplayError::Different("an address that kernels were given"));
                    break;
                }
                self.records.adopt_given(&entry.body, place);
                continue;
            }
            let Some(opcode) = Opcode::from_number(entry.opcode) else {
                result = Err(ReplayError::Unknown(entry.opcode));
                break;
            };
            result = match opcode {
                Opcode::TextureCreate => texture(&entry.body).map(|it| objects.push(it)),
                _ => self.redo(opcode, &entry, &mut grants),
            };
            times.note(entry.opcode);
            if result.is_err() {
                break;
            }
            match opcode {
                Opcode::ModuleUnload => {
                    let library = self.unloaded_in_use.take();
                    self.records.adopt_unload(&entry.body, place, library);
                }
                Opcode::PartitionDrop => self.records.adopt_drop(&entry.body, place),
                _ => self.records.adopt(opcode, &entry.body, place),
            }
        }
        let result = result.and_then(|()| self.remake_objects(objects));
        times.note(Opcode::TextureCreate as u16);
        self.records.replaying = false;
        self.reply.clear();
        // Else the next executor may need all of it.
        result?;
        times.tell(&self.handle.label);
        self.end_remaking();
        // Granted by a command that was not answered, and will be done again.
        let mapped = self.memory.device_window.unmap_all();
        for address in grants.into_keys().chain(mapped) {
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
        match opcode.facts().journal {
            // What others still have of it is buried with it: an entry like those that make
            // something.
            Effect::Ends { .. }
                if matches!(opcode, Opcode::ModuleUnload | Opcode::PartitionDrop) =>
            {
                return self.do_again(opcode, body).map_err(failed);
            }
            Effect::Makes { again: Again::AsBefore, .. } => {
                return self.do_again(opcode, body).map_err(failed);
            }
            Effect::Makes { again: Again::SameAnswer(what), .. } => {
                if opcode == Opcode::GlobalGet {
                    let told = GlobalGetReply::read_from_suffix(body).ok();
                    self.modules.told_before = told.map(|(_, reply)| reply.address);
                }
                self.do_again(opcode, body).map_err(failed)?;
                let is_same = body.ends_with(&self.reply);
                return is_same.then_some(()).ok_or(ReplayError::Different(what));
            }
            Effect::Makes { again: Again::Special, .. } => {}
            Effect::Makes { again: Again::Never, .. }
            | Effect::Ends { .. }
            | Effect::Thing(_)
            | Effect::None => return Err(ReplayError::Unsupported { opcode }),
        }
        match opcode {
            Opcode::Grow => {
                let (granted, _) = parse::<GrowReply>(opcode, body)?;
                let is_there =
                    self.memory.grants.get(&granted.address) == Some(&granted.size_bytes);
                is_there.then_some(()).ok_or(ReplayError::Different("a grant"))
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
            Opcode::PeerMap => {
                let (wanted, _) = parse(opcode, body)?;
                self.map_peer_again(wanted).map_err(failed)
            }
            Opcode::ShareMemory => {
                let (wanted, _) = parse(opcode, body)?;
                self.share_memory_as(wanted, token(opcode, body)?).map_err(failed)
            }
            Opcode::ShareEvent => {
                let (wanted, _) = parse(opcode, body)?;
                self.share_event_as(wanted, token(opcode, body)?).map_err(failed)
            }
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

    pub(crate) fn take_file(&mut self, number: u64) -> Result<OwnedFd, ReplayError> {
        self.records.files.remove(&number).ok_or(ReplayError::Different("a file"))
    }

    /// Takes what was mapped ahead, maps the rest of all memory that the session was granted
    /// before, and makes what adjoins of that accessible by one call.
    fn regain_grants(
        &mut self,
        entries: &[(u64, Entry)],
        grants: &mut Grants,
    ) -> Result<(), ReplayError> {
        let failed = |code: CUresult| ReplayError::Failed {
            opcode: Opcode::Grow,
            failure: Failure::Cuda(code),
        };
        let mut granted = BTreeMap::new();
        for (_, entry) in entries.iter().filter(|(_, it)| it.opcode == Opcode::Grow as u16) {
            let (reply, _) = parse::<GrowReply>(Opcode::Grow, &entry.body)?;
            granted.insert(reply.address, reply.size_bytes);
        }
        let mut bound = BTreeMap::new();
        for (address, size_bytes) in granted {
            let sent = grants.remove(&address).filter(|(length, _)| *length == size_bytes);
            if !self.memory.device_window.take(address, size_bytes) {
                let (_, file) = sent.ok_or(ReplayError::Different("a grant"))?;
                mapping::bind(self.context(), &file, address, size_bytes, 0).map_err(failed)?;
                bound.insert(address, size_bytes);
            }
            self.handle.allowance.hold(size_bytes);
            self.memory.grants.insert(address, size_bytes);
            let _ = self.memory.addressable.insert(address, size_bytes);
        }
        mapping::open_access_to_all(self.context(), &bound).map_err(failed)
    }

    /// Says in the log why the session cannot go on, and ends it.
    pub(crate) fn give_up_replay(&mut self, error: &ReplayError) {
        self.claimed.give_up();
        log_server!("{} cannot go on after the fault: {error}", self.handle.label);
        self.handle.end(CUresult::ERROR_LAUNCH_FAILED.0);
    }
}

/// An object as it was asked for, and as the answer behind that has it.
fn texture(body: &[u8]) -> Result<(TextureCreate, TextureHandle), ReplayError> {
    let (wanted, _) = parse(Opcode::TextureCreate, body)?;
    match TextureHandle::read_from_suffix(body) {
        Ok((_, handle)) => Ok((wanted, handle)),
        Err(_) => Err(ReplayError::Unknown(Opcode::TextureCreate as u16)),
    }
}

/// By what others know what is shared: the answer, which stands last.
fn token(opcode: Opcode, body: &[u8]) -> Result<Token, ReplayError> {
    let token = Token::read_from_suffix(body).map_err(|_| ReplayError::Unknown(opcode as u16));
    token.map(|(_, token)| token)
}

fn parse<T: FromBytes + IntoBytes>(opcode: Opcode, body: &[u8]) -> Result<(T, &[u8]), ReplayError> {
    T::read_from_prefix(body).map_err(|_| ReplayError::Unknown(opcode as u16))
}

/// What it takes to make a session again is told in the log if it is so much.
const WORTH_TELLING: Duration = Duration::from_millis(5);

/// What the parts of a session took to be made again.
struct Times {
    last: Instant,
    memory: Duration,
    pinned: Duration,
    code: Duration,
    graphs: Duration,
    others: Duration,
}

impl Times {
    fn start() -> Self {
        let none = Duration::ZERO;
        let last = Instant::now();
        Self { last, memory: none, pinned: none, code: none, graphs: none, others: none }
    }

    /// Adds what has passed since the last time to what an entry of the journal belongs to.
    fn note(&mut self, opcode: u16) {
        let now = Instant::now();
        let effect = Opcode::from_number(opcode).map(|opcode| opcode.facts().journal);
        let part = match effect {
            Some(Effect::Makes { part, .. } | Effect::Thing(part)) => part,
            // The end of code that others still have; hardly ever of a partition.
            Some(Effect::Ends { .. }) => Part::Code,
            None if opcode == VALUES => Part::Code,
            Some(Effect::None) | None => Part::Others,
        };
        let of = match part {
            Part::Memory => &mut self.memory,
            Part::Pinned => &mut self.pinned,
            Part::Code => &mut self.code,
            Part::Graphs => &mut self.graphs,
            Part::Others => &mut self.others,
        };
        *of += now - std::mem::replace(&mut self.last, now);
    }

    fn tell(&self, label: &str) {
        let Self { memory, pinned, code, graphs, others, .. } = *self;
        let all = memory + pinned + code + graphs + others;
        if all >= WORTH_TELLING {
            let ms = |time: Duration| time.as_micros() as f64 / 1e3;
            log_server!(
                "{label} was made again in {:.1} ms: memory {:.1}, pinned memory {:.1}, code {:.1}, graphs {:.1}, others {:.1}",
                ms(all),
                ms(memory),
                ms(pinned),
                ms(code),
                ms(graphs),
                ms(others)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed;
    use crate::testbed::Bed;
    use link::wire::attach::Window;
    use std::sync::Arc;

    const GRANTS: u64 = 100;
    const GRANT_BYTES: u64 = 2 << 20;

    /// Grants at the beginning of a window, with descriptors.
    fn grants(window: Window) -> Vec<(u64, u64, OwnedFd)> {
        let file = || images::write(b"memory").unwrap();
        let grant = |number| (window.base + number * GRANT_BYTES, GRANT_BYTES, file());
        (0..GRANTS).map(grant).collect()
    }

    /// The journal of a session that has them.
    fn journal(grants: &[(u64, u64, OwnedFd)]) -> Vec<(u64, Entry)> {
        let entry = |&(address, size_bytes, _): &(u64, u64, OwnedFd)| {
            let body = GrowReply { address, size_bytes }.as_bytes().to_vec();
            (0, Entry { opcode: Opcode::Grow as u16, file: 0, body })
        };
        grants.iter().map(entry).collect()
    }

    fn sent(grants: Vec<(u64, u64, OwnedFd)>) -> Grants {
        grants.into_iter().map(|(at, size_bytes, file)| (at, (size_bytes, file))).collect()
    }

    #[test]
    fn memory_is_mapped_by_few_calls_of_the_driver() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        let grants = grants(state.memory.device_window.window());
        let entries = journal(&grants);
        let before = testbed::mapping_calls();
        state.replay(entries, sent(grants)).unwrap();
        assert_eq!(state.memory.grants.len() as u64, GRANTS);
        // To import, to map and to release each; and once to make them accessible. This number can
        // only shrink.
        assert_eq!(u64::from(testbed::mapping_calls() - before), 3 * GRANTS + 1);
    }

    #[test]
    fn what_was_mapped_ahead_is_not_mapped_again() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        let mut grants = grants(state.memory.device_window.window());
        let mut entries = journal(&grants);
        let late = grants.split_off(GRANTS as usize - 1);
        // One that was freed at the end, so that the session does not have it.
        entries.remove(0);
        let shared = Arc::clone(&state.shared);
        assert!(state.memory.device_window.map(&shared.context, grants).is_empty());
        let before = testbed::mapping_calls();
        state.replay(entries, sent(late)).unwrap();
        assert_eq!(state.memory.grants.len() as u64, GRANTS - 1);
        // The one that was not; and the one that is nobody's is unmapped.
        assert_eq!(testbed::mapping_calls() - before, 3 + 1 + 1);
        assert!(state.memory.device_window.is_empty());
    }
}
