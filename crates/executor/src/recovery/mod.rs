//! How a session is made again in another executor or context.
//!
//! | file | concept |
//! |---|---|
//! | `recording` | what the journal says of a session |
//! | `replay` | a session is made again from it |
//! | `repeating` | work that is done once more |
//! | `relocation` | a session goes on in another context of its device; the keeper's half is its `contexts::relocation` |
//! | `restless` | for tests: sessions that relocate between any two commands |
//!
//! Arrays (`objects::array_contents`), texture objects (`objects::claims`), variables
//! (`code::variables`) and virtual memory (`memory::virtual_journal`) see to their own.

pub(crate) mod moving_away;
pub(crate) mod recording;
pub(crate) mod relocation;
pub(crate) mod repeating;
pub(crate) mod replay;
pub(crate) mod restless;
