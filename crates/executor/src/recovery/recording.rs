//! Which commands make what lives, and which end it: what a session's [`Journal`] says.
//!
//! Only commands that make or end objects are written down, so work costs nothing here.
//! [`super::replay`] does the same commands again.

use crate::code::images;
use crate::code::module::GIVEN;
use crate::code::variables::VALUES;
use crate::memory::virtual_journal::Thing;
use crate::objects::array_contents::CONTENTS;
use crate::session::failure::Failure;
use crate::session::state::State;
use cuda_abi::types::{CUlibrary, CUresult};
use executor_link::journal::{Journal, Key};
use executor_link::log::log_server;
use executor_link::messages::{CodeOptions, FromExecutor};
use link::wire::array::ArrayLevel;
use link::wire::command::{
    Again, Effect, FunctionGet, FunctionSetAttribute, GlobalGet, GlobalGetReply, Keeps, Opcode,
};
use link::wire::graph::{GraphCondition, GraphEnable, GraphSet};
use link::wire::partition::ResourceGet;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use zerocopy::FromBytes;

/// What a session has written down.
pub(crate) struct Records {
    journal: Journal,
    /// Where the ring is after the command in hand.
    pub(crate) position: u64,
    next_file: u64,
    /// The file that the command in hand has made, 0: none.
    new_file: u64,
    /// What the client has ended and graphs still name.
    graves: Vec<(u64, Weak<CUlibrary>)>,
    /// Whether commands are being done again.
    pub(crate) replaying: bool,
    /// Files that came with the session.
    pub(crate) files: HashMap<u64, OwnedFd>,
    /// What the keeper is told when the command in hand is committed: until then the next executor
    /// may need what it gives up.
    given_up: Vec<FromExecutor>,
}

impl Records {
    /// Bytes of the journal that are written.
    #[cfg(test)]
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.journal.end_bytes()
    }

    pub(crate) fn new(journal: Journal, position: u64, files: HashMap<u64, OwnedFd>) -> Self {
        let next_file = files.keys().max().map_or(1, |last| last + 1);
        let (new_file, graves, replaying, given_up) = (0, Vec::new(), false, Vec::new());
        Self { journal, position, next_file, new_file, graves, replaying, files, given_up }
    }

    /// Values that were there from the start are written back.
    pub(crate) fn adopt_values(&mut self, body: &[u8], place: u64) {
        self.journal.adopt((VALUES, number(body)), place);
    }

    /// The contents of an array that were there from the start are written back.
    pub(crate) fn adopt_contents(&mut self, body: &[u8], place: u64) {
        self.journal.adopt((CONTENTS, number(body)), place);
    }

    /// An address that kernels were given is still right.
    pub(crate) fn adopt_given(&mut self, body: &[u8], place: u64) {
        if let Some(told) = body.first_chunk() {
            self.journal.adopt((GIVEN, u64::from_le_bytes(*told)), place);
        }
    }

    /// An entry that was there from the start is done again.
    pub(crate) fn adopt(&mut self, opcode: Opcode, body: &[u8], place: u64) {
        if let Some(key) = key(opcode, body) {
            self.journal.adopt(key, place);
        }
    }

    /// The same for code that is unloaded again; who still has it is `library`.
    pub(crate) fn adopt_unload(&mut self, body: &[u8], place: u64, library: InUse) {
        let Some((_, module)) = key(Opcode::ModuleUnload, body) else { return };
        let grave = self.journal.adopt_buried(&module_keys(&self.journal, module), place);
        self.graves.push((grave, library.unwrap_or_default()));
    }

    /// The same for a partition whose resource the client had asked for: it is buried for as long
    /// as the session lives.
    pub(crate) fn adopt_drop(&mut self, body: &[u8], place: u64) {
        let Effect::Ends { makers, key } = Opcode::PartitionDrop.facts().journal else { return };
        let Some(partition) = key(body) else { return };
        let keys: Vec<Key> = makers.iter().map(|maker| (*maker as u16, partition)).collect();
        self.journal.adopt_buried(&keys, place);
    }
}

/// Whether a resource was asked for of the partition that these commands have made. Its number is
/// given out again only if the partition is made again. Resources of another partition that had the
/// number before come before it.
fn have_resources(journal: &Journal, makers: &[Key], partition: u64) -> bool {
    let made = makers.iter().filter_map(|key| journal.place(*key)).max();
    let is_of_it = |wanted: &ResourceGet| u64::from(wanted.partition) == partition;
    let of_it = entries(journal, Opcode::ResourceGet, is_of_it);
    made.is_some() && of_it.into_iter().any(|key| journal.place(key) > made)
}

