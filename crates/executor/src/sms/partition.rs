//! Sets of SMs that streams run on: shares of clients and of contexts, made by the executor, and
//! green contexts that programs make.
//!
//! Each is a green context of the driver's, on which streams are created and which nodes of graphs
//! name. Shares that the executor makes are runs of the small units that [`super::sm_survey`]
//! found, joined of what takes clusters as far as it reaches; what is disjoint by number is
//! disjoint on the device. They are kept for the next client, since making one waits for the
//! kernels that run. What a session has of them is in [`super::session_partitions`].

use super::sm_survey::Survey;
use crate::context::Context;
use crate::memory::announced::Announced;
use crate::session::failure::Failure;
use crate::submit::own_kernels::OwnKernels;
use cuda_abi::types::*;
use executor_link::driver::Driver;
use executor_link::messages::ShareWish;
use link::wire::partition::MAX_GROUPS;
use policy::sms::partitions::{Layout, ShareSize, Units};
use std::collections::HashMap;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const DEFAULT_STREAM: u32 = 1;
const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING`.
pub(crate) const SPLIT_IGNORE_COSCHEDULING: u32 = 1;
/// `CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE`.
pub(crate) const SPLIT_MAX_CLUSTER: u32 = 2;
/// Shares that are kept though nobody has them.
const IDLE_KEPT: usize = 32;

/// A green context, which lives as long as somebody has it.
pub(crate) struct Partition {
    driver: Driver,
    green: CUgreenCtx,
    context: CUcontext,
    pub(crate) resource: CUdevResource,
    /// The units that it consists of, if the executor chose them.
    units: Option<Units>,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { context, units, .. } = self;
        f.debug_struct("Partition").field("context", context).field("units", units).finish()
    }
}

impl Partition {
    pub(crate) fn create(
        context: &Context,
        description: CUdevResourceDesc,
        units: Option<Units>,
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

    /// The units that it consists of, if the executor chose them.
    pub(crate) fn units(&self) -> Option<&[usize]> {
        self.units.as_deref()
    }

    /// The context that nodes of graphs name.
    pub(crate) fn context(&self) -> CUcontext {
        self.context
    }

    /// Has the calling thread's questions answered for these SMs, until it makes the executor's
    /// context current again.
    pub(crate) fn make_current(&self) -> Result<(), CUresult> {
        // SAFETY: a live green context's.
        unsafe { self.driver.cuCtxSetCurrent(self.context) }.ok()
    }

    /// A new stream that runs here.
    pub(crate) fn stream(&self, context: &Context, priority: i32) -> Result<CUstream, Failure> {
        let mut stream = CUstream::NULL;
        // SAFETY: a live green context; the result is written.
        let make = || unsafe {
            self.driver.cuGreenCtxStreamCreate(
                &mut stream,
                self.green,
                STREAM_NON_BLOCKING,
                priority,
            )
        };
        context.check(context.gate.between(make))?;
        Ok(stream)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        // SAFETY: a live green context; streams and graphs that run there have it too, so none is
        // left.
        let _ = unsafe { self.driver.cuGreenCtxDestroy(self.green) };
    }
}

/// The shares of an executor's clients.
#[derive(Default)]
pub(crate) struct Partitions {
    pool: Mutex<Pool>,
    pub(crate) announced: Announced,
}

#[derive(Default)]
struct Pool {
    survey: Survey,
    layout: Layout,
    shares: Vec<Arc<Partition>>,
    /// Sets that groups share, as long as somebody has them.
    groups: HashMap<String, Weak<Units>>,
}

/// What came of reservations: those that there are, by name and number of SMs, and what could not
/// be reserved.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    pub(crate) made: Vec<(String, u32)>,
    pub(crate) refused: Vec<String>,
}

/// What a session is given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// Where its work runs; `None`: on the whole device.
    pub(crate) share: Option<Arc<Partition>>,
    /// The SMs of its group, kept while a member lives.
    _group: Option<Arc<Units>>,
}

impl Placed {
    /// SMs that the work runs on; `None`: all.
    pub(crate) fn multiprocessors(&self) -> Option<u32> {
        self.share.as_ref().map(|share| share.multiprocessors())
    }
}

impl Pool {
    fn loads(&self) -> Vec<u32> {
        let mut loads = vec![0; self.survey.units().len()];
        for share in &self.shares {
            // One of the owners is the pool.
            let users = Arc::strong_count(share).saturating_sub(1) as u32;
            for &unit in share.units.iter().flatten() {
                loads[unit] += users;
            }
        }
        loads
    }

    /// The units of a group's share: those that it has, if they are still what it is to have.
    fn group(&mut self, name: &str, within: &[usize], size: ShareSize) -> Arc<Units> {
        self.groups.retain(|_, units| units.strong_count() > 0);
        let known = self.groups.get(name).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|units| self.layout.is_share(units, within, size)) {
            return known;
        }
        let units = Arc::new(self.layout.place(&self.loads(), within, size));
        self.groups.insert(name.to_owned(), Arc::downgrade(&units));
        units
    }

    /// The partition of these units, which may be there.
    fn partition(&mut self, context: &Context, units: Units) -> Result<Arc<Partition>, Failure> {
        if let Some(known) = self.shares.iter().find(|share| share.units.as_ref() == Some(&units)) {
            return Ok(Arc::clone(known));
        }
        let mut resources = self.survey.resources(&units);
        let of_units = describe(context, &mut resources)
            .and_then(|made| Partition::create(context, made, Some(units.clone())));
        let share = match of_units {
            Ok(share) => share,
            // A driver need not join what one split gave; then the share is where a split of its
            // own puts it, unless it must be where it was meant to be.
            Err(Failure::Cuda(_)) if !self.layout.has_reservations() => {
                let size = resources.iter().map(multiprocessors).sum();
                let made = describe(context, &mut [first_group(context, size)?])?;
                Partition::create(context, made, Some(units))?
            }
            Err(failure) => return Err(failure),
        };
        if self.shares.len() >= IDLE_KEPT {
            self.shares.retain(|share| Arc::strong_count(share) > 1);
        }
        self.shares.push(Arc::clone(&share));
        Ok(share)
    }
}

impl Partitions {
    /// Those of a device that has just been opened; looking at it takes some milliseconds in which
    /// no client may be there.
    pub(crate) fn of_device(context: &Context, own_kernels: Option<&OwnKernels>) -> Self {
        let survey = Survey::of_device(context, own_kernels);
        let layout =
            Layout::new(survey.units().iter().map(multiprocessors).collect(), survey.clusters());
        let pool = Mutex::new(Pool { survey, layout, ..Pool::default() });
        Self { pool, announced: Announced::default() }
    }

    /// The pool of a device that can be cut; the error of one that cannot is the driver's.
    fn pool(&self, context: &Context) -> Result<MutexGuard<'_, Pool>, Failure> {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.layout.is_empty() {
            device_resource(context)?;
            return Err(Failure::Cuda(CUresult::ERROR_NOT_SUPPORTED));
        }
        Ok(pool)
    }

    /// A share of this size within `outer`; `None` is the whole device.
    pub(crate) fn take(
        &self,
        context: &Context,
        wanted: ShareSize,
        outer: Option<&Partition>,
    ) -> Result<Arc<Partition>, Failure> {
        let mut pool = self.pool(context)?;
        let within = match outer.and_then(|outer| outer.units.clone()) {
            Some(units) => units,
            None => pool.layout.allowed(None),
        };
        let units = pool.layout.place(&pool.loads(), &within, wanted);
        pool.partition(context, units)
    }

    /// Where a session's work is to run. It stays where it is, at `current`, if that is what it is
    /// to have.
    pub(crate) fn place(
        &self,
        context: &Context,
        wish: &ShareWish,
        current: Option<&Arc<Partition>>,
    ) -> Result<Placed, Failure> {
        if *wish == ShareWish::default() && !self.has_reservations() {
            return Ok(Placed::default());
        }
        let mut pool = self.pool(context)?;
        let mut within = pool.layout.allowed(wish.reservation.as_deref());
        let group = wish.group.as_ref();
        let group = group.map(|group| {
            pool.group(&group.name, &within, ShareSize::AtMost(group.multiprocessors))
        });
        if let Some(units) = &group {
            within = units.to_vec();
        }
        let stays = |wanted| {
            let current = current.filter(|share| {
                let units = share.units.as_deref();
                units.is_some_and(|units| pool.layout.is_share(units, &within, wanted))
            });
            current.cloned()
        };
        let share = match wish.multiprocessors.map(ShareSize::AtMost) {
            Some(wanted) => match stays(wanted) {
                Some(share) => Some(share),
                None => {
                    let units = pool.layout.place(&pool.loads(), &within, wanted);
                    Some(pool.partition(context, units)?)
                }
            },
            None if within == pool.layout.all() => None,
            None => Some(pool.partition(context, within)?),
        };
        Ok(Placed { share, _group: group })
    }

    fn has_reservations(&self) -> bool {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).layout.has_reservations()
    }

    /// Makes these reservations the only ones; returns those that there are now, and what could not
    /// be reserved.
    pub(crate) fn reserve(
        &self,
        context: &Context,
        wanted: &[(String, u32)],
    ) -> Result<Reserved, Failure> {
        let mut pool = self.pool(context)?;
        let refused = pool.layout.reserve(wanted);
        Ok(Reserved { made: pool.layout.reservations(), refused })
    }

    /// A description of resources. Made by one thread at a time: from several at once the driver
    /// refuses some (observed on an H200).
    pub(crate) fn describe(
        &self,
        context: &Context,
        resources: &mut [CUdevResource],
    ) -> Result<CUdevResourceDesc, Failure> {
        let _alone = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        describe(context, resources)
    }
}

pub(crate) fn multiprocessors(resource: &CUdevResource) -> u32 {
    if resource.type_ != CUdevResourceType::SM {
        return 0;
    }
    // SAFETY: plain numbers, of a resource of SMs.
    unsafe { resource.anonymous.sm.smCount }
}

pub(crate) fn device_resource(context: &Context) -> Result<CUdevResource, Failure> {
    let mut whole = CUdevResource::default();
    let driver = context.driver();
    // SAFETY: the result is written.
    context.check(unsafe {
        driver.cuDeviceGetDevResource(context.device(), &mut whole, CUdevResourceType::SM)
    })?;
    Ok(whole)
}

/// Groups of at least `least` SMs, `room` at most, and what is left over.
pub(crate) fn split(
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

/// So many SMs of the device.
fn first_group(context: &Context, size: u32) -> Result<CUdevResource, Failure> {
    let from = device_resource(context)?;
    let (groups, _) = split(context, &from, size, SPLIT_IGNORE_COSCHEDULING, Some(1))?;
    let none = CUresult::ERROR_INVALID_RESOURCE_CONFIGURATION;
    groups.into_iter().next().ok_or(Failure::Cuda(none))
}

pub(crate) fn describe(
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
