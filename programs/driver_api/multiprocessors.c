/* Which SMs kernels run on, by their own word: launched on streams, in graphs built and captured, in contexts with a share of their own.
 *
 *   multiprocessors [affinity N] [percentage P]
 *
 * also makes a context with at most N SMs, and one with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=P in the environment. Each line says
 * how many SMs the device has for the context, or the context for itself, and on how many the kernels ran. */
#include "check.h"
#include "kernels.h"

#define MOST_SMS 256
#define BLOCKS 8192
/* Launches until all SMs of a share were seen: in company a kernel may not come to each of them. */
#define MOST_LAUNCHES 200

static const char code[] = PTX_HEAD PTX_MARK;

static void *library;
static CUdevice device;
static CUdeviceptr marks;
static CUfunction mark;
static void *parameters[] = {&marks};

static int attribute(void) {
    LOAD(cuDeviceGetAttribute);
    int count;
    CHECK(cuDeviceGetAttribute_(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    return count;
}

/* Allocates and loads in the current context. */
static void prepare(void) {
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuMemAlloc);
    CUmodule module;
    CHECK(cuModuleLoadData_(&module, code));
    CHECK(cuModuleGetFunction_(&mark, module, "mark"));
    CHECK(cuMemAlloc_(&marks, MOST_SMS * 4));
}

static void clear(void) {
    LOAD(cuMemsetD32);
    LOAD(cuCtxSynchronize);
    CHECK(cuMemsetD32_(marks, 0, MOST_SMS));
    CHECK(cuCtxSynchronize_());
}

/* How many SMs were seen since. */
static int seen(void) {
    LOAD(cuMemcpyDtoH);
    LOAD(cuCtxSynchronize);
    uint32_t host[MOST_SMS];
    CHECK(cuCtxSynchronize_());
    CHECK(cuMemcpyDtoH_(host, marks, sizeof host));
    int count = 0;
    for (int i = 0; i < MOST_SMS; ++i)
        count += host[i] != 0;
    return count;
}

static int on_stream(CUstream stream, int share) {
    LOAD(cuLaunchKernel);
    int count = 0;
    clear();
    for (int i = 0; i < MOST_LAUNCHES && count < share; ++i) {
        CHECK(cuLaunchKernel_(mark, BLOCKS, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
        count = seen();
    }
    return count;
}

static int in_graph(CUgraph graph, CUstream stream, int share) {
    LOAD(cuGraphInstantiate);
    LOAD(cuGraphLaunch);
    LOAD(cuGraphExecDestroy);
    CUgraphExec executable;
    CHECK(cuGraphInstantiate_(&executable, graph, 0));
    int count = 0;
    clear();
    for (int i = 0; i < MOST_LAUNCHES && count < share; ++i) {
        CHECK(cuGraphLaunch_(executable, stream));
        count = seen();
    }
    CHECK(cuGraphExecDestroy_(executable));
    return count;
}

/* Everything that runs kernels, in the current context. */
static void report(const char *what, int share) {
    LOAD(cuStreamCreate);
    LOAD(cuStreamBeginCapture);
    LOAD(cuStreamEndCapture);
    LOAD(cuGraphCreate);
    LOAD(cuGraphAddKernelNode);
    LOAD(cuGraphDestroy);
    LOAD(cuLaunchKernel);
    LOAD(cuStreamDestroy);
    prepare();
    CUstream stream, alone;
    CHECK(cuStreamCreate_(&stream, CU_STREAM_DEFAULT));
    CHECK(cuStreamCreate_(&alone, CU_STREAM_NON_BLOCKING));
    CUDA_KERNEL_NODE_PARAMS node_parameters = {.func = mark, .gridDimX = BLOCKS, .gridDimY = 1, .gridDimZ = 1,
                                               .blockDimX = 64, .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
    CUgraph built, captured;
    CUgraphNode node;
    CHECK(cuGraphCreate_(&built, 0));
    CHECK(cuGraphAddKernelNode_(&node, built, NULL, 0, &node_parameters));
    CHECK(cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuLaunchKernel_(mark, BLOCKS, 1, 1, 64, 1, 1, 0, stream, parameters, NULL));
    CHECK(cuStreamEndCapture_(stream, &captured));
    int streams[] = {on_stream(NULL, share), on_stream(stream, share), on_stream(alone, share),
                     on_stream(CU_STREAM_PER_THREAD, share)};
    int graphs[] = {in_graph(built, alone, share), in_graph(captured, stream, share), in_graph(captured, NULL, share)};
    printf("%s: %d SMs; kernels ran on %d %d %d %d, in graphs on %d %d %d\n", what, share, streams[0], streams[1], streams[2],
           streams[3], graphs[0], graphs[1], graphs[2]);
    CHECK(cuGraphDestroy_(built));
    CHECK(cuGraphDestroy_(captured));
    CHECK(cuStreamDestroy_(stream));
    CHECK(cuStreamDestroy_(alone));
}

/* A cooperative grid must fit on the SMs of its context. */
static void cooperate(int share) {
    LOAD(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    LOAD(cuLaunchCooperativeKernel);
    LOAD(cuCtxSynchronize);
    int blocks;
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor_(&blocks, mark, 64, 0));
    unsigned most = (unsigned)(blocks * share);
    CHECK(cuLaunchCooperativeKernel_(mark, most, 1, 1, 64, 1, 1, 0, NULL, parameters));
    REFUSED(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            cuLaunchCooperativeKernel_(mark, most + 1, 1, 1, 64, 1, 1, 0, NULL, parameters));
    CHECK(cuCtxSynchronize_());
}

int main(int count, char **arguments) {
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
    LOAD(cuCtxGetExecAffinity);
    LOAD(cuCtxDestroy);
    CUcontext primary, second;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&primary, device));
    CHECK(cuCtxSetCurrent_(primary));
    report("primary", attribute());
    cooperate(attribute());
    for (int i = 1; i + 1 < count; i += 2) {
        if (strcmp(arguments[i], "affinity") == 0) {
            CUresult (*create)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice) =
                (CUresult(*)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice))symbol(library, "cuCtxCreate_v3");
            CUexecAffinityParam affinity = {.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT};
            affinity.param.smCount.val = (unsigned)atoi(arguments[i + 1]);
            CHECK(create(&second, &affinity, 1, 0, device));
            CHECK(cuCtxGetExecAffinity_(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
            report("affinity", (int)affinity.param.smCount.val);
            cooperate((int)affinity.param.smCount.val);
        } else {
            CUresult (*create)(CUcontext *, unsigned, CUdevice) =
                (CUresult(*)(CUcontext *, unsigned, CUdevice))symbol(library, "cuCtxCreate_v2");
            setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", arguments[i + 1], 1);
            CHECK(create(&second, 0, device));
            report("percentage", attribute());
            cooperate(attribute());
        }
        CHECK(cuCtxSetCurrent_(primary));
        printf("primary again: %d SMs\n", attribute());
        CHECK(cuCtxDestroy_(second));
    }
    int checksum = attribute();
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("multiprocessors: ok checksum=%d\n", checksum);
    return 0;
}
