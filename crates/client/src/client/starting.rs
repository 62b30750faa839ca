//! How the state of an attached process comes to be, and what becomes of it in the child of a fork.

use super::{CLIENT, Client, FORKED, Launches, STARTED, started};
use crate::attach::health::Health;
use crate::attach::visible::{Identity, Order, visible};
use crate::attach::{Attachment, NEWEST_VERSION};
use crate::context::device::Device;
use crate::context::green::Descriptions;
use crate::copy::texture::Textures;
use crate::graph::Graphs;
use crate::handles::{Kind, Table};
use crate::memory::memory_map::MemoryMap;
use crate::memory::peers::Peers;
use crate::memory::virtual_ranges::VirtualRanges;
use crate::result::Result;
use crate::stream::attributes::StreamAttributes;
use cuda_abi::managed_advice::Advices;
use cuda_abi::types::CUresult;
use rustix::event::PollFlags;
use rustix::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

/// Makes the state of an attached process.
pub(crate) fn start(attachment: Attachment) -> Result<&'static Client> {
    let Attachment { connection, welcome } = attachment;
    let order = match std::env::var("CUDA_DEVICE_ORDER").as_deref() {
        Ok("PCI_BUS_ID") => Order::PciBusId,
        _ => Order::Driver,
    };
    // Numbered as if others were not there: a program that asks for device 0 means its first.
    let open: Vec<usize> =
        (0..welcome.devices.len()).filter(|&index| !welcome.devices[index].closed).collect();
    let identity = |&index: &usize| {
        let device = &welcome.devices[index];
        Identity { uuid: device.uuid, pci_bus_id: device.pci_bus_id.clone() }
    };
    let identities: Vec<_> = open.iter().map(identity).collect();
    let chosen = visible(&identities, order, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    if chosen.is_empty() {
        crate::error!(
            "the server has {} devices for this process and CUDA_VISIBLE_DEVICES leaves none",
            identities.len()
        );
        return Err(CUresult::ERROR_NO_DEVICE);
    }
    let contexts = Table::new(Kind::Context);
    let pools = Table::new(Kind::Pool);
    let mut devices = Vec::new();
    for (ordinal, &place) in chosen.iter().enumerate() {
        let index = open[place];
        devices.push(Device::new(
            ordinal,
            index,
            welcome.devices[index].clone(),
            &contexts,
            &pools,
        )?);
    }
    let launches = match std::env::var("CUDA_LAUNCH_BLOCKING").as_deref() {
        Ok("1") => Launches::Blocking,
        _ => Launches::Asynchronous,
    };
    let health = Health::default();
    let leaked = Box::into_raw(Box::new(Client {
        driver_version: welcome.driver_version.min(NEWEST_VERSION),
        devices,
        launches,
        health: health.clone(),
        contexts,
        streams: Table::new(Kind::Stream),
        events: Table::new(Kind::Event),
        modules: Table::new(Kind::Module),
        functions: Table::new(Kind::Function),
        libraries: Table::new(Kind::Library),
        kernels: Table::new(Kind::Kernel),
        links: Table::new(Kind::Link),
        pools,
        memories: Table::new(Kind::Memory),
        virtual_ranges: VirtualRanges::default(),
        arrays: Table::new(Kind::Array),
        mipmapped_arrays: Table::new(Kind::MipmappedArray),
        textures: Textures::default(),
        graphs: Graphs::default(),
        greens: Table::new(Kind::Green),
        descriptions: Descriptions::default(),
        memory: MemoryMap::default(),
        advices: Advices::default(),
        peers: Peers::default(),
        shared: Mutex::default(),
        opened: Mutex::default(),
        client_id: welcome.client_id,
        stream_attributes: StreamAttributes::default(),
        control_descriptor: connection.as_fd().as_raw_fd(),
        control: Mutex::new(connection),
        state: AtomicU8::new(STARTED),
    }));
    // SAFETY: a box that is never freed and, from here on, only read.
    let client: &'static Client = unsafe { &*leaked };
    let flags = PollFlags::RDHUP | PollFlags::IN;
    let watched = health.watch_and_hear(
        &*client.lock_control(),
        flags,
        || client.hear_server(),
        || client.wake_waiters(),
    );
    watched.map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    // Release: with the Acquire in `started`.
    CLIENT.store(leaked, Ordering::Release);
    Ok(client)
}

/// Which driver the child of a fork has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Child {
    /// None, or none of its parent's doing.
    HasNone,
    /// What it chooses for itself.
    MayChoose,
}

/// After a fork the server still serves the parent: the child must neither speak on its connections
/// nor hold them open. The child of an initialised process has no driver, as natively; of one that
/// has only asked for the version, it may initialise its own.
///
/// Called in the child: it only stores to atomics and closes descriptors.
pub(crate) fn leave_to_parent() -> Child {
    let Some(client) = started() else { return Child::HasNone };
    // The child of such a child has nothing of the parent's: the descriptors' numbers may be the
    // program's by now.
    let before = client.state.swap(FORKED, Ordering::AcqRel);
    if before == FORKED {
        return Child::HasNone;
    }
    crate::exports::detach();
    let close = |descriptor: RawFd| {
        // SAFETY: the descriptor is this library's; nothing in the child uses it again, as every
        // call is refused from here on.
        unsafe { libc::close(descriptor) };
    };
    close(client.control_descriptor);
    for device in &client.devices {
        if let Some(backend) = device.opened() {
            close(backend.session.executor().as_fd().as_raw_fd());
            backend.session.two_sided().managed.descriptor().into_iter().for_each(close);
        }
    }
    if before != STARTED {
        return Child::HasNone;
    }
    // Relaxed: the child has one thread.
    CLIENT.store(core::ptr::null_mut(), Ordering::Relaxed);
    Child::MayChoose
}
