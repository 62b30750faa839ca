//! Code on the device.
//!
//! | file | concept |
//! |---|---|
//! | `module` | modules and functions of a session |
//! | `images`, `jit_options`, `link_texts` | what is loaded, and how |
//! | `guard`, `quarantine` | code that is checked, and code that runs apart |
//! | `variables` | values of variables, saved for the next executor |
//! | `spares`, `pristine`, `discarding` | code that nobody has any more: kept, made like new, unloaded |

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
