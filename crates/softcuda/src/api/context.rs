//! Contexts: primary and created ones, the thread's stack, limits, synchronisation.

pub(crate) mod context_stack;
pub(crate) mod device;
pub(crate) mod green;
pub(crate) mod old_contexts;
pub(crate) mod sm_resource;
pub(crate) mod storage;

use cuda_abi::types::{
    CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUexecAffinityType, CUfunc_cache,
    CUlimit, CUresult, CUsharedconfig,
};

use super::answer::Answer;
use super::driver::{current, current_even_failed, driver};
use super::objects::{ContextKind, GREATEST_PRIORITY, LEAST_PRIORITY};
use super::out;
use super::table::fresh_handle;
use crate::api::context::context_stack::{current_handle, with_stack};
use crate::api::context::device::checked;

/// Context flags that exist.
const FLAGS: u32 = 0xff;

api! {
    fn cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) {
        let (driver, device) = checked(dev)?;
        if pctx.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let context = device.retain(driver, dev)?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pctx, context.handle) }
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        let (driver, device) = checked(dev)?;
        device.release(driver)
    }

    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) {
        let (driver, device) = checked(dev)?;
        device.reset(driver)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) {
        let (_, device) = checked(dev)?;
        if flags & !FLAGS != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        device.set_flags(flags);
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32) {
        let (_, device) = checked(dev)?;
        let (have_flags, is_active) = device.state();
        // SAFETY: the caller's pointers.
        unsafe {
            out::write(flags, have_flags)?;
            out::write(active, i32::from(is_active))
        }
    }

    fn cuCtxCreate_v2(pctx: *mut CUcontext, flags: u32, dev: CUdevice) {
        // SAFETY: the caller's pointer.
        unsafe { create(pctx, flags, dev, 3020) }
    }

    fn cuCtxCreate_v3(pctx: *mut CUcontext, paramsArray: *mut CUexecAffinityParam, numParams: i32, flags: u32, dev: CUdevice) {
        // SAFETY: the caller's pointer and array of `numParams`.
        unsafe { create_with_affinity(pctx, paramsArray, numParams, flags, dev) }
    }

    fn cuCtxCreate_v4(pctx: *mut CUcontext, ctxCreateParams: *mut CUctxCreateParams, flags: u32, dev: CUdevice) {
        if ctxCreateParams.is_null() {
            // SAFETY: the caller's pointer.
            return unsafe { create(pctx, flags, dev, 3020) };
        }
        // SAFETY: not NULL, the caller's structure and array.
        unsafe {
            let params = out::read(ctxCreateParams)?;
            if !params.cigParams.is_null() {
                // Graphics queues to share the context with: there are none.
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            create_with_affinity(pctx, params.execAffinityParams, params.numExecAffinityParams, flags, dev)
        }
    }

    fn cuCtxGetExecAffinity(pExecAffinity: *mut CUexecAffinityParam, type_: CUexecAffinityType) {
        let (_, context) = current()?;
        if type_ != CUexecAffinityType::SM_COUNT {
            return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        let mut affinity = CUexecAffinityParam { type_, ..CUexecAffinityParam::default() };
        affinity.param.smCount.val = context.mask.count();
        // SAFETY: the caller's pointer.
        unsafe { out::write(pExecAffinity, affinity) }
    }

    fn cuCtxDestroy_v2(ctx: CUcontext) {
        let driver = driver()?;
        let context = driver.context(ctx)?;
        if matches!(context.kind, ContextKind::Primary | ContextKind::Green(_)) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        // Only the caller's stack loses it; on others it stays, destroyed.
        if current_handle() == ctx {
            with_stack(|stack| { stack.pop(); });
        }
        driver.destroy_context(&context)
    }

    fn cuCtxGetCurrent(pctx: *mut CUcontext) {
        driver()?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pctx, current_handle()) }
    }

    fn cuCtxSetCurrent(ctx: CUcontext) {
        let driver = driver()?;
        if ctx.is_null() {
            with_stack(|stack| { stack.pop(); });
            return Ok(());
        }
        if !driver.is_context(ctx) {
            driver.context(ctx)?;
        }
        with_stack(|stack| {
            stack.pop();
            stack.push(ctx);
        });
        Ok(())
    }

    fn cuCtxPushCurrent_v2(ctx: CUcontext) {
        let driver = driver()?;
        if ctx == CUcontext::NULL {
            // As an H200's driver says of it.
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if !driver.is_context(ctx) {
            driver.context(ctx)?;
        }
        with_stack(|stack| stack.push(ctx));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(pctx: *mut CUcontext) {
        driver()?;
        let popped = with_stack(Vec::pop).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
        // SAFETY: the caller's pointer, which may be NULL here.
        unsafe { out::write_optional(pctx, popped) };
        Ok(())
    }

    fn cuCtxGetDevice(device: *mut CUdevice) {
        driver()?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(device, device_of(current_handle())?) }
    }

    fn cuCtxGetDevice_v2(device: *mut CUdevice, ctx: CUcontext) {
        driver()?;
        let ctx = if ctx.is_null() { current_handle() } else { ctx };
        // SAFETY: the caller's pointer.
        unsafe { out::write(device, device_of(ctx)?) }
    }

    fn cuCtxGetFlags(flags: *mut u32) {
        let (_, context) = current_even_failed()?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(flags, context.settings().flags) }
    }

    fn cuCtxSetFlags(flags: u32) {
        let (_, context) = current()?;
        if flags & !FLAGS != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        context.set(|settings| settings.flags = flags);
        Ok(())
    }

    fn cuCtxGetId(ctx: CUcontext, ctxId: *mut u64) {
        let driver = driver()?;
        let ctx = if ctx.is_null() { current_handle() } else { ctx };
        // SAFETY: the caller's pointer.
        unsafe { out::write(ctxId, driver.context(ctx)?.number) }
    }

    fn cuCtxGetApiVersion(ctx: CUcontext, version: *mut u32) {
        let driver = driver()?;
        let ctx = if ctx.is_null() { current_handle() } else { ctx };
        // SAFETY: the caller's pointer.
        unsafe { out::write(version, driver.context(ctx)?.api_version) }
    }

    fn cuCtxSynchronize() {
        let (driver, context) = current()?;
        driver.graphs.captures.refuse_synchronizing(context.id)?;
        let done = driver.engine.synchronize_context(context.id);
        context.services.flush_console();
        Ok(done?)
    }

    fn cuCtxSynchronize_v2(ctx: CUcontext) {
        let driver = driver()?;
        let ctx = if ctx.is_null() { current_handle() } else { ctx };
        if ctx.is_null() {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        let context = driver.context(ctx)?;
        driver.graphs.captures.refuse_synchronizing(context.id)?;
        let done = driver.engine.synchronize_context(context.id);
        context.services.flush_console();
        Ok(done?)
    }

    fn cuCtxGetStreamPriorityRange(leastPriority: *mut i32, greatestPriority: *mut i32) {
        current()?;
        // SAFETY: the caller's pointers; either may be NULL.
        unsafe {
            out::write_optional(leastPriority, LEAST_PRIORITY);
            out::write_optional(greatestPriority, GREATEST_PRIORITY);
        }
        Ok(())
    }

    fn cuCtxSetLimit(limit: CUlimit, value: usize) {
        let (driver, context) = current()?;
        driver.graphs.captures.refuse_unsafe_call()?;
        let value = value as u64;
        match limit {
            CUlimit::MALLOC_HEAP_SIZE => {
                // A used heap keeps its size, as documented.
                return if context.services.set_heap_limit(value) { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) };
            }
            CUlimit::STACK_SIZE if value > 512 << 10 => return Err(CUresult::ERROR_INVALID_VALUE),
            _ => {}
        }
        context.set(|settings| {
            match limit {
                CUlimit::STACK_SIZE => settings.stack_bytes = value,
                CUlimit::PRINTF_FIFO_SIZE => settings.printf_bytes = value,
                CUlimit::DEV_RUNTIME_SYNC_DEPTH => settings.sync_depth = value,
                CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => settings.pending_launches = value,
                CUlimit::MAX_L2_FETCH_GRANULARITY => settings.l2_fetch_bytes = value.min(128),
                CUlimit::PERSISTING_L2_CACHE_SIZE => settings.persisting_l2_bytes = value,
                CUlimit(0..=9) => return Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
                _ => return Err(CUresult::ERROR_INVALID_VALUE),
            }
            Ok(())
        })
    }

    fn cuCtxGetLimit(pvalue: *mut usize, limit: CUlimit) {
        let (_, context) = current()?;
        let settings = context.settings();
        let value = match limit {
            CUlimit::STACK_SIZE => settings.stack_bytes,
            CUlimit::PRINTF_FIFO_SIZE => settings.printf_bytes,
            CUlimit::MALLOC_HEAP_SIZE => context.services.heap_limit_bytes(),
            CUlimit::DEV_RUNTIME_SYNC_DEPTH => settings.sync_depth,
            CUlimit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => settings.pending_launches,
            CUlimit::MAX_L2_FETCH_GRANULARITY => settings.l2_fetch_bytes,
            CUlimit::PERSISTING_L2_CACHE_SIZE => settings.persisting_l2_bytes,
            CUlimit(0..=9) => return Err(CUresult::ERROR_UNSUPPORTED_LIMIT),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { out::write(pvalue, value as usize) }
    }

    fn cuCtxGetCacheConfig(pconfig: *mut CUfunc_cache) {
        let (_, context) = current()?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pconfig, CUfunc_cache(context.settings().cache_config)) }
    }

    fn cuCtxSetCacheConfig(config: CUfunc_cache) {
        let (_, context) = current()?;
        if config.0 > 3 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        context.set(|settings| settings.cache_config = config.0);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(pConfig: *mut CUsharedconfig) {
        let (_, context) = current()?;
        // SAFETY: the caller's pointer.
        unsafe { out::write(pConfig, CUsharedconfig(context.settings().shared_config)) }
    }

    fn cuCtxSetSharedMemConfig(config: CUsharedconfig) {
        let (_, context) = current()?;
        if config.0 > 2 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        context.set(|settings| settings.shared_config = config.0);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() {
        current().map(|_| ())
    }

    fn cuCtxEnablePeerAccess(peerContext: CUcontext, Flags: u32) {
        let (driver, context) = current()?;
        let peer = driver.context(peerContext)?;
        if Flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        if peer.device == context.device {
            return Err(CUresult::ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if driver.enable_peer(&context, &peer) { Ok(()) } else { Err(CUresult::ERROR_PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peerContext: CUcontext) {
        let (driver, context) = current()?;
        let peer = driver.context(peerContext)?;
        if driver.disable_peer(&context, &peer) { Ok(()) } else { Err(CUresult::ERROR_PEER_ACCESS_NOT_ENABLED) }
    }
}

alias! {
    cuDevicePrimaryCtxRelease(dev: CUdevice) = cuDevicePrimaryCtxRelease_v2;
    cuDevicePrimaryCtxReset(dev: CUdevice) = cuDevicePrimaryCtxReset_v2;
    cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) = cuDevicePrimaryCtxSetFlags_v2;
    cuCtxDestroy(ctx: CUcontext) = cuCtxDestroy_v2;
    cuCtxPushCurrent(ctx: CUcontext) = cuCtxPushCurrent_v2;
    cuCtxPopCurrent(pctx: *mut CUcontext) = cuCtxPopCurrent_v2;
}

/// # Safety
/// As for [`out::write`].
pub(super) unsafe fn create(
    pctx: *mut CUcontext,
    flags: u32,
    dev: CUdevice,
    api_version: u32,
) -> Answer {
    let driver = driver()?;
    if pctx.is_null() || flags & !FLAGS != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let handle = CUcontext(fresh_handle());
    driver.create_context(dev, handle, ContextKind::Created, api_version, flags, None)?;
    with_stack(|stack| stack.push(handle));
    // SAFETY: by the caller's promise.
    unsafe { out::write(pctx, handle) }
}

/// A context on a number of SMs, exactly as many as asked for (at most all), where the fewest such
/// contexts are.
///
/// # Safety
/// As for [`out::write`]; the array has `count` elements.
unsafe fn create_with_affinity(
    pctx: *mut CUcontext,
    params: *const CUexecAffinityParam,
    count: i32,
    flags: u32,
    dev: CUdevice,
) -> Answer {
    let count = usize::try_from(count).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    // SAFETY: by the caller's promise.
    let params = unsafe { out::read_array(params, count)? };
    let Some(last) = params.last() else {
        // SAFETY: by the caller's promise.
        return unsafe { create(pctx, flags, dev, 3020) };
    };
    if params.iter().any(|param| param.type_ != CUexecAffinityType::SM_COUNT) {
        return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    // SAFETY: the type says that this member was filled in.
    let wanted = unsafe { last.param.smCount.val };
    let driver = driver()?;
    let device = driver.device(dev)?;
    if pctx.is_null() || flags & !FLAGS != 0 || wanted == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let sm_count = driver.config.sm_count;
    let mask = device.sm_loads().take(wanted.min(sm_count), sm_count);
    let handle = CUcontext(fresh_handle());
    let created =
        driver.create_context(dev, handle, ContextKind::Affinity, 3020, flags, Some(mask));
    if let Err(code) = created {
        device.sm_loads().give(mask);
        return Err(code);
    }
    with_stack(|stack| stack.push(handle));
    // SAFETY: by the caller's promise.
    unsafe { out::write(pctx, handle) }
}

/// The device of a context, which may be a primary one that is not open.
fn device_of(context: CUcontext) -> Answer<CUdevice> {
    let driver = driver()?;
    if context.is_null() {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    if let Some(ordinal) = driver.devices.iter().position(|device| device.primary_handle == context)
    {
        return Ok(ordinal as CUdevice);
    }
    Ok(driver.context(context)?.device as CUdevice)
}
