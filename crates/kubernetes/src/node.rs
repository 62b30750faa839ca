//! The node: ledger, records and daemon together. Every change goes through here, one at a time.
//!
//! What is told a container is true before it is told: records first, then the daemon's limits and
//! socket, then the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use crate::config::{Config, Library};
use crate::daemon::{Daemon, DaemonError, Strangers};
use crate::ledger::{Allocation, Device, Ledger, Now, Owner, Refusal};
use crate::log;
use crate::records::{Records, RecordsError};

/// Why a container gets nothing; the pod's event shows it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllocateError {
    /// By the rules.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be recorded.
    #[error("cannot record it: {0}")]
    Records(#[from] RecordsError),
    /// Its limits could not be made.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// No name for it.
    #[error("no random number for its name: {0}")]
    Random(std::io::Error),
}

/// What a container is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) environment: BTreeMap<String, String>,
    /// (on the host, in the container); all read-only.
    pub(crate) mounts: Vec<(String, String)>,
    pub(crate) cdi_devices: Vec<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Node {
    config: Config,
    daemon: Daemon,
    books: Mutex<Books>,
    /// By resource: its devices as the kubelet is to know them.
    devices: BTreeMap<String, watch::Sender<Vec<Device>>>,
}

#[derive(Debug)]
struct Books {
    ledger: Ledger,
    records: Records,
    /// What was last said of the daemon, so that each change is one line.
    said: String,
    /// The kubelet has said who has what: before, records that were lost are not known to be.
    is_listed: bool,
}

impl Node {
    pub(crate) fn new(
        config: Config,
        daemon: Daemon,
        records: Records,
        recorded: Vec<Allocation>,
    ) -> Self {
        let resources = config.resources.clone();
        let devices = resources
            .iter()
            .map(|resource| (resource.name.clone(), watch::Sender::new(Vec::new())))
            .collect();
        let ledger = Ledger::new(resources, config.rules, recorded);
        let books = Mutex::new(Books { ledger, records, said: String::new(), is_listed: false });
        Node { config, daemon, books, devices }
    }

    /// The names of what is offered.
    pub(crate) fn resources(&self) -> impl Iterator<Item = &str> {
        self.devices.keys().map(String::as_str)
    }

    /// The devices of a resource, now and as they change.
    pub(crate) fn watch(&self, resource: &str) -> Option<watch::Receiver<Vec<Device>>> {
        self.devices.get(resource).map(watch::Sender::subscribe)
    }

    /// See [`Ledger::preferred`].
    pub(crate) fn preferred(
        &self,
        resource: &str,
        available: &[String],
        must_include: &[String],
        units: usize,
    ) -> Vec<String> {
        self.books().ledger.preferred(resource, available, must_include, units)
    }

    /// Lends devices to a container.
    pub(crate) fn allocate(&self, resource: &str, ids: &[String]) -> Result<Given, AllocateError> {
        let id = random_id().map_err(AllocateError::Random)?;
        let mut books = self.books();
        let lent = books.ledger.lend(resource, ids, &id, now())?;
        let allocation = lent.allocation;
        let done = books
            .write()
            .map_err(AllocateError::from)
            .and_then(|()| Ok(self.daemon.open(&allocation)?));
        if let Err(error) = done {
            books.ledger.take_back(&id);
            // What was ended stays so: the kubelet has lent its devices again.
            if let Err(error) = books.write() {
                log!("{error}");
            }
            self.close(&lent.ended);
            self.publish(&books);
            return Err(error);
        }
        self.close(&lent.ended);
        log!(
            "{}: {} of {} for a container: {} % of the SMs, {} MiB",
            allocation.id,
            allocation.resource,
            allocation.gpu,
            allocation.sm_percent().unwrap_or(100),
            allocation.memory_bytes() >> 20
        );
        self.publish(&books);
        Ok(self.given(&allocation))
    }

