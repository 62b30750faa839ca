/* Clusters of 1 to 8 blocks, and of 16 where the device takes them, on whatever SMs the program has: launched, captured and in
 * a graph that is launched twice. Occupancy must tell the truth: who is told that no cluster fits is refused, who is told
 * that some fit may launch more than that. */
#include "check.h"

#define LARGEST 16
#define ROUNDS 64

/* sum(total): *total += rank of the block in its cluster + 1, by one thread of each block */
static const char code[] = ".version 7.8\n.target sm_90\n.address_size 64\n"
                           ".visible .entry sum(.param .u64 total)\n"
                           "{\n"
                           "    .reg .pred %p<1>;\n"
                           "    .reg .b32 %r<4>;\n"
                           "    .reg .b64 %rd<2>;\n"
                           "    mov.u32 %r0, %tid.x;\n"
                           "    setp.ne.u32 %p0, %r0, 0;\n"
                           "    barrier.cluster.arrive.aligned;\n"
                           "    barrier.cluster.wait.aligned;\n"
                           "    @%p0 bra DONE;\n"
                           "    ld.param.u64 %rd0, [total];\n"
                           "    cvta.to.global.u64 %rd1, %rd0;\n"
                           "    mov.u32 %r1, %cluster_ctarank;\n"
                           "    add.u32 %r2, %r1, 1;\n"
                           "    red.global.add.u32 [%rd1], %r2;\n"
                           "DONE:\n"
                           "    ret;\n"
                           "}\n";

static CUdeviceptr total;
static CUfunction sum;
static void *parameters[] = {&total};
static unsigned long launches;
static uint64_t checksum;

static uint32_t result(void) {
    uint32_t value;
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoH, &value, total, sizeof value);
    CALL(cuMemsetD32, total, 0, 1);
    CALL(cuCtxSynchronize);
    return value;
}

/* Returns how many clusters fit at a time. */
static int run(unsigned blocks, int sms) {
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION};
    attribute.value.clusterDim.x = blocks;
    attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
    CUlaunchConfig config = {.gridDimX = ROUNDS * blocks, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1,
                             .blockDimZ = 1, .hStream = stream, .attrs = &attribute, .numAttrs = 1};
    int fit = 0;
    CALL(cuOccupancyMaxActiveClusters, &fit, sum, &config);
    REQUIRE(fit >= 0);
    if (fit == 0) {
        REQUIRE(blocks > 8 || (unsigned)sms < blocks);
        REFUSED(CUDA_ERROR_INVALID_CLUSTER_SIZE, FUNCTION(cuLaunchKernelEx, "")(&config, sum, parameters, NULL));
        CALL(cuStreamDestroy, stream);
        return 0;
    }
    const uint32_t expected = ROUNDS * blocks * (blocks + 1) / 2;
    CALL(cuLaunchKernelEx, &config, sum, parameters, NULL);
    uint32_t once = result();
    REQUIRE(once == expected);
    CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CALL(cuLaunchKernelEx, &config, sum, parameters, NULL);
    CALL(cuStreamEndCapture, stream, &graph);
    CALL(cuGraphInstantiate, &executable, graph, 0);
    CALL(cuGraphLaunch, executable, stream);
    CALL(cuGraphLaunch, executable, stream);
    uint32_t twice = result();
    REQUIRE(twice == 2 * expected);
    launches += 3;
    /* Not every device and share takes more. */
    if (blocks <= 8)
        checksum = mix(mix(checksum, once), twice);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
    CALL(cuStreamDestroy, stream);
    return fit;
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    int sms, largest;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuDeviceGetAttribute, &sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &sum, module, "sum");
    CALL(cuFuncSetAttribute, sum, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    CALL(cuMemAlloc, &total, 4);
    result();
    CUlaunchConfig plain = {.gridDimX = ROUNDS * LARGEST, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1,
                            .blockDimZ = 1};
    CALL(cuOccupancyMaxPotentialClusterSize, &largest, sum, &plain);
    printf("%d SMs; clusters that fit at a time:", sms);
    for (unsigned blocks = 1; blocks <= LARGEST && blocks <= (unsigned)(largest > 8 ? largest : 8); blocks *= 2)
        printf(" %u: %d", blocks, run(blocks, sms));
    CALL(cuMemFree, total);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("\nclusters: ok checksum=%llx launches=%lu\n", (unsigned long long)checksum, launches);
    return 0;
}
