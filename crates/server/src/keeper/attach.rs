//! A client's arrival.

use super::clients::{Client, share_of};
use super::{Course, Keeper};
use crate::log::log_server;
use crate::policy::domains::{Domain, Grouping, Key, checked_name, control_group};
use crate::policy::limits::active_thread_percentage;
use cuda_abi::types::{CUdevice_attribute, CUresult};
use link::socket::Connection;
use link::wire::PROTOCOL_VERSION;
use link::wire::attach::{ClientHello, DeviceInfo, HelloReply, Refusal, Welcome};
use link::wire::daemon::Peer;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::time::Duration;

/// Attached processes at a time, with or without contexts.
const MAX_CLIENTS: usize = 1024;

impl Keeper {
    pub(super) fn attach(&mut self, hello: ClientHello, peer: Peer, socket: OwnedFd) {
        let connection = match Connection::from_socket(socket) {
            Ok(connection) => connection,
            Err(error) => {
                return log_server!("The socket of client {} is not usable: {error}", peer.pid);
            }
        };
        log_server!("Received new client request for {{PID: {}, Context ID: 0}}", peer.pid);
        if let Some(refusal) = self.refuses(&hello) {
            log_server!("Client {} is refused: {}", peer.pid, refusal.message);
            let _ = connection.send(&HelloReply::Refused(refusal), &[], Duration::ZERO);
            return;
        }
        let domain = match self.domain_of(&hello, peer) {
            Ok(domain) => domain,
            Err(message) => {
                log_server!("Client {} is refused: {message}", peer.pid);
                let refusal = Refusal { code: CUresult::ERROR_INVALID_VALUE.0, message };
                let _ = connection.send(&HelloReply::Refused(refusal), &[], Duration::ZERO);
                return;
            }
        };
        self.clients_ever += 1;
        let id = self.clients_ever;
        let welcome = Welcome {
            protocol: PROTOCOL_VERSION,
            client_id: id,
            server_pid: std::process::id(),
            driver_version: self.driver_version,
            devices: self.devices_seen_by(&hello),
        };
        if let Err(error) = connection.send(&HelloReply::Welcome(welcome), &[], Duration::ZERO) {
            log_server!("Client {} cannot be answered: {error}", peer.pid);
            return self.leave_domain(domain);
        }
        log_server!("Client {{PID: {}, Context ID: 0}} connected", peer.pid);
        log_server!("Creating worker thread for client {{PID: {}, Context ID: 0}}", peer.pid);
        let process = Pid::from_raw(peer.pid as i32)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let client = Client {
            connection,
            domain,
            process,
            hello,
            peer,
            defaults: self.defaults.clone(),
            contexts: Vec::new(),
            contexts_ever: BTreeMap::new(),
            sessions: BTreeMap::new(),
            opening: None,
            wanted_percentage: None,
        };
        self.clients.insert(id, client);
    }

    /// With whom a client shares executors: the administrator's word, and the client's name within it.
    fn domain_of(&mut self, hello: &ClientHello, peer: Peer) -> Result<Domain, String> {
        let name = checked_name(hello.limits.isolation.as_deref())?;
        let group = match self.options.grouping {
            Grouping::Server => None,
            Grouping::Process => Some(format!("process {}", peer.pid)),
            Grouping::ControlGroup => {
                let path = format!("/proc/{}/cgroup", peer.pid);
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| format!("its control group is not known: {path}: {error}"))?;
                Some(control_group(&text).ok_or("it has no control group")?)
            }
        };
        Ok(self.domains.find(Key { group, named: name.map(|name| (peer.uid, name)) }))
    }

    /// The devices as a client sees them: with the SMs that it may use.
    fn devices_seen_by(&self, hello: &ClientHello) -> Vec<DeviceInfo> {
        let percentage = active_thread_percentage(&self.defaults, &hello.limits);
        let count = CUdevice_attribute::MULTIPROCESSOR_COUNT.0 as i32;
        let mut devices: Vec<_> = self.devices.iter().map(|device| device.info.clone()).collect();
        for device in &mut devices {
            let Some(share) = share_of(device, self.driver_version, percentage) else { continue };
            for (attribute, value) in &mut device.attributes {
                if *attribute == count {
                    *value = share as i32;
                }
            }
        }
        devices
    }

    fn refuses(&self, hello: &ClientHello) -> Option<Refusal> {
        let refusal = |code: CUresult, message: String| Some(Refusal { code: code.0, message });
        if hello.protocol != PROTOCOL_VERSION {
            let message = format!(
                "client library speaks protocol {}, the server {PROTOCOL_VERSION}: install both from one build",
                hello.protocol
            );
            return refusal(CUresult::ERROR_MPS_CONNECTION_FAILED, message);
        }
        if self.course != Course::Serving {
            return refusal(
                CUresult::ERROR_MPS_SERVER_NOT_READY,
                "the server is shutting down".into(),
            );
        }
        if self.clients.len() >= MAX_CLIENTS {
            let message = format!("{MAX_CLIENTS} processes are attached; wait for one to end");
            return refusal(CUresult::ERROR_MPS_MAX_CONNECTIONS_REACHED, message);
        }
        None
    }
}
