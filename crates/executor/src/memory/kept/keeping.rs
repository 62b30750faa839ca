//! Grants are kept, taken again and given back.

use crate::session::failure::Failure;
use crate::session::state::State;

impl State {
    /// Keeps a grant that its client has given up; says whether it did.
    pub(crate) fn keep(&mut self, at: u64, size_bytes: u64) -> bool {
        // What a group may hold is counted by the keeper too, which does not know what is kept.
        if self.handle.allowance.is_shared() || self.context().lost().is_some() {
            return false;
        }
        let (shared, session) = (&self.shared, self.handle.id);
        let is_kept = self.handle.kept.put(&shared.kept, at, size_bytes, |at, size_bytes| {
            shared.return_kept(session, at, size_bytes);
        });
        self.note_kept();
        is_kept
    }

    /// A kept grant for an allocation, which counts again from now on.
    ///
    /// # Errors
    /// When the client may not have it any more.
    pub(crate) fn take_kept(&mut self, size_bytes: u64) -> Result<Option<(u64, u64)>, Failure> {
        let found = self.handle.kept.take(&self.shared.kept, size_bytes);
        let Some((at, size_bytes)) = found else { return Ok(None) };
        self.note_kept();
        if let Err(failure) = self.memory.charge(size_bytes) {
            self.shared.return_kept(self.handle.id, at, size_bytes);
            return Err(failure);
        }
        Ok(Some((at, size_bytes)))
    }

    /// Gives back all that this session keeps; says whether that was anything.
    pub(crate) fn return_all_kept(&mut self) -> bool {
        let is_any = self.handle.kept.bytes() > 0;
        self.shared.sweep(&self.handle, |_| true);
        is_any
    }

    fn note_kept(&self) {
        self.counters().set_kept(self.handle.kept.bytes());
    }
}
