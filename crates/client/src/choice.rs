//! The one choice of a process: attached to a server, or native.
//!
//! Made by `cuInit` or `cuDriverGetVersion`, whichever comes first (and by `cuGetExportTable` for a table that it knows, whose address must not
//! change later). A daemon's socket that takes our connection means attached; what the daemon then refuses is the result of
//! `cuInit`, never a reason to go native. No socket, or nobody behind it, means native: the jump table is filled with the native driver's functions.

use crate::attach::{self, AttachError, Attachment};
use crate::client::{self, Client};
use crate::exports;
use crate::native;
use crate::{error, info};
use cuda_abi::table::DriverTable;
use cuda_abi::types::CUresult;
use std::sync::OnceLock;

/// The newest CUDA version whose functions we have; attached programs are never told of a newer driver.
pub(crate) const NEWEST_VERSION: i32 = 13000;

/// What was chosen.
pub(crate) enum Choice {
    /// Every call goes to the native driver.
    Native(Box<DriverTable>),
    /// Every call is ours.
    Attached(&'static Client),
    /// There is a daemon, and it refused, or there is neither daemon nor driver: the result of `cuInit`.
    None(CUresult),
}

static CHOICE: OnceLock<Choice> = OnceLock::new();

/// The choice, made now if it was not before.
pub(crate) fn choose() -> &'static Choice {
    CHOICE.get_or_init(make)
}

/// The choice, if it was made.
pub(crate) fn made() -> Option<&'static Choice> {
    CHOICE.get()
}

fn make() -> Choice {
    match attach::connect() {
        Ok(attachment) => attached(attachment),
        Err(AttachError::NoDaemon(_)) => native_driver(),
        Err(refused) => {
            error!("{refused}");
            Choice::None(refused.code())
        }
    }
}

fn attached(attachment: Attachment) -> Choice {
    info!(
        "attached to server {} as client {}, {} devices",
        attachment.welcome.server_pid,
        attachment.welcome.client_id,
        attachment.welcome.devices.len()
    );
    match client::start(attachment) {
        Ok(client) => {
            exports::attach();
            Choice::Attached(client)
        }
        Err(code) => Choice::None(code),
    }
}

fn native_driver() -> Choice {
    match native::load() {
        Ok(table) => {
            exports::pass_through(&table);
            Choice::Native(Box::new(table))
        }
        Err(reason) => {
            error!("no OpenMPS daemon, and {reason}");
            Choice::None(CUresult::ERROR_NO_DEVICE)
        }
    }
}
