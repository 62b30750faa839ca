/* The default stream of the calling thread: every function that has a variant for it acts on that stream where it is given none, whether the
 * variant is found by its symbol or by cuGetProcAddress. Copies and fills are in copies_and_fills.c.
 *
 * A stream that the legacy default stream must wait for is held all the time: what went there by mistake would not be done. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"
#include "kernels.h"

#include <pthread.h>

enum { WORDS = 64, BYTES = 4 * WORDS };

static const char code[] = PTX_HEAD PTX_ADD;

/* Variants that are not the newest of their name: the CUDA version to ask for. */
static const struct {
    const char *symbol;
    int version;
} old[] = {
    {"cuMemPrefetchAsync", 8000},
    {"cuMemcpyBatchAsync", 12080},
    {"cuStreamBatchMemOp", 8000},
    {"cuStreamBeginCapture", 10000},
    {"cuStreamGetCaptureInfo", 10010},
    {"cuStreamGetCaptureInfo_v2", 11030},
    {"cuStreamGetCtx", 9020},
    {"cuStreamUpdateCaptureDependencies", 11030},
    {"cuStreamWaitValue32", 8000},
    {"cuStreamWaitValue64", 9000},
    {"cuStreamWriteValue32", 8000},
    {"cuStreamWriteValue64", 9000},
};

typedef enum { EXPORTED, LOOKED_UP } Way;
static Way way;

