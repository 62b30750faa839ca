//! The table of settings. From it come the keys of the configuration file, its sample
//! ([`crate::sample_file`]), the variables of `--help` and the manual pages, what is said of
//! mistyped ones, and the defaults. `docs/configuration.md` is compared with it.

use crate::setting::Kind::{
    Address, Groups, Guard, Memory, MemoryList, MemoryOfEach, Number, Percentage, Priority, Switch,
    Text, Users,
};
use crate::setting::Scope::{Both, Daemon, Program, SoftwareGpu};
use crate::setting::{Kind, Setting};
use crate::words::{self, Word, Words};

/// A day.
const DAY_MS: u64 = 86_400_000;
/// A TiB.
const MOST_SAVED_ARRAYS_MIB: u64 = 1 << 20;
/// Numbers without a bound of their own.
const ANY: u64 = u32::MAX as u64;
/// The largest weight.
pub const MOST_WEIGHT: u32 = 1000;
/// Contexts of a device, at most.
pub const MOST_CONTEXTS_PER_DEVICE: u64 = 1000;

const LOG_LEVELS: Kind = Kind::Words(&[
    Word { word: "off", help: "" },
    Word { word: "error", help: "" },
    Word { word: "warn", help: "" },
    Word { word: "info", help: "" },
    Word { word: "debug", help: "" },
    Word { word: "trace", help: "" },
]);

