//! A client process and the server, from `cuInit` to the end of the process.
//!
//! The client connects to the daemon's socket and sends [`Hello::Client`]. The daemon checks the
//! kernel's word on who that is and hands the *same socket* on to the server of that user, which
//! answers with [`Welcome`] or [`Refusal`]. From then on the socket belongs to client and server:
//! requests ([`ClientRequest`]) get one [`ClientReply`] each, and its closing, however it comes
//! about, is the end of the client.

use super::version::Versions;
use crate::printable_prefix;
use serde::{Deserialize, Serialize};

/// First packet on any connection to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "there is one per connection, and it is not kept")]
pub enum Hello {
    /// A CUDA program's client library.
    Client(ClientHello),
    /// A CUDA program's client library under a CUDA debugger: it does not attach, but waits for
    /// [`HelloReply::Native`].
    Debugged {
        /// Those that the library speaks.
        versions: Versions,
        /// The debugger, for the log.
        debugger: String,
    },
    /// Who wants to trace a running client: the connection is handed on to the server and then to
    /// the client; see [`super::trace`].
    Trace {
        /// The sender's [`super::PROTOCOL_VERSION`].
        protocol: u32,
        /// The client's process id, as `openmps ps` shows it.
        pid: u32,
    },
    /// A front end: see [`super::ui`].
    Ui {
        /// The sender's [`super::PROTOCOL_VERSION`].
        protocol: u32,
    },
}

/// What a client says of itself. Identity comes from the kernel, never from here.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientHello {
    /// Those that the library speaks.
    pub versions: Versions,
    /// Process id in the client's own PID namespace, for messages only.
    pub pid: u32,
    /// Inode of the client's PID namespace (`/proc/self/ns/pid`), 0 if unreadable.
    pub pid_namespace: u64,
    /// What the program was started as, for lists.
    pub command: String,
    /// Limits that the client's own environment asks for; they can only tighten the server's.
    pub limits: RequestedLimits,
}

