/* Memory that graphs allocate: nodes that follow each other have the same addresses, branches do not, and every word is right whoever had
 * its memory before. Captured allocations do the same. */
#include "check.h"
#include "kernels.h"

enum { WORDS = 256, SLOTS = 16 };
#define MIB (1ull << 20)

static const char code[] = PTX_HEAD PTX_ADD;

static CUcontext context;
static CUstream stream;
static CUfunction add;
/* Where graphs leave what they found: WORDS each. */
static CUdeviceptr slots;
static uint64_t checksum;

static CUgraph new_graph(void) {
    CUgraph graph;
    CALL(cuGraphCreate, &graph, 0);
    return graph;
}

static CUgraphNode allocate(CUgraph graph, size_t size, CUdeviceptr *address, const CUgraphNode *after, size_t count) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.bytesize = size;
    CALL(cuGraphAddMemAllocNode, &node, graph, after, count, &wanted);
    *address = wanted.dptr;
    REQUIRE(*address % 256 == 0);
    return node;
}

static CUgraphNode release(CUgraph graph, CUdeviceptr address, CUgraphNode after) {
    CUgraphNode node;
    CALL(cuGraphAddMemFreeNode, &node, graph, &after, 1, address);
    return node;
}

/* Fills the end of the memory with `value`, adds `by` in a kernel, and copies it to a slot. */
static CUgraphNode work(CUgraph graph, CUdeviceptr memory, size_t size, uint32_t value, uint32_t by, int slot, CUgraphNode after) {
    CUgraphNode fill, kernel, copy;
    CUdeviceptr words = memory + size - 4 * WORDS;
    CUDA_MEMSET_NODE_PARAMS set = {.dst = words, .value = value, .elementSize = 4, .width = WORDS, .height = 1};
    CALL(cuGraphAddMemsetNode, &fill, graph, &after, 1, &set, context);
    void *arguments[] = {&words, &by};
    CUDA_KERNEL_NODE_PARAMS launch = {.func = add, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS, .blockDimY = 1,
                                      .blockDimZ = 1, .kernelParams = arguments};
    CALL(cuGraphAddKernelNode, &kernel, graph, &fill, 1, &launch);
    CUDA_MEMCPY3D moved;
    memset(&moved, 0, sizeof moved);
    moved.srcMemoryType = moved.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    moved.srcDevice = words;
    moved.dstDevice = slots + slot * 4 * WORDS;
    moved.WidthInBytes = 4 * WORDS;
    moved.Height = moved.Depth = 1;
    CALL(cuGraphAddMemcpyNode, &copy, graph, &kernel, 1, &moved, context);
    return copy;
}

static CUgraphExec instantiate(CUgraph graph, unsigned flags) {
    CUgraphExec executable;
    CALL(cuGraphInstantiateWithFlags, &executable, graph, flags);
    return executable;
}

/* Whether all words of a slot are `expected`. */
static int holds(int slot, uint32_t expected) {
    uint32_t words[WORDS];
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH_v2, words, slots + slot * 4 * WORDS, sizeof words);
    for (int i = 0; i < WORDS; ++i) {
        checksum = mix(checksum, words[i]);
        if (words[i] != expected) {
            fprintf(stderr, "slot %d, word %d: %u instead of %u\n", slot, i, words[i], expected);
            return 0;
        }
    }
    return 1;
}

static int is_apart(CUdeviceptr one, size_t one_size, CUdeviceptr other, size_t other_size) {
    return one + one_size <= other || other + other_size <= one;
}

static cuuint64_t attribute(CUgraphMem_attribute asked) {
    cuuint64_t value = ~0ull;
    CALL(cuDeviceGetGraphMemAttribute, 0, asked, &value);
    return value;
}

/* Memory of graphs is known, from its own beginning on, while it is allocated. */
static void require_known(CUdeviceptr memory, size_t size) {
    CUdeviceptr base = 0, start = 0;
    size_t told = 0, length = 0;
    CALL(cuMemGetAddressRange_v2, &base, &told, memory + 100);
    REQUIRE(base == memory && told == size);
    CALL(cuPointerGetAttribute, &start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 100);
    CALL(cuPointerGetAttribute, &length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory + 100);
    REQUIRE(start == memory && length == size);
}