/// The number that values and contents begin with, and by which they are found.
fn number(body: &[u8]) -> u64 {
    body.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes).into())
}

/// What a command's entry is found by; `None`: it has none, or is too short.
fn key(opcode: Opcode, entry: &[u8]) -> Option<Key> {
    let number = match opcode.facts().journal {
        Effect::Makes { key, .. } | Effect::Ends { key, .. } => key(entry)?,
        Effect::Thing(_) => Thing::key(entry)?,
        Effect::None => return None,
    };
    Some((opcode as u16, number))
}

fn key_of(opcode: Opcode, entry: &[u8]) -> Result<Key, Failure> {
    key(opcode, entry)
        .ok_or_else(|| Failure::Protocol(format!("nothing is written down of {opcode:?}")))
}

/// What entries are of a kind, and how each begins.
fn entries<T: FromBytes>(
    journal: &Journal,
    opcode: Opcode,
    is_meant: impl Fn(&T) -> bool,
) -> Vec<Key> {
    journal.keys(|(number, _), body| {
        number == opcode as u16 && T::read_from_prefix(body).is_ok_and(|(it, _)| is_meant(&it))
    })
}

impl State {
    /// After a command was done: writes down what it has made or ended. Commands that are done
    /// again are there already.
    pub(crate) fn record(&mut self, opcode: Opcode, body: &[u8]) -> Result<(), Failure> {
        if self.records.replaying {
            return Ok(());
        }
        match opcode.facts().journal {
            Effect::None | Effect::Thing(_) => Ok(()),
            Effect::Makes { keeps, again, .. } => {
                let file = std::mem::take(&mut self.records.new_file);
                let with_answer;
                let entry = match keeps {
                    Keeps::Command => body,
                    Keeps::Answer => {
                        with_answer = self.reply.clone();
                        &with_answer
                    }
                    Keeps::CommandAndAnswer => {
                        with_answer = [body, &self.reply].concat();
                        &with_answer
                    }
                };
                let key = key_of(opcode, entry)?;
                // Such answers depend on those before them: the first one keeps its place.
                if matches!(again, Again::SameAnswer(_))
                    && self.records.journal.place(key).is_some()
                {
                    return Ok(());
                }
                self.note_entry(key, file, entry)
            }
            Effect::Ends { makers, .. } => self.note_end(opcode, makers, body),
        }
    }

    fn note_entry(&mut self, key: Key, file: u64, body: &[u8]) -> Result<(), Failure> {
        let Records { journal, position, .. } = &mut self.records;
        let replaced = journal.file(key);
        let moved = journal.add(key, *position, file, body);
        // What nothing names any more: of the entry before, or of one for which there is no room.
        let useless = if moved.is_ok() { replaced } else { file };
        if useless != 0 {
            self.let_go_files(vec![useless]);
        }
        self.follow_journal(moved.map_err(|error| error.to_string()))
    }

    /// Writes down a thing, found by the first word of its body, with the file that was kept for
    /// it.
    pub(crate) fn note_made(&mut self, opcode: Opcode, body: &[u8]) -> Result<(), Failure> {
        if self.records.replaying {
            return Ok(());
        }
        let file = std::mem::take(&mut self.records.new_file);
        self.note_entry(key_of(opcode, body)?, file, body)
    }

    /// What was written down by [`Self::note_made`] under this word has ended.
    pub(crate) fn note_ended(&mut self, opcodes: &[Opcode], word: u64) {
        let Records { journal, position, .. } = &mut self.records;
        let ended =
            opcodes.iter().filter_map(|opcode| journal.end((*opcode as u16, word), *position));
        let files = ended.filter(|file| *file != 0).collect();
        self.let_go_files(files);
    }

    /// Writes down what a module's variables are now, after all commands so far.
    pub(crate) fn note_values(&mut self, module: u32, body: &[u8]) -> Result<(), Failure> {
        self.note_entry((VALUES, module.into()), 0, body)
    }

    /// Writes down that kernels were given the address of a variable, as the client was told and
    /// as it is here.
    pub(crate) fn note_given(&mut self, told: u64, present: u64) -> Result<(), Failure> {
        let body = [told.to_le_bytes(), present.to_le_bytes()].concat();
        self.note_entry((GIVEN, told), 0, &body)
    }

