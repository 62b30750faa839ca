//! Which commands make what lives, and which end it: what a session's [`Journal`] says.
//!
//! Only commands that make or end objects are written down, so work costs nothing here.
//! [`super::replay`] does the same commands again.

use crate::code::images;
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
use link::wire::command::{Effect, FunctionGet, FunctionSetAttribute, GlobalGet, Keeps, Opcode};
use link::wire::graph::{GraphCondition, GraphEnable, GraphSet};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
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
            Effect::Makes { keeps, .. } => {
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
                self.note_entry(key_of(opcode, entry)?, file, entry)
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

/// A module, its functions, their attributes, its variables.
fn module_keys(journal: &Journal, module: u64) -> Vec<Key> {
    let of_it = |function: &FunctionGet| u64::from(function.module) == module;
    let functions = entries(journal, Opcode::FunctionGet, of_it);
    let is_one = |function: u32| functions.iter().any(|(_, number)| *number == u64::from(function));
    let set = |attribute: &FunctionSetAttribute| is_one(attribute.function);
    let attributes = entries(journal, Opcode::FunctionSetAttribute, set);
    let of_it = |variable: &GlobalGet| u64::from(variable.module) == module;
    let variables = entries(journal, Opcode::GlobalGet, of_it);
    let rest = [(VALUES, module), (Opcode::ModuleLoad as u16, module)];
    [functions, attributes, variables, rest.to_vec()].concat()
}

/// Code that was unloaded while graphs name it.
pub(crate) type InUse = Option<Weak<CUlibrary>>;

/// Whether anybody but the module has its code.
pub(crate) fn in_use(library: &Arc<CUlibrary>) -> InUse {
    (Arc::strong_count(library) > 1).then(|| Arc::downgrade(library))
}
