/* A client that is told by lines on its standard input what to do, and answers each with a line:
 *   make           makes one of everything that must outlive another client's fault: `ok`
 *   check          works with all of it and compares every word with the CPU's: `ok`, or what is wrong
 *   variable       the same with a variable of its code, which it counts up: `ok`
 *   fault KIND     runs a kernel that faults: address, misaligned, trap, assert, stack, shared; `error N`
 *   record         records two events with times and waits for them: `ok`
 *   elapsed        asks for the time between them: `ok` or `error N`
 *   ready          makes what the next ones need: `ok`
 *   begin          starts work that ends when it is told to, and waits until its kernel runs: `ok`
 *   started again  waits until its kernel has started once more: `ok`
 *   end            lets it end, compares its results: `runs N ticks M`, how often the kernel and the one before it have run, or `error N`
 *   ambush         starts a kernel that traps when it is told to: `ok`
 *   spring         tells it to: `error N`
 *   spin           starts a kernel that never ends, and waits until it runs: `ok`
 *   sync           waits for everything: `ok` or `error N`
 *   large A B M S  A allocations of B bytes, M modules with a kernel each, S streams, beside what it has: `ok`
 *   reset          resets its primary context, makes everything anew and checks it: `ok`
 */
#include "orders.h"

#define ASSERTION "one == two"

static const char kernels_ptx[] =
    ".version 6.4\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".extern .func __assertfail(.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size);\n"
    STEP_KERNEL
    ".visible .entry write(.param .u64 address)\n"
    "{\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [address];\n"
    "    st.global.u32 [%rd0], 1;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry trap_(.param .u64 address)\n"
    "{\n"
    "    trap;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry shared_(.param .u64 offset)\n"
    "{\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [offset];\n"
    "    st.shared.u32 [%rd0], 1;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry assert_(.param .u64 text)\n"
    "{\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [text];\n"
    "    {\n"
    "    .param .b64 message;\n"
    "    .param .b64 file;\n"
    "    .param .b32 line;\n"
    "    .param .b64 function;\n"
    "    .param .b64 size;\n"
    "    st.param.b64 [message], %rd0;\n"
    "    st.param.b64 [file], %rd0;\n"
    "    st.param.b32 [line], 7;\n"
    "    st.param.b64 [function], %rd0;\n"
    "    st.param.b64 [size], 1;\n"
    "    call.uni __assertfail, (message, file, line, function, size);\n"
    "    }\n"
    "    ret;\n"
    "}\n"
    ".func (.param .b32 sum) deep(.param .b32 count)\n"
    "{\n"
    "    .local .align 16 .b8 frame[1024];\n"
    "    .reg .b32 %r<4>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u32 %r0, [count];\n"
    "    mov.u64 %rd0, frame;\n"
    "    st.local.u32 [%rd0], %r0;\n"
    "    add.u32 %r1, %r0, 1;\n"
    "    {\n"
    "    .param .b32 into;\n"
    "    .param .b32 from;\n"
    "    st.param.b32 [from], %r1;\n"
    "    call (into), deep, (from);\n"
    "    ld.param.b32 %r2, [into];\n"
    "    }\n"
    "    ld.local.u32 %r0, [%rd0];\n"
    "    add.u32 %r2, %r2, %r0;\n"
    "    st.param.b32 [sum], %r2;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry stack_(.param .u64 into)\n"
    "{\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [into];\n"
    "    {\n"
    "    .param .b32 into_;\n"
    "    .param .b32 from;\n"
    "    st.param.b32 [from], 1;\n"
    "    call (into_), deep, (from);\n"
    "    ld.param.b32 %r0, [into_];\n"
    "    }\n"
    "    st.global.u32 [%rd0], %r0;\n"
    "    ret;\n"
    "}\n"
    /* Words of `state`: 0 lets `gated` go on and `ambush` trap, 1 counts starts of `gated`, 2 those of `tick`. */
    ".visible .entry tick(.param .u64 state)\n"
    "{\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [state];\n"
    "    ld.volatile.global.u32 %r0, [%rd0+8];\n"
    "    add.u32 %r0, %r0, 1;\n"
    "    st.volatile.global.u32 [%rd0+8], %r0;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry gated(.param .u64 state, .param .u64 values)\n"
    "{\n"
    "    .reg .pred %p;\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [state];\n"
    "    ld.param.u64 %rd1, [values];\n"
    "    ld.volatile.global.u32 %r0, [%rd0+4];\n"
    "    add.u32 %r0, %r0, 1;\n"
    "    st.volatile.global.u32 [%rd0+4], %r0;\n"
    "WAIT:\n"
    "    ld.volatile.global.u32 %r0, [%rd0];\n"
    "    setp.ne.u32 %p, %r0, 12345;\n"
    "    @%p bra WAIT;\n"
    "    ld.global.u32 %r0, [%rd1];\n"
    "    mad.lo.u32 %r0, %r0, 3, 7;\n"
    "    st.global.u32 [%rd1+4], %r0;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry after(.param .u64 state, .param .u64 values)\n"
    "{\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [values];\n"
    "    ld.global.u32 %r0, [%rd1+4];\n"
    "    mad.lo.u32 %r0, %r0, 5, 1;\n"
    "    st.global.u32 [%rd1+8], %r0;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry ambush(.param .u64 state)\n"
    "{\n"
    "    .reg .pred %p;\n"
    "    .reg .b32 %r<2>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd0, [state];\n"
    "    st.volatile.global.u32 [%rd0+4], 1;\n"
    "LURK:\n"
    "    ld.volatile.global.u32 %r0, [%rd0];\n"
    "    setp.ne.u32 %p, %r0, 12345;\n"
    "    @%p bra LURK;\n"
    "    trap;\n"
    "    ret;\n"
    "}\n";

