/* Streams that wait for values: written by the host, by another stream, and in batches; what is ordered behind them waits too. */
#include "check.h"
#include "kernels.h"

static const char code[] = PTX_HEAD PTX_ADD;

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuDevicePrimaryCtxRelease);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuModuleUnload);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemHostAlloc);
    LOAD(cuMemFreeHost);
    LOAD(cuMemcpyDtoH);
    LOAD(cuMemcpyDtoHAsync);
    LOAD(cuMemsetD32);
    LOAD(cuLaunchKernel);
    LOAD(cuStreamCreate);
    LOAD(cuStreamDestroy);
    LOAD(cuStreamQuery);
    LOAD(cuStreamSynchronize);
    LOAD(cuStreamWaitEvent);
    LOAD(cuEventCreate);
    LOAD(cuEventRecord);
    LOAD(cuEventDestroy);
    LOAD(cuEventQuery);
    LOAD(cuStreamWaitValue32);
    LOAD(cuStreamWaitValue64);
    LOAD(cuStreamWriteValue64);
    LOAD(cuStreamBatchMemOp);
    LOAD(cuGraphCreate);
    LOAD(cuGraphAddKernelNode);
    LOAD(cuGraphAddMemcpyNode);
    LOAD(cuGraphInstantiateWithFlags);
    LOAD(cuGraphLaunch);
    LOAD(cuGraphExecKernelNodeSetParams);
    LOAD(cuGraphExecDestroy);
    LOAD(cuGraphDestroy);

    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction add;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&context, device));
    CHECK(cuCtxSetCurrent_(context));
    CHECK(cuModuleLoadData_(&module, code));
    CHECK(cuModuleGetFunction_(&add, module, "add"));
    CUdeviceptr words, flags;
    volatile uint32_t *shared;
    CHECK(cuMemAlloc_(&words, 1024));
    CHECK(cuMemAlloc_(&flags, 64));
    CHECK(cuMemsetD32_(words, 0, 256));
    CHECK(cuMemsetD32_(flags, 0, 16));
    CHECK(cuMemHostAlloc_((void **)&shared, 64, CU_MEMHOSTALLOC_DEVICEMAP));
    memset((void *)shared, 0, 64);
    CUstream waits, writes, follows;
    CHECK(cuStreamCreate_(&waits, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate_(&writes, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate_(&follows, CU_STREAM_NON_BLOCKING));
    CUevent after;
    CHECK(cuEventCreate_(&after, CU_EVENT_DISABLE_TIMING));
    uint32_t by = 1, host[256];
    void *parameters[] = {&words, &by};
    CUdeviceptr pinned = (CUdeviceptr)(uintptr_t)shared;

    /* The host ends the wait, after all that is behind it has been submitted. */
    CHECK(cuStreamWaitValue32_(waits, pinned, 7, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuLaunchKernel_(add, 1, 1, 1, 256, 1, 1, 0, waits, parameters, NULL));
    CHECK(cuEventRecord_(after, waits));
    CHECK(cuStreamWaitEvent_(follows, after, 0));
    by = 10;
    CHECK(cuLaunchKernel_(add, 1, 1, 1, 256, 1, 1, 0, follows, parameters, NULL));
    CHECK(cuMemcpyDtoHAsync_(host, words, 4, writes));
    CHECK(cuStreamSynchronize_(writes));
    if (host[0] != 0) {
        fprintf(stderr, "work behind the wait has run: %u\n", host[0]);
        return 1;
    }
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery_(waits));
    REFUSED(CUDA_ERROR_NOT_READY, cuEventQuery_(after));
    shared[0] = 7;
    CHECK(cuStreamSynchronize_(follows));
    CHECK(cuEventQuery_(after));
    CHECK(cuMemcpyDtoH_(host, words, sizeof host));
    uint64_t checksum = 0;
    for (int i = 0; i < 256; ++i) {
        if (host[i] != 11) {
            fprintf(stderr, "word %d is %u, expected 11\n", i, host[i]);
            return 1;
        }
    }

    /* Another stream ends the wait, by a value in device memory, of 64 bits. */
    CHECK(cuStreamWaitValue64_(waits, flags + 8, 1ull << 40, CU_STREAM_WAIT_VALUE_GEQ));
    by = 100;
    CHECK(cuLaunchKernel_(add, 1, 1, 1, 256, 1, 1, 0, waits, parameters, NULL));
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery_(waits));
    CHECK(cuStreamWriteValue64_(writes, flags + 8, (1ull << 40) + 3, 0));
    CHECK(cuStreamSynchronize_(waits));

    /* Batches: two writes end a batch of two waits, and a third write shows that it went on. */
    CUstreamBatchMemOpParams wait[3], write[2];
    memset(wait, 0, sizeof wait);
    memset(write, 0, sizeof write);
    wait[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait[0].waitValue.address = flags + 16;
    wait[0].waitValue.value = 4;
    wait[0].waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
    wait[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait[1].waitValue.address = pinned + 20;
    wait[1].waitValue.value = ~2u;
    wait[1].waitValue.flags = CU_STREAM_WAIT_VALUE_NOR;
    wait[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    wait[2].writeValue.address = flags + 32;
    wait[2].writeValue.value64 = 0x123456789abcdefull;
    write[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write[0].writeValue.address = flags + 16;
    write[0].writeValue.value = 12;
    write[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write[1].writeValue.address = pinned + 24;
    write[1].writeValue.value = 99;
    shared[5] = 2;
    CHECK(cuStreamBatchMemOp_(waits, 3, wait, 0));
    CHECK(cuStreamBatchMemOp_(writes, 2, write, 0));
    CHECK(cuStreamSynchronize_(writes));
    if (shared[6] != 99) {
        fprintf(stderr, "the batch wrote %u\n", shared[6]);
        return 1;
    }
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery_(waits));
    shared[5] = 0;
    CHECK(cuStreamSynchronize_(waits));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_(waits, flags + 2, 0, CU_STREAM_WAIT_VALUE_EQ));

    /* A launch of a graph that waits does what the graph was when it was launched, whatever becomes of the graph meanwhile. */
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec executable;
    CUDA_KERNEL_NODE_PARAMS kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.func = add;
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = 256;
    kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = parameters;
    by = 1000;
    CHECK(cuGraphCreate_(&graph, 0));
    CHECK(cuGraphAddKernelNode_(&node, graph, NULL, 0, &kernel));
    CHECK(cuGraphInstantiateWithFlags_(&executable, graph, 0));
    shared[8] = 0;
    CHECK(cuStreamWaitValue32_(waits, pinned + 32, 1, CU_STREAM_WAIT_VALUE_EQ));
    CHECK(cuGraphLaunch_(executable, waits));
    by = 10000;
    CHECK(cuGraphExecKernelNodeSetParams_(executable, node, &kernel));
    CHECK(cuGraphLaunch_(executable, waits));
    CHECK(cuGraphExecDestroy_(executable));
    CHECK(cuGraphDestroy_(graph));
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery_(waits));
    shared[8] = 1;
    CHECK(cuStreamSynchronize_(waits));
    CHECK(cuMemcpyDtoH_(host, words, sizeof host));
    for (int i = 0; i < 256; ++i) {
        if (host[i] != 11111) {
            fprintf(stderr, "word %d is %u after the graphs, expected 11111\n", i, host[i]);
            return 1;
        }
    }

    /* While a stream waits, a graph comes to its end that copies what only the host reaches. */
    CUmodule brief;
    CUfunction brief_add;
    CUDA_MEMCPY3D copy;
    static uint32_t from[256];
    shared[10] = 0;
    CHECK(cuModuleLoadData_(&brief, code));
    CHECK(cuModuleGetFunction_(&brief_add, brief, "add"));
    by = 1;
    CHECK(cuLaunchKernel_(brief_add, 1, 1, 1, 256, 1, 1, 0, follows, parameters, NULL));
    CHECK(cuStreamSynchronize_(follows));
    CHECK(cuStreamWaitValue32_(waits, pinned + 40, 1, CU_STREAM_WAIT_VALUE_EQ));
    for (int i = 0; i < 256; ++i)
        from[i] = 5;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = words;
    copy.WidthInBytes = sizeof from;
    copy.Height = copy.Depth = 1;
    CHECK(cuGraphCreate_(&graph, 0));
    CHECK(cuGraphAddMemcpyNode_(&node, graph, NULL, 0, &copy, context));
    CHECK(cuGraphInstantiateWithFlags_(&executable, graph, 0));
    CHECK(cuGraphLaunch_(executable, follows));
    by = 2;
    CHECK(cuLaunchKernel_(brief_add, 1, 1, 1, 256, 1, 1, 0, follows, parameters, NULL));
    CHECK(cuStreamSynchronize_(follows));
    CHECK(cuGraphExecDestroy_(executable));
    CHECK(cuGraphDestroy_(graph));
    REFUSED(CUDA_ERROR_NOT_READY, cuStreamQuery_(waits));
    shared[10] = 1;
    CHECK(cuStreamSynchronize_(waits));
    CHECK(cuModuleUnload_(brief));
    CHECK(cuMemcpyDtoH_(host, words, sizeof host));
    for (int i = 0; i < 256; ++i) {
        REQUIRE(host[i] == 7);
    }

    CHECK(cuCtxSynchronize_());
    CHECK(cuMemcpyDtoH_(host, words, sizeof host));
    for (int i = 0; i < 256; ++i) {
        checksum = checksum * 31 + host[i];
    }
    CHECK(cuMemcpyDtoH_(host, flags, 64));
    for (int i = 0; i < 16; ++i) {
        checksum = checksum * 31 + host[i];
    }
    CHECK(cuEventDestroy_(after));
    CHECK(cuStreamDestroy_(waits));
    CHECK(cuStreamDestroy_(writes));
    CHECK(cuStreamDestroy_(follows));
    CHECK(cuMemFree_(words));
    CHECK(cuMemFree_(flags));
    CHECK(cuMemFreeHost_((void *)shared));
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("stream_values: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
