/* Green contexts: what a device's SMs can be split into, streams and graphs that run on some of them, and events of all their streams. */
#include "check.h"
#include "kernels.h"

#define MOST_SMS 256
#define BLOCKS 8192
/* SMs of a green context here. */
#define SHARE 16
/* Launches until all SMs that are expected were seen: in company a kernel may not come to each of them. */
#define MOST_LAUNCHES 200

static const char code[] = PTX_HEAD PTX_MARK PTX_ADD;

static void *library;
static CUdeviceptr marks;
static void *parameters[] = {&marks};
static uint32_t host[MOST_SMS];

static unsigned size(const CUdevResource *resource) {
    return resource->type == CU_DEV_RESOURCE_TYPE_SM ? resource->sm.smCount : 0;
}

static void clear(void) {
    LOAD(cuMemsetD32);
    LOAD(cuCtxSynchronize);
    CHECK(cuMemsetD32_(marks, 0, MOST_SMS));
    CHECK(cuCtxSynchronize_());
}

static unsigned seen(void) {
    LOAD(cuMemcpyDtoH);
    CHECK(cuMemcpyDtoH_(host, marks, sizeof host));
    unsigned count = 0;
    for (int i = 0; i < MOST_SMS; ++i)
        count += host[i] != 0;
    return count;
}