static const char variable_ptx[] = ".version 6.4\n"
                                   ".target sm_50\n"
                                   ".address_size 64\n"
                                   ".visible .global .align 4 .u32 counter = 100;\n"
                                   ".visible .entry count(.param .u64 into)\n"
                                   "{\n"
                                   "    .reg .b32 %r<2>;\n"
                                   "    .reg .b64 %rd<2>;\n"
                                   "    ld.param.u64 %rd0, [into];\n"
                                   "    ld.global.u32 %r0, [counter];\n"
                                   "    add.u32 %r0, %r0, 1;\n"
                                   "    st.global.u32 [counter], %r0;\n"
                                   "    st.global.u32 [%rd0], %r0;\n"
                                   "    ret;\n"
                                   "}\n";

enum { ROWS = 4, WIDTH = 96 };

/* Device memory whose words the CPU knows. */
struct Known {
    CUdeviceptr device;
    uint32_t words[ELEMENTS];
};

static struct Known plain, pooled, pinned, managed, of_graph, of_node, numbered, unnumbered, of_pool;
/* Addresses without memory, and memory that is mapped at the second or the third granule of them. */
static CUdeviceptr addresses;
static size_t granule_bytes;
static CUmemGenericAllocationHandle piece;
static CUmemoryPool pool;
static CUdevice device;
static CUcontext context;
static CUmodule module;
static CUfunction step;
static CUstream streams[2];
static CUevent recorded;
static CUgraphExec executable;
static CUdeviceptr pitched;
static size_t pitch_bytes;
static CUmodule with_variable;
static CUfunction count_up;
static uint32_t counted;

static void open_context(void) {
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, kernels_ptx);
    CALL(cuModuleGetFunction, &step, module, "step");
}

static void fill(struct Known *known, uint32_t seed) {
    for (uint32_t i = 0; i < ELEMENTS; ++i) {
        known->words[i] = (i + seed) * 2654435761u;
    }
    CALL(cuMemcpyHtoD, known->device, known->words, sizeof known->words);
}

static void foresee(struct Known *known) {
    for (uint32_t i = 0; i < ELEMENTS; ++i) {
        known->words[i] = known->words[i] * 3 + i;
    }
}

