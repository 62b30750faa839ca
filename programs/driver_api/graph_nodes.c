/* Each kind of graph node by the driver API: added, asked, changed in the graph and in an executable one, in all versions. Every change is
 * seen in what the graph does. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"
#include "kernels.h"

#include <unistd.h>

enum { WORDS = 64, BYTES = 4 * WORDS };

static const char code[] = PTX_HEAD PTX_ADD;

static CUcontext context;
static CUstream stream;
static CUfunction add;
static CUdeviceptr words;
static uint32_t host[WORDS];

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec executable;
    CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
    return executable;
}

/* Launches, and returns a word of what is there then. */
static uint32_t launch(CUgraphExec executable, uint32_t start, int word) {
    CALL(cuMemsetD32_v2, words, start, WORDS);
    CALL(cuGraphLaunch, executable, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH_v2, host, words, BYTES);
    return host[word];
}

static uint32_t launch_new(CUgraph graph, uint32_t start, int word) {
    CUgraphExec executable = instantiate(graph);
    uint32_t got = launch(executable, start, word);
    CALL(cuGraphExecDestroy, executable);
    return got;
}

static void kernels(void) {
    CUgraph graph;
    CUgraphNode old_node, new_node;
    uint32_t one = 1, ten = 10;
    void *adds_one[] = {&words, &one}, *adds_ten[] = {&words, &ten};
    CUDA_KERNEL_NODE_PARAMS_v1 old = {.func = add, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS,
                                      .blockDimY = 1, .blockDimZ = 1, .kernelParams = adds_one}, old_told;
    CUDA_KERNEL_NODE_PARAMS_v2 new = {.func = add, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = WORDS,
                                      .blockDimY = 1, .blockDimZ = 1, .kernelParams = adds_ten}, new_told;
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddKernelNode, &old_node, graph, NULL, 0, &old);
    CALL(cuGraphAddKernelNode_v2, &new_node, graph, &old_node, 1, &new);
    CALL(cuGraphKernelNodeGetParams, old_node, &old_told);
    CALL(cuGraphKernelNodeGetParams_v2, new_node, &new_told);
    REQUIRE(old_told.blockDimX == WORDS && *(uint32_t *)old_told.kernelParams[1] == 1);
    REQUIRE(new_told.func == add && *(uint32_t *)new_told.kernelParams[1] == 10);
    REQUIRE(launch_new(graph, 100, 3) == 111);

    CUgraphExec executable = instantiate(graph);
    one = 2;
    ten = 20;
    CALL(cuGraphKernelNodeSetParams, old_node, &old);
    CALL(cuGraphKernelNodeSetParams_v2, new_node, &new);
    REQUIRE(launch(executable, 100, 3) == 111);
    REQUIRE(launch_new(graph, 100, 3) == 122);
    one = 3;
    ten = 30;
    CALL(cuGraphExecKernelNodeSetParams, executable, old_node, &old);
    REQUIRE(launch(executable, 100, 3) == 113);
    CALL(cuGraphExecKernelNodeSetParams_v2, executable, new_node, &new);
    REQUIRE(launch(executable, 100, 3) == 133);

    unsigned enabled = 77;
    CALL(cuGraphNodeSetEnabled, executable, new_node, 0);
    CALL(cuGraphNodeGetEnabled, executable, new_node, &enabled);
    REQUIRE(enabled == 0 && launch(executable, 100, 3) == 103);

    /* By the one function for all kinds of nodes. */
    CUgraphNodeParams any;
    memset(&any, 0, sizeof any);
    one = 4;
    any.type = CU_GRAPH_NODE_TYPE_KERNEL;
    any.kernel.func = add;
    any.kernel.gridDimX = any.kernel.gridDimY = any.kernel.gridDimZ = any.kernel.blockDimY = any.kernel.blockDimZ = 1;
    any.kernel.blockDimX = WORDS;
    any.kernel.kernelParams = adds_one;
    CALL(cuGraphNodeSetParams, old_node, &any);
    REQUIRE(launch_new(graph, 100, 3) == 124);
    one = 5;
    CALL(cuGraphExecNodeSetParams, executable, old_node, &any);
    REQUIRE(launch(executable, 100, 3) == 105);
    CUgraphNode third;
    CALL(cuGraphAddNode, &third, graph, &new_node, 1, &any);
    REQUIRE(launch_new(graph, 100, 3) == 129);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
}

