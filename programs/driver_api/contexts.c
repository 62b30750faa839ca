/* Contexts in all the versions of their functions: made, current, asked, set, detached and destroyed; the primary one's state, flags
 * and reset. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"

static CUcontext current(void) {
    CUcontext context;
    CALL(cuCtxGetCurrent, &context);
    return context;
}

/* What every new context must be: the current one, of its own id, of the device. */
static unsigned long long look_at(CUcontext context, CUdevice device) {
    REQUIRE(current() == context);
    CUdevice of;
    unsigned version = 0;
    unsigned long long id = 0;
    CALL(cuCtxGetDevice, &of);
    REQUIRE(of == device);
    CALL(cuCtxGetApiVersion, context, &version);
    REQUIRE(version >= 3010);
    CALL(cuCtxGetId, context, &id);
    return id;
}

static void primary(CUdevice device) {
    unsigned flags = 77;
    int active = 77;
    CUcontext context;
    CALL(cuDevicePrimaryCtxGetState, device, &flags, &active);
    REQUIRE(active == 0 && flags == 0);
    CALL(cuDevicePrimaryCtxSetFlags, device, CU_CTX_SCHED_YIELD);
    CALL(cuDevicePrimaryCtxSetFlags_v2, device, CU_CTX_SCHED_BLOCKING_SYNC);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuDevicePrimaryCtxGetState, device, &flags, &active);
    REQUIRE(active == 1 && (flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_BLOCKING_SYNC);
    CALL(cuDevicePrimaryCtxRelease, device);
    CALL(cuDevicePrimaryCtxGetState, device, &flags, &active);
    REQUIRE(active == 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuDevicePrimaryCtxRelease_v2, device);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuDevicePrimaryCtxReset, device);
    CALL(cuDevicePrimaryCtxGetState, device, &flags, &active);
    REQUIRE(active == 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuDevicePrimaryCtxReset_v2, device);
    CALL(cuDevicePrimaryCtxGetState, device, &flags, &active);
    REQUIRE(active == 0);
    CALL(cuDevicePrimaryCtxSetFlags_v2, device, 0);
}

// A limit that is raised is at least what was asked for; one that is lowered may stay. A heap or a buffer that kernels
// have used keeps its size, as CUDA has it, and under a server another client's may have used it.
static void raised(CUlimit limit, size_t wanted) {
    size_t before = 0, after = 0;
    CALL(cuCtxGetLimit, &before, limit);
    CALL(cuCtxSetLimit, limit, before);
    CUresult set = FUNCTION(cuCtxSetLimit, "")(limit, wanted);
    REQUIRE(set == CUDA_SUCCESS || set == CUDA_ERROR_INVALID_VALUE);
    CALL(cuCtxGetLimit, &after, limit);
    REQUIRE(after >= (set == CUDA_SUCCESS ? wanted : before));
}

