//! What keeper and executor share: their messages ([`messages`]), and what one writes where the
//! other finds it, or the next executor does ([`journal`], [`standing`], [`redo`], [`history`],
//! [`counters`], [`captured`]). Beside these lies what both need: the native [`driver`], the
//! [`log`], command lines ([`options`]), free [`numbers`], and [`image_hash`].
//!
//! An executor is disposable: what its sessions have is the keeper's, or written down here, so that
//! another one takes over after a fault.
#![expect(missing_docs, reason = "used by keeper and executor alone; what is not obvious is said")]

pub mod captured;
pub mod counters;
pub mod driver;
pub mod history;
pub mod image_hash;
pub mod journal;
pub mod log;
pub mod messages;
pub mod numbers;
pub mod options;
pub mod redo;
pub mod standing;
