//! Modules, their variables, and what becomes of code that nobody has any more.

pub(crate) mod discarding;
pub(crate) mod guard;
pub(crate) mod images;
pub(crate) mod jit_options;
pub(crate) mod link_texts;
pub(crate) mod module;
pub(crate) mod pristine;
pub(crate) mod quarantine;
pub(crate) mod spares;
pub(crate) mod variables;