static void settings(void) {
    unsigned flags = 0;
    CALL(cuCtxGetFlags, &flags);
    REQUIRE((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_SPIN);
    CALL(cuCtxSetFlags, CU_CTX_SCHED_YIELD);
    CALL(cuCtxGetFlags, &flags);
    REQUIRE((flags & CU_CTX_SCHED_MASK) == CU_CTX_SCHED_YIELD);

    size_t stack = 0, printf_bytes = 0;
    CALL(cuCtxGetLimit, &stack, CU_LIMIT_STACK_SIZE);
    CALL(cuCtxGetLimit, &printf_bytes, CU_LIMIT_PRINTF_FIFO_SIZE);
    REQUIRE(stack >= 512 && printf_bytes >= 65536);
    CALL(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, stack);
    raised(CU_LIMIT_MALLOC_HEAP_SIZE, 32 << 20);
    raised(CU_LIMIT_PRINTF_FIFO_SIZE, 4 << 20);
    raised(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 4096);
    // Hints, which a platform may clamp or ignore.
    CALL(cuCtxSetLimit, CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128);
    CALL(cuCtxSetLimit, CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 20);

    CUfunc_cache cache;
    CUsharedconfig banks;
    CALL(cuCtxSetCacheConfig, CU_FUNC_CACHE_PREFER_SHARED);
    CALL(cuCtxGetCacheConfig, &cache);
    CALL(cuCtxSetSharedMemConfig, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE);
    CALL(cuCtxGetSharedMemConfig, &banks);
    REQUIRE(banks != CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE);
    CALL(cuCtxResetPersistingL2Cache);

    CUexecAffinityParam affinity;
    int multiprocessors = 0;
    CALL(cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    CALL(cuCtxGetExecAffinity, &affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    REQUIRE(affinity.type == CU_EXEC_AFFINITY_TYPE_SM_COUNT);
    REQUIRE(affinity.param.smCount.val == (unsigned)multiprocessors);

    int least = 7, greatest = 7;
    CALL(cuCtxGetStreamPriorityRange, &least, &greatest);
    REQUIRE(least == 0 && greatest < 0);
    CALL(cuCtxSynchronize);
    CALL(cuCtxSynchronize_v2, current());
}

int main(void) {
    CUdevice device;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    primary(device);
    REQUIRE(current() == NULL);

    CUcontext contexts[4], popped;
    /* The oldest function's context, which no MPS serves. */
    CUresult (*oldest)(CUcontext *, unsigned, CUdevice) = (CUresult(*)(CUcontext *, unsigned, CUdevice))symbol(driver(), "cuCtxCreate");
    CUresult made = oldest(&contexts[0], 0, device);
    REQUIRE(made == CUDA_SUCCESS || made == CUDA_ERROR_NOT_SUPPORTED);
    if (made == CUDA_SUCCESS) {
        REQUIRE(current() == contexts[0]);
        CALL(cuCtxDestroy_v2, contexts[0]);
    }
    REQUIRE(current() == NULL);
    CUctxCreateParams parameters;
    memset(&parameters, 0, sizeof parameters);
    CALL(cuCtxCreate_v2, &contexts[0], CU_CTX_SCHED_SPIN, device);
    settings();
    CALL(cuCtxCreate_v2, &contexts[1], 0, device);
    CALL(cuCtxCreate_v3, &contexts[2], NULL, 0, 0, device);
    CALL(cuCtxCreate_v4, &contexts[3], &parameters, 0, device);
    unsigned long long ids[4];
    for (int i = 3; i >= 0; --i) {
        ids[i] = look_at(contexts[i], device);
        for (int other = i + 1; other < 4; ++other) {
            REQUIRE(ids[other] != ids[i] && contexts[other] != contexts[i]);
        }
        if (i % 2) {
            CALL(cuCtxPopCurrent_v2, &popped);
        } else {
            CALL(cuCtxPopCurrent, &popped);
        }
        REQUIRE(popped == contexts[i]);
    }
    REQUIRE(current() == NULL);
    REFUSED(CUDA_ERROR_INVALID_CONTEXT, FUNCTION(cuCtxPopCurrent_v2, "")(&popped));

    /* One is no peer of another on its own device. */
    CALL(cuCtxPushCurrent, contexts[0]);
    REFUSED(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, FUNCTION(cuCtxEnablePeerAccess, "")(contexts[1], 0));
    REFUSED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, FUNCTION(cuCtxDisablePeerAccess, "")(contexts[1]));

    CUcontext attached;
    CALL(cuCtxPushCurrent_v2, contexts[1]);
    CALL(cuCtxAttach, &attached, 0);
    REQUIRE(attached == contexts[1]);
    /* Attaching counts: the first detaching undoes it, the second ends the context. */
    CALL(cuCtxDetach, attached);
    REQUIRE(current() == contexts[1]);
    CALL(cuCtxSynchronize);
    CALL(cuCtxDetach, attached);
    REQUIRE(current() == contexts[0]);
    CALL(cuCtxDestroy, contexts[0]);
    REQUIRE(current() == NULL);
    CALL(cuCtxDestroy, contexts[2]);
    CALL(cuCtxSetCurrent, contexts[3]);
    CALL(cuCtxDestroy_v2, contexts[3]);
    REQUIRE(current() == NULL);
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuCtxPushCurrent_v2, "")(NULL));

    printf("contexts: ok checksum=%016llx\n", (unsigned long long)mix(0, sizeof contexts));
    return 0;
}
