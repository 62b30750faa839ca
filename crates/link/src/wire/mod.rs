//! The messages themselves, with no I/O.

pub mod array;
pub mod attach;
pub mod command;
pub mod daemon;
pub mod fault;
pub mod graph;
pub mod group_socket;
pub mod layout;
pub mod owner;
pub mod partition;
pub mod peer;
pub mod query;
pub mod shares;
pub mod sharing;
pub mod trace;
pub mod ui;
pub mod version;
pub mod virtual_memory;

/// Version of what the processes of one build say to each other: a digest of these sources, made by
/// `build.rs`. Front ends with another version are refused with a message that names both, in
/// hexadecimal. Client libraries have [`version`]s of their own.
pub const PROTOCOL_VERSION: u32 = match u32::from_str_radix(env!("WIRE_DIGEST"), 10) {
    Ok(version) => version,
    Err(_) => panic!("build.rs wrote no number"),
};

#[used]
static SPOKEN: u32 = PROTOCOL_VERSION;

/// [`PROTOCOL_VERSION`] as the file of this process says it. A compiler may spread a constant over
/// its instructions, where whoever makes another build of a file would not find it.
pub fn protocol_version() -> u32 {
    // SAFETY: a static that nobody writes.
    unsafe { (&raw const SPOKEN).read_volatile() }
}

/// Largest control-plane packet in bytes, descriptors not counted.
pub const MAX_PACKET_BYTES: usize = 256 * 1024;

/// Name of the daemon's socket inside the pipe directory. Not the original's `control`: a native
/// NVIDIA client that finds our directory must run as if there were no MPS.
pub const DAEMON_SOCKET: &str = "openmps-control";
