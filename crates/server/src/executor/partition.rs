//! Sets of SMs that streams run on: shares of clients and of contexts, made by the executor, and green contexts that programs make.
//!
//! Each is a green context of the driver's, on which streams are created and which nodes of graphs name. Shares that the executor makes are runs of small
//! units that one split of the device gave, so that what is disjoint by number is disjoint on the device; they are kept for the next client,
//! since making one waits for the kernels that run. A program's resources stay here; it gets numbers.

use super::context::Context;
use super::failure::{Failure, below};
use super::state::State;
use crate::driver::Driver;
use crate::log::log_server;
use crate::policy::partitions::{least_loaded, units_of};
use cuda_abi::types::*;
use link::wire::partition::{
    DescriptionReply, MAX_DESCRIBED, MAX_GROUPS, MAX_PARTITIONS, MAX_RESOURCES, OWN_SHARE,
    PartitionCreate, PartitionDrop, PartitionReply, PartitionTake, ResourceDescribe, ResourceGet,
    ResourceSplit, ResourceSplitReply, SmResource,
};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use zerocopy::IntoBytes;

/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: u32 = 1;
const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
const IGNORE_COSCHEDULING: u32 = 1;
/// SMs of the smallest unit that is asked for; the driver may give larger ones.
const UNIT: u32 = 2;
/// Shares that are kept though nobody has them.
const IDLE_KEPT: usize = 32;

/// A green context, which lives as long as somebody has it.
pub(crate) struct Partition {
    driver: Driver,
    green: CUgreenCtx,
    context: CUcontext,
    resource: CUdevResource,
    /// The units that it consists of, if the executor chose them.
    units: Option<Range<usize>>,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { context, units, .. } = self;
        f.debug_struct("Partition").field("context", context).field("units", units).finish()
    }
}

impl Partition {
    fn create(
        context: &Context,
        description: CUdevResourceDesc,
        units: Option<Range<usize>>,
    ) -> Result<Arc<Self>, Failure> {
        let driver = context.driver();
        let mut green = CUgreenCtx::NULL;
        // SAFETY: a description of this driver's; the result is written.
        context.check(unsafe {
            driver.cuGreenCtxCreate(&mut green, description, context.device(), DEFAULT_STREAM)
        })?;
        let resource = CUdevResource::default();
        let mut made = Self { driver, green, context: CUcontext::NULL, resource, units };
        // SAFETY: a live green context; both results are written.
        unsafe {
            context.check(driver.cuCtxFromGreenCtx(&mut made.context, green))?;
            context.check(driver.cuGreenCtxGetDevResource(
                green,
                &mut made.resource,
                CUdevResourceType::SM,
            ))?;
        }
        Ok(Arc::new(made))
    }

    /// The SMs that it has.
    pub(crate) fn multiprocessors(&self) -> u32 {
        multiprocessors(&self.resource)
    }

    /// The context that nodes of graphs name.
    pub(crate) fn context(&self) -> CUcontext {
        self.context
    }

    /// A new stream that runs here.
    pub(crate) fn stream(&self, context: &Context, priority: i32) -> Result<CUstream, Failure> {
        let mut stream = CUstream::NULL;
        // SAFETY: a live green context; the result is written.
        context.check(unsafe {
            self.driver.cuGreenCtxStreamCreate(
                &mut stream,
                self.green,
                STREAM_NON_BLOCKING,
                priority,
            )
        })?;
        Ok(stream)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        // SAFETY: a live green context; streams and graphs that run there have it too, so none is left.
        let _ = unsafe { self.driver.cuGreenCtxDestroy(self.green) };
    }
}

/// The shares of an executor's clients.
#[derive(Default)]
pub(crate) struct Partitions {
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    units: Vec<CUdevResource>,
    shares: Vec<Arc<Partition>>,
}

impl Pool {
    fn cut(&mut self, context: &Context) -> Result<(), Failure> {
        if self.units.is_empty() {
            let whole = device_resource(context)?;
            let (mut units, remaining) = split(context, &whole, UNIT, IGNORE_COSCHEDULING, None)?;
            units.extend(remaining.filter(|rest| multiprocessors(rest) > 0));
            self.units = units;
        }
        Ok(())
    }

