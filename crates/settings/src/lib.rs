//! Every setting of OpenMPS: its names, its values, its default and a line of help.
//!
//! [`SETTINGS`] is the table. A setting is read by its row and [`Variables`]; each type of values
//! has one parser, which all that read it use.

mod address;
mod memory;
mod sample;
mod setting;
mod table;
mod values;
mod variables;
mod words;

pub use address::Address;
pub use memory::{DeviceRef, Memory, parse_memory_list, parse_memory_of_each};
pub use sample::sample_file;
pub use setting::{Kind, Scope, Setting};
pub use table::*;
pub use values::{Percentage, Priority, User, ValueError, parse_switch, parse_users};
pub use variables::{Environment, Variables, malformed, nearest, unknown};
pub use words::{Arrivals, Grouping, GuardMode, MemoryPolicy, Provisioning, Total, Word, Words};
