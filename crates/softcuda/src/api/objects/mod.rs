//! What handles stand for. Nothing here knows the driver, which has a table of each kind: what
//! needs it is in the family's folder.

mod array;
mod context;
mod event;
mod function;
mod green;
mod link;
mod memory_handle;
mod module;
mod opened;
mod pool;
mod shared_event;
mod stream;
mod texture;

pub(crate) use array::{Array, ArrayOwner, MipmappedArray};
pub(crate) use context::{Context, ContextKind, ContextSettings};
pub(crate) use event::{Event, INTERPROCESS, NO_TIMING, Recorded};
pub(crate) use function::{Function, FunctionSettings, Kernel, Setting, max_threads};
pub(crate) use green::{GreenContext, ResourceDescription, SmResource};
pub(crate) use link::LinkState;
pub(crate) use memory_handle::{MemoryHandle, MemorySharing};
pub(crate) use module::{Global, Library, Module};
pub(crate) use opened::{Opened, Reference};
pub(crate) use pool::Pool;
pub(crate) use shared_event::SharedEvent;
pub(crate) use stream::{GREATEST_PRIORITY, LEAST_PRIORITY, StoredValue, Stream};
pub(crate) use texture::{SurfaceObject, TextureObject};