static unsigned on_stream(CUfunction mark, CUstream stream, unsigned expected) {
    LOAD(cuLaunchKernel);
    LOAD(cuStreamSynchronize);
    unsigned count = 0;
    clear();
    for (int i = 0; i < MOST_LAUNCHES && count < expected; ++i) {
        CHECK(cuLaunchKernel_(mark, BLOCKS, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
        CHECK(cuStreamSynchronize_(stream));
        count = seen();
    }
    return count;
}

static unsigned in_graph(CUgraph graph, CUstream stream) {
    LOAD(cuGraphInstantiate);
    LOAD(cuGraphLaunch);
    LOAD(cuGraphExecDestroy);
    LOAD(cuStreamSynchronize);
    CUgraphExec executable;
    CHECK(cuGraphInstantiate_(&executable, graph, 0));
    unsigned count = 0;
    clear();
    for (int i = 0; i < MOST_LAUNCHES && count < SHARE; ++i) {
        CHECK(cuGraphLaunch_(executable, stream));
        CHECK(cuStreamSynchronize_(stream));
        count = seen();
    }
    CHECK(cuGraphExecDestroy_(executable));
    return count;
}

int main(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuDevicePrimaryCtxRelease);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxGetCurrent);
    LOAD(cuLibraryLoadData);
    LOAD(cuLibraryGetKernel);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemHostAlloc);
    LOAD(cuMemcpyDtoH);
    LOAD(cuMemsetD32);
    LOAD(cuLaunchKernel);
    LOAD(cuStreamCreate);
    LOAD(cuStreamDestroy);
    LOAD(cuStreamQuery);
    LOAD(cuStreamSynchronize);
    LOAD(cuStreamWaitValue32);
    LOAD(cuStreamGetGreenCtx);
    LOAD(cuStreamBeginCapture);
    LOAD(cuStreamEndCapture);
    LOAD(cuEventCreate);
    LOAD(cuEventQuery);
    LOAD(cuEventRecord);
    LOAD(cuEventSynchronize);
    LOAD(cuGraphCreate);
    LOAD(cuGraphAddKernelNode);
    LOAD(cuDeviceGetDevResource);
    LOAD(cuCtxGetDevResource);
    LOAD(cuDevSmResourceSplitByCount);
    LOAD(cuDevResourceGenerateDesc);
    LOAD(cuGreenCtxCreate);
    LOAD(cuGreenCtxDestroy);
    LOAD(cuGreenCtxGetDevResource);
    LOAD(cuGreenCtxStreamCreate);
    LOAD(cuGreenCtxRecordEvent);
    LOAD(cuGreenCtxWaitEvent);
    LOAD(cuCtxFromGreenCtx);
    LOAD(cuCtxRecordEvent);
    LOAD(cuCtxWaitEvent);
    LOAD(cuGreenCtxGetId);

    CUdevice device;
    CUcontext primary;
    CUmodule module;
    CUfunction mark, add;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&primary, device));
    CHECK(cuCtxSetCurrent_(primary));
    CHECK(cuModuleLoadData_(&module, code));
    CHECK(cuModuleGetFunction_(&mark, module, "mark"));
    CHECK(cuModuleGetFunction_(&add, module, "add"));
    CHECK(cuMemAlloc_(&marks, sizeof host));

    /* Splitting. */
    CUdevResource whole, groups[4], rest, none = {0};
    unsigned count = 4;
    CHECK(cuDeviceGetDevResource_(device, &whole, CU_DEV_RESOURCE_TYPE_SM));
    unsigned all = size(&whole);
    CHECK(cuDevSmResourceSplitByCount_(groups, &count, &whole, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, SHARE));
    REQUIRE(count == 4 && size(&groups[0]) == SHARE && size(&groups[3]) == SHARE && size(&rest) == all - 4 * SHARE);
    printf("groups of %u\n", size(&groups[0]));
    unsigned possible = 0;
    CHECK(cuDevSmResourceSplitByCount_(NULL, &possible, &whole, NULL, 0, 8));
    REQUIRE(possible >= 4 && possible <= all / 8);
    REFUSED(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION,
            cuDevSmResourceSplitByCount_(NULL, &possible, &whole, NULL, 0, all + 1));
    REFUSED(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevSmResourceSplitByCount_(NULL, &possible, &none, NULL, 0, 2));

    /* Two green contexts on disjoint SMs. */
    CUdevResourceDesc descriptions[2];
    CUgreenCtx greens[2], of;
    CUcontext context, current;
    CHECK(cuDevResourceGenerateDesc_(&descriptions[0], &groups[0], 1));
    CHECK(cuDevResourceGenerateDesc_(&descriptions[1], &groups[1], 1));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate_(&greens[0], descriptions[0], device, 0));
    CUstream streams[2], plain;
    for (int i = 0; i < 2; ++i) {
        CHECK(cuGreenCtxCreate_(&greens[i], descriptions[i], device, CU_GREEN_CTX_DEFAULT_STREAM));
        CHECK(cuGreenCtxStreamCreate_(&streams[i], greens[i], CU_STREAM_NON_BLOCKING, 0));
        CUdevResource own;
        CHECK(cuGreenCtxGetDevResource_(greens[i], &own, CU_DEV_RESOURCE_TYPE_SM));
        REQUIRE(size(&own) == SHARE);
    }
    CHECK(cuStreamCreate_(&plain, CU_STREAM_NON_BLOCKING));
    unsigned char first[MOST_SMS];
    printf("on streams: %u", on_stream(mark, streams[0], SHARE));
    for (int i = 0; i < MOST_SMS; ++i)
        first[i] = host[i] != 0;
    printf(" and %u", on_stream(mark, streams[1], SHARE));
    for (int i = 0; i < MOST_SMS; ++i)
        REQUIRE(!(first[i] && host[i]));
    REQUIRE(on_stream(mark, plain, all) == all);
    printf(", disjoint\n");
    CHECK(cuStreamGetGreenCtx_(streams[1], &of));
    REQUIRE(of == greens[1]);
    CHECK(cuStreamGetGreenCtx_(plain, &of));
    REQUIRE(of == NULL);

    /* As a context: its default stream and new streams run on its SMs, memory and code are the primary context's. */
    CHECK(cuCtxFromGreenCtx_(&context, greens[0]));
    CHECK(cuCtxSetCurrent_(context));
    CHECK(cuCtxGetCurrent_(&current));
    REQUIRE(current == context);
    CUstream inside;
    CHECK(cuStreamCreate_(&inside, CU_STREAM_DEFAULT));
    CUdeviceptr kept;
    CHECK(cuMemAlloc_(&kept, 1024));
    unsigned default_stream = on_stream(mark, NULL, SHARE), new_stream = on_stream(mark, inside, SHARE);
    printf("inside: %u and %u\n", default_stream, new_stream);
    REQUIRE(on_stream(mark, plain, all) == all);
    CUdevResource own;
    CHECK(cuCtxGetDevResource_(context, &own, CU_DEV_RESOURCE_TYPE_SM));
    REQUIRE(size(&own) == SHARE);

    /* The default stream of a green context is ordered with its blocking streams. */
    CHECK(cuMemsetD32_(kept, 0, 256));
    for (uint32_t i = 0; i < 20; ++i) {
        uint32_t by = 1;
        void *arguments[] = {&kept, &by};
        CHECK(cuLaunchKernel_(add, 1, 1, 1, 256, 1, 1, 0, i % 2 ? inside : NULL, arguments, NULL));
    }
    CHECK(cuMemcpyDtoH_(host, kept, sizeof host));
    for (int i = 0; i < 256; ++i)
        REQUIRE(host[i] == 20);

    /* Graphs: captured on a green stream, and nodes of kernels that name the context. */
    CUgraph graph;
    CHECK(cuStreamBeginCapture_(streams[0], CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuLaunchKernel_(mark, BLOCKS, 1, 1, 64, 1, 1, 0, streams[0], parameters, NULL));
    CHECK(cuStreamEndCapture_(streams[0], &graph));
    CHECK(cuCtxSetCurrent_(primary));
    printf("captured: %u\n", in_graph(graph, plain));
    CUlibrary code_library;
    CUkernel kernel;
    CHECK(cuLibraryLoadData_(&code_library, code, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetKernel_(&kernel, code_library, "mark"));
    CUDA_KERNEL_NODE_PARAMS node_parameters = {.kern = kernel, .ctx = context, .gridDimX = BLOCKS, .gridDimY = 1,
                                               .gridDimZ = 1, .blockDimX = 64, .blockDimY = 1, .blockDimZ = 1,
                                               .kernelParams = parameters};
    CUgraphNode node;
    CHECK(cuGraphCreate_(&graph, 0));
    CHECK(cuGraphAddKernelNode_(&node, graph, NULL, 0, &node_parameters));
    printf("node of a kernel: %u\n", in_graph(graph, plain));

    /* An event of a green context comes after all its streams, and all its streams wait for an event. */
    volatile uint32_t *flag;
    CHECK(cuMemHostAlloc_((void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP));
    *flag = 0;
    CUevent after;
    CUstream other;
    CHECK(cuGreenCtxStreamCreate_(&other, greens[0], CU_STREAM_NON_BLOCKING, 0));
    CHECK(cuEventCreate_(&after, CU_EVENT_DISABLE_TIMING));
    CHECK(cuStreamWaitValue32_(streams[0], (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuLaunchKernel_(mark, 1, 1, 1, 1, 1, 1, 0, streams[0], parameters, NULL));
    CHECK(cuGreenCtxRecordEvent_(greens[0], after));
    REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery_(after));
    CHECK(cuGreenCtxWaitEvent_(greens[0], after));
    CHECK(cuLaunchKernel_(mark, 1, 1, 1, 1, 1, 1, 0, other, parameters, NULL));
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery_(other));
    CHECK(cuStreamQuery_(streams[1]));
    *flag = 1;
    CHECK(cuEventSynchronize_(after));
    CHECK(cuStreamSynchronize_(other));
    CHECK(cuCtxRecordEvent_(primary, after));
    CHECK(cuEventSynchronize_(after));

    /* The same of a context: all its streams wait for the event, and no others. */
    *flag = 0;
    CHECK(cuStreamWaitValue32_(plain, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuEventRecord_(after, plain));
    CHECK(cuCtxWaitEvent_(context, after));
    CHECK(cuLaunchKernel_(mark, 1, 1, 1, 1, 1, 1, 0, other, parameters, NULL));
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery_(other));
    CHECK(cuStreamQuery_(streams[1]));
    *flag = 1;
    CHECK(cuStreamSynchronize_(other));
    unsigned long long ids[2] = {0};
    for (int i = 0; i < 2; ++i)
        CHECK(cuGreenCtxGetId_(greens[i], &ids[i]));
    REQUIRE(ids[0] != ids[1]);

    /* The end. */
    CHECK(cuStreamDestroy_(inside));
    CHECK(cuStreamDestroy_(other));
    for (int i = 0; i < 2; ++i) {
        CHECK(cuStreamDestroy_(streams[i]));
        CHECK(cuGreenCtxDestroy_(greens[i]));
    }
    CHECK(cuMemFree_(kept));
    REQUIRE(on_stream(mark, plain, all) == all);
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("green_contexts: ok checksum=%u\n", all);
    return 0;
}