    fn loads(&self) -> Vec<u32> {
        let mut loads = vec![0; self.units.len()];
        for share in &self.shares {
            // One of the owners is the pool.
            let users = Arc::strong_count(share).saturating_sub(1) as u32;
            for unit in share.units.clone().into_iter().flatten() {
                loads[unit] += users;
            }
        }
        loads
    }
}

impl Partitions {
    /// A share of so many SMs, or a few less: see [`units_of`]. It lies within `outer`, if that is given.
    pub(crate) fn take(
        &self,
        context: &Context,
        wanted: u32,
        outer: Option<&Partition>,
    ) -> Result<Arc<Partition>, Failure> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.cut(context)?;
        let within = outer.and_then(|outer| outer.units.clone()).unwrap_or(0..pool.units.len());
        let sizes: Vec<u32> = pool.units[within.clone()].iter().map(multiprocessors).collect();
        let run = least_loaded(&pool.loads(), within, units_of(&sizes, wanted));
        if let Some(known) = pool.shares.iter().find(|share| share.units.as_ref() == Some(&run)) {
            return Ok(Arc::clone(known));
        }
        let mut resources = pool.units[run.clone()].to_vec();
        let of_units = describe(context, &mut resources)
            .and_then(|made| Partition::create(context, made, Some(run.clone())));
        let share = match of_units {
            Ok(share) => share,
            // A driver need not join what one split gave; then the share is where a split of its own puts it.
            Err(Failure::Cuda(_)) => {
                let size = resources.iter().map(multiprocessors).sum();
                let made = describe(context, &mut [first_group(context, size, outer)?])?;
                Partition::create(context, made, Some(run))?
            }
            Err(failure) => return Err(failure),
        };
        if pool.shares.len() >= IDLE_KEPT {
            pool.shares.retain(|share| Arc::strong_count(share) > 1);
        }
        pool.shares.push(Arc::clone(&share));
        Ok(share)
    }

    /// A description of resources. Made by one thread at a time: from several at once the driver refuses some (observed on an H200).
    fn describe(
        &self,
        context: &Context,
        resources: &mut [CUdevResource],
    ) -> Result<CUdevResourceDesc, Failure> {
        let _alone = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        describe(context, resources)
    }
}

fn multiprocessors(resource: &CUdevResource) -> u32 {
    if resource.type_ != CUdevResourceType::SM {
        return 0;
    }
    // SAFETY: plain numbers, of a resource of SMs.
    unsafe { resource.anonymous.sm.smCount }
}

fn device_resource(context: &Context) -> Result<CUdevResource, Failure> {
    let mut whole = CUdevResource::default();
    let driver = context.driver();
    // SAFETY: the result is written.
    context.check(unsafe {
        driver.cuDeviceGetDevResource(context.device(), &mut whole, CUdevResourceType::SM)
    })?;
    Ok(whole)
}

/// Groups of at least `least` SMs, `room` at most, and what is left over.
fn split(
    context: &Context,
    from: &CUdevResource,
    least: u32,
    flags: u32,
    room: Option<u32>,
) -> Result<(Vec<CUdevResource>, Option<CUdevResource>), Failure> {
    let driver = context.driver();
    let mut count = 0;
    let mut rest = CUdevResource::default();
    let ask = |groups: *mut CUdevResource, count: &mut u32, rest: &mut CUdevResource| {
        // SAFETY: room for as many groups as `count` says; the results are written.
        context.check(unsafe {
            driver.cuDevSmResourceSplitByCount(groups, count, from, rest, flags, least)
        })
    };
    ask(ptr::null_mut(), &mut count, &mut rest)?;
    count = count.min(room.unwrap_or(u32::MAX)).min(MAX_GROUPS);
    let mut groups = vec![CUdevResource::default(); count as usize];
    if count > 0 {
        ask(groups.as_mut_ptr(), &mut count, &mut rest)?;
        groups.truncate(count as usize);
    }
    Ok((groups, (multiprocessors(&rest) > 0).then_some(rest)))
}

/// So many SMs of the device, or of a share of it.
fn first_group(
    context: &Context,
    size: u32,
    outer: Option<&Partition>,
) -> Result<CUdevResource, Failure> {
    let from = match outer {
        Some(outer) => outer.resource,
        None => device_resource(context)?,
    };
    let (groups, _) = split(context, &from, size, IGNORE_COSCHEDULING, Some(1))?;
    let none = CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION;
    groups.into_iter().next().ok_or(Failure::Cuda(none))
}