static CUDA_MEMCPY3D copy_of(const uint32_t *from, CUdeviceptr to, size_t size_bytes) {
    CUDA_MEMCPY3D copy;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = to;
    copy.WidthInBytes = size_bytes;
    copy.Height = copy.Depth = 1;
    return copy;
}

static void copies_and_fills(void) {
    static uint32_t first[WORDS], second[WORDS];
    for (uint32_t i = 0; i < WORDS; ++i) {
        first[i] = 1000 + i;
        second[i] = 2000 + i;
    }
    CUgraph graph;
    CUgraphNode copy, fill;
    CUDA_MEMCPY3D from_first = copy_of(first, words, BYTES), from_second = copy_of(second, words, BYTES), copy_told;
    CUDA_MEMSET_NODE_PARAMS sevens = {.dst = words, .value = 7, .elementSize = 4, .width = 8, .height = 1}, told;
    CUDA_MEMSET_NODE_PARAMS eights = {.dst = words, .value = 8, .elementSize = 4, .width = 8, .height = 1};
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddMemcpyNode, &copy, graph, NULL, 0, &from_first, context);
    CALL(cuGraphAddMemsetNode, &fill, graph, &copy, 1, &sevens, context);
    CALL(cuGraphMemcpyNodeGetParams, copy, &copy_told);
    REQUIRE(copy_told.srcHost == first && copy_told.WidthInBytes == BYTES && copy_told.dstDevice == words);
    CALL(cuGraphMemsetNodeGetParams, fill, &told);
    REQUIRE(told.value == 7 && told.width == 8 && told.dst == words);
    CUgraphExec executable = instantiate(graph);
    REQUIRE(launch(executable, 0, 9) == 1009 && host[7] == 7);
    CALL(cuGraphExecMemcpyNodeSetParams, executable, copy, &from_second, context);
    CALL(cuGraphExecMemsetNodeSetParams, executable, fill, &eights, context);
    REQUIRE(launch(executable, 0, 9) == 2009 && host[7] == 8);
    CALL(cuGraphMemcpyNodeSetParams, copy, &from_second);
    CALL(cuGraphMemsetNodeSetParams, fill, &eights);
    REQUIRE(launch_new(graph, 0, 10) == 2010 && host[0] == 8);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
}

static volatile int calls[2];
static void CUDA_CB count(void *place) { ++*(volatile int *)place; }

static void host_functions(void) {
    CUgraph graph;
    CUgraphNode node;
    CUDA_HOST_NODE_PARAMS first = {.fn = count, .userData = (void *)&calls[0]}, told;
    CUDA_HOST_NODE_PARAMS second = {.fn = count, .userData = (void *)&calls[1]};
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddHostNode, &node, graph, NULL, 0, &first);
    CALL(cuGraphHostNodeGetParams, node, &told);
    REQUIRE(told.fn == count && told.userData == (void *)&calls[0]);
    launch_new(graph, 0, 0);
    REQUIRE(calls[0] == 1 && calls[1] == 0);
    CUgraphExec executable = instantiate(graph);
    CALL(cuGraphExecHostNodeSetParams, executable, node, &second);
    launch(executable, 0, 0);
    REQUIRE(calls[0] == 1 && calls[1] == 1);
    CALL(cuGraphHostNodeSetParams, node, &second);
    launch_new(graph, 0, 0);
    REQUIRE(calls[0] == 1 && calls[1] == 2);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
}

