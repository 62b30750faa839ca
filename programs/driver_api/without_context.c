/* What the driver does on a thread that has no context, while the primary context lives: what is asked or wanted of a handle that knows its context is done,
 * the rest is refused. The answers are those of NVIDIA's driver 580 (tests/gpu/probes/without_context.cpp asks it). */
#include "check.h"
#include "kernels.h"

#include <pthread.h>

enum { WORDS = 32, BYTES = 4 * WORDS };

static const char code[] = PTX_HEAD PTX_ADD ".visible .global .u32 word;\n";

static CUcontext primary;
static CUgraph graph, allocating;
static unsigned called;
static CUmodule module;
static CUfunction function;
static CUlibrary library;
static CUkernel kernel;
static CUstream stream;
static CUevent before, after;
static CUdeviceptr memory;
static uint32_t *host;

#define IS_DONE(name, ...) CHECK(FUNCTION(name, "")(__VA_ARGS__))
#define IS_REFUSED(name, ...) REFUSED(CUDA_ERROR_INVALID_CONTEXT, FUNCTION(name, "")(__VA_ARGS__))

static void ask_of_code(void) {
    CUfunction other = NULL;
    CUmodule its_module = NULL;
    CUkernel its_kernel = NULL;
    CUfunctionLoadingState loading;
    CUdeviceptr global = 0;
    size_t offset = 1, bytes = 0;
    unsigned count = 0;
    int value = 0;
    const char *name = NULL;
    IS_DONE(cuModuleGetFunction, &other, module, "add");
    REQUIRE(other == function);
    IS_DONE(cuModuleGetGlobal, &global, &bytes, module, "word");
    REQUIRE(global && bytes == 4);
    IS_DONE(cuModuleGetFunctionCount, &count, module);
    REQUIRE(count == 1);
    IS_DONE(cuFuncGetAttribute, &value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    REQUIRE(value > 0);
    IS_DONE(cuFuncSetAttribute, function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50);
    IS_DONE(cuFuncSetCacheConfig, function, CU_FUNC_CACHE_PREFER_L1);
    IS_DONE(cuFuncGetModule, &its_module, function);
    REQUIRE(its_module == module);
    IS_DONE(cuFuncGetName, &name, function);
    REQUIRE(!strcmp(name, "add"));
    IS_DONE(cuFuncGetParamInfo, function, 1, &offset, &bytes);
    REQUIRE(offset == 8 && bytes == 4);
    IS_DONE(cuFuncIsLoaded, &loading, function);
    IS_DONE(cuFuncLoad, function);
    IS_DONE(cuLibraryGetKernelCount, &count, library);
    REQUIRE(count == 1);
    IS_DONE(cuLibraryEnumerateKernels, &its_kernel, 1, library);
    REQUIRE(its_kernel == kernel);
    IS_DONE(cuKernelGetName, &name, kernel);
    REQUIRE(!strcmp(name, "add"));
    IS_REFUSED(cuModuleLoadData, &its_module, code);
    IS_REFUSED(cuLibraryGetModule, &its_module, library);
    IS_REFUSED(cuLibraryGetGlobal, &global, &bytes, library, "word");
    IS_REFUSED(cuKernelGetFunction, &other, kernel);
    IS_REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor, &value, function, 32, 0);
    IS_REFUSED(cuOccupancyAvailableDynamicSMemPerBlock, &bytes, function, 1, 32);
}

static void work(void) {
    uint32_t by = 5;
    void *parameters[] = {&memory, &by};
    CUcontext context = NULL;
    CUstream other;
    unsigned flags = 0;
    float ms = -1;
    IS_DONE(cuMemsetD32Async, memory, 1, WORDS, stream);
    IS_DONE(cuEventRecord, before, stream);
    IS_DONE(cuLaunchKernel, function, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL);
    IS_DONE(cuLaunchKernel, (CUfunction)kernel, 1, 1, 1, WORDS, 1, 1, 0, stream, parameters, NULL);
    IS_DONE(cuEventRecord, after, stream);
    IS_DONE(cuMemcpyDtoHAsync, host, memory, BYTES, stream);
    IS_DONE(cuStreamWaitEvent, stream, after, 0);
    IS_DONE(cuStreamSynchronize, stream);
    IS_DONE(cuEventSynchronize, after);
    IS_DONE(cuEventQuery, after);
    IS_DONE(cuEventElapsedTime, &ms, before, after);
    REQUIRE(ms >= 0);
    IS_DONE(cuStreamQuery, stream);
    IS_DONE(cuStreamGetFlags, stream, &flags);
    REQUIRE(flags == CU_STREAM_NON_BLOCKING);
    IS_DONE(cuStreamGetCtx, stream, &context);
    REQUIRE(context);
    for (int i = 0; i < WORDS; i++)
        REQUIRE(host[i] == 1 + 2 * by);
    IS_REFUSED(cuLaunchKernel, function, 1, 1, 1, WORDS, 1, 1, 0, NULL, parameters, NULL);
    IS_REFUSED(cuStreamSynchronize, NULL);
    IS_REFUSED(cuStreamCreate, &other, 0);
    IS_REFUSED(cuCtxSynchronize);
}

