/* A client whose share is changed while it runs: it does what it reads from standard input, and answers each line with one line.
 *
 *   live_shares [affinity N]
 *
 * seen       on which SMs kernels run: on each kind of stream, in graphs, in a context with at most N SMs
 * chain N    N dependent kernels on streams and in graphs, without waiting, and whether their result is right
 * graph N    a graph of N kernels, kept; later chains launch it too
 * cooperate  whether a cooperative grid fits that fills the SMs that the device has for this process, and a larger one does not
 * occupy N   the error of a cooperative grid that fills N SMs
 * gaps MS    launches short kernels for so long; how many, and the longest time between the ends of two of them, by the device's clock
 */
#include "process.h"

#include <time.h>

#define MOST_SMS 256
#define BLOCKS 4096
#define MOST_LAUNCHES 100
#define MOST_TIMES 2000000
#define BATCH 32

static const char code[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    /* marks[smid] = 1 */
    ".visible .entry mark(.param .u64 marks)\n{\n    .reg .b32 %r<2>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd0, [marks];\n    cvta.to.global.u64 %rd0, %rd0;\n    mov.u32 %r0, %smid;\n"
    "    mul.wide.u32 %rd1, %r0, 4;\n    add.u64 %rd2, %rd0, %rd1;\n    mov.u32 %r1, 1;\n    st.global.u32 [%rd2], %r1;\n    ret;\n}\n"
    /* value = value * 3 + 1 */
    ".visible .entry step(.param .u64 value)\n{\n    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [value];\n    cvta.to.global.u64 %rd0, %rd0;\n    ld.global.u32 %r0, [%rd0];\n"
    "    mad.lo.u32 %r1, %r0, 3, 1;\n    st.global.u32 [%rd0], %r1;\n    ret;\n}\n"
    /* times[place] = when this kernel ends, after some cycles */
    ".visible .entry stamp(.param .u64 times, .param .u64 place, .param .u64 cycles)\n{\n    .reg .b64 %rd<8>;\n    .reg .pred %p<2>;\n    .reg .b32 %r<3>;\n"
    "    ld.param.u64 %rd0, [times];\n    cvta.to.global.u64 %rd0, %rd0;\n    ld.param.u64 %rd1, [place];\n    ld.param.u64 %rd2, [cycles];\n"
    "    mov.u64 %rd3, %clock64;\nAGAIN:\n    mov.u64 %rd4, %clock64;\n    sub.u64 %rd5, %rd4, %rd3;\n    setp.lt.u64 %p0, %rd5, %rd2;\n    @%p0 bra AGAIN;\n"
    "    mov.u32 %r0, %ctaid.x;\n    mov.u32 %r1, %tid.x;\n    or.b32 %r2, %r0, %r1;\n    setp.ne.u32 %p1, %r2, 0;\n    @%p1 bra END;\n"
    "    shl.b64 %rd6, %rd1, 3;\n    add.u64 %rd6, %rd0, %rd6;\n    mov.u64 %rd7, %globaltimer;\n    st.global.u64 [%rd6], %rd7;\nEND:\n    ret;\n}\n";

static void *library;
static CUdevice device;
static CUcontext primary, second;
static CUdeviceptr marks, marks_in_second, value, times;
static CUfunction mark, mark_in_second, step, stamp;
static CUstream blocking, alone, in_second;
static CUgraphExec built, with_attribute, captured, steps;
static int step_count;
static void *mark_parameters[] = {&marks}, *step_parameters[] = {&value};

static int told(void) {
    LOAD(cuDeviceGetAttribute);
    int count;
    CHECK(cuDeviceGetAttribute_(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    return count;
}

static void prepare(int affinity) {
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuMemAlloc);
    LOAD(cuStreamCreate);
    LOAD(cuStreamBeginCapture);
    LOAD(cuStreamEndCapture);
    LOAD(cuGraphCreate);
    LOAD(cuGraphAddKernelNode);
    LOAD(cuGraphKernelNodeSetAttribute);
    LOAD(cuGraphInstantiate);
    LOAD(cuLaunchKernel);
    LOAD(cuCtxSetCurrent);
    CUmodule module;
    CHECK(cuModuleLoadData_(&module, code));
    CHECK(cuModuleGetFunction_(&mark, module, "mark"));
    CHECK(cuModuleGetFunction_(&step, module, "step"));
    CHECK(cuModuleGetFunction_(&stamp, module, "stamp"));
    CHECK(cuMemAlloc_(&marks, MOST_SMS * 4));
    CHECK(cuMemAlloc_(&value, 4));
    CHECK(cuStreamCreate_(&blocking, CU_STREAM_DEFAULT));
    CHECK(cuStreamCreate_(&alone, CU_STREAM_NON_BLOCKING));
    CUDA_KERNEL_NODE_PARAMS node_parameters = {.func = mark, .gridDimX = BLOCKS, .gridDimY = 1, .gridDimZ = 1,
                                               .blockDimX = 64, .blockDimY = 1, .blockDimZ = 1, .kernelParams = mark_parameters};
    CUgraph graph;
    CUgraphNode node;
    CHECK(cuGraphCreate_(&graph, 0));
    CHECK(cuGraphAddKernelNode_(&node, graph, NULL, 0, &node_parameters));
    CHECK(cuGraphInstantiate_(&built, graph, 0));
    CUkernelNodeAttrValue attribute = {.priority = 0};
    CHECK(cuGraphKernelNodeSetAttribute_(node, CU_KERNEL_NODE_ATTRIBUTE_PRIORITY, &attribute));
    CHECK(cuGraphInstantiate_(&with_attribute, graph, 0));
    CHECK(cuStreamBeginCapture_(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuLaunchKernel_(mark, BLOCKS, 1, 1, 64, 1, 1, 0, blocking, mark_parameters, NULL));
    CHECK(cuStreamEndCapture_(blocking, &graph));
    CHECK(cuGraphInstantiate_(&captured, graph, 0));
    if (affinity) {
        CUresult (*create)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice) =
            (CUresult(*)(CUcontext *, CUexecAffinityParam *, int, unsigned, CUdevice))symbol(library, "cuCtxCreate_v3");
        CUexecAffinityParam limit = {.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT};
        limit.param.smCount.val = (unsigned)affinity;
        CHECK(create(&second, &limit, 1, 0, device));
        CHECK(cuModuleLoadData_(&module, code));
        CHECK(cuModuleGetFunction_(&mark_in_second, module, "mark"));
        CHECK(cuMemAlloc_(&marks_in_second, MOST_SMS * 4));
        CHECK(cuStreamCreate_(&in_second, CU_STREAM_NON_BLOCKING));
        CHECK(cuCtxSetCurrent_(primary));
    }
}

static uint32_t all[MOST_SMS];

/* The other context, with its code and memory. */
static void change_context(CUcontext context) {
    LOAD(cuCtxSetCurrent);
    CHECK(cuCtxSetCurrent_(context));
    CUfunction function = mark;
    CUdeviceptr memory = marks;
    mark = mark_in_second, mark_in_second = function;
    marks = marks_in_second, marks_in_second = memory;
}

/* How many SMs were seen since the last call; all that were ever seen stay in `all`. */
static int count_seen(void) {
    LOAD(cuMemcpyDtoH);
    LOAD(cuMemsetD32);
    LOAD(cuCtxSynchronize);
    uint32_t now[MOST_SMS];
    CHECK(cuCtxSynchronize_());
    CHECK(cuMemcpyDtoH_(now, marks, sizeof now));
    int count = 0;
    for (int i = 0; i < MOST_SMS; ++i) {
        count += now[i] != 0;
        all[i] |= now[i];
    }
    CHECK(cuMemsetD32_(marks, 0, MOST_SMS));
    CHECK(cuCtxSynchronize_());
    return count;
}

/* Launches until so many SMs were seen at once, or long enough. */
static int seen(CUstream stream, CUgraphExec graph, int expected) {
    LOAD(cuLaunchKernel);
    LOAD(cuGraphLaunch);
    LOAD(cuStreamSynchronize);
    int most = 0;
    for (int i = 0; i < MOST_LAUNCHES && most < expected; ++i) {
        if (graph)
            CHECK(cuGraphLaunch_(graph, stream));
        else
            CHECK(cuLaunchKernel_(mark, BLOCKS, 1, 1, 64, 1, 1, 0, stream, mark_parameters, NULL));
        CHECK(cuStreamSynchronize_(stream));
        int count = count_seen();
        most = count > most ? count : most;
    }
    return most;
}

static void see(void) {
    LOAD(cuCtxGetExecAffinity);
    int share = told();
    memset(all, 0, sizeof all);
    count_seen();
    memset(all, 0, sizeof all);
    printf("told %d streams %d %d %d", share, seen(NULL, NULL, share), seen(blocking, NULL, share), seen(alone, NULL, share));
    printf(" graphs %d %d %d", seen(alone, built, share), seen(NULL, with_attribute, share), seen(blocking, captured, share));
    if (second) {
        CUexecAffinityParam affinity;
        change_context(second);
        count_seen();
        CHECK(cuCtxGetExecAffinity_(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
        int few = (int)affinity.param.smCount.val;
        printf(" affinity %d streams %d", few, seen(in_second, NULL, few));
        change_context(primary);
    }
    printf(" on");
    for (int i = 0; i < MOST_SMS; ++i)
        if (all[i])
            printf(" %d", i);
    printf("\n");
}

static void make_graph(int kernels) {
    LOAD(cuGraphCreate);
    LOAD(cuGraphAddKernelNode);
    LOAD(cuGraphInstantiate);
    CUDA_KERNEL_NODE_PARAMS node_parameters = {.func = step, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                               .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = step_parameters};
    CUgraph graph;
    CUgraphNode node;
    CHECK(cuGraphCreate_(&graph, 0));
    for (int i = 0; i < kernels; ++i) {
        CUgraphNode before = node;
        CHECK(cuGraphAddKernelNode_(&node, graph, &before, i > 0, &node_parameters));
    }
    CHECK(cuGraphInstantiate_(&steps, graph, 0));
    step_count = kernels;
    printf("ok\n");
}

/* Dependent kernels, ordered by the default stream's rules and by events. */
static void chain(int kernels) {
    LOAD(cuLaunchKernel);
    LOAD(cuGraphLaunch);
    LOAD(cuEventCreate);
    LOAD(cuEventRecord);
    LOAD(cuEventDestroy);
    LOAD(cuStreamWaitEvent);
    LOAD(cuMemsetD32);
    LOAD(cuMemcpyDtoH);
    LOAD(cuCtxSynchronize);
    CUevent event;
    uint32_t expected = 7, got;
    CHECK(cuEventCreate_(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuMemsetD32_(value, expected, 1));
    CHECK(cuCtxSynchronize_());
    for (int i = 0; i < kernels; ++i) {
        /* 16 kernels on each kind of stream, since few need waiting then. */
        CUstream stream = i / 16 % 3 == 0 ? NULL : i / 16 % 3 == 1 ? blocking : alone;
        CHECK(cuLaunchKernel_(step, 1, 1, 1, 1, 1, 1, 0, stream, step_parameters, NULL));
        expected = expected * 3 + 1;
        if (i % 16 == 15) {
            if (steps) {
                CHECK(cuGraphLaunch_(steps, stream));
                for (int j = 0; j < step_count; ++j)
                    expected = expected * 3 + 1;
            }
            CUstream next = (i + 1) / 16 % 3 == 0 ? NULL : (i + 1) / 16 % 3 == 1 ? blocking : alone;
            CHECK(cuEventRecord_(event, stream));
            CHECK(cuStreamWaitEvent_(next, event, 0));
        }
    }
    CHECK(cuCtxSynchronize_());
    CHECK(cuMemcpyDtoH_(&got, value, 4));
    CHECK(cuEventDestroy_(event));
    if (got == expected)
        printf("ok\n");
    else
        printf("wrong: %u instead of %u\n", got, expected);
}

static CUresult cooperate(unsigned blocks) {
    LOAD(cuLaunchCooperativeKernel);
    LOAD(cuCtxSynchronize);
    CUresult result = cuLaunchCooperativeKernel_(mark, blocks, 1, 1, 64, 1, 1, 0, NULL, mark_parameters);
    return result ? result : cuCtxSynchronize_();
}

static unsigned resident(int processors) {
    LOAD(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    int blocks;
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor_(&blocks, mark, 64, 0));
    return (unsigned)(blocks * processors);
}

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void gaps(int limit_ms) {
    LOAD(cuMemAlloc);
    LOAD(cuLaunchKernel);
    LOAD(cuEventCreate);
    LOAD(cuEventRecord);
    LOAD(cuEventSynchronize);
    LOAD(cuCtxSynchronize);
    LOAD(cuMemcpyDtoH);
    static uint64_t host[MOST_TIMES];
    static CUevent events[2];
    if (!times) {
        CHECK(cuMemAlloc_(&times, sizeof host));
        CHECK(cuEventCreate_(&events[0], CU_EVENT_DISABLE_TIMING));
        CHECK(cuEventCreate_(&events[1], CU_EVENT_DISABLE_TIMING));
    }
    uint64_t place = 0, cycles = 60000;
    void *parameters[] = {&times, &place, &cycles};
    double end = now_ms() + limit_ms;
    /* One batch runs while the next is queued. */
    for (int batch = 0; now_ms() < end && place + BATCH <= MOST_TIMES; ++batch) {
        for (int i = 0; i < BATCH; ++i, ++place)
            CHECK(cuLaunchKernel_(stamp, 16, 1, 1, 64, 1, 1, 0, alone, parameters, NULL));
        CHECK(cuEventRecord_(events[batch % 2], alone));
        if (batch > 0)
            CHECK(cuEventSynchronize_(events[(batch + 1) % 2]));
    }
    CHECK(cuCtxSynchronize_());
    CHECK(cuMemcpyDtoH_(host, times, place * 8));
    uint64_t longest = 0, sum = 0;
    for (uint64_t i = 1; i < place; ++i) {
        uint64_t gap = host[i] > host[i - 1] ? host[i] - host[i - 1] : 0;
        sum += gap;
        longest = gap > longest ? gap : longest;
    }
    printf("kernels %llu mean_us %.1f longest_us %.1f\n", (unsigned long long)place, place > 1 ? sum / 1e3 / (double)(place - 1) : 0.0,
           longest / 1e3);
}

int main(int count, char **arguments) {
    library = open_library();
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuCtxSetCurrent);
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&primary, device));
    CHECK(cuCtxSetCurrent_(primary));
    prepare(count == 3 && strcmp(arguments[1], "affinity") == 0 ? atoi(arguments[2]) : 0);
    char line[256];
    int number;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "seen", 4) == 0)
            see();
        else if (sscanf(line, "chain %d", &number) == 1)
            chain(number);
        else if (sscanf(line, "graph %d", &number) == 1)
            make_graph(number);
        else if (sscanf(line, "occupy %d", &number) == 1)
            printf("%d\n", (int)cooperate(resident(number)));
        else if (strncmp(line, "cooperate", 9) == 0)
            printf("%d %d\n", (int)cooperate(resident(told())), (int)cooperate(resident(told()) + 1));
        else if (sscanf(line, "gaps %d", &number) == 1)
            gaps(number);
        else
            printf("no such order: %s", line);
    }
    return 0;
}