static void require_unknown(CUdeviceptr memory) {
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned type = 0;
    REFUSED(CUDA_ERROR_NOT_FOUND, FUNCTION(cuMemGetAddressRange_v2, "")(&base, &size, memory + 100));
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuPointerGetAttribute, "")(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory));
}

static void forget_memory(void) {
    cuuint64_t zero = 0;
    CALL(cuDeviceGraphMemTrim, 0);
    CALL(cuDeviceSetGraphMemAttribute, 0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero);
}

/* One after the other, with the same size: one address, and memory for one. */
static void chain(void) {
    enum { LINKS = 6 };
    size_t size = 64 * MIB;
    CUgraph graph = new_graph();
    CUgraphNode last;
    CUdeviceptr first = 0;
    forget_memory();
    for (int link = 0; link < LINKS; ++link) {
        CUdeviceptr memory;
        last = allocate(graph, size, &memory, &last, link > 0);
        first = link ? first : memory;
        REQUIRE(memory == first);
        last = release(graph, memory, work(graph, memory, size, link, 100, link, last));
        CUdeviceptr told = 0;
        CALL(cuGraphMemFreeNodeGetParams, last, &told);
        REQUIRE(told == memory);
    }
    CUgraphExec executable = instantiate(graph, 0);
    REQUIRE(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    for (int launch = 0; launch < 3; ++launch) {
        CALL(cuMemsetD32Async, slots, 0, SLOTS * WORDS, stream);
        CALL(cuGraphLaunch, executable, stream);
        for (int link = 0; link < LINKS; ++link) {
            REQUIRE(holds(link, link + 100));
        }
    }
    /* What it has freed counts until it is trimmed. */
    cuuint64_t used = attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), most = attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
    REQUIRE(used >= size && used < 2 * size);
    REQUIRE(most >= size && most < 2 * size);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
    forget_memory();
    REQUIRE(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
    REQUIRE(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
}

/* Branches that may run at once do not share, also where one has freed its memory before the other's node is added. */
static void branches(void) {
    size_t size = 4 * MIB;
    CUgraph graph = new_graph();
    CUgraphNode root, ends[3];
    CUdeviceptr memory[4];
    CALL(cuGraphAddEmptyNode, &root, graph, NULL, 0);
    for (int branch = 0; branch < 3; ++branch) {
        CUgraphNode node = allocate(graph, size, &memory[branch], &root, 1);
        ends[branch] = release(graph, memory[branch], work(graph, memory[branch], size, branch, 10, branch, node));
        for (int other = 0; other < branch; ++other) {
            REQUIRE(is_apart(memory[branch], size, memory[other], size));
        }
    }
    /* After two of the three. */
    CUgraphNode node = allocate(graph, size, &memory[3], ends, 2);
    REQUIRE(is_apart(memory[3], size, memory[2], size));
    REQUIRE(memory[3] == memory[0] || memory[3] == memory[1]);
    release(graph, memory[3], work(graph, memory[3], size, 3, 10, 3, node));
    CUgraphExec executable = instantiate(graph, 0);
    for (int launch = 0; launch < 20; ++launch) {
        CALL(cuMemsetD32Async, slots, 0, SLOTS * WORDS, stream);
        CALL(cuGraphLaunch, executable, stream);
        for (int branch = 0; branch < 4; ++branch) {
            REQUIRE(holds(branch, branch + 10));
        }
    }
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
}

/* Several small ones after a large one, all there at once, and a larger one after them. */
static void sizes(void) {
    enum { SMALL = 5 };
    static const size_t small[SMALL] = {MIB, 4 * WORDS, 2 * MIB, 3 * MIB + 1024, 4 * WORDS};
    size_t large = 8 * MIB, larger = 12 * MIB;
    CUgraph graph = new_graph();
    CUdeviceptr memory[SMALL + 2];
    CUgraphNode node = allocate(graph, large, &memory[SMALL], NULL, 0), ends[SMALL], nodes[SMALL], join;
    node = release(graph, memory[SMALL], work(graph, memory[SMALL], large, 7, 1, SMALL, node));
    for (int i = 0; i < SMALL; ++i) {
        nodes[i] = allocate(graph, small[i], &memory[i], &node, 1);
        for (int other = 0; other < i; ++other) {
            REQUIRE(is_apart(memory[i], small[i], memory[other], small[other]));
        }
    }
    CALL(cuGraphAddEmptyNode, &join, graph, nodes, SMALL);
    for (int i = 0; i < SMALL; ++i) {
        CUgraphNode done = work(graph, memory[i], small[i], i, 20, i, join);
        ends[i] = release(graph, memory[i], done);
    }
    node = allocate(graph, larger, &memory[SMALL + 1], ends, SMALL);
    release(graph, memory[SMALL + 1], work(graph, memory[SMALL + 1], larger, 8, 1, SMALL + 1, node));
    CUgraphExec executable = instantiate(graph, 0);
    for (int launch = 0; launch < 3; ++launch) {
        CALL(cuMemsetD32Async, slots, 0, SLOTS * WORDS, stream);
        CALL(cuGraphLaunch, executable, stream);
        for (int i = 0; i < SMALL; ++i) {
            REQUIRE(holds(i, i + 20));
        }
        REQUIRE(holds(SMALL, 8) && holds(SMALL + 1, 9));
    }
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
}

/* What the graph does not free stays, and is the program's, another graph's or the next launch's to free. */
static void left_behind(void) {
    size_t size = 2 * MIB;
    CUgraph graph = new_graph(), other = new_graph();
    CUdeviceptr first, kept, beside;
    CUgraphNode node = allocate(graph, size, &first, NULL, 0);
    node = release(graph, first, work(graph, first, size, 1, 1, 0, node));
    node = allocate(graph, size, &kept, &node, 1);
    REQUIRE(kept == first);
    node = work(graph, kept, size, 5, 1, 1, node);
    node = allocate(graph, size, &beside, &node, 1);
    REQUIRE(is_apart(kept, size, beside, size));
    release(graph, beside, work(graph, beside, size, 9, 1, 2, node));
    CUgraphNode freed;
    CALL(cuGraphAddMemFreeNode, &freed, other, NULL, 0, kept);
    CUgraphExec executable = instantiate(graph, 0), frees = instantiate(other, 0);
    require_unknown(kept);
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuGraphLaunch, "")(frees, stream));
    for (int launch = 0; launch < 3; ++launch) {
        CALL(cuGraphLaunch, executable, stream);
        REQUIRE(holds(0, 2) && holds(1, 6) && holds(2, 10));
        REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuGraphLaunch, "")(executable, stream));
        uint32_t word = 0;
        CALL(cuMemcpyDtoH_v2, &word, kept + size - 4, 4);
        REQUIRE(word == 6);
        require_known(kept, size);
        CALL(cuDeviceGraphMemTrim, 0);
        REQUIRE(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= size);
        switch (launch) {
        case 0:
            CALL(cuMemFreeAsync, kept, stream);
            break;
        case 1:
            CALL(cuGraphLaunch, frees, stream);
            break;
        default:
            CALL(cuMemFree_v2, kept);
        }
        CALL(cuStreamSynchronize, stream);
        require_unknown(kept);
    }
    CALL(cuGraphExecDestroy, executable);
    executable = instantiate(graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int launch = 0; launch < 3; ++launch) {
        CALL(cuGraphLaunch, executable, stream);
        REQUIRE(holds(0, 2) && holds(1, 6) && holds(2, 10));
    }
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphExecDestroy, frees);
    CALL(cuGraphDestroy, graph);
    CALL(cuGraphDestroy, other);
    /* It outlives its graph. */
    uint32_t word = 0;
    CALL(cuMemcpyDtoH_v2, &word, kept + size - 4, 4);
    REQUIRE(word == 6);
    CALL(cuMemFree_v2, kept);
}

