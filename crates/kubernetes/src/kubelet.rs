//! The kubelet: registering with it, noticing that it was restarted, and its list of who has what.
//!
//! A kubelet that starts removes all sockets from its directory and makes its own anew; a plugin
//! that sees that serves and registers again.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint as Address, Server};

use crate::api::v1::ListPodResourcesRequest;
use crate::api::v1::pod_resources_lister_client::PodResourcesListerClient;
use crate::api::v1beta1::RegisterRequest;
use crate::api::v1beta1::device_plugin_server::DevicePluginServer;
use crate::api::v1beta1::registration_client::RegistrationClient;
use crate::api::{KUBELET_SOCKET, VERSION};
use crate::endpoint::{Endpoint, options};
use crate::ledger::Owner;
use crate::log;
use crate::node::Node;

/// Between two looks at the kubelet's directory.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// A kubelet answers within this time.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Between two tries to register with a kubelet that refuses.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The kubelet's list: a node's pods, each with at most some hundred devices.
const MAX_LIST_BYTES: usize = 64 << 20;

/// Why a kubelet could not be spoken to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletError {
    /// No connection.
    #[error("cannot reach the kubelet at {}: {source}", path.display())]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
    /// It said no.
    #[error("the kubelet refuses: {}", .0.message())]
    Refused(Box<tonic::Status>),
    /// It did not answer.
    #[error("the kubelet does not answer")]
    Silent,
    /// Our own socket.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// What tells one kubelet's socket from the next one's.
type Identity = (u64, u64, i64, i64);

/// An endpoint that listens; ends when this is dropped.
struct Serving {
    /// The file, while it is ours.
    socket: PathBuf,
    identity: Option<Identity>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// Offers a resource to the kubelet of this directory, whichever runs there, for ever.
pub(crate) async fn offer(node: Arc<Node>, resource: String, directory: PathBuf) {
    let kubelet = directory.join(KUBELET_SOCKET);
    let mut known = None;
    let mut serving: Option<Serving> = None;
    let mut said = String::new();
    loop {
        let present = identity(&kubelet);
        let is_heard = serving.as_ref().is_some_and(Serving::is_there);
        if present.is_some() && (present != known || !is_heard) {
            known = None;
            serving = None;
            let line = match serve(&node, &resource, &directory) {
                Err(error) => error.to_string(),
                Ok(listening) => match register(&kubelet, &listening.socket, &resource).await {
                    Ok(()) => {
                        (known, serving) = (present, Some(listening));
                        format!("registered with the kubelet at {}", kubelet.display())
                    }
                    Err(error) => error.to_string(),
                },
            };
            if line != said || serving.is_some() {
                log!("{resource}: {line}");
                said = line;
            }
            if serving.is_none() {
                tokio::time::sleep(RETRY_INTERVAL.saturating_sub(LOOK_INTERVAL)).await;
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// Listens, before it registers: the kubelet calls back at once.
fn serve(node: &Arc<Node>, resource: &str, directory: &Path) -> Result<Serving, KubeletError> {
    let socket = directory.join(socket_name(resource));
    let failed = |source| KubeletError::Listen { path: socket.clone(), source };
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(failed)?;
    let identity = identity(&socket);
    let endpoint = Endpoint { node: Arc::clone(node), resource: resource.to_owned() };
    let (stop, stopped) = oneshot::channel::<()>();
    let service = Server::builder().serve_with_incoming_shutdown(
        DevicePluginServer::new(endpoint),
        UnixListenerStream::new(listener),
        async move {
            // A sender that is dropped stops it, too.
            let _ = stopped.await;
        },
    );
    let name = resource.to_owned();
    let task = tokio::spawn(async move {
        if let Err(error) = service.await {
            log!("{name}: {error}");
        }
    });
    Ok(Serving { socket, identity, stop: Some(stop), task })
}

/// A file name for a resource's socket.
fn socket_name(resource: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    format!("openmps-{}.sock", resource.chars().map(plain).collect::<String>())
}

impl Serving {
    /// Whether the kubelet would find it: nobody has removed or replaced its socket.
    fn is_there(&self) -> bool {
        self.identity.is_some()
            && identity(&self.socket) == self.identity
            && !self.task.is_finished()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Streams to a kubelet that has gone would keep it.
        self.task.abort();
        if identity(&self.socket) == self.identity {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

async fn connect(path: &Path) -> Result<Channel, KubeletError> {
    let failed = |source| KubeletError::Connect { path: path.to_owned(), source };
    let address = Address::from_shared(format!("unix://{}", path.display())).map_err(failed)?;
    address.connect_timeout(ANSWER_LIMIT).timeout(ANSWER_LIMIT).connect().await.map_err(failed)
}

async fn register(kubelet: &Path, socket: &Path, resource: &str) -> Result<(), KubeletError> {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: socket.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        resource_name: resource.to_owned(),
        options: Some(options()),
    };
    let mut client = RegistrationClient::new(connect(kubelet).await?);
    let answered = tokio::time::timeout(ANSWER_LIMIT, client.register(request)).await;
    answered
        .map_err(|_| KubeletError::Silent)?
        .map_err(|status| KubeletError::Refused(Box::new(status)))?;
    Ok(())
}

/// Who has what of these resources, by the kubelet's word.
pub(crate) async fn list(path: &Path, resources: &[String]) -> Result<Vec<Owner>, KubeletError> {
    let client = PodResourcesListerClient::new(connect(path).await?);
    let mut client = client.max_decoding_message_size(MAX_LIST_BYTES);
    let answered =
        tokio::time::timeout(ANSWER_LIMIT, client.list(ListPodResourcesRequest {})).await;
    let list = answered
        .map_err(|_| KubeletError::Silent)?
        .map_err(|status| KubeletError::Refused(Box::new(status)))?;
    let mut owners = Vec::new();
    for pod in list.into_inner().pod_resources {
        for container in pod.containers {
            // A resource comes once for each NUMA node, or each device, of some kubelets.
            for resource in resources {
                let of_it = container.devices.iter().filter(|d| d.resource_name == *resource);
                let devices: std::collections::BTreeSet<String> =
                    of_it.flat_map(|devices| devices.device_ids.iter().cloned()).collect();
                if !devices.is_empty() {
                    owners.push(Owner {
                        name: format!("{}/{}/{}", pod.namespace, pod.name, container.name),
                        resource: resource.clone(),
                        devices,
                    });
                }
            }
        }
    }
    Ok(owners)
}