static void events(void) {
    CUgraph graph;
    CUgraphNode record, wait;
    CUevent first, second, told;
    CALL(cuEventCreate, &first, CU_EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &second, CU_EVENT_DISABLE_TIMING);
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddEventWaitNode, &wait, graph, NULL, 0, first);
    CALL(cuGraphAddEventRecordNode, &record, graph, &wait, 1, first);
    CALL(cuGraphEventRecordNodeGetEvent, record, &told);
    REQUIRE(told == first);
    CUgraphExec executable = instantiate(graph);
    CALL(cuGraphExecEventRecordNodeSetEvent, executable, record, second);
    CALL(cuGraphExecEventWaitNodeSetEvent, executable, wait, second);
    launch(executable, 0, 0);
    CALL(cuEventQuery, second);
    CALL(cuGraphEventRecordNodeSetEvent, record, second);
    CALL(cuGraphEventWaitNodeSetEvent, wait, second);
    CALL(cuGraphEventWaitNodeGetEvent, wait, &told);
    REQUIRE(told == second);
    launch_new(graph, 0, 0);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
    CALL(cuEventDestroy_v2, first);
    CALL(cuEventDestroy_v2, second);
}

/* Values that a graph writes. */
static void memory_operations(void) {
    CUgraph graph;
    CUgraphNode node, fill;
    CUstreamBatchMemOpParams writes[3];
    memset(writes, 0, sizeof writes);
    for (int i = 0; i < 3; ++i) {
        writes[i].writeValue.operation = i < 2 ? CU_STREAM_MEM_OP_WRITE_VALUE_32 : CU_STREAM_MEM_OP_WRITE_VALUE_64;
        writes[i].writeValue.address = words + 8 * i;
    }
    writes[0].writeValue.value = 50;
    writes[1].writeValue.value = 51;
    writes[2].writeValue.value64 = (53ull << 32) + 52;
    CUDA_BATCH_MEM_OP_NODE_PARAMS asked = {.ctx = context, .count = 3, .paramArray = writes}, told;
    CUDA_MEMSET_NODE_PARAMS after = {.dst = words + 8, .value = 54, .elementSize = 4, .width = 1, .height = 1};
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddBatchMemOpNode, &node, graph, NULL, 0, &asked);
    CALL(cuGraphAddMemsetNode, &fill, graph, &node, 1, &after, context);
    CALL(cuGraphBatchMemOpNodeGetParams, node, &told);
    REQUIRE(told.count == 3 && told.paramArray[0].writeValue.value == 50 && told.paramArray[2].writeValue.address == words + 16);
    CUgraphExec executable = instantiate(graph);
    REQUIRE(launch(executable, 1, 0) == 50);
    REQUIRE(host[1] == 1 && host[2] == 54 && host[3] == 1 && host[4] == 52 && host[5] == 53 && host[6] == 1);
    writes[0].writeValue.value = 60;
    CALL(cuGraphExecBatchMemOpNodeSetParams, executable, node, &asked);
    REQUIRE(launch(executable, 1, 0) == 60 && host[5] == 53);
    REQUIRE(launch_new(graph, 1, 0) == 50);
    writes[0].writeValue.value = 70;
    CALL(cuGraphBatchMemOpNodeSetParams, node, &asked);
    REQUIRE(launch_new(graph, 1, 0) == 70 && host[2] == 54);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, graph);
}

static CUgraph filling(uint32_t value) {
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = words, .value = value, .elementSize = 4, .width = WORDS, .height = 1};
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddMemsetNode, &node, graph, NULL, 0, &fill, context);
    return graph;
}

static void children_and_updates(void) {
    CUgraph parent, child = filling(3), other = filling(4), told;
    CUgraphNode node;
    CALL(cuGraphCreate, &parent, 0);
    CALL(cuGraphAddChildGraphNode, &node, parent, NULL, 0, child);
    CALL(cuGraphChildGraphNodeGetGraph, node, &told);
    size_t count = 77;
    CALL(cuGraphGetNodes, told, NULL, &count);
    REQUIRE(count == 1);
    CUgraphExec executable = instantiate(parent);
    REQUIRE(launch(executable, 0, 5) == 3);
    CALL(cuGraphExecChildGraphNodeSetParams, executable, node, other);
    REQUIRE(launch(executable, 0, 5) == 4);
    CALL(cuGraphExecDestroy, executable);

    CUgraphExecUpdateResultInfo result;
    memset(&result, 0, sizeof result);
    executable = instantiate(child);
    CALL(cuGraphExecUpdate_v2, executable, other, &result);
    REQUIRE(result.result == CU_GRAPH_EXEC_UPDATE_SUCCESS && launch(executable, 0, 6) == 4);
    CALL(cuGraphExecDestroy, executable);
    CALL(cuGraphDestroy, parent);
    CALL(cuGraphDestroy, child);
    CALL(cuGraphDestroy, other);
}

