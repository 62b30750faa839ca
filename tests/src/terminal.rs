//! A program on a real terminal: a test types, and reads what is on the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, ptr, thread};

use anyhow::{Context, Result, bail};

use crate::wait::{self, PATIENCE};

/// The program, and its terminal.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Screen>>,
}

impl Terminal {
    /// Starts a program on a terminal of so many columns and lines.
    ///
    /// # Errors
    /// When there is no terminal to be had, or the program cannot be started.
    pub fn start(command: &mut Command, (columns, lines): (u16, u16)) -> Result<Self> {
        let (ours, theirs) = open((columns, lines)).context("cannot open a terminal")?;
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(theirs.try_clone()?)
            .stdout(theirs.try_clone()?)
            .stderr(theirs)
            .spawn()
            .context("cannot start a program on a terminal")?;
        let keyboard = File::from(ours);
        let screen = Arc::new(Mutex::new(Screen::new(columns.into(), lines.into())));
        let (mut written, shown) = (keyboard.try_clone()?, Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the program is an error here.
            while let Ok(count @ 1..) = written.read(&mut bytes) {
                lock(&shown).take(&bytes[..count]);
            }
        });
        Ok(Self { child, keyboard, screen })
    }

    /// Presses keys.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        self.keyboard.write_all(keys.as_bytes()).context("the terminal takes no keys")
    }

    /// The lines of the screen.
    pub fn screen(&self) -> String {
        lock(&self.screen).text()
    }

    /// All that was written, with the codes that the terminal obeys.
    pub fn written(&self) -> String {
        lock(&self.screen).written.clone()
    }

    /// Waits until the screen is as wanted.
    ///
    /// # Errors
    /// When it never is; says what was there last.
    pub fn wait_until(&self, what: &str, is_wanted: impl Fn(&str) -> bool) -> Result<()> {
        wait::until(what, PATIENCE, || is_wanted(&self.screen()))
            .with_context(|| format!("the screen:\n{}", self.screen()))
    }

    /// Waits until this is on the screen.
    ///
    /// # Errors
    /// When it never is.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        self.wait_until(&format!("{text:?} is on the screen"), |screen| screen.contains(text))
    }

    /// Waits for the program's end.
    ///
    /// # Errors
    /// When it does not come.
    pub fn finish(mut self) -> Result<ExitStatus> {
        let mut status = None;
        wait::until("the program ends", PATIENCE, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })?;
        match status {
            Some(status) => Ok(status),
            None => bail!("no status"),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn lock(screen: &Mutex<Screen>) -> MutexGuard<'_, Screen> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Our end and the program's.
fn open((columns, lines): (u16, u16)) -> io::Result<(OwnedFd, OwnedFd)> {
    let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: all pointers are to values of this frame, or null where that is allowed.
    let opened = unsafe {
        libc::openpty(&raw mut ours, &raw mut theirs, ptr::null_mut(), ptr::null(), &raw const size)
    };
    if opened != 0 {
        return Err(io::Error::last_os_error());
    }
    let (ours, theirs) =
        // SAFETY: both were opened just now, and belong to nobody yet.
        unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    // Otherwise the program keeps our end open, too.
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::CLOEXEC)?;
    Ok((ours, theirs))
}

/// What is on a terminal, as far as full-screen programs need one: moves, erasing, and characters
/// of one cell.
#[derive(Debug)]
pub struct Screen {
    cells: Vec<Vec<char>>,
    /// Line and column.
    at: (usize, usize),
    /// Not understood yet: a part of a character or of a code.
    pending: Vec<u8>,
    /// All characters and codes that came whole.
    pub written: String,
}

impl Screen {
    /// An empty one.
    pub fn new(columns: usize, lines: usize) -> Self {
        let cells = vec![vec![' '; columns]; lines];
        Self { cells, at: (0, 0), pending: Vec::new(), written: String::new() }
    }

    /// Its lines, without the spaces at their ends.
    pub fn text(&self) -> String {
        let lines = self.cells.iter().map(|line| line.iter().collect::<String>());
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// Shows what a program has written; a character or code may come in parts.
    pub fn take(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
        let pending = std::mem::take(&mut self.pending);
        let whole = pending.utf8_chunks().next().map_or(0, |chunk| chunk.valid().len());
        let text = String::from_utf8_lossy(&pending[..whole]).into_owned();
        let mut rest = text.as_str();
        while let Some(character) = rest.chars().next() {
            let length = match character {
                '\u{1b}' => match code_length(rest) {
                    Some(length) => length,
                    None => break,
                },
                _ => character.len_utf8(),
            };
            let (one, others) = rest.split_at(length);
            self.obey(one, character);
            rest = others;
        }
        self.written.push_str(&text[..text.len() - rest.len()]);
        self.pending = [rest.as_bytes(), &pending[whole..]].concat();
    }

    fn obey(&mut self, text: &str, character: char) {
        match character {
            '\u{1b}' => self.obey_code(text),
            '\r' => self.at.1 = 0,
            '\n' => self.at.0 += 1,
            _ => {
                let (line, column) = self.at;
                if let Some(cell) = self.cells.get_mut(line).and_then(|line| line.get_mut(column)) {
                    *cell = character;
                }
                self.at.1 += 1;
            }
        }
    }

    fn obey_code(&mut self, code: &str) {
        let Some(words) = code.strip_prefix("\u{1b}[") else { return };
        if let Some(place) = words.strip_suffix('H') {
            let (line, column) = place.split_once(';').unwrap_or((place, ""));
            let number = |text: &str| text.parse().unwrap_or(1_usize).saturating_sub(1);
            self.at = (number(line), number(column));
        } else if words == "2J" {
            self.cells.iter_mut().for_each(|line| line.fill(' '));
        }
    }
}

/// Bytes of the code at the beginning, if all of it is there.
fn code_length(text: &str) -> Option<usize> {
    match text.as_bytes().get(1)? {
        b'[' => text.bytes().skip(2).position(|byte| (0x40..0x7f).contains(&byte)).map(|at| at + 3),
        b'(' | b')' => (text.len() > 2).then_some(3),
        _ => Some(2),
    }
}
