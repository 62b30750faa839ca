//! The limits of a context as far as the executor has told them: asking again takes no round trip.
//!
//! Another client may raise a limit of the context that all share. A program sees that, as it sees
//! its own change, when it has set a limit.

use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_abi::types::CUlimit;

/// One value per limit, each one higher than told; 0 is unknown.
#[derive(Debug, Default)]
pub(crate) struct Limits([AtomicUsize; CUlimit::MAX.0 as usize]);

impl Limits {
    pub(crate) fn get(&self, limit: CUlimit) -> Option<usize> {
        // Relaxed: a value that orders nothing; also below.
        self.0.get(limit.0 as usize)?.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn set(&self, limit: CUlimit, value: usize) {
        if let Some(known) = self.0.get(limit.0 as usize) {
            known.store(value.saturating_add(1), Ordering::Relaxed);
        }
    }

    pub(crate) fn forget(&self) {
        for known in &self.0 {
            known.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Limits;
    use cuda_abi::types::CUlimit;

    #[test]
    fn what_was_told_is_known_until_forgotten() {
        let limits = Limits::default();
        assert_eq!(limits.get(CUlimit::STACK_SIZE), None);
        limits.set(CUlimit::STACK_SIZE, 1024);
        limits.set(CUlimit::PERSISTING_L2_CACHE_SIZE, 0);
        limits.set(CUlimit(77), 5);
        assert_eq!(limits.get(CUlimit::STACK_SIZE), Some(1024));
        assert_eq!(limits.get(CUlimit::PERSISTING_L2_CACHE_SIZE), Some(0));
        assert_eq!(limits.get(CUlimit(77)), None);
        limits.forget();
        assert_eq!(limits.get(CUlimit::STACK_SIZE), None);
    }
}