/* Captured allocations, in two streams: a stream's later ones share, the other stream's do not. */
static void captured(void) {
    size_t size = 4 * MIB;
    CUstream second;
    CUevent fork, join;
    CUdeviceptr memory[4];
    CALL(cuStreamCreate, &second, CU_STREAM_NON_BLOCKING);
    CALL(cuEventCreate, &fork, CU_EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &join, CU_EVENT_DISABLE_TIMING);
    CALL(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    CALL(cuEventRecord, fork, stream);
    CALL(cuStreamWaitEvent, second, fork, 0);
    CUstream in[] = {stream, second, stream, second};
    uint32_t by = 30;
    for (uint32_t i = 0; i < 4; ++i) {
        CALL(cuMemAllocAsync, &memory[i], size, in[i]);
        CUdeviceptr words = memory[i] + size - 4 * WORDS;
        void *arguments[] = {&words, &by};
        CALL(cuMemsetD32Async, words, i, WORDS, in[i]);
        CALL(cuLaunchKernel, add, 1, 1, 1, WORDS, 1, 1, 0, in[i], arguments, NULL);
        CALL(cuMemcpyDtoDAsync_v2, slots + i * 4 * WORDS, words, 4 * WORDS, in[i]);
        CALL(cuMemFreeAsync, memory[i], in[i]);
        /* A second time it is refused, and the capture goes on. */
        REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuMemFreeAsync, "")(memory[i], in[i]));
    }
    CALL(cuEventRecord, join, second);
    CALL(cuStreamWaitEvent, stream, join, 0);
    CUgraph graph;
    CALL(cuStreamEndCapture, stream, &graph);
    REQUIRE(memory[0] == memory[2] && memory[1] == memory[3]);
    REQUIRE(is_apart(memory[0], size, memory[1], size));
    CUgraphExec executable = instantiate(graph, 0);
    for (int launch = 0; launch < 20; ++launch) {
        CALL(cuMemsetD32Async, slots, 0, SLOTS * WORDS, stream);
        CALL(cuGraphLaunch, executable, stream);
        for (int i = 0; i < 4; ++i) {
            REQUIRE(holds(i, i + 30));
        }
    }
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
    CALL(cuEventDestroy_v2, fork);
    CALL(cuEventDestroy_v2, join);
    CALL(cuStreamDestroy_v2, second);
}