static void memory(void) {
    CUgraph graph;
    CUgraphNode allocate, fill, release;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted, told;
    memset(&wanted, 0, sizeof wanted);
    wanted.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.bytesize = BYTES;
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphAddMemAllocNode, &allocate, graph, NULL, 0, &wanted);
    REQUIRE(wanted.dptr != 0);
    CUDA_MEMSET_NODE_PARAMS nines = {.dst = wanted.dptr, .value = 9, .elementSize = 4, .width = WORDS, .height = 1};
    CALL(cuGraphAddMemsetNode, &fill, graph, &allocate, 1, &nines, context);
    CALL(cuGraphAddMemFreeNode, &release, graph, &fill, 1, wanted.dptr);
    CALL(cuGraphMemAllocNodeGetParams, allocate, &told);
    REQUIRE(told.dptr == wanted.dptr && told.bytesize == BYTES);
    CUdeviceptr freed = 0;
    CALL(cuGraphMemFreeNodeGetParams, release, &freed);
    REQUIRE(freed == wanted.dptr);
    launch_new(graph, 0, 0);
    CALL(cuGraphDestroy, graph);
}

/* Edges by the functions without edge data. */
static void edges(void) {
    CUgraph graph;
    CUgraphNode nodes[3], from[4], to[4];
    CALL(cuGraphCreate, &graph, 0);
    for (int i = 0; i < 3; ++i) {
        CALL(cuGraphAddEmptyNode, &nodes[i], graph, NULL, 0);
    }
    from[0] = nodes[0];
    to[0] = nodes[1];
    from[1] = nodes[0];
    to[1] = nodes[2];
    CALL(cuGraphAddDependencies, graph, from, to, 2);
    size_t count = 4;
    CALL(cuGraphGetEdges, graph, from, to, &count);
    REQUIRE(count == 2 && from[0] == nodes[0] && from[1] == nodes[0] && to[0] != to[1]);
    count = 4;
    CALL(cuGraphNodeGetDependencies, nodes[1], from, &count);
    REQUIRE(count == 1 && from[0] == nodes[0]);
    count = 4;
    CALL(cuGraphNodeGetDependentNodes, nodes[0], to, &count);
    REQUIRE(count == 2);
    CALL(cuGraphRemoveDependencies, graph, &nodes[0], &nodes[2], 1);
    count = 4;
    CALL(cuGraphNodeGetDependentNodes, nodes[0], to, &count);
    REQUIRE(count == 1 && to[0] == nodes[1]);
    CALL(cuGraphDestroy, graph);
}

static volatile int destroyed;
static void CUDA_CB destroy(void *object) { destroyed += *(int *)object; }

static void user_objects(void) {
    CUgraph graph;
    CUuserObject object;
    int weight = 5;
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuUserObjectCreate, &object, &weight, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    CALL(cuUserObjectRetain, object, 2);
    CALL(cuGraphRetainUserObject, graph, object, 1, 0);
    CALL(cuUserObjectRelease, object, 3);
    REQUIRE(destroyed == 0);
    CALL(cuGraphReleaseUserObject, graph, object, 1);
    /* Drivers may call destructors later, on a thread of their own. */
    for (int waited_ms = 0; destroyed == 0 && waited_ms < 60000; ++waited_ms) {
        usleep(1000);
    }
    REQUIRE(destroyed == 5);
    CALL(cuGraphDestroy, graph);
}

int main(void) {
    CUmodule module;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &add, module, "add");
    CALL(cuStreamCreate, &stream, CU_STREAM_DEFAULT);
    CALL(cuMemAlloc_v2, &words, BYTES);
    kernels();
    copies_and_fills();
    host_functions();
    events();
    memory_operations();
    children_and_updates();
    memory();
    edges();
    user_objects();
    CALL(cuMemFree_v2, words);
    CALL(cuStreamDestroy_v2, stream);
    CALL(cuDevicePrimaryCtxRelease_v2, 0);
    printf("graph_nodes: ok checksum=%016llx\n", (unsigned long long)mix(host[0], WORDS));
    return 0;
}