/// The `CUDA_*` variables of the client that bear on its share, verbatim; the server parses and
/// checks them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RequestedLimits {
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, of the process.
    pub active_thread_percentage: Option<String>,
    /// `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` and `CUDA_MPS_DEVICE_MEM_LIMIT`, a comma between them if
    /// both are set.
    pub pinned_device_mem_limit: Option<String>,
    /// `OPENMPS_MEMORY_LIMIT`: a limit of device memory that the program is told as the device's
    /// memory.
    #[serde(default)]
    pub memory_limit: Option<String>,
    /// `CUDA_MPS_CLIENT_PRIORITY`.
    pub client_priority: Option<String>,
    /// `OPENMPS_WEIGHT`: the client's share of a device that others want, too, is to theirs as
    /// their weights are.
    #[serde(default)]
    pub weight: Option<String>,
    /// `OPENMPS_LATENCY`: 1 for the latency class.
    #[serde(default)]
    pub latency: Option<String>,
    /// `OPENMPS_GUARD`: 1 to have accesses of kernels checked, `strict` to have no other kernels.
    #[serde(default)]
    pub guard: Option<String>,
    /// `OPENMPS_REPEATABLE`: kernels that may be run again after another client's fault, as names
    /// with `*` and `?`, commas between them.
    #[serde(default)]
    pub repeatable: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`; the client applies it itself to the server's list.
    pub visible_devices: Option<String>,
    /// `CUDA_DEVICE_MAX_CONNECTIONS`.
    #[serde(default)]
    pub device_max_connections: Option<String>,
    /// `CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING`: contexts may have shares of
    /// their own.
    #[serde(default)]
    pub per_context_partitioning: Option<String>,
    /// `OPENMPS_ISOLATE`: share an executor only with clients of the same user and of this name.
    #[serde(default)]
    pub isolation: Option<String>,
    /// `OPENMPS_GROUP`: the group whose limits it shares.
    #[serde(default)]
    pub group: Option<String>,
    /// `OPENMPS_RESERVATION`: the reservation whose SMs it uses.
    #[serde(default)]
    pub reservation: Option<String>,
    /// `CUDA_MPS_SM_PARTITION`: a partition of newer releases of the original, which there is none
    /// of here.
    #[serde(default)]
    pub sm_partition: Option<String>,
}

/// Longest of [`ClientHello::command`], in characters.
pub const MAX_COMMAND_CHARACTERS: usize = 200;
/// Longest of [`RequestedLimits`]' variables, in bytes.
pub const MAX_VARIABLE_BYTES: usize = 8192;

/// A variable of a client that is longer than anybody needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} has {bytes} bytes: give at most {MAX_VARIABLE_BYTES}")]
pub struct VariableTooLong {
    variable: &'static str,
    bytes: usize,
}

impl ClientHello {
    /// What daemon and server keep of it: the command line is cut, for it is shown; what would
    /// change its meaning if it were cut is refused.
    ///
    /// # Errors
    /// [`VariableTooLong`].
    pub fn bounded(self) -> Result<Self, VariableTooLong> {
        // Taken apart, so that none is forgotten here.
        let RequestedLimits {
            active_thread_percentage,
            pinned_device_mem_limit,
            memory_limit,
            client_priority,
            weight,
            latency,
            guard,
            repeatable,
            visible_devices,
            device_max_connections,
            per_context_partitioning,
            isolation,
            group,
            reservation,
            sm_partition,
        } = &self.limits;
        let variables = [
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", active_thread_percentage),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", pinned_device_mem_limit),
            ("OPENMPS_MEMORY_LIMIT", memory_limit),
            ("CUDA_MPS_CLIENT_PRIORITY", client_priority),
            ("OPENMPS_WEIGHT", weight),
            ("OPENMPS_LATENCY", latency),
            ("OPENMPS_GUARD", guard),
            ("OPENMPS_REPEATABLE", repeatable),
            ("CUDA_VISIBLE_DEVICES", visible_devices),
            ("CUDA_DEVICE_MAX_CONNECTIONS", device_max_connections),
            (
                "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
                per_context_partitioning,
            ),
            ("OPENMPS_ISOLATE", isolation),
            ("OPENMPS_GROUP", group),
            ("OPENMPS_RESERVATION", reservation),
            ("CUDA_MPS_SM_PARTITION", sm_partition),
        ];
        for (variable, value) in variables {
            let bytes = value.as_ref().map_or(0, String::len);
            if bytes > MAX_VARIABLE_BYTES {
                return Err(VariableTooLong { variable, bytes });
            }
        }
        let command = printable_prefix(&self.command, MAX_COMMAND_CHARACTERS);
        Ok(Self { command, ..self })
    }
}

/// The server's answer to a hello.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelloReply {
    /// Attached.
    Welcome(Welcome),
    /// Not attached.
    Refused(Refusal),
    /// The daemon's answer to [`Hello::Debugged`], once no server runs: use the native driver.
    Native,
}

/// Why something was not done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The `CUresult` that the client's call returns.
    pub code: u32,
    /// For the log: what was wrong and what to do.
    pub message: String,
}

/// Everything a client must know to answer device queries by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The version of the client wire that both use from here on.
    pub version: u32,
    /// Names this client in the daemon's lists; given out by the daemon, and never reused.
    pub client_id: u64,
    /// The server's process id.
    pub server_pid: u32,
    /// `cuDriverGetVersion` of the native driver.
    pub driver_version: i32,
    /// Devices in the server's order.
    pub devices: Vec<DeviceInfo>,
}

/// One device, as its native driver describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// `cuDeviceGetName`.
    pub name: String,
    /// `cuDeviceGetUuid` (v1).
    pub uuid: [u8; 16],
    /// `cuDeviceGetUuid_v2`; differs from v1 on partitioned devices.
    pub uuid_v2: [u8; 16],
    /// `cuDeviceGetPCIBusId`.
    pub pci_bus_id: String,
    /// `cuDeviceTotalMem_v2`.
    pub total_memory_bytes: u64,
    /// What the program is told instead: the limit that held when it attached, if that is told and
    /// lower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_memory_bytes: Option<u64>,
    /// (attribute, value) for every `CUdevice_attribute` that the driver answers.
    pub attributes: Vec<(i32, i32)>,
    /// Stream priorities: (least, greatest), as `cuCtxGetStreamPriorityRange` gives them.
    pub stream_priorities: (i32, i32),
    /// What code it runs.
    pub code: DeviceCode,
    /// `cuMemGetAllocationGranularity`: (minimum, recommended), in bytes.
    pub granularity_bytes: (u64, u64),
    /// `cuDeviceGetTexture1DLinearMaxWidth` for texels of 1, 2, 4, 8 and 16 bytes; 0 where the
    /// driver does not say.
    pub linear_texture_texels: [u64; 5],
    /// By the server's numbers of devices, this one among them; empty from a server that does not
    /// say.
    #[serde(default)]
    pub peers: Vec<PeerInfo>,
    /// Not for this client: it keeps its number in the server's list, and nothing can be done on
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
}

/// What one device can do with another one of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// `cuDeviceCanAccessPeer`.
    pub can_access: bool,
    /// `cuDeviceGetP2PAttribute` of the attributes 1 to 5; 0 where the driver does not say.
    pub attributes: [i32; 5],
}

/// What code a device runs, besides PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceCode {
    /// None: it is software.
    PtxOnly,
    /// Its own machine code.
    MachineCode,
}

/// What a client asks of the server on its socket, one at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientRequest {
    /// A context on a device comes to life. The first on a device opens the session; further ones
    /// only count.
    OpenContext {
        /// Index into [`Welcome::devices`].
        device: u32,
        /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` as it is when the context is made, from a client
        /// that asked for [`RequestedLimits::per_context_partitioning`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        active_thread_percentage: Option<String>,
    },
    /// A context has been destroyed; the session stays until the client ends.
    CloseContext {
        /// Index into [`Welcome::devices`].
        device: u32,
    },
    /// A descriptor of `/dev/userfaultfd`, for managed memory.
    FaultsDevice,
}