fn describe(
    context: &Context,
    resources: &mut [CUdevResource],
) -> Result<CUdevResourceDesc, Failure> {
    let mut description = CUdevResourceDesc::NULL;
    let driver = context.driver();
    let (first, count) = (resources.as_mut_ptr(), resources.len() as u32);
    // SAFETY: an array of `count` resources of this driver's; the result is written.
    context.check(unsafe { driver.cuDevResourceGenerateDesc(&mut description, first, count) })?;
    Ok(description)
}

/// What one session has of this.
#[derive(Default)]
pub(crate) struct SessionPartitions {
    /// The session's share; `None`: the whole device.
    own: Option<Arc<Partition>>,
    made: HashMap<u32, Arc<Partition>>,
    /// Dropped while work may still run there.
    retired: Vec<Arc<Partition>>,
    resources: Vec<CUdevResource>,
    /// Descriptions, with the numbers of the resources that they are of.
    descriptions: Vec<(Vec<u32>, CUdevResourceDesc)>,
}

impl SessionPartitions {
    /// The partition of that number; `None` is the whole device.
    pub(crate) fn find(&self, number: u32) -> Result<Option<Arc<Partition>>, Failure> {
        if number == OWN_SHARE {
            return Ok(self.own.clone());
        }
        below("partition", number, MAX_PARTITIONS)?;
        let made = self.made.get(&number).cloned();
        made.map(Some).ok_or(Failure::Cuda(CUresult::ERROR_INVALID_CONTEXT))
    }

    /// The session's share; `None` is the whole device.
    pub(crate) fn own(&self) -> Option<Arc<Partition>> {
        self.own.clone()
    }

    fn resource(&self, number: u32) -> Result<&CUdevResource, Failure> {
        let place = (number as usize).wrapping_sub(1);
        self.resources.get(place).ok_or(Failure::Cuda(CUresult::ERROR_INVALID_VALUE))
    }

    /// Gives a resource a number; equal ones have the same.
    fn keep(&mut self, resource: &CUdevResource) -> Result<SmResource, Failure> {
        if multiprocessors(resource) == 0 {
            return Ok(SmResource::default());
        }
        let known = self.resources.iter().position(|known| is_same(known, resource));
        let place = match known {
            Some(place) => place,
            None if self.resources.len() >= MAX_RESOURCES => {
                return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
            }
            None => {
                self.resources.push(*resource);
                self.resources.len() - 1
            }
        };
        // SAFETY: plain numbers, of a resource of SMs.
        let sm = unsafe { resource.anonymous.sm };
        Ok(SmResource {
            resource: place as u32 + 1,
            multiprocessors: sm.smCount,
            smallest_partition: sm.minSmPartitionSize,
            alignment: sm.smCoscheduledAlignment,
        })
    }

    fn insert(&mut self, number: u32, partition: Arc<Partition>) -> PartitionReply {
        let multiprocessors = partition.multiprocessors();
        self.made.insert(number, partition);
        PartitionReply { multiprocessors, reserved: 0 }
    }

    fn check_free(&self, number: u32) -> Result<(), Failure> {
        if number == OWN_SHARE || number >= MAX_PARTITIONS || self.made.contains_key(&number) {
            let message =
                format!("partition {number} cannot be made: in use, or not below {MAX_PARTITIONS}");
            return Err(Failure::Protocol(message));
        }
        if self.retired.len() >= MAX_PARTITIONS as usize {
            return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
        }
        Ok(())
    }
}

fn is_same(one: &CUdevResource, other: &CUdevResource) -> bool {
    // SAFETY: the union's bytes, which the driver or `default` has written.
    let of = |resource: &CUdevResource| unsafe { resource.anonymous._oversize };
    one._internal_padding == other._internal_padding && of(one) == of(other)
}

impl State {
    /// Limits the session to a share of the SMs, before its first command.
    pub(super) fn take_share(&mut self, multiprocessors: u32) -> Result<(), Failure> {
        let share = self.shared.partitions.take(&self.shared.context, multiprocessors, None)?;
        if share.multiprocessors() != multiprocessors {
            let (label, given) = (&self.handle.label, share.multiprocessors());
            log_server!("{label} has {given} SMs instead of {multiprocessors}");
        }
        self.partitions.own = Some(share);
        Ok(())
    }