    /// Has the keeper keep the file that an array is saved in, for as long as the array lives.
    pub(crate) fn note_contents(
        &mut self,
        array: u32,
        file: BorrowedFd<'_>,
    ) -> Result<(), Failure> {
        // Between two commands: what the last one kept and did not use goes.
        self.begin_record(self.records.position);
        self.keep_file(file);
        let number = std::mem::take(&mut self.records.new_file);
        let noted = self.note_entry((CONTENTS, array.into()), number, &array.to_le_bytes());
        // All commands so far are committed.
        self.tell_given_up();
        noted
    }

    /// Tells the keeper where the journal goes on, if it does so elsewhere.
    fn follow_journal(&mut self, moved: Result<Option<OwnedFd>, String>) -> Result<(), Failure> {
        match moved {
            Ok(None) => Ok(()),
            Ok(Some(file)) => {
                let session = self.handle.id;
                self.shared.tell_with(&FromExecutor::Journal { session }, file.as_fd());
                Ok(())
            }
            Err(error) => {
                log_server!("{}: its journal has no room: {error}", self.handle.label);
                Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY))
            }
        }
    }

    fn note_end(&mut self, opcode: Opcode, makers: &[Opcode], body: &[u8]) -> Result<(), Failure> {
        // Opened more often than closed, it stays.
        if opcode == Opcode::CloseMemory && self.sharing.has_opened(body) {
            return Ok(());
        }
        let position = self.records.position;
        let (_, first) = key_of(opcode, body)?;
        let journal = &self.records.journal;
        let mut keys: Vec<Key> = makers.iter().map(|maker| (*maker as u16, first)).collect();
        match opcode {
            Opcode::ModuleUnload => keys = module_keys(journal, first),
            Opcode::ArrayDestroy => {
                let is_of_it = |level: &ArrayLevel| u64::from(level.mipmapped) == first;
                keys.extend(entries(journal, Opcode::ArrayLevel, is_of_it));
                keys.push((CONTENTS, first));
            }
            Opcode::GraphHomeDestroy => {
                let is_of_it = |condition: &GraphCondition| u64::from(condition.home) == first;
                keys = entries(journal, Opcode::GraphCondition, is_of_it);
            }
            Opcode::GraphDestroy => {
                let sets = |change: &GraphSet| u64::from(change.graph) == first;
                let enables = |change: &GraphEnable| u64::from(change.graph) == first;
                keys.extend(entries(journal, Opcode::GraphSet, sets));
                keys.extend(entries(journal, Opcode::GraphEnable, enables));
            }
            _ => {}
        }
        if opcode == Opcode::PartitionDrop && have_resources(journal, &keys, first) {
            let buried = self.records.journal.bury(&keys, opcode as u16, position, body);
            let moved = buried.map(|(_, moved)| moved);
            return self.follow_journal(moved.map_err(|error| error.to_string()));
        }
        if opcode == Opcode::ModuleUnload
            && let Some(library) = self.unloaded_in_use.take()
        {
            let buried = self.records.journal.bury(&keys, opcode as u16, position, body);
            let moved = buried.map(|(grave, moved)| {
                self.records.graves.push((grave, library));
                moved
            });
            return self.follow_journal(moved.map_err(|error| error.to_string()));
        }
        let journal = &mut self.records.journal;
        let mut files: Vec<u64> =
            keys.into_iter().filter_map(|key| journal.end(key, position)).collect();
        if opcode == Opcode::GraphDestroy {
            let graves = &mut self.records.graves;
            let empty = graves.extract_if(.., |(_, library)| library.strong_count() == 0);
            for (grave, _) in empty {
                files.extend(journal.exhume(grave, position));
            }
        }
        files.retain(|file| *file != 0);
        self.let_go_files(files);
        Ok(())
    }

    fn let_go_files(&mut self, numbers: Vec<u64>) {
        if !numbers.is_empty() {
            self.give_up(FromExecutor::LetGo { session: self.handle.id, numbers });
        }
    }

    /// Has the keeper told so when the command in hand is committed.
    pub(crate) fn give_up(&mut self, what: FromExecutor) {
        self.records.given_up.push(what);
    }

    /// The command in hand is committed. Who ends before all is told leaves it to the keeper until
    /// the session ends, or to [`Self::replay`].
    pub(crate) fn tell_given_up(&mut self) {
        if self.records.given_up.is_empty() {
            return;
        }
        for what in self.records.given_up.drain(..) {
            self.shared.tell(&what);
        }
    }

    /// Gives the keeper a file for the next executor; it belongs to what the command in hand makes.
    pub(crate) fn keep_file(&mut self, file: BorrowedFd<'_>) {
        self.keep_code(file, None);
    }

    /// As [`Self::keep_file`]; code that can be loaded ahead comes with its options.
    pub(crate) fn keep_code(&mut self, file: BorrowedFd<'_>, code: Option<CodeOptions>) {
        if self.records.replaying {
            return;
        }
        let number = self.records.next_file;
        self.records.next_file += 1;
        self.records.new_file = number;
        let session = self.handle.id;
        self.shared.tell_with(&FromExecutor::Keep { session, number, code }, file);
    }

    /// As [`Self::keep_file`], for bytes.
    pub(crate) fn keep_bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.records.replaying {
            return Ok(());
        }
        let file = images::write(bytes).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        self.keep_file(file.as_fd());
        Ok(())
    }

    /// Before a command: nothing of it is kept yet. What a command that failed had kept goes.
    pub(crate) fn begin_record(&mut self, position: u64) {
        self.records.position = position;
        match std::mem::take(&mut self.records.new_file) {
            0 => {}
            abandoned => self.let_go_files(vec![abandoned]),
        }
    }
}