/// The server's answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientReply {
    /// Answer to [`ClientRequest::OpenContext`]. With the first context on a device come three
    /// descriptors: the session's shared memory ([`super::layout`]), the completion page
    /// (read-only), and a socket to the executor over which the descriptors of
    /// [`super::command::Opcode::RegionMap`] travel.
    ContextOpened(ContextOpened),
    /// Answer to [`ClientRequest::CloseContext`].
    ContextClosed,
    /// Answer to [`ClientRequest::FaultsDevice`], with the descriptor; without one where the daemon
    /// hands none on.
    FaultsDevice,
    /// No answer: somebody wants to trace the client; with the connection to them. See
    /// [`super::trace`].
    Trace,
    /// Not done.
    Refused(Refusal),
}

/// A context, and where its client's addresses lie. All windows are the client's alone, at the same
/// addresses in every process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContextOpened {
    /// Counts the client's contexts on this device from 1.
    pub context_id: u32,
    /// Whether the three descriptors came with this reply.
    pub first: bool,
    /// Device memory: addresses that grants ([`super::command::Grow`]) come from.
    pub device_window: Window,
    /// Host memory shared with the executor: pinned memory and staging buffers are mapped here by
    /// both.
    pub host_window: Window,
    /// SMs that this context may use, where that is fewer than the client may: it asked for less
    /// when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<u32>,
}

/// From the client over the session socket, with one descriptor: the file of the region that the
/// next [`super::command::Opcode::RegionMap`] names. The client sends it before it posts that
/// command, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionFile {
    /// First address of the region, as in the command.
    pub address: u64,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// First address.
    pub base: u64,
    /// Length.
    pub size_bytes: u64,
}

impl Window {
    /// Whether `[address, address + size_bytes)` lies inside; false on overflow.
    pub fn contains(&self, address: u64, size_bytes: u64) -> bool {
        let Some(offset) = address.checked_sub(self.base) else { return false };
        offset.checked_add(size_bytes).is_some_and(|end| end <= self.size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json, to_value};

    #[test]
    fn every_variable_has_a_longest() {
        let names = to_value(RequestedLimits::default()).unwrap();
        let names: Vec<&String> = names.as_object().unwrap().keys().collect();
        assert!(names.len() >= 15, "{names:?}");
        let bounded = |name: &str, bytes: usize| {
            let limits: Value = json!({ name: "x".repeat(bytes) });
            let hello: ClientHello = serde_json::from_value(json!({
                "versions": Versions::ours(), "pid": 1, "pid_namespace": 0, "command": "", "limits": limits
            }))
            .unwrap();
            hello.bounded().map(drop)
        };
        for name in names {
            assert_eq!(bounded(name, MAX_VARIABLE_BYTES), Ok(()), "{name}");
            let error = bounded(name, MAX_VARIABLE_BYTES + 1).expect_err(name);
            assert_eq!(error.bytes, MAX_VARIABLE_BYTES + 1, "{name}");
        }
    }
}