static void want_memory(void) {
    CUdeviceptr made;
    size_t bytes, all;
    void *pinned;
    IS_REFUSED(cuMemAlloc, &made, BYTES);
    IS_REFUSED(cuMemAllocManaged, &made, BYTES, CU_MEM_ATTACH_GLOBAL);
    IS_REFUSED(cuMemAllocHost, &pinned, BYTES);
    IS_REFUSED(cuMemGetInfo, &bytes, &all);
    IS_REFUSED(cuMemcpyHtoD, memory, host, BYTES);
    IS_REFUSED(cuMemcpyDtoH, host, memory, BYTES);
    IS_REFUSED(cuMemsetD8, memory, 0, BYTES);
    IS_DONE(cuMemAllocAsync, &made, BYTES, stream);
    IS_DONE(cuMemFreeAsync, made, stream);
    IS_DONE(cuMemFree, memory);
}

static void CUDA_CB count_call(void *counter) { ++*(unsigned *)counter; }

/* Nodes of a kernel are not tried: NVIDIA's driver ends the program. */
static void add_nodes(void) {
    CUgraphNode node;
    CUDA_HOST_NODE_PARAMS call = {count_call, &called};
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    memset(&fill, 0, sizeof fill);
    fill.dst = memory, fill.elementSize = 4, fill.value = 9, fill.width = WORDS, fill.height = 1;
    memset(&allocation, 0, sizeof allocation);
    allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    allocation.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    allocation.bytesize = BYTES;
    IS_DONE(cuGraphAddHostNode, &node, graph, NULL, 0, &call);
    IS_DONE(cuGraphAddMemsetNode, &node, graph, NULL, 0, &fill, primary);
    IS_DONE(cuGraphAddMemAllocNode, &node, allocating, NULL, 0, &allocation);
    REQUIRE(allocation.dptr);
}

/* What was added there works. */
static void run_graph(void) {
    CUgraphExec executable;
    CALL(cuGraphInstantiate, &executable, graph, 0);
    CALL(cuGraphLaunch, executable, stream);
    CALL(cuMemcpyDtoHAsync, host, memory, BYTES, stream);
    CALL(cuStreamSynchronize, stream);
    REQUIRE(called == 1);
    for (int i = 0; i < WORDS; i++)
        REQUIRE(host[i] == 9);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
    CALL(cuGraphDestroy, allocating);
}

static void in_thread(void *(*run)(void *)) {
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, run, NULL));
    REQUIRE(!pthread_join(thread, NULL));
}

static void *adds_nodes(void *argument) {
    add_nodes();
    return argument;
}

static void *without_context(void *argument) {
    CUcontext context = (CUcontext)&context;
    CALL(cuCtxGetCurrent, &context);
    REQUIRE(!context);
    ask_of_code();
    work();
    want_memory();
    return argument;
}

int main(void) {
    CUdevice device;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &primary, device);
    CALL(cuCtxSetCurrent, primary);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &function, module, "add");
    CALL(cuLibraryLoadData, &library, code, NULL, NULL, 0, NULL, NULL, 0);
    CALL(cuLibraryGetKernel, &kernel, library, "add");
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuEventCreate, &before, 0);
    CALL(cuEventCreate, &after, 0);
    CALL(cuMemAlloc, &memory, BYTES);
    CALL(cuMemAllocHost, (void **)&host, BYTES);
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphCreate, &allocating, 0);
    in_thread(adds_nodes);
    run_graph();
    in_thread(without_context);
    uint64_t checksum = 0;
    for (int i = 0; i < WORDS; i++)
        checksum = mix(checksum, host[i]);
    printf("without_context: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