static void *variant(const char *name) {
    char text[80];
    if (way == EXPORTED) {
        snprintf(text, sizeof text, "%s_ptsz", name);
        return symbol(driver(), text);
    }
    int version = 13000;
    for (size_t i = 0; i < sizeof old / sizeof *old; ++i)
        if (strcmp(old[i].symbol, name) == 0)
            version = old[i].version;
    snprintf(text, sizeof text, "%s", name);
    char *suffix = strstr(text, "_v");
    if (suffix)
        *suffix = '\0';
    void *found = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    CALL(cuGetProcAddress_v2, text, &found, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
    REQUIRE(found && status == CU_GET_PROC_ADDRESS_SUCCESS);
    return found;
}

/* The variant of NAME for the default stream of the thread. */
#define VARIANT(name) (*(__typeof__(name) *)variant(SYMBOL(name)))
#define PTSZ(name, ...) CHECK(VARIANT(name)(__VA_ARGS__))

static CUdevice device;
static CUcontext context;
static CUfunction add;
static CUdeviceptr words, others;
static CUdeviceptr managed;
static volatile uint64_t *flags;
static CUdeviceptr flags_on_device;
static uint32_t host[WORDS];
static uint32_t one = 1;
static void *parameters[] = {&words, &one};

/* A word, once the thread's stream has come so far. */
static uint32_t word(CUdeviceptr area, int index) {
    PTSZ(cuStreamSynchronize, NULL);
    CALL_PTDS(cuMemcpyDtoH_v2, host, area, BYTES);
    return host[index];
}

static void fill(CUdeviceptr area, uint32_t value) { PTSZ(cuMemsetD32Async, area, value, WORDS, NULL); }

static void launch(void) { PTSZ(cuLaunchKernel, add, 1, 1, 1, WORDS, 1, 1, 0, NULL, parameters, NULL); }

static uint64_t facts(CUstream other) {
    unsigned long long id = 0, of_thread = 0, of_legacy = 0;
    PTSZ(cuStreamGetId, NULL, &id);
    CALL(cuStreamGetId, CU_STREAM_PER_THREAD, &of_thread);
    CALL(cuStreamGetId, CU_STREAM_LEGACY, &of_legacy);
    REQUIRE(id == of_thread && id != of_legacy);
    CUcontext of = NULL;
    CUgreenCtx green = (CUgreenCtx)&of;
    CUdevice where = -1;
    unsigned stream_flags = 77, expected_flags = 78;
    int priority = 77, expected_priority = 78;
    PTSZ(cuStreamGetCtx, NULL, &of);
    REQUIRE(of == context);
    of = NULL;
    PTSZ(cuStreamGetCtx_v2, NULL, &of, &green);
    REQUIRE(of == context && green == NULL);
    PTSZ(cuStreamGetDevice, NULL, &where);
    REQUIRE(where == device);
    PTSZ(cuStreamGetFlags, NULL, &stream_flags);
    CALL(cuStreamGetFlags, CU_STREAM_PER_THREAD, &expected_flags);
    REQUIRE(stream_flags == expected_flags);
    PTSZ(cuStreamGetPriority, NULL, &priority);
    CALL(cuStreamGetPriority, CU_STREAM_PER_THREAD, &expected_priority);
    REQUIRE(priority == expected_priority);

    CUstreamAttrValue value;
    memset(&value, 0, sizeof value);
    value.syncPolicy = CU_SYNC_POLICY_YIELD;
    PTSZ(cuStreamSetAttribute, NULL, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
    memset(&value, 0, sizeof value);
    CALL(cuStreamGetAttribute, CU_STREAM_PER_THREAD, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
    REQUIRE(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    CALL(cuStreamGetAttribute, CU_STREAM_LEGACY, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
    REQUIRE(value.syncPolicy != CU_SYNC_POLICY_YIELD);
    memset(&value, 0, sizeof value);
    PTSZ(cuStreamGetAttribute, NULL, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
    REQUIRE(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    PTSZ(cuStreamCopyAttributes, other, NULL);
    memset(&value, 0, sizeof value);
    CALL(cuStreamGetAttribute, other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
    REQUIRE(value.syncPolicy == CU_SYNC_POLICY_YIELD);
    return id;
}

static void launches(void) {
    fill(words, 100);
    launch();
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS, .blockDimY = 1, .blockDimZ = 1};
    PTSZ(cuLaunchKernelEx, &config, add, parameters, NULL);
    REQUIRE(word(words, 3) == 102);
    PTSZ(cuLaunchCooperativeKernel, add, 1, 1, 1, WORDS, 1, 1, 0, NULL, parameters);
    REQUIRE(word(words, 63) == 103);
}

static void CUDA_CB count(void *place) { ++*(volatile int *)place; }
static void CUDA_CB count_back(CUstream stream, CUresult status, void *place) {
    (void)stream;
    *(volatile int *)place += status == CUDA_SUCCESS ? 10 : 100;
}

static void host_functions(void) {
    static volatile int calls;
    calls = 0;
    PTSZ(cuLaunchHostFunc, NULL, count, (void *)&calls);
    PTSZ(cuStreamSynchronize, NULL);
    REQUIRE(calls == 1);
    PTSZ(cuStreamAddCallback, NULL, count_back, (void *)&calls, 0);
    PTSZ(cuStreamSynchronize, NULL);
    REQUIRE(calls == 11);
}

static void events(CUstream apart) {
    CUevent first, second, theirs;
    CALL(cuEventCreate, &first, CU_EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &second, CU_EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &theirs, CU_EVENT_DISABLE_TIMING);
    launch();
    PTSZ(cuEventRecord, first, NULL);
    PTSZ(cuEventRecordWithFlags, second, NULL, CU_EVENT_RECORD_DEFAULT);
    PTSZ(cuStreamSynchronize, NULL);
    CALL(cuEventQuery, first);
    CALL(cuEventQuery, second);

    flags[0] = 0;
    CALL(cuStreamWaitValue32_v2, apart, flags_on_device, 1, CU_STREAM_WAIT_VALUE_EQ);
    CALL(cuEventRecord, theirs, apart);
    PTSZ(cuStreamQuery, NULL);
    PTSZ(cuStreamWaitEvent, NULL, theirs, 0);
    REFUSED(CUDA_ERROR_NOT_READY, VARIANT(cuStreamQuery)(NULL));
    flags[0] = 1;
    PTSZ(cuStreamSynchronize, NULL);
    CALL(cuEventQuery, theirs);
    CALL(cuEventDestroy_v2, first);
    CALL(cuEventDestroy_v2, second);
    CALL(cuEventDestroy_v2, theirs);
}

/* The thread's stream waits, until the host writes. */
#define WAITS(value, ...)                                           \
    do {                                                            \
        flags[1] = 0;                                               \
        PTSZ(__VA_ARGS__);                                          \
        REFUSED(CUDA_ERROR_NOT_READY, VARIANT(cuStreamQuery)(NULL)); \
        flags[1] = (value);                                         \
        PTSZ(cuStreamSynchronize, NULL);                            \
    } while (0)

/* The thread's stream writes. */
#define WRITES(value, ...)               \
    do {                                 \
        flags[2] = 0;                    \
        PTSZ(__VA_ARGS__);               \
        PTSZ(cuStreamSynchronize, NULL); \
        REQUIRE(flags[2] == (value));    \
    } while (0)

static void values(void) {
    CUdeviceptr waited = flags_on_device + 8, written = flags_on_device + 16;
    uint64_t large = 1ull << 40;
    CUstreamBatchMemOpParams operation;
    memset(&operation, 0, sizeof operation);
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = written;
    operation.writeValue.value = 17;
    WAITS(5, cuStreamWaitValue32_v2, NULL, waited, 5, CU_STREAM_WAIT_VALUE_GEQ);
    WAITS(large + 1, cuStreamWaitValue64_v2, NULL, waited, large, CU_STREAM_WAIT_VALUE_GEQ);
    WRITES(6, cuStreamWriteValue32_v2, NULL, written, 6, CU_STREAM_WRITE_VALUE_DEFAULT);
    WRITES(large, cuStreamWriteValue64_v2, NULL, written, large, CU_STREAM_WRITE_VALUE_DEFAULT);
    WRITES(17, cuStreamBatchMemOp_v2, NULL, 1, &operation, 0);
    int first_version = 0;
    CALL(cuDeviceGetAttribute, &first_version, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, device);
    if (first_version) {
        WAITS(7, cuStreamWaitValue32, NULL, waited, 7, CU_STREAM_WAIT_VALUE_EQ);
        WAITS(large, cuStreamWaitValue64, NULL, waited, large, CU_STREAM_WAIT_VALUE_EQ);
        WRITES(8, cuStreamWriteValue32, NULL, written, 8, CU_STREAM_WRITE_VALUE_DEFAULT);
        WRITES(large + 2, cuStreamWriteValue64, NULL, written, large + 2, CU_STREAM_WRITE_VALUE_DEFAULT);
        WRITES(17, cuStreamBatchMemOp, NULL, 1, &operation, 0);
    }
}

static void allocations(void) {
    CUdeviceptr plain = 0, pooled = 0;
    CUmemoryPool pool;
    CALL(cuDeviceGetDefaultMemPool, &pool, device);
    PTSZ(cuMemAllocAsync, &plain, BYTES, NULL);
    PTSZ(cuMemAllocFromPoolAsync, &pooled, BYTES, pool, NULL);
    REQUIRE(plain && pooled && plain != pooled);
    fill(plain, 30);
    fill(pooled, 40);
    REQUIRE(word(plain, 63) == 30 && word(pooled, 63) == 40);
    PTSZ(cuMemFreeAsync, plain, NULL);
    PTSZ(cuMemFreeAsync, pooled, NULL);
    PTSZ(cuStreamSynchronize, NULL);
}

static void batches(void) {
    CUdeviceptr to[] = {others, others + BYTES / 2}, from[] = {words + BYTES / 2, words};
    size_t sizes[] = {BYTES / 2, BYTES / 2}, first = 0, failed = 77;
    CUmemcpyAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    fill(words, 50);
    PTSZ(cuMemsetD32Async, words, 51, WORDS / 2, NULL);
    PTSZ(cuMemcpyBatchAsync, to, from, sizes, 2, &attributes, &first, 1, &failed, NULL);
    REQUIRE(word(others, 0) == 50 && host[WORDS - 1] == 51);
    fill(others, 0);
    /* NVIDIA's driver 580 refuses no stream here, and takes it above. */
    PTSZ(cuMemcpyBatchAsync_v2, to, from, sizes, 2, &attributes, &first, 1, CU_STREAM_PER_THREAD);
    REQUIRE(word(others, 0) == 50 && host[WORDS - 1] == 51);
}

static void managed_memory(void) {
    void *adds_to_managed[] = {&managed, &one};
    volatile uint32_t *here = (volatile uint32_t *)(uintptr_t)managed;
    CUmemLocation place = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    for (int i = 0; i < WORDS; ++i)
        here[i] = 60;
    PTSZ(cuMemPrefetchAsync, managed, BYTES, device, NULL);
    PTSZ(cuMemPrefetchAsync_v2, managed, BYTES, place, 0, NULL);
    PTSZ(cuLaunchKernel, add, 1, 1, 1, WORDS, 1, 1, 0, NULL, adds_to_managed, NULL);
    PTSZ(cuStreamAttachMemAsync, NULL, managed, 0, CU_MEM_ATTACH_GLOBAL);
    PTSZ(cuStreamSynchronize, NULL);
    REQUIRE(here[0] == 61 && here[WORDS - 1] == 61);
}

/* Launches what was captured, which adds twice, and forgets it. */
static void replay(CUgraph graph) {
    CUDA_GRAPH_INSTANTIATE_PARAMS how;
    memset(&how, 0, sizeof how);
    how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUgraphExec executable;
    PTSZ(cuGraphInstantiateWithParams, &executable, graph, &how);
    REQUIRE(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
    PTSZ(cuGraphUpload, executable, NULL);
    fill(words, 70);
    PTSZ(cuGraphLaunch, executable, NULL);
    REQUIRE(word(words, 0) == 72 && host[WORDS - 1] == 72);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
}

static void captures(void) {
    CUgraph graph = NULL, ended = NULL;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t ids[3] = {0};
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *edges;
    size_t found = 0;

    /* The functions' first versions. */
    PTSZ(cuStreamBeginCapture, NULL);
    PTSZ(cuStreamIsCapturing, NULL, &status);
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    launch();
    status = CU_STREAM_CAPTURE_STATUS_NONE;
    PTSZ(cuStreamGetCaptureInfo, NULL, &status, &ids[0]);
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    PTSZ(cuStreamGetCaptureInfo_v2, NULL, &status, &ids[1], &graph, &dependencies, &found);
    REQUIRE(ids[0] == ids[1] && graph && found == 1);
    CUgraphNode node = dependencies[0];
    PTSZ(cuStreamUpdateCaptureDependencies, NULL, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    PTSZ(cuStreamGetCaptureInfo_v3, NULL, &status, &ids[2], &graph, &dependencies, &edges, &found);
    REQUIRE(ids[0] == ids[2] && found == 0);
    PTSZ(cuStreamUpdateCaptureDependencies_v2, NULL, &node, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
    PTSZ(cuStreamGetCaptureInfo_v3, NULL, &status, &ids[2], &graph, &dependencies, &edges, &found);
    REQUIRE(found == 1 && dependencies[0] == node);
    launch();
    PTSZ(cuStreamEndCapture, NULL, &ended);
    REQUIRE(ended == graph);
    replay(ended);

    PTSZ(cuStreamBeginCapture_v2, NULL, CU_STREAM_CAPTURE_MODE_RELAXED);
    launch();
    launch();
    PTSZ(cuStreamEndCapture, NULL, &ended);
    replay(ended);

    CALL(cuGraphCreate, &graph, 0);
    PTSZ(cuStreamBeginCaptureToGraph, NULL, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    launch();
    launch();
    PTSZ(cuStreamEndCapture, NULL, &ended);
    REQUIRE(ended == graph);
    replay(graph);
    PTSZ(cuStreamIsCapturing, NULL, &status);
    REQUIRE(status == CU_STREAM_CAPTURE_STATUS_NONE);
}

/* Everything, on a thread of its own; returns the id of its default stream. */
static void *thread(void *argument) {
    static unsigned long long id;
    CUstream held, apart;
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &held, CU_STREAM_DEFAULT);
    CALL(cuStreamCreate, &apart, CU_STREAM_NON_BLOCKING);
    flags[3] = 0;
    CALL(cuStreamWaitValue32_v2, held, flags_on_device + 24, 1, CU_STREAM_WAIT_VALUE_EQ);
    REFUSED(CUDA_ERROR_NOT_READY, FUNCTION(cuStreamQuery, "")(held));
    way = *(Way *)argument;
    id = facts(apart);
    launches();
    host_functions();
    events(apart);
    values();
    allocations();
    batches();
    managed_memory();
    captures();
    REFUSED(CUDA_ERROR_NOT_READY, FUNCTION(cuStreamQuery, "")(held));
    flags[3] = 1;
    CALL(cuStreamSynchronize, held);
    CALL(cuStreamDestroy_v2, held);
    CALL(cuStreamDestroy_v2, apart);
    return &id;
}

int main(void) {
    CUmodule module;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &add, module, "add");
    CALL(cuMemAlloc_v2, &words, BYTES);
    CALL(cuMemAlloc_v2, &others, BYTES);
    CALL(cuMemAllocManaged, &managed, BYTES, CU_MEM_ATTACH_GLOBAL);
    CALL(cuMemHostAlloc, (void **)&flags, 64, CU_MEMHOSTALLOC_DEVICEMAP);
    CALL(cuMemHostGetDevicePointer_v2, &flags_on_device, (void *)flags, 0);

    unsigned long long ids[2] = {0};
    for (Way next = EXPORTED; next <= LOOKED_UP; ++next) {
        pthread_t running;
        void *id;
        REQUIRE(pthread_create(&running, NULL, thread, &next) == 0);
        REQUIRE(pthread_join(running, &id) == 0);
        ids[next] = *(unsigned long long *)id;
    }
    unsigned long long own = 0;
    CALL_PTSZ(cuStreamGetId, NULL, &own);
    REQUIRE(own != ids[EXPORTED] && own != ids[LOOKED_UP]);
    CALL(cuMemFree_v2, words);
    CALL(cuMemFree_v2, others);
    CALL(cuMemFree_v2, managed);
    CALL(cuMemFreeHost, (void *)flags);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("per_thread: ok checksum=%016llx\n", (unsigned long long)mix(host[0], host[WORDS - 1]));
    return 0;
}
