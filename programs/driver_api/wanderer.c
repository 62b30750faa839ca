/* A client that has something of everything that goes along when its session goes on in another context: memory, pinned memory, code, streams, events with
 * times, a graph, memory of a pool, a variable that kernels count in. In each round it works with all of it, loads code that nobody has loaded before, and checks what came out.
 *
 *   wanderer ROUNDS             so many rounds
 *   wanderer until PATH         rounds until a file of that name is there; prints how many
 *   wanderer keeping PATH       the same, and a kernel has stored the variable's address in memory: such a session stays where it is
 *
 * Without arguments it does five rounds. */
#include "check.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

#define COUNT 1024
#define BLOCK 128
#define BYTES (COUNT * sizeof(unsigned))
#define EVENTS 4
/* The device's clock and the host's: the device may be late by what the machine is busy with, so only what is far off is wrong. */
#define TOLERANCE_MS 2000.0

/* step: values[i] = values[i] * 3 + i. */
static const char kept[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry step(.param .u64 values)\n"
    "{\n"
    "    .reg .b32 %r<5>;\n"
    "    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd0, [values];\n"
    "    cvta.to.global.u64 %rd0, %rd0;\n"
    "    mov.u32 %r0, %ctaid.x;\n"
    "    mov.u32 %r1, %ntid.x;\n"
    "    mov.u32 %r2, %tid.x;\n"
    "    mad.lo.u32 %r3, %r0, %r1, %r2;\n"
    "    mul.wide.u32 %rd1, %r3, 4;\n"
    "    add.u64 %rd2, %rd0, %rd1;\n"
    "    ld.global.u32 %r4, [%rd2];\n"
    "    mad.lo.u32 %r4, %r4, 3, %r3;\n"
    "    st.global.u32 [%rd2], %r4;\n"
    "    ret;\n"
    "}\n";

/* tick: counts in a variable, and says how far it is. keep: stores where the variable is; follow: counts there. */
static const char counting[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".global .align 8 .u64 ticks;\n"
    ".visible .entry tick(.param .u64 said)\n"
    "{\n"
    "    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd0, [said];\n"
    "    cvta.to.global.u64 %rd0, %rd0;\n"
    "    ld.global.u64 %rd1, [ticks];\n"
    "    add.u64 %rd1, %rd1, 1;\n"
    "    st.global.u64 [ticks], %rd1;\n"
    "    st.global.u64 [%rd0], %rd1;\n"
    "    ret;\n"
    "}\n";
static const char keeping[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".global .align 8 .u64 ticks;\n"
    ".visible .entry keep(.param .u64 said)\n"
    "{\n"
    "    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd0, [said];\n"
    "    mov.u64 %rd1, ticks;\n"
    "    cvta.global.u64 %rd2, %rd1;\n"
    "    st.global.u64 [%rd0+16], %rd2;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry follow(.param .u64 said)\n"
    "{\n"
    "    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd0, [said];\n"
    "    ld.global.u64 %rd2, [%rd0+16];\n"
    "    ld.u64 %rd1, [%rd2];\n"
    "    add.u64 %rd1, %rd1, 1;\n"
    "    st.u64 [%rd2], %rd1;\n"
    "    st.global.u64 [%rd0], %rd1;\n"
    "    ret;\n"
    "}\n";

/* Writes a number that is the code's own. */
static const char fresh[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry say(.param .u64 said)\n"
    "{\n"
    "    .reg .b64 %%rd<2>;\n"
    "    ld.param.u64 %%rd0, [said];\n"
    "    cvta.to.global.u64 %%rd0, %%rd0;\n"
    "    mov.u64 %%rd1, %llu;\n"
    "    st.global.u64 [%%rd0+8], %%rd1;\n"
    "    ret;\n"
    "}\n";

static CUstream stream, other;
/* `tick` is `follow` where a kernel has stored the address. */
static CUfunction step, tick;
static CUdeviceptr values, said;
static unsigned *pinned, expected[COUNT];
static uint64_t ticks;
static CUgraphExec graph;
static CUevent events[EVENTS];
static double recorded_ms[EVENTS];

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void expect_steps(int steps) {
    for (int i = 0; i < steps; i++)
        for (unsigned at = 0; at < COUNT; at++) expected[at] = expected[at] * 3 + at;
}

static void prepare(int keeps) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUgraph template;
    CUgraphNode node;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, kept);
    CALL(cuModuleGetFunction, &step, module, "step");
    CALL(cuModuleLoadData, &module, keeps ? keeping : counting);
    CALL(cuModuleGetFunction, &tick, module, keeps ? "follow" : "tick");
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuStreamCreate, &other, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &values, BYTES);
    CALL(cuMemAlloc, &said, 24);
    CALL(cuMemHostAlloc, (void **)&pinned, BYTES, 0);
    for (unsigned at = 0; at < COUNT; at++) expected[at] = pinned[at] = at * 2654435761u;
    CALL(cuMemcpyHtoDAsync, values, pinned, BYTES, stream);
    void *parameters[] = {&values};
    CUDA_KERNEL_NODE_PARAMS launch = {
        .func = step, .gridDimX = COUNT / BLOCK, .gridDimY = 1, .gridDimZ = 1, .blockDimX = BLOCK, .blockDimY = 1, .blockDimZ = 1, .kernelParams = parameters};
    if (keeps) {
        CUfunction keep;
        void *of_said[] = {&said};
        CALL(cuModuleGetFunction, &keep, module, "keep");
        CALL(cuLaunchKernel, keep, 1, 1, 1, 1, 1, 1, 0, other, of_said, NULL);
    }
    CALL(cuGraphCreate, &template, 0);
    CALL(cuGraphAddKernelNode, &node, template, NULL, 0, &launch);
    CALL(cuGraphInstantiateWithFlags, &graph, template, 0);
    CALL(cuGraphDestroy, template);
    for (int i = 0; i < EVENTS; i++) {
        CALL(cuEventCreate, &events[i], CU_EVENT_DEFAULT);
        CALL(cuEventRecord, events[i], stream);
        CALL(cuStreamSynchronize, stream);
        recorded_ms[i] = now_ms();
    }
}

/* Each event, recorded here or long ago, is as far from the others as the host's clock says. */
static void check_times(void) {
    for (int i = 0; i < EVENTS; i++) {
        float elapsed_ms;
        CALL(cuEventQuery, events[i]);
        CALL(cuEventElapsedTime, &elapsed_ms, events[0], events[i]);
        REQUIRE(fabs(elapsed_ms - (recorded_ms[i] - recorded_ms[0])) < TOLERANCE_MS);
    }
}

static void run_round(int number) {
    void *of_values[] = {&values}, *of_said[] = {&said};
    CUdeviceptr pooled;
    uint64_t words[2];
    int steps = 1 + number % 40;
    for (int i = 0; i < steps; i++) CALL(cuLaunchKernel, step, COUNT / BLOCK, 1, 1, BLOCK, 1, 1, 0, stream, of_values, NULL);
    CALL(cuGraphLaunch, graph, stream);
    CALL(cuLaunchKernel, tick, 1, 1, 1, 1, 1, 1, 0, other, of_said, NULL);
    CALL(cuMemAllocAsync, &pooled, BYTES, stream);
    CALL(cuMemcpyDtoDAsync, pooled, values, BYTES, stream);
    CALL(cuMemcpyDtoHAsync, pinned, pooled, BYTES, stream);
    CALL(cuMemFreeAsync, pooled, stream);
    int event = 1 + number % (EVENTS - 1);
    CALL(cuEventRecord, events[event], stream);
    CALL(cuStreamWaitEvent, other, events[event], 0);
    CALL(cuStreamSynchronize, other);
    recorded_ms[event] = now_ms();
    expect_steps(steps + 1);
    REQUIRE(memcmp(pinned, expected, BYTES) == 0);
    check_times();
    /* Code of which nobody has a copy: process and round are in it. */
    char text[sizeof fresh + 32];
    uint64_t own = (uint64_t)getpid() << 32 | (unsigned)number;
    CUmodule module;
    CUfunction say;
    snprintf(text, sizeof text, fresh, (unsigned long long)own);
    CALL(cuModuleLoadData, &module, text);
    CALL(cuModuleGetFunction, &say, module, "say");
    CALL(cuLaunchKernel, say, 1, 1, 1, 1, 1, 1, 0, NULL, of_said, NULL);
    CALL(cuMemcpyDtoH, words, said, sizeof words);
    CALL(cuModuleUnload, module);
    ticks++;
    REQUIRE(words[1] == own && words[0] == ticks);
}

int main(int count, char **arguments) {
    int keeps = count == 3 && strcmp(arguments[1], "keeping") == 0;
    int until = keeps || (count == 3 && strcmp(arguments[1], "until") == 0);
    int rounds = count == 2 ? atoi(arguments[1]) : until ? 1 << 30 : 5;
    prepare(keeps);
    int done = 0;
    while (done < rounds && !(until && access(arguments[2], F_OK) == 0)) {
        run_round(done++);
        if (until) {
            printf("%d\n", done);
            fflush(stdout);
        }
    }
    uint64_t checksum = 0;
    for (unsigned at = 0; at < COUNT; at++) checksum = mix(checksum, pinned[at]);
    printf("wanderer: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
