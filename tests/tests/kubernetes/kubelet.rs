//! A kubelet without pods: registration, the list of devices, allocations and their checkpoint, as
//! the real one's device manager has them.
//!
//! What it does is what kubelet 1.20's source does and what the real one was seen to do: a start
//! empties the directory of plugins, devices of pods that run are kept over it, and nothing is
//! allocated twice for a container.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};
use kubernetes::api::v1::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use kubernetes::api::v1::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources,
};
use kubernetes::api::v1beta1::device_plugin_client::DevicePluginClient;
use kubernetes::api::v1beta1::registration_server::{Registration, RegistrationServer};
use kubernetes::api::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Empty, PreferredAllocationRequest, RegisterRequest,
};
use kubernetes::api::{HEALTHY, KUBELET_SOCKET, VERSION};
use openmps_tests::wait::{self, PATIENCE};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// A container that was admitted.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) resource: String,
    pub(crate) devices: BTreeSet<String>,
    pub(crate) given: ContainerAllocateResponse,
    /// Lists that the plugin had asked for before.
    lists_before: u32,
}

/// What the kubelet knows; survives its restarts but for the endpoints.
#[derive(Debug, Default)]
struct Known {
    /// Resource to the plugin's socket.
    endpoints: BTreeMap<String, PathBuf>,
    /// Resource to device to whether it is healthy; empty once the plugin is gone.
    devices: BTreeMap<String, BTreeMap<String, bool>>,
    pods: Vec<Pod>,
    lists: u32,
}

/// A kubelet that can be stopped and started.
pub(crate) struct Kubelet {
    directory: PathBuf,
    known: Arc<Mutex<Known>>,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
    pods_ever: u32,
}

impl Kubelet {
    /// Starts one with its sockets in a directory.
    pub(crate) fn start(directory: &Path) -> Result<Self> {
        let known = Arc::default();
        let mut kubelet =
            Kubelet { directory: directory.to_owned(), known, running: None, pods_ever: 0 };
        kubelet.start_again()?;
        Ok(kubelet)
    }

    pub(crate) fn plugin_directory(&self) -> PathBuf {
        self.directory.join("device-plugins")
    }

    pub(crate) fn pod_resources(&self) -> PathBuf {
        self.directory.join("pod-resources/kubelet.sock")
    }

    /// Starts it where it was.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        let pod_resources = self.pod_resources();
        for directory in [Some(self.plugin_directory().as_path()), pod_resources.parent()] {
            let directory = directory.context("a directory")?;
            std::fs::create_dir_all(directory)?;
            for entry in std::fs::read_dir(directory)? {
                std::fs::remove_file(entry?.path())?;
            }
        }
        self.known().endpoints.clear();
        let (plugins, known) = (self.plugin_directory(), Arc::clone(&self.known));
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let services = Services { plugins: plugins.clone(), known };
                let listener = UnixListener::bind(plugins.join(KUBELET_SOCKET)).expect("a socket");
                let lists = UnixListener::bind(pod_resources).expect("a socket");
                ready.send(()).expect("a test that waits");
                let registration = Server::builder().serve_with_incoming(
                    RegistrationServer::new(services.clone()),
                    UnixListenerStream::new(listener),
                );
                let list = Server::builder().serve_with_incoming(
                    PodResourcesListerServer::new(services),
                    UnixListenerStream::new(lists),
                );
                tokio::select! {
                    _ = stopped => {}
                    ended = registration => panic!("{ended:?}"),
                    ended = list => panic!("{ended:?}"),
                }
            });
        });
        is_ready.recv_timeout(PATIENCE).context("the kubelet's sockets")?;
        self.running = Some((stop, thread));
        Ok(())
    }

    /// Ends it; its sockets and its checkpoint stay.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            thread.join().map_err(|_| anyhow::anyhow!("the kubelet panicked"))?;
        }
        Ok(())
    }

    /// Resources that have been registered since it was started.
    pub(crate) fn registered(&self) -> usize {
        self.known().endpoints.len()
    }

    /// Devices of a resource that may be lent, also those that are.
    pub(crate) fn allocatable(&self, resource: &str) -> usize {
        let known = self.known();
        known.devices.get(resource).map_or(0, |d| d.values().filter(|healthy| **healthy).count())
    }

    pub(crate) fn await_allocatable(&self, resource: &str, count: usize) -> Result<()> {
        wait::until(&format!("{count} devices of {resource}"), PATIENCE, || {
            self.allocatable(resource) == count
        })
        .with_context(|| format!("{} are", self.allocatable(resource)))
    }

    /// Admits a container that asks for units of a resource; the error is what its pod's event
    /// would say.
    pub(crate) fn admit(&mut self, resource: &str, units: usize) -> Result<Pod> {
        let (available, endpoint) = {
            let known = self.known();
            let lent: BTreeSet<&String> = known
                .pods
                .iter()
                .filter(|pod| pod.resource == resource)
                .flat_map(|pod| &pod.devices)
                .collect();
            let devices = known.devices.get(resource).context("no such resource")?;
            let free = devices.iter().filter(|(id, healthy)| **healthy && !lent.contains(id));
            let available: Vec<String> = free.map(|(id, _)| id.clone()).collect();
            (available, known.endpoints.get(resource).context("no endpoint")?.clone())
        };
        ensure!(available.len() >= units, "the scheduler finds {} of {units}", available.len());
        let given = block_on(async move {
            let mut plugin = DevicePluginClient::new(connect(&endpoint).await?);
            let request = ContainerPreferredAllocationRequest {
                available_device_i_ds: available.clone(),
                must_include_device_i_ds: Vec::new(),
                allocation_size: i32::try_from(units)?,
            };
            let request = PreferredAllocationRequest { container_requests: vec![request] };
            let preferred = plugin.get_preferred_allocation(request).await?.into_inner();
            let preferred = preferred.container_responses.into_iter().next().context("a choice")?;
            let chosen = preferred.device_i_ds;
            ensure!(chosen.len() == units && chosen.iter().all(|id| available.contains(id)));
            let request = ContainerAllocateRequest { devices_ids: chosen.clone() };
            let request = AllocateRequest { container_requests: vec![request] };
            let given = plugin.allocate(request).await?.into_inner().container_responses;
            Ok((chosen, given.into_iter().next().context("an answer")?))
        });
        let (chosen, given) = given?;
        self.pods_ever += 1;
        let lists_before = self.known().lists;
        let pod = Pod {
            lists_before,
            name: format!("pod-{}", self.pods_ever),
            resource: resource.to_owned(),
            devices: chosen.into_iter().collect(),
            given,
        };
        self.known().pods.push(pod.clone());
        Ok(pod)
    }

    /// A pod has ended, after the plugin has taken in a list with it.
    pub(crate) fn forget(&mut self, pod: &Pod) -> Result<()> {
        wait::until("the plugin asks for lists", PATIENCE, || {
            self.known().lists >= pod.lists_before + 3
        })?;
        self.known().pods.retain(|known| known.name != pod.name);
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(done) => done,
            Err(_) => bail!("the plugin does not answer"),
        }
    })
}