/// A module, its functions, their attributes, its variables and what was given of them.
fn module_keys(journal: &Journal, module: u64) -> Vec<Key> {
    let of_it = |function: &FunctionGet| u64::from(function.module) == module;
    let functions = entries(journal, Opcode::FunctionGet, of_it);
    let is_one = |function: u32| functions.iter().any(|(_, number)| *number == u64::from(function));
    let set = |attribute: &FunctionSetAttribute| is_one(attribute.function);
    let attributes = entries(journal, Opcode::FunctionSetAttribute, set);
    let of_it = |variable: &GlobalGet| u64::from(variable.module) == module;
    let variables = entries(journal, Opcode::GlobalGet, of_it);
    let told = RefCell::new(HashSet::new());
    journal.keys(|key, body| {
        let answer = GlobalGetReply::read_from_suffix(body).ok();
        let of_it = answer.filter(|_| variables.contains(&key));
        told.borrow_mut().extend(of_it.map(|(_, answer)| answer.address));
        false
    });
    let given = told.into_inner().into_iter().map(|told| (GIVEN, told)).collect();
    let rest = [(VALUES, module), (Opcode::ModuleLoad as u16, module)];
    [functions, attributes, variables, given, rest.to_vec()].concat()
}

/// Code that was unloaded while graphs name it.
pub(crate) type InUse = Option<Weak<CUlibrary>>;

/// Whether anybody but the module has its code.
pub(crate) fn in_use(library: &Arc<CUlibrary>) -> InUse {
    (Arc::strong_count(library) > 1).then(|| Arc::downgrade(library))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::Bed;
    use link::wire::partition::{PartitionCreate, PartitionDrop, SmResource};
    use zerocopy::IntoBytes;

    fn get_resource(state: &mut State, partition: u32, number: u32) -> Key {
        let wanted = ResourceGet { partition, reserved: 0 };
        let answer = SmResource { resource: number, multiprocessors: 8, ..Default::default() };
        state.reply = answer.as_bytes().to_vec();
        state.record(Opcode::ResourceGet, wanted.as_bytes()).unwrap();
        key(Opcode::ResourceGet, &[wanted.as_bytes(), answer.as_bytes()].concat()).unwrap()
    }

    #[test]
    fn numbers_of_resources_are_given_out_in_the_order_of_the_first_questions() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        let keys = [(0, 1), (1, 2), (0, 1)].map(|(of, number)| get_resource(state, of, number));
        let places = keys.map(|key| state.records.journal.place(key).unwrap());
        assert_eq!(places[0], places[2], "asked again");
        assert!(places[0] < places[1]);
    }

    #[test]
    fn a_partition_that_has_given_a_resource_its_number_is_made_and_dropped_again() {
        let bed = Bed::new();
        let mut client = bed.open();
        let state = client.session.state();
        let grown_by_drop = |state: &mut State| {
            let create = PartitionCreate { partition: 1, description: 1 };
            state.record(Opcode::PartitionCreate, create.as_bytes()).unwrap();
            get_resource(state, 1, 7);
            let before = state.records.journal_bytes();
            let dropped = PartitionDrop { partition: 1, reserved: 0 };
            state.record(Opcode::PartitionDrop, dropped.as_bytes()).unwrap();
            state.records.journal_bytes() - before
        };
        assert!(grown_by_drop(state) > 0, "the first one is buried");
        assert_eq!(grown_by_drop(state), 0, "the number is known by then");
    }
}
