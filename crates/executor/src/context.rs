//! The device's primary context, and whether it still lives.

use crate::session::failure::is_sticky;
use crate::turns::gate::Gate;
use cuda_abi::types::*;
use executor_link::driver::{Driver, DriverError};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The context that all sessions share.
pub(crate) struct Context {
    driver: Driver,
    device: CUdevice,
    handle: CUcontext,
    stream_priorities: (i32, i32),
    default_stack_bytes: u64,
    /// The sticky error that ended it, 0 while it lives.
    lost: AtomicU32,
    /// Through which work goes to it.
    pub(crate) gate: Gate,
    /// Events that nobody has had, with timing and without.
    new_events: [Mutex<Vec<CUevent>>; 2],
}

/// Events are made so many at a time: each time nobody may submit.
const EVENTS_AT_ONCE: usize = 16;

impl Context {
    /// Makes the primary context of device `ordinal` and makes it current here.
    pub(crate) fn retain(driver: Driver, ordinal: u32) -> Result<Self, DriverError> {
        let device = driver.device(ordinal)?;
        let mut handle = CUcontext::NULL;
        // SAFETY: `handle` is written.
        let retained = unsafe { driver.cuDevicePrimaryCtxRetain(&mut handle, device) };
        retained
            .ok()
            .map_err(|result| DriverError::Refused { call: "cuDevicePrimaryCtxRetain", result })?;
        let mut context = Self {
            driver,
            device,
            handle,
            stream_priorities: (0, 0),
            default_stack_bytes: 0,
            lost: AtomicU32::new(0),
            gate: Gate::default(),
            new_events: Default::default(),
        };
        context
            .make_current()
            .map_err(|result| DriverError::Refused { call: "cuCtxSetCurrent", result })?;
        let (least, greatest) = (&mut 0, &mut 0);
        // SAFETY: both are written.
        if unsafe { driver.cuCtxGetStreamPriorityRange(least, greatest) }.is_success() {
            context.stream_priorities = (*least, *greatest);
        }
        let mut stack_bytes = 0;
        // SAFETY: the result is written.
        if unsafe { driver.cuCtxGetLimit(&mut stack_bytes, CUlimit::STACK_SIZE) }.is_success() {
            context.default_stack_bytes = stack_bytes as u64;
        }
        Ok(context)
    }

    /// Makes it current on the calling thread.
    pub(crate) fn make_current(&self) -> Result<(), CUresult> {
        // SAFETY: the context is retained for as long as the process lives.
        unsafe { self.driver.cuCtxSetCurrent(self.handle) }.ok()
    }

    /// The driver.
    pub(crate) fn driver(&self) -> Driver {
        self.driver
    }

    /// The device.
    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    /// SMs of the device; 0 where the driver does not say.
    pub(crate) fn multiprocessors(&self) -> u32 {
        let mut count = 0;
        let attribute = CUdevice_attribute::MULTIPROCESSOR_COUNT;
        // SAFETY: the result is written.
        let asked = unsafe { self.driver.cuDeviceGetAttribute(&mut count, attribute, self.device) };
        if asked.is_success() { count.max(0) as u32 } else { 0 }
    }

    /// Memory of the device; 0 where the driver does not say.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let mut size_bytes = 0;
        // SAFETY: the result is written.
        let asked = unsafe { self.driver.cuDeviceTotalMem_v2(&mut size_bytes, self.device) };
        if asked.is_success() { size_bytes as u64 } else { 0 }
    }

    /// The context itself.
    pub(crate) fn handle(&self) -> CUcontext {
        self.handle
    }

    /// (least, greatest).
    pub(crate) fn stream_priorities(&self) -> (i32, i32) {
        self.stream_priorities
    }

    /// Stack per thread that the context was made with.
    pub(crate) fn default_stack_bytes(&self) -> u64 {
        self.default_stack_bytes
    }

    /// Passes a driver's answer on, after noting it when it says that the context is gone.
    pub(crate) fn check(&self, result: CUresult) -> Result<(), CUresult> {
        if is_sticky(result) {
            // Release: pairs with the acquire in `lost`.
            let _ = self.lost.compare_exchange(0, result.0, Ordering::Release, Ordering::Relaxed);
        }
        result.ok()
    }

    /// An event with these `CU_EVENT_*` flags: 0, or that it has no timing. To be called outside
    /// the gate, as all that makes something.
    pub(crate) fn new_event(&self, flags: u32) -> Result<CUevent, CUresult> {
        let stock = &self.new_events[usize::from(flags != 0)];
        // Held for no call of the driver.
        let stock = || stock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = stock().pop() {
            return Ok(event);
        }
        let make = |_| {
            let mut event = CUevent::NULL;
            // SAFETY: the result is written.
            self.check(unsafe { self.driver.cuEventCreate(&mut event, flags) }).map(|()| event)
        };
        let (first, more) = self.gate.between(|| {
            let first = make(0);
            // Fewer are enough.
            let more = (1..EVENTS_AT_ONCE).map_while(|place| make(place).ok());
            let more: Vec<CUevent> = if first.is_ok() { more.collect() } else { Vec::new() };
            (first, more)
        });
        stock().extend(more);
        first
    }

    /// A stream that waits for no other one.
    pub(crate) fn new_stream(&self, priority: i32) -> Result<CUstream, CUresult> {
        const NON_BLOCKING: u32 = 1;
        let mut stream = CUstream::NULL;
        // SAFETY: the result is written.
        let make = || unsafe {
            self.driver.cuStreamCreateWithPriority(&mut stream, NON_BLOCKING, priority)
        };
        self.check(self.gate.between(make)).map(|()| stream)
    }

    /// Destroys a stream that nothing names any more.
    pub(crate) fn end_stream(&self, stream: CUstream) -> Result<(), CUresult> {
        // SAFETY: a live stream, by the caller's word.
        let end = || unsafe { self.driver.cuStreamDestroy_v2(stream) };
        self.check(self.gate.between(end))
    }

    /// Destroys events that nothing names any more.
    pub(crate) fn end_events(&self, events: impl IntoIterator<Item = CUevent>) {
        for event in events {
            // SAFETY: a live event, by the caller's word; the driver keeps it until it is reached.
            // What cannot be destroyed in a living context is lost to it.
            let _ = unsafe { self.driver.cuEventDestroy_v2(event) };
        }
    }

    /// The error that ended the context, if one did.
    pub(crate) fn lost(&self) -> Option<CUresult> {
        // Acquire: pairs with the release in `check`.
        match self.lost.load(Ordering::Acquire) {
            0 => None,
            code => Some(CUresult(code)),
        }
    }
}