    /// Looks at the daemon: GPUs and their health, and what a restarted daemon has forgotten.
    pub(crate) fn look_at_daemon(&self) {
        let look = self.daemon.look();
        let mut books = self.books();
        let (changed, said) = match look {
            Ok(look) if look.gpus.is_empty() => {
                (books.ledger.set_all_unhealthy(), "the OpenMPS server is starting".to_owned())
            }
            Ok(look) => {
                let mut said = format!("the OpenMPS daemon serves {} GPUs", look.gpus.len());
                let strangers = match books.is_listed {
                    true => Strangers::Close,
                    false => Strangers::Keep,
                };
                for error in self.daemon.restore(&look, books.ledger.allocations(), strangers) {
                    said = error.to_string();
                }
                (books.ledger.set_gpus(look.gpus), said)
            }
            Err(error) => (books.ledger.set_all_unhealthy(), error.to_string()),
        };
        if books.said != said {
            log!("{said}");
            books.said = said;
        }
        if changed {
            self.publish(&books);
        }
    }

    /// What is lent, before the kubelet is asked for its list.
    pub(crate) fn allocation_ids(&self) -> BTreeSet<String> {
        self.books().ledger.ids()
    }

    /// Takes the kubelet's list of who has what; see [`Ledger::reconcile`].
    pub(crate) fn reconcile(&self, listed: &[Owner], known_before: &BTreeSet<String>) {
        let mut books = self.books();
        books.is_listed = true;
        let before = books.ledger.allocations().to_vec();
        let ended = books.ledger.reconcile(listed, known_before, now());
        if books.ledger.allocations() == before {
            return;
        }
        for known in books.ledger.allocations().iter().filter(|known| known.id.is_empty()) {
            if !before.contains(known) {
                let owner = known.owner.as_deref().unwrap_or("a container");
                log!(
                    "{owner} has {} of {} that no record names: it counts as lent",
                    known.resource,
                    known.gpu
                );
            }
        }
        for allocation in &ended {
            log!("{}: free again", allocation.id);
        }
        if let Err(error) = books.write() {
            log!("{error}");
        }
        self.close(&ended);
        self.publish(&books);
    }

    /// A daemon that is away has no sockets; the next look closes what it still has.
    fn close(&self, ended: &[Allocation]) {
        for allocation in ended {
            if let Err(error) = self.daemon.close(allocation) {
                log!("{}: {error}", allocation.id);
            }
        }
    }

    fn publish(&self, books: &Books) {
        for (resource, sender) in &self.devices {
            let devices = books.ledger.devices(resource);
            sender.send_if_modified(|old| {
                let changed = *old != devices;
                *old = devices;
                changed
            });
        }
    }

    fn given(&self, allocation: &Allocation) -> Given {
        let sockets = self.config.container_socket_directory.clone();
        let mut given = Given { environment: self.config.environment.clone(), ..Given::default() };
        let mut set = |name: &str, value: String| given.environment.insert(name.to_owned(), value);
        set("CUDA_MPS_PIPE_DIRECTORY", sockets.clone());
        // For whoever looks for the container in the daemon's lists.
        set("OPENMPS_ALLOCATION", allocation.id.clone());
        let host = self.daemon.directory(allocation).to_string_lossy().into_owned();
        given.mounts.push((host, sockets));
        match &self.config.library {
            Library::Mounted { host, container } => {
                set("LD_LIBRARY_PATH", container.clone());
                given.mounts.push((host.to_string_lossy().into_owned(), container.clone()));
            }
            Library::Cdi(devices) => given.cdi_devices.clone_from(devices),
        }
        given
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Whoever panicked with it had changed the ledger in whole steps.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn write(&self) -> Result<(), RecordsError> {
        self.records.write(self.ledger.allocations())
    }
}

fn now() -> Now {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A name that no other container can guess or has had.
fn random_id() -> std::io::Result<String> {
    let mut bytes = [0_u8; 8];
    let mut file = std::fs::File::open("/dev/urandom")?;
    std::io::Read::read_exact(&mut file, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
