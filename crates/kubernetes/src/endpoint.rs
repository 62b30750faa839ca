//! What the kubelet asks of the plugin: one endpoint per resource.

use std::pin::Pin;
use std::sync::Arc;

use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::api::v1beta1::device_plugin_server::DevicePlugin;
use crate::api::v1beta1::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    Mount, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use crate::api::{HEALTHY, UNHEALTHY};
use crate::ledger::Health;
use crate::log;
use crate::node::{AllocateError, Given, Node};

/// One resource's.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) node: Arc<Node>,
    pub(crate) resource: String,
}

/// What the plugin can do; also said when it registers.
pub(crate) fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

#[tonic::async_trait]
impl DevicePlugin for Endpoint {
    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(
        &self,
        _request: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let watch = self.node.watch(&self.resource);
        let watch = watch.ok_or_else(|| Status::not_found("no such resource"))?;
        let stream = WatchStream::new(watch).map(|devices| {
            let devices = devices.into_iter().map(|device| Device {
                id: device.id,
                health: match device.health {
                    Health::Healthy => HEALTHY.to_owned(),
                    Health::Unhealthy => UNHEALTHY.to_owned(),
                },
                topology: None,
            });
            Ok(ListAndWatchResponse { devices: devices.collect() })
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let container_responses = requests
            .into_iter()
            .map(|container| {
                let units = usize::try_from(container.allocation_size).unwrap_or(0);
                let device_i_ds = self.node.preferred(
                    &self.resource,
                    &container.available_device_i_ds,
                    &container.must_include_device_i_ds,
                    units,
                );
                ContainerPreferredAllocationResponse { device_i_ds }
            })
            .collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let (node, resource) = (Arc::clone(&self.node), self.resource.clone());
        let work = move || {
            let given = requests.iter().map(|one| node.allocate(&resource, &one.devices_ids));
            given.collect::<Result<Vec<Given>, AllocateError>>()
        };
        // It talks to the daemon, which may take a moment.
        let given = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        match given {
            Ok(given) => {
                let container_responses = given.into_iter().map(response).collect();
                Ok(Response::new(AllocateResponse { container_responses }))
            }
            Err(error) => {
                log!("{}: a container gets nothing: {error}", self.resource);
                Err(Status::failed_precondition(error.to_string()))
            }
        }
    }

    async fn pre_start_container(
        &self,
        _request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

fn response(given: Given) -> ContainerAllocateResponse {
    let mount = |(host_path, container_path)| Mount { container_path, host_path, read_only: true };
    ContainerAllocateResponse {
        envs: given.environment.into_iter().collect(),
        mounts: given.mounts.into_iter().map(mount).collect(),
        devices: Vec::new(),
        annotations: Default::default(),
        cdi_devices: given.cdi_devices.into_iter().map(|name| CdiDevice { name }).collect(),
    }
}