async fn connect(socket: &Path) -> Result<Channel> {
    Ok(Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect().await?)
}

#[derive(Clone)]
struct Services {
    plugins: PathBuf,
    known: Arc<Mutex<Known>>,
}

#[tonic::async_trait]
impl Registration for Services {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != VERSION {
            return Err(Status::invalid_argument("another version"));
        }
        let socket = self.plugins.join(&request.endpoint);
        let resource = request.resource_name;
        {
            let mut known = lock(&self.known);
            known.endpoints.insert(resource.clone(), socket.clone());
        }
        let known = Arc::clone(&self.known);
        tokio::spawn(async move {
            if let Err(error) = watch(&known, &socket, &resource).await {
                eprintln!("fake kubelet: {resource}: {error:#}");
            }
            // An endpoint that has stopped: none of its devices can be lent.
            let mut known = lock(&known);
            if known.endpoints.get(&resource) == Some(&socket) {
                for healthy in known.devices.entry(resource).or_default().values_mut() {
                    *healthy = false;
                }
            }
        });
        Ok(Response::new(Empty {}))
    }
}

async fn watch(known: &Mutex<Known>, socket: &Path, resource: &str) -> Result<()> {
    let mut plugin = DevicePluginClient::new(connect(socket).await?);
    let options = plugin.get_device_plugin_options(Empty {}).await?.into_inner();
    ensure!(options.get_preferred_allocation_available, "no preferred allocation");
    let mut lists = plugin.list_and_watch(Empty {}).await?.into_inner();
    while let Some(list) = lists.message().await? {
        let devices = list.devices.into_iter().map(|d| (d.id, d.health == HEALTHY)).collect();
        lock(known).devices.insert(resource.to_owned(), devices);
    }
    Ok(())
}

#[tonic::async_trait]
impl PodResourcesLister for Services {
    async fn list(
        &self,
        _request: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pods = {
            let mut known = lock(&self.known);
            known.lists += 1;
            known.pods.clone()
        };
        let pod_resources = pods.into_iter().map(|pod| PodResources {
            name: pod.name,
            namespace: "default".to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: vec![ContainerDevices {
                    resource_name: pod.resource,
                    device_ids: pod.devices.into_iter().collect(),
                }],
            }],
        });
        Ok(Response::new(ListPodResourcesResponse { pod_resources: pod_resources.collect() }))
    }
}