    pub(super) fn resource_get(&mut self, wanted: ResourceGet) -> Result<(), Failure> {
        let resource = match self.partitions.find(wanted.partition)? {
            Some(partition) => partition.resource,
            None => device_resource(&self.shared.context)?,
        };
        let known = self.partitions.keep(&resource)?;
        self.reply.extend_from_slice(known.as_bytes());
        Ok(())
    }

    pub(super) fn resource_split(&mut self, wanted: ResourceSplit) -> Result<(), Failure> {
        let ResourceSplit { resource, least, flags, room } = wanted;
        let from = *self.partitions.resource(resource)?;
        let asked = (room > 0).then_some(room);
        let (groups, rest) = split(&self.shared.context, &from, least, flags, asked)?;
        let remaining = match rest {
            Some(rest) => self.partitions.keep(&rest)?,
            None => SmResource::default(),
        };
        let head = ResourceSplitReply { groups: groups.len() as u32, reserved: 0, remaining };
        self.reply.extend_from_slice(head.as_bytes());
        if room > 0 {
            for group in &groups {
                let known = self.partitions.keep(group)?;
                self.reply.extend_from_slice(known.as_bytes());
            }
        }
        Ok(())
    }

    pub(super) fn resource_describe(
        &mut self,
        wanted: ResourceDescribe,
        rest: &[u8],
    ) -> Result<(), Failure> {
        let short = || Failure::Protocol("a description is shorter than it says".into());
        if wanted.count == 0 || wanted.count > MAX_DESCRIBED {
            return Err(Failure::Cuda(CUresult::ERROR_INVALID_VALUE));
        }
        let bytes = rest.get(..wanted.count as usize * 4).ok_or_else(short)?;
        let numbers: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let known = self.partitions.descriptions.iter().position(|(of, _)| *of == numbers);
        let place = match known {
            Some(place) => place,
            None if self.partitions.descriptions.len() >= MAX_RESOURCES => {
                return Err(Failure::Cuda(CUresult::ERROR_OUT_OF_MEMORY));
            }
            None => {
                let mut resources = Vec::new();
                for &number in &numbers {
                    resources.push(*self.partitions.resource(number)?);
                }
                let context = &self.shared.context;
                let made = self.shared.partitions.describe(context, &mut resources)?;
                self.partitions.descriptions.push((numbers, made));
                self.partitions.descriptions.len() - 1
            }
        };
        let reply = DescriptionReply { description: place as u32 + 1, reserved: 0 };
        self.reply.extend_from_slice(reply.as_bytes());
        Ok(())
    }

    pub(super) fn partition_create(&mut self, wanted: PartitionCreate) -> Result<(), Failure> {
        self.partitions.check_free(wanted.partition)?;
        let place = (wanted.description as usize).wrapping_sub(1);
        let (_, description) =
            self.partitions.descriptions.get(place).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let made = Partition::create(&self.shared.context, *description, None)?;
        let reply = self.partitions.insert(wanted.partition, made);
        self.reply.extend_from_slice(reply.as_bytes());
        Ok(())
    }

    pub(super) fn partition_take(&mut self, wanted: PartitionTake) -> Result<(), Failure> {
        self.partitions.check_free(wanted.partition)?;
        let (context, outer) = (&self.shared.context, self.partitions.own.as_deref());
        let made = self.shared.partitions.take(context, wanted.multiprocessors, outer)?;
        let reply = self.partitions.insert(wanted.partition, made);
        self.reply.extend_from_slice(reply.as_bytes());
        Ok(())
    }

    pub(super) fn partition_drop(&mut self, wanted: PartitionDrop) -> Result<(), Failure> {
        below("partition", wanted.partition, MAX_PARTITIONS)?;
        let made = self.partitions.made.remove(&wanted.partition);
        self.partitions.retired.push(made.ok_or(CUresult::ERROR_INVALID_CONTEXT)?);
        // A green context may not go before the work in it.
        if !self.streams.in_flight(|slot| self.handle.words.completed(slot)) {
            self.partitions.retired.clear();
        }
        Ok(())
    }
}
