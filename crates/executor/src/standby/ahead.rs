//! Memory of sessions of another executor, mapped by one that stands by: a session that is made
//! again here finds it in its window.
//!
//! To import and map a piece takes a driver a third of a millisecond while it takes another context
//! down, and much less before. The keeper says what is to be mapped, a few pieces at a time, and
//! what is to go; it alone knows which sessions have what. The main thread does it at once: one
//! that stands by has nothing else to do, and an answer says that all that was said before is done.
//! What no session takes after a takeover goes bit by bit, or at once where memory is short.

use crate::context::Context;
use crate::memory::mapping::DeviceWindow;
use executor_link::log::log_server;
use link::wire::attach::Window;
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// What nobody has taken is unmapped in such pieces, with such pauses, in which the keeper is
/// heard.
const PIECE: usize = 8;
const PAUSE: Duration = Duration::from_millis(1);

/// What is mapped for sessions that are not here.
#[derive(Default)]
pub(crate) struct Ahead {
    windows: BTreeMap<u64, DeviceWindow>,
    /// This executor stands by no more: what is here is nobody's.
    has_ended: bool,
}

impl Ahead {
    /// Maps memory of a session. Returns the first addresses of what could not be mapped.
    pub(crate) fn map(
        &mut self,
        context: &Context,
        session: u64,
        window: Window,
        grants: Vec<(u64, u64)>,
        files: Vec<OwnedFd>,
    ) -> Vec<u64> {
        let there = self.windows.remove(&session).filter(|there| there.window() == window);
        let reserved = there.map_or_else(|| DeviceWindow::reserve(context, window), Ok);
        match reserved {
            Ok(mut there) => {
                let expected: Vec<u64> = grants.iter().skip(files.len()).map(|it| it.0).collect();
                let grants = grants.into_iter().zip(files);
                let grants = grants.map(|((at, size_bytes), file)| (at, size_bytes, file));
                let mut failed = there.map(context, grants);
                failed.extend(expected);
                if !there.is_empty() {
                    self.windows.insert(session, there);
                }
                failed
            }
            Err((_, message)) => {
                log_server!("Memory of session {session} is not mapped ahead: {message}");
                grants.into_iter().map(|(at, _)| at).collect()
            }
        }
    }

    /// The session does not have this any more.
    pub(crate) fn unmap(&mut self, session: u64, address: u64) {
        if let Entry::Occupied(mut entry) = self.windows.entry(session) {
            entry.get_mut().unmap(address);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }

    /// What is mapped for a session, which comes or is gone.
    pub(crate) fn take(&mut self, session: u64) -> Option<DeviceWindow> {
        self.windows.remove(&session)
    }

    /// Nothing is to be mapped here.
    pub(crate) fn clear(&mut self) {
        self.windows.clear();
    }

    /// A session comes that has these addresses: whose they were does not come any more.
    pub(crate) fn make_way(&mut self, window: Window) {
        self.windows.retain(|_, there| there.window() != window);
    }

    /// All sessions have come that were to come.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// How long the keeper may be waited for before [`Self::drop_some`] has something to do;
    /// `None`: it has nothing.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (self.has_ended && !self.windows.is_empty()).then_some(PAUSE)
    }

    /// Unmaps some of what nobody has taken.
    pub(crate) fn drop_some(&mut self) {
        if !self.has_ended {
            return;
        }
        if let Some(mut entry) = self.windows.first_entry() {
            entry.get_mut().unmap_some(PIECE);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::images;
    use crate::testbed;
    use crate::testbed::Bed;

    const BYTES: u64 = 2 << 20;
    const WINDOW: Window = Window { base: 0x4000_0000_0000, size_bytes: 1 << 30 };

    fn grants(count: u64) -> (Vec<(u64, u64)>, Vec<OwnedFd>) {
        let all = (0..count).map(|number| (WINDOW.base + number * BYTES, BYTES));
        (all.collect(), (0..count).map(|_| images::write(b"memory").unwrap()).collect())
    }

    #[test]
    fn what_is_mapped_is_there_for_its_session_alone() {
        let bed = Bed::new();
        let mut ahead = Ahead::default();
        let (all, files) = grants(3);
        assert!(ahead.map(&bed.shared.context, 7, WINDOW, all, files).is_empty());
        ahead.unmap(7, WINDOW.base + BYTES);
        assert!(ahead.take(8).is_none());
        let mut window = ahead.take(7).unwrap();
        assert!(window.take(WINDOW.base, BYTES));
        assert!(!window.take(WINDOW.base + BYTES, BYTES), "its session has it no more");
        assert!(!window.take(WINDOW.base + 2 * BYTES, 2 * BYTES), "of another length");
        let before = testbed::mapping_calls();
        drop(window);
        assert_eq!(testbed::mapping_calls() - before, 1, "what nobody has taken is unmapped");
    }

    #[test]
    fn what_cannot_be_mapped_is_told() {
        let bed = Bed::new();
        let mut ahead = Ahead::default();
        let (mut all, mut files) = grants(3);
        all[0].0 = WINDOW.base + WINDOW.size_bytes;
        drop(files.pop());
        let failed = ahead.map(&bed.shared.context, 7, WINDOW, all, files);
        assert_eq!(failed, [WINDOW.base + WINDOW.size_bytes, WINDOW.base + 2 * BYTES]);
    }

    #[test]
    fn what_nobody_takes_goes_bit_by_bit_or_makes_way() {
        let bed = Bed::new();
        let mut ahead = Ahead::default();
        let (all, files) = grants(PIECE as u64 + 1);
        ahead.map(&bed.shared.context, 7, WINDOW, all, files);
        ahead.drop_some();
        assert_eq!(ahead.patience(), None, "sessions may come");
        ahead.end();
        let before = testbed::mapping_calls();
        ahead.drop_some();
        assert_eq!(testbed::mapping_calls() - before, PIECE as u32);
        assert!(ahead.patience().is_some());
        ahead.drop_some();
        assert_eq!(ahead.patience(), None);
        let (all, files) = grants(1);
        ahead.map(&bed.shared.context, 8, WINDOW, all, files);
        ahead.make_way(Window { base: WINDOW.base + WINDOW.size_bytes, ..WINDOW });
        assert!(ahead.patience().is_some(), "other addresses");
        ahead.make_way(WINDOW);
        assert_eq!(ahead.patience(), None);
    }
}