/* Graphs that are there at once have addresses of their own, though they do the same. */
static void graphs_apart(void) {
    enum { GRAPHS = 4 };
    size_t size = 2 * MIB;
    CUgraphExec executables[GRAPHS];
    CUdeviceptr memory[GRAPHS];
    for (int i = 0; i < GRAPHS; ++i) {
        CUgraph graph = new_graph();
        CUgraphNode node = allocate(graph, size, &memory[i], NULL, 0);
        release(graph, memory[i], work(graph, memory[i], size, i, 40, i, node));
        for (int other = 0; other < i; ++other) {
            REQUIRE(is_apart(memory[i], size, memory[other], size));
        }
        executables[i] = instantiate(graph, 0);
        CALL(cuGraphDestroy, graph);
    }
    for (int i = 0; i < GRAPHS; ++i) {
        CALL(cuGraphLaunch, executables[i], stream);
    }
    for (int i = 0; i < GRAPHS; ++i) {
        REQUIRE(holds(i, i + 40));
        CALL(cuGraphExecDestroy, executables[i]);
    }
}

int main(void) {
    CUmodule module;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &add, module, "add");
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc_v2, &slots, SLOTS * 4 * WORDS);
    chain();
    branches();
    sizes();
    left_behind();
    captured();
    graphs_apart();
    CALL(cuMemFree_v2, slots);
    CALL(cuStreamDestroy_v2, stream);
    CALL(cuDevicePrimaryCtxRelease_v2, 0);
    printf("graph_memory: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