static void launch_step(struct Known *known, CUstream stream) {
    void *parameters[] = {&known->device};
    CALL(cuLaunchKernel, step, ELEMENTS / BLOCK_THREADS, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, parameters, NULL);
}

static int is_right(const struct Known *known) {
    static uint32_t words[ELEMENTS];
    CALL(cuMemcpyDtoH, words, known->device, sizeof words);
    return memcmp(words, known->words, sizeof words) == 0;
}

/* Maps memory at a granule of the addresses. */
static CUdeviceptr map_at(int granule, CUmemGenericAllocationHandle memory) {
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = addresses + granule * granule_bytes;
    CALL(cuMemMap, at, granule_bytes, 0, memory, 0);
    CALL(cuMemSetAccess, at, granule_bytes, &access, 1);
    return at;
}

static void make_virtual(void) {
    CUmemGenericAllocationHandle released;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemPoolProps of = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CALL(cuMemGetAllocationGranularity, &granule_bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CALL(cuMemAddressReserve, &addresses, 3 * granule_bytes, 0, 0, 0);
    CALL(cuMemCreate, &released, granule_bytes, &properties, 0);
    unnumbered.device = map_at(0, released);
    CALL(cuMemRelease, released);
    CALL(cuMemCreate, &piece, granule_bytes, &properties, 0);
    numbered.device = map_at(1, piece);
    CALL(cuMemPoolCreate, &pool, &of);
    CALL(cuMemAllocFromPoolAsync, &of_pool.device, sizeof of_pool.words, pool, streams[0]);
    CALL(cuStreamSynchronize, streams[0]);
}

/* Moves memory to another address. */
static void remap(void) {
    CALL(cuMemUnmap, numbered.device, granule_bytes);
    numbered.device = map_at(numbered.device == addresses + granule_bytes ? 2 : 1, piece);
}

/* Works on the words of `of_graph` in memory of the captured graph's own; returns its address. */
static CUdeviceptr step_aside(void) {
    CUdeviceptr aside = 0;
    CALL(cuMemAllocAsync, &aside, sizeof of_graph.words, streams[0]);
    CALL(cuMemcpyDtoDAsync, aside, of_graph.device, sizeof of_graph.words, streams[0]);
    launch_step(&(struct Known){.device = aside}, streams[0]);
    CALL(cuMemcpyDtoDAsync, of_graph.device, aside, sizeof of_graph.words, streams[0]);
    CALL(cuMemFreeAsync, aside, streams[0]);
    return aside;
}

/* Memory that a graph has allocated and left. */
static void allocate_in_graph(void) {
    CUgraph graph;
    CUgraphExec once;
    CALL(cuStreamBeginCapture, streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    CALL(cuMemAllocAsync, &of_node.device, sizeof of_node.words, streams[0]);
    CALL(cuStreamEndCapture, streams[0], &graph);
    CALL(cuGraphInstantiate, &once, graph, 0);
    CALL(cuGraphLaunch, once, streams[0]);
    CALL(cuStreamSynchronize, streams[0]);
    CALL(cuGraphExecDestroy, once);
    CALL(cuGraphDestroy, graph);
}

static void make(void) {
    void *host;
    int least, greatest;
    CUgraph graph;
    CALL(cuMemAlloc, &plain.device, sizeof plain.words);
    CALL(cuMemAlloc, &of_graph.device, sizeof plain.words);
    CALL(cuMemHostAlloc, &host, sizeof plain.words, CU_MEMHOSTALLOC_DEVICEMAP);
    pinned.device = (CUdeviceptr)(uintptr_t)host;
    CALL(cuMemAllocManaged, &managed.device, sizeof plain.words, CU_MEM_ATTACH_GLOBAL);
    CALL(cuMemAllocPitch, &pitched, &pitch_bytes, WIDTH, ROWS, 4);
    CALL(cuCtxGetStreamPriorityRange, &least, &greatest);
    CALL(cuStreamCreate, &streams[0], CU_STREAM_NON_BLOCKING);
    CALL(cuStreamCreateWithPriority, &streams[1], CU_STREAM_DEFAULT, greatest);
    CALL(cuMemAllocAsync, &pooled.device, sizeof plain.words, streams[0]);
    CALL(cuStreamSynchronize, streams[0]);
    allocate_in_graph();
    make_virtual();
    struct Known *all[] = {&plain, &pooled, &pinned, &managed, &of_graph, &of_node, &numbered, &unnumbered, &of_pool};
    for (uint32_t i = 0; i < sizeof all / sizeof *all; ++i) {
        fill(all[i], i * 77);
    }
    CALL(cuMemsetD2D8, pitched, pitch_bytes, 0x5a, WIDTH, ROWS);
    CALL(cuEventCreate, &recorded, CU_EVENT_DISABLE_TIMING);
    CALL(cuFuncSetAttribute, step, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096);
    CALL(cuStreamBeginCapture, streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    REQUIRE(step_aside() == step_aside());
    launch_step(&of_graph, streams[0]);
    CALL(cuStreamEndCapture, streams[0], &graph);
    CALL(cuGraphInstantiate, &executable, graph, 0);
    CALL(cuGraphDestroy, graph);
    CALL(cuEventRecord, recorded, streams[1]);
    CALL(cuCtxSynchronize);
}

static const char *check(void) {
    int shared_bytes;
    uint8_t rows[ROWS][WIDTH];
    if (FUNCTION(cuEventQuery, "")(recorded) != CUDA_SUCCESS) {
        return "the event is not reached any more";
    }
    CALL(cuFuncGetAttribute, &shared_bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, step);
    launch_step(&plain, streams[0]);
    CALL(cuEventRecord, recorded, streams[0]);
    CALL(cuStreamWaitEvent, streams[1], recorded, 0);
    launch_step(&plain, streams[1]);
    launch_step(&pooled, streams[1]);
    launch_step(&pinned, NULL);
    launch_step(&managed, NULL);
    launch_step(&numbered, NULL);
    launch_step(&unnumbered, NULL);
    launch_step(&of_pool, NULL);
    launch_step(&of_node, NULL);
    CALL(cuGraphLaunch, executable, streams[0]);
    CALL(cuCtxSynchronize);
    foresee(&plain);
    foresee(&plain);
    foresee(&pooled);
    foresee(&pinned);
    foresee(&managed);
    foresee(&numbered);
    foresee(&unnumbered);
    foresee(&of_pool);
    foresee(&of_node);
    remap();
    foresee(&of_graph);
    foresee(&of_graph);
    foresee(&of_graph);
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = pitched,
                          .srcPitch = pitch_bytes,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = rows,
                          .dstPitch = WIDTH,
                          .WidthInBytes = WIDTH,
                          .Height = ROWS};
    CALL(cuMemcpy2D, &copy);
    for (int i = 0; i < ROWS * WIDTH; ++i) {
        if (((uint8_t *)rows)[i] != 0x5a) {
            return "pitched memory";
        }
    }
    if (shared_bytes != 4096) {
        return "the function's attribute";
    }
    if (memcmp((void *)(uintptr_t)pinned.device, pinned.words, sizeof pinned.words) != 0) {
        return "pinned memory, as the host sees it";
    }
    return !is_right(&plain)      ? "plain memory"
           : !is_right(&pooled)   ? "memory of a pool"
           : !is_right(&pinned)   ? "pinned memory"
           : !is_right(&managed)  ? "managed memory"
           : !is_right(&numbered) ? "memory that was mapped"
           : !is_right(&unnumbered) ? "memory that only its mapping holds"
           : !is_right(&of_pool)  ? "memory of a pool of its own"
           : !is_right(&of_graph) ? "memory that a graph works on"
           : !is_right(&of_node)  ? "memory that a graph has allocated"
                                  : "ok";
}

/* Counts a variable of its code up, and compares. */
static const char *variable(void) {
    static CUdeviceptr into;
    uint32_t seen = 0;
    if (!with_variable) {
        CALL(cuModuleLoadData, &with_variable, variable_ptx);
        CALL(cuModuleGetFunction, &count_up, with_variable, "count");
        CALL(cuMemAlloc, &into, sizeof seen);
        counted = 100;
    }
    void *parameters[] = {&into};
    CALL(cuLaunchKernel, count_up, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    CALL(cuMemcpyDtoH, &seen, into, sizeof seen);
    return seen == ++counted ? "ok" : "the variable has another value";
}

/* A large session. Its last allocation and its last module's kernel are those that `check` uses. */
static void make_large(unsigned allocations, size_t bytes, unsigned modules, unsigned many_streams) {
    CUdeviceptr memory = 0;
    for (unsigned i = 0; i < allocations; ++i) {
        CALL(cuMemAlloc, &memory, bytes);
    }
    for (unsigned i = 0; i < modules; ++i) {
        char text[sizeof step_ptx + 64];
        snprintf(text, sizeof text, "%s// module %u\n", step_ptx, i);
        CALL(cuModuleLoadData, &module, text);
        CALL(cuModuleGetFunction, &step, module, "step");
    }
    CALL(cuFuncSetAttribute, step, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 4096);
    for (unsigned i = 0; i < many_streams; ++i) {
        CUstream stream;
        CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    }
    if (memory && bytes >= sizeof plain.words) {
        plain.device = memory + bytes - sizeof plain.words;
        fill(&plain, 5);
    }
    CALL(cuCtxSynchronize);
}

static CUevent timed[2];

static void record_times(void) {
    for (int i = 0; i < 2; ++i) {
        if (!timed[i]) {
            CALL(cuEventCreate, &timed[i], CU_EVENT_DEFAULT);
        }
        CALL(cuEventRecord, timed[i], streams[0]);
    }
    CALL(cuCtxSynchronize);
}

static CUresult run_kernel(const char *name, uint64_t word) {
    CUfunction function;
    void *parameters[] = {&word};
    CALL(cuModuleGetFunction, &function, module, name);
    return FUNCTION(cuLaunchKernel, "")(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

static CUresult fault(const char *kind) {
    CUdeviceptr memory;
    CALL(cuMemAlloc, &memory, 4096);
    CALL(cuMemsetD8, memory, 'x', 16);
    CALL(cuMemsetD8, memory + 16, 0, 16);
    CUresult launched = CUDA_ERROR_INVALID_VALUE;
    if (strcmp(kind, "address") == 0) {
        launched = run_kernel("write", 0x10);
    } else if (strcmp(kind, "misaligned") == 0) {
        launched = run_kernel("write", memory + 1);
    } else if (strcmp(kind, "trap") == 0) {
        launched = run_kernel("trap_", 0);
    } else if (strcmp(kind, "assert") == 0) {
        /* Message, file and function. */
        CALL(cuMemcpyHtoD, memory, ASSERTION, sizeof ASSERTION);
        launched = run_kernel("assert_", memory);
    } else if (strcmp(kind, "stack") == 0) {
        launched = run_kernel("stack_", memory);
    } else if (strcmp(kind, "shared") == 0) {
        launched = run_kernel("shared_", 1 << 22);
    }
    return launched != CUDA_SUCCESS ? launched : FUNCTION(cuCtxSynchronize, "")();
}

/* What host and kernels share, and the memory that kernels work on: words 0, 1, 2 are the value, and what `gated` and `after` make of it. */
static volatile uint32_t *state;
static CUdeviceptr worked_on;
static uint32_t *came_back;

/* Loaded before they are needed: code is loaded when no kernel runs. */
static CUfunction tick, gated, after, ambush;
static CUevent behind;

static CUresult launch_on(CUstream stream, CUfunction function) {
    CUdeviceptr shared = (CUdeviceptr)(uintptr_t)state;
    void *parameters[] = {&shared, &worked_on};
    return FUNCTION(cuLaunchKernel, "")(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void wait_for_start(void) {
    while (state[1] == 0) {
        usleep(1000);
    }
}

static void ready(void) {
    void *host;
    CALL(cuMemHostAlloc, &host, 8192, CU_MEMHOSTALLOC_DEVICEMAP);
    memset(host, 0, 8192);
    state = host;
    came_back = (uint32_t *)host + 1024;
    CALL(cuModuleGetFunction, &tick, module, "tick");
    CALL(cuModuleGetFunction, &gated, module, "gated");
    CALL(cuModuleGetFunction, &after, module, "after");
    CALL(cuModuleGetFunction, &ambush, module, "ambush");
    CALL(cuEventCreate, &behind, CU_EVENT_DISABLE_TIMING);
    CALL(cuMemAlloc, &worked_on, 4096);
}

/* On one stream a fill, kernels and an event; on another, behind that event, a copy. */
static void begin(void) {
    CALL(cuMemsetD32Async, worked_on, 1000, 1, streams[0]);
    launch_on(streams[0], tick);
    launch_on(streams[0], gated);
    launch_on(streams[0], after);
    CALL(cuMemsetD32Async, worked_on + 12, 77, 1, streams[0]);
    CALL(cuEventRecord, behind, streams[0]);
    CALL(cuStreamWaitEvent, streams[1], behind, 0);
    CALL(cuMemcpyAsync, (CUdeviceptr)(uintptr_t)came_back, worked_on, 16, streams[1]);
    wait_for_start();
    // All of it is submitted: this is answered behind it.
    size_t free_bytes, all_bytes;
    CALL(cuMemGetInfo, &free_bytes, &all_bytes);
}

static void large(const char *rest) {
    unsigned allocations, modules, many_streams;
    size_t bytes;
    REQUIRE(sscanf(rest, "%u %zu %u %u", &allocations, &bytes, &modules, &many_streams) == 4);
    make_large(allocations, bytes, modules, many_streams);
}

static const char *elapsed(void) {
    static char text[32];
    float milliseconds = -1;
    CUresult result = FUNCTION(cuEventElapsedTime, "")(&milliseconds, timed[0], timed[1]);
    if (result != CUDA_SUCCESS) {
        snprintf(text, sizeof text, "error %d", (int)result);
        return text;
    }
    return milliseconds < 0 ? "a time below zero" : "ok";
}

static void started_again(void) {
    static uint32_t seen = 1;
    while (state[1] == seen) {
        usleep(1000);
    }
    seen = state[1];
}

static const char *end(void) {
    static char text[64];
    state[0] = 12345;
    CUresult result = synchronize();
    if (result != CUDA_SUCCESS) {
        snprintf(text, sizeof text, "error %d", (int)result);
    } else if (came_back[0] != 1000 || came_back[1] != 3007 || came_back[2] != 15036 || came_back[3] != 77) {
        return "wrong results";
    } else {
        snprintf(text, sizeof text, "runs %u ticks %u", state[1], state[2]);
    }
    return text;
}

static CUresult lurk(void) {
    CUresult launched = launch_on(streams[0], ambush);
    if (launched == CUDA_SUCCESS) {
        wait_for_start();
    }
    return launched;
}

static CUresult spring(void) {
    state[0] = 12345;
    return synchronize();
}

static CUresult spin(void) {
    if (!state) {
        ready();
    }
    state[1] = 0;
    return lurk();
}

static const char *reset(void) {
    CALL(cuDevicePrimaryCtxReset, device);
    with_variable = NULL;
    state = NULL;
    open_context();
    make();
    return check();
}

int main(void) {
    static const struct Order orders[] = {
        {"make", .act = make},
        {"check", .say = check},
        {"variable", .say = variable},
        {"large", .act_on = large},
        {"fault", .try_on = fault},
        {"record", .act = record_times},
        {"elapsed", .say = elapsed},
        {"ready", .act = ready},
        {"begin", .act = begin},
        {"started again", .act = started_again},
        {"end", .say = end},
        {"ambush", .try = lurk},
        {"spring", .try = spring},
        {"spin", .try = spin},
        {"sync", .try = synchronize},
        {"reset", .say = reset},
    };
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    open_context();
    OBEY(orders);
    return 0;
}