const fn words<T: Words>() -> Kind {
    Kind::Words(T::WORDS)
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $name:ident = $row:expr;)+) => {
        $($(#[doc = $help])+ pub const $name: Setting = $row.help_text(concat!($($help),+));)+

        /// All settings, in the order of the configuration file and of help.
        pub const SETTINGS: &[Setting] = &[$($name),+];
    };
}

settings! {
    /// where the daemon's socket is
    PIPE_DIRECTORY = Setting::new(Both, "CUDA_MPS_PIPE_DIRECTORY", Text, "/tmp/nvidia-mps")
        .key("directories.pipe");
    /// where control.log and server.log are
    LOG_DIRECTORY = Setting::new(Daemon, "CUDA_MPS_LOG_DIRECTORY", Text, "/var/log/nvidia-mps")
        .key("directories.log");
    /// where libcuda.so.1 and libsoftcuda.so of OpenMPS are
    LIB_DIR = Setting::new(Daemon, "OPENMPS_LIB_DIR", Text,
        "../lib/openmps beside the executable's directory, or that directory")
        .key("directories.libraries").example("/usr/lib/openmps");
    /// the configuration file
    CONFIG = Setting::new(Daemon, "OPENMPS_CONFIG", Text,
        "/etc/openmps/config.toml, if it is there");
    /// the driver library that does the work
    NATIVE_DRIVER = Setting::new(Both, "OPENMPS_NATIVE_DRIVER", Text,
        "NVIDIA's libcuda.so.1 of this system")
        .key("driver.native").option("--native-driver")
        .example("/usr/lib/x86_64-linux-gnu/libcuda.so.1");
    /// the devices of the daemon's servers, or of a program
    VISIBLE_DEVICES = Setting::new(Both, "CUDA_VISIBLE_DEVICES", Text, "all")
        .key("driver.visible_devices").option("--gpu").example("0,1");
    /// launches that wait go to the driver together
    BATCHING = Setting::new(Daemon, "OPENMPS_BATCHING", Switch, "on").key("driver.batching");
    /// contexts of all SMs beside the GPU's own, over which programs without a share are spread
    LANES = Setting::new(Daemon, "OPENMPS_LANES", Number(0, 32), "0").key("driver.lanes");
    /// programs at work on a GPU before waiting threads sleep at once instead of spinning first
    SPIN_CLIENTS = Setting::new(Daemon, "OPENMPS_SPIN_CLIENTS", Number(0, ANY),
        "the number of cores").key("driver.spin_clients").example("8");
    /// which users have a server when
    PROVISIONING = Setting::new(Daemon, "OPENMPS_PROVISIONING",
        words::<words::Provisioning>(), "one-user-at-a-time").key("daemon.provisioning");
    /// users whose servers start with the daemon: ids with commas between them, or self
    PREWARM = Setting::new(Daemon, "OPENMPS_PREWARM", Users, "none")
        .key("daemon.prewarm").example("self");
    /// where Prometheus metrics are served: ADDRESS:PORT or unix:/PATH
    METRICS = Setting::new(Daemon, "OPENMPS_METRICS", Address, "nowhere")
        .key("daemon.metrics").option("--metrics").example("127.0.0.1:9400");
    /// servers and executors may leave core dumps, and their users may debug them
    DEBUGGABLE = Setting::new(Daemon, "OPENMPS_DEBUGGABLE", Switch, "off").key("daemon.debuggable");

    /// share of the SMs of each new client, in per cent
    ACTIVE_THREAD_PERCENTAGE =
        Setting::new(Both, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", Percentage, "100")
        .key("limits.active_thread_percentage").option("--sm-percent").example("50");
    /// device memory of each new client, by device
    PINNED_DEVICE_MEM_LIMIT =
        Setting::new(Both, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", MemoryList, "none")
        .key("limits.device_memory").example("0=4G");
    /// the same, by another name that NVIDIA's guide uses
    DEVICE_MEM_LIMIT = Setting::new(Both, "CUDA_MPS_DEVICE_MEM_LIMIT", MemoryList, "none")
        .example("0=4G");
    /// priority of each new client: 0, or 1 for below normal
    CLIENT_PRIORITY = Setting::new(Both, "CUDA_MPS_CLIENT_PRIORITY", Priority, "0")
        .key("limits.client_priority").option("--priority");
    /// hardware queues of a server's context
    DEVICE_MAX_CONNECTIONS =
        Setting::new(Both, "CUDA_DEVICE_MAX_CONNECTIONS", Number(1, 32), "32");
    /// contexts of a program may have shares of their own
    PARTITIONING = Setting::new(Program,
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", Number(0, 1), "0");
    /// device memory of a program, which it is told as the GPU's: 4G, or by GPU 0=4G,1=2G
    MEMORY_LIMIT = Setting::new(Program, "OPENMPS_MEMORY_LIMIT", MemoryOfEach, "none")
        .option("--memory").example("4G");
    /// share of a device that others want, too, of programs of openmps run
    WEIGHT = Setting::new(Program, "OPENMPS_WEIGHT", Number(1, MOST_WEIGHT as u64), "1")
        .key("limits.client_weight").option("--weight");
    /// on, or strict: kernels of programs of openmps run are checked
    GUARD = Setting::new(Program, "OPENMPS_GUARD", Guard, "unchecked")
        .key("limits.client_guard").option("--guard").example("on");
    /// a program's launches go ahead of all that others have queued
    LATENCY = Setting::new(Program, "OPENMPS_LATENCY", Switch, "off").option("--latency");
    /// the group whose limits a program shares
    GROUP = Setting::new(Program, "OPENMPS_GROUP", Text, "none").option("--group").example("a");
    /// the reservation whose SMs a program uses
    RESERVATION = Setting::new(Program, "OPENMPS_RESERVATION", Text, "none")
        .option("--reservation").example("a");
    /// the name that programs give which share an executor
    ISOLATE = Setting::new(Program, "OPENMPS_ISOLATE", Text, "none").option("--isolate");
    /// kernels that may be run again when another client's fault ends them: names with * and ?
    REPEATABLE = Setting::new(Program, "OPENMPS_REPEATABLE", Text, "none");
    /// what a program's library writes to standard error
    LOG = Setting::new(Program, "OPENMPS_LOG", LOG_LEVELS,
        "only that a daemon is not used, and once that its work has failed").example("info");
    /// contexts of clients that a device serves at a time; the next is refused
    CONTEXTS_PER_DEVICE = Setting::new(Daemon, "OPENMPS_CONTEXTS_PER_DEVICE",
        Number(1, MOST_CONTEXTS_PER_DEVICE), "48").key("limits.contexts_per_device");
    /// SMs that others leave free while a program of the latency class is there
    LATENCY_SMS = Setting::new(Daemon, "OPENMPS_LATENCY_SMS", Number(0, ANY), "0")
        .key("limits.latency_sms");

    /// whose programs share an executor
    ISOLATION = Setting::new(Daemon, "OPENMPS_ISOLATION", words::<words::Grouping>(), "user")
        .key("isolation.by");

    /// where programs want more memory than a GPU has
    MEMORY_POLICY = Setting::new(Daemon, "OPENMPS_MEMORY_POLICY",
        words::<words::MemoryPolicy>(), "fail").key("memory.policy").option("--memory-policy");
    /// longest wait of an allocation, in milliseconds
    MEMORY_WAIT_MS = Setting::new(Daemon, "OPENMPS_MEMORY_WAIT_MS", Number(0, DAY_MS), "60000")
        .key("memory.wait_ms");
    /// with spill: how long a busy program keeps its memory at least, in milliseconds
    MEMORY_TURN_MS = Setting::new(Daemon, "OPENMPS_MEMORY_TURN_MS", Number(0, DAY_MS), "2000")
        .key("memory.turn_ms");
    /// host memory for what is moved out
    MEMORY_SPILL_LIMIT = Setting::new(Daemon, "OPENMPS_MEMORY_SPILL_LIMIT", Memory,
        "a quarter of the host's").key("memory.spill_limit").example("32G");
    /// what programs under limits of NVIDIA MPS are told as a GPU's memory
    MEMORY_TOTAL = Setting::new(Daemon, "OPENMPS_MEMORY_TOTAL", words::<words::Total>(), "device")
        .key("memory.total");
    /// programs of all users have managed memory on the device; SECURITY.md names the price
    MANAGED_FAULTS = Setting::new(Daemon, "OPENMPS_MANAGED_FAULTS", Switch, "off")
        .key("memory.managed_faults");
    /// host memory that the programs of a user may pin together on a device
    PINNED_LIMIT = Setting::new(Daemon, "OPENMPS_PINNED_LIMIT", Memory,
        "three quarters of the host's").key("memory.pinned_limit").example("64G");

    /// executors that stand by on each device to take over; each costs a context's memory
    STANDBY = Setting::new(Daemon, "OPENMPS_STANDBY", Number(0, 4), "1").key("faults.standbys");
    /// what becomes of programs that come during a recovery
    DURING_FAULT = Setting::new(Daemon, "OPENMPS_DURING_FAULT", words::<words::Arrivals>(), "wait")
        .key("faults.arrivals");
    /// how long work may go on whose client is gone, in milliseconds
    KILL_PATIENCE_MS = Setting::new(Daemon, "OPENMPS_KILL_PATIENCE_MS", Number(0, DAY_MS), "10000")
        .key("faults.kill_patience_ms");
    /// host memory for the copies of a client's arrays, in MiB; 0: none are saved
    SAVED_ARRAYS_MIB = Setting::new(Daemon, "OPENMPS_SAVED_ARRAYS_MIB",
        Number(0, MOST_SAVED_ARRAYS_MIB), "256").key("faults.saved_arrays_mib");
    /// clients that wait for a stranger's long kernel go on in a second context
    SECOND_CONTEXT = Setting::new(Daemon, "OPENMPS_SECOND_CONTEXT", Switch, "on")
        .key("faults.second_context");
    /// for how long a client's kernel may run, in milliseconds; 0: as long as it takes
    LONGEST_KERNEL_MS = Setting::new(Daemon, "OPENMPS_LONGEST_KERNEL_MS", Number(0, DAY_MS), "0")
        .key("faults.longest_kernel_ms");
    /// contexts of each device for code that has faulted; 0: it runs among others
    QUARANTINE = Setting::new(Daemon, "OPENMPS_QUARANTINE", Number(0, 8), "2")
        .key("faults.quarantine_contexts");
    /// how long such code runs apart after its last fault, in milliseconds
    QUARANTINE_MS = Setting::new(Daemon, "OPENMPS_QUARANTINE_MS", Number(0, DAY_MS), "600000")
        .key("faults.quarantine_ms");

    /// each cgroup is a group; otherwise programs name theirs
    GROUP_BY_CGROUP = Setting::new(Daemon, "OPENMPS_GROUP_BY_CGROUP", Switch, "off")
        .key("groups.by_cgroup");
    /// limits of groups: 'NAME memory=4G sm-percent=30 weight=3; ...'
    GROUPS = Setting::new(Daemon, "OPENMPS_GROUPS", Groups, "none").key("groups.limits");
    /// limits of profiles, each with a socket directory of its own: as OPENMPS_GROUPS
    PROFILES = Setting::new(Daemon, "OPENMPS_PROFILES", Groups, "none").key("profiles");

    /// number of devices
    SOFT_DEVICES = Setting::new(SoftwareGpu, "OPENMPS_SOFT_DEVICES", Text, "1");
    /// SMs of each device
    SOFT_SMS = Setting::new(SoftwareGpu, "OPENMPS_SOFT_SMS", Text, "84");
    /// memory of each device in MiB
    SOFT_MEMORY_MIB = Setting::new(SoftwareGpu, "OPENMPS_SOFT_MEMORY_MIB", Text, "8192");
    /// threads that execute
    SOFT_WORKERS = Setting::new(SoftwareGpu, "OPENMPS_SOFT_WORKERS", Text, "the host's cores");
    /// instruction set that kernels use at most
    SOFT_SIMD = Setting::new(SoftwareGpu, "OPENMPS_SOFT_SIMD", Text, "the best of the host's");
    /// the compute capability
    SOFT_COMPUTE_CAPABILITY =
        Setting::new(SoftwareGpu, "OPENMPS_SOFT_COMPUTE_CAPABILITY", Text, "12.0");
    /// who may open contexts
    SOFT_COMPUTE_MODE = Setting::new(SoftwareGpu, "OPENMPS_SOFT_COMPUTE_MODE", Text, "default");
    /// accesses are checked to the byte
    SOFT_MEMCHECK = Setting::new(SoftwareGpu, "OPENMPS_SOFT_MEMCHECK", Text, "0");
    /// what time is
    SOFT_CLOCK = Setting::new(SoftwareGpu, "OPENMPS_SOFT_CLOCK", Text, "host");
    /// seconds after which a kernel is ended
    SOFT_KERNEL_LIMIT_S = Setting::new(SoftwareGpu, "OPENMPS_SOFT_KERNEL_LIMIT_S", Text, "0");
    /// loads and releases hold other work up
    SOFT_STALLS = Setting::new(SoftwareGpu, "OPENMPS_SOFT_STALLS", Text, "0");
    /// processes that give the same name share the devices' memory
    SOFT_MACHINE = Setting::new(SoftwareGpu, "OPENMPS_SOFT_MACHINE", Text, "none");
    /// what goes to standard error
    SOFT_LOG = Setting::new(SoftwareGpu, "OPENMPS_SOFT_LOG", Text, "error");
}

/// Variables that are read and are no settings: of builds and tests, of our own processes among
/// each other, and of NVIDIA MPS what is refused.
pub const OTHER_VARIABLES: &[&str] = &[
    "CUDA_MPS_PROTOCOL_VERSION",
    "CUDA_MPS_SM_PARTITION",
    "OPENMPS_ALLOCATION",
    "OPENMPS_BACKGROUND_START",
    "OPENMPS_CUDA_TOOLCHAIN",
    "OPENMPS_MANAGED_SEQUENCES",
    "OPENMPS_RECORD_CALLS",
    "OPENMPS_SLURM_VERSION",
    "OPENMPS_SOFT_LEVELS",
    "OPENMPS_TEST_BUS_ERROR",
    "OPENMPS_TEST_RELOCATE_EVERY",
    "OPENMPS_TRACE",
    "OPENMPS_UPDATE_PICTURES",
    "OPENMPS_UPDATE_SCREENS",
    "OPENMPS_UPDATE_SETTINGS",
];
