//! The kubelet's interfaces, generated from `proto/` by `tools/kubernetes-api`: checked in, so that
//! building needs neither protoc nor its substitutes.

#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod v1;
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
pub mod v1beta1;

/// The version that a plugin registers with.
pub const VERSION: &str = "v1beta1";
/// The kubelet's socket, beside which plugins put theirs.
pub const KUBELET_SOCKET: &str = "kubelet.sock";
/// Health of a device that may be lent.
pub const HEALTHY: &str = "Healthy";
/// Health of one that may not.
pub const UNHEALTHY: &str = "Unhealthy";
