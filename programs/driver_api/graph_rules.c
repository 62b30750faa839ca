/* What the driver says to graphs that are changed: results of updates, nodes left out, attributes copied, batches of memory operations, memory of
 * graphs. Every expected code was observed of NVIDIA's driver 580 on an H200. */
#include "check.h"

/* words[0] += addend; and a kernel that takes other parameters */
static const char code[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                           ".visible .entry add(.param .u64 words, .param .u32 addend)\n"
                           "{\n"
                           "    .reg .b32 %r<3>;\n"
                           "    .reg .b64 %rd<2>;\n"
                           "    ld.param.u64 %rd0, [words];\n"
                           "    ld.param.u32 %r0, [addend];\n"
                           "    cvta.to.global.u64 %rd0, %rd0;\n"
                           "    ld.global.u32 %r1, [%rd0];\n"
                           "    add.u32 %r2, %r1, %r0;\n"
                           "    st.global.u32 [%rd0], %r2;\n"
                           "    ret;\n"
                           "}\n"
                           ".visible .entry clear(.param .u64 words)\n"
                           "{\n"
                           "    .reg .b32 %r<1>;\n"
                           "    .reg .b64 %rd<1>;\n"
                           "    ld.param.u64 %rd0, [words];\n"
                           "    cvta.to.global.u64 %rd0, %rd0;\n"
                           "    mov.u32 %r0, 0;\n"
                           "    st.global.u32 [%rd0], %r0;\n"
                           "    ret;\n"
                           "}\n";

#define FUNCTIONS(X) \
    X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxSetCurrent) X(cuModuleLoadData) \
    X(cuModuleGetFunction) X(cuMemAlloc) X(cuMemAllocHost) X(cuMemFree) X(cuMemFreeHost) X(cuMemcpyDtoH) X(cuMemsetD32Async) X(cuStreamCreate) \
    X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamBatchMemOp) X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuEventCreate) \
    X(cuGraphCreate) X(cuGraphDestroy) X(cuGraphClone) X(cuGraphInstantiate) X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphExecUpdate) \
    X(cuGraphGetNodes) X(cuGraphDestroyNode) X(cuGraphRemoveDependencies) X(cuGraphAddKernelNode) X(cuGraphAddMemsetNode) \
    X(cuGraphAddMemcpyNode) X(cuGraphAddHostNode) X(cuGraphAddEmptyNode) X(cuGraphAddEventRecordNode) X(cuGraphAddChildGraphNode) \
    X(cuGraphAddBatchMemOpNode) X(cuGraphBatchMemOpNodeGetParams) X(cuGraphBatchMemOpNodeSetParams) X(cuGraphExecBatchMemOpNodeSetParams) \
    X(cuGraphNodeSetEnabled) X(cuGraphNodeGetEnabled) X(cuGraphKernelNodeSetAttribute) X(cuGraphKernelNodeGetAttribute) \
    X(cuGraphKernelNodeCopyAttributes) X(cuGraphAddMemAllocNode) X(cuGraphAddMemFreeNode) X(cuGraphMemFreeNodeGetParams) \
    X(cuDeviceGraphMemTrim) X(cuDeviceGetGraphMemAttribute) X(cuDeviceSetGraphMemAttribute)
#define DECLARE(name) static __typeof__(name) *name##_;
FUNCTIONS(DECLARE)
#define FIND(name) name##_ = (__typeof__(name) *)symbol(library, SYMBOL(name));

static const CUresult refused = CUDA_ERROR_INVALID_VALUE;
static CUcontext context;
static CUdevice device;
static CUstream stream;
static CUfunction add, clear;
static CUdeviceptr words, others;
static uint64_t checksum;

static void CUDA_CB nothing(void *data) { (void)data; }

static CUgraph new_graph(void) {
    CUgraph graph;
    CHECK(cuGraphCreate_(&graph, 0));
    return graph;
}

static CUgraphNode kernel(CUgraph graph, const CUgraphNode *after, CUfunction function) {
    static unsigned addend = 1;
    void *arguments[] = {&words, &addend};
    CUDA_KERNEL_NODE_PARAMS params = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    params.kernelParams = arguments;
    CUgraphNode node;
    CHECK(cuGraphAddKernelNode_(&node, graph, after, after ? 1 : 0, &params));
    return node;
}

static CUgraphNode fill(CUgraph graph, CUDA_MEMSET_NODE_PARAMS params) {
    CUgraphNode node;
    CHECK(cuGraphAddMemsetNode_(&node, graph, NULL, 0, &params, context));
    return node;
}

static CUgraphNode copy(CUgraph graph, CUDA_MEMCPY3D params) {
    CUgraphNode node;
    CHECK(cuGraphAddMemcpyNode_(&node, graph, NULL, 0, &params, context));
    return node;
}

static CUgraphNode batch(CUgraph graph, CUstreamBatchMemOpParams *operations, unsigned count) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {context, count, operations, 0};
    CUgraphNode node;
    CHECK(cuGraphAddBatchMemOpNode_(&node, graph, NULL, 0, &params));
    return node;
}

static CUstreamBatchMemOpParams writes(CUdeviceptr address, uint64_t value, CUstreamBatchMemOpType type) {
    CUstreamBatchMemOpParams operation;
    memset(&operation, 0, sizeof operation);
    operation.writeValue.operation = type;
    operation.writeValue.address = address;
    operation.writeValue.value64 = value;
    return operation;
}

static unsigned word(int index) {
    unsigned values[4];
    CHECK(cuStreamSynchronize_(stream));
    CHECK(cuMemcpyDtoH_(values, words, sizeof values));
    checksum = checksum * 31 + values[index];
    return values[index];
}

/* Makes one graph executable, updates it to another, and requires what the driver says; both graphs go. */
static void update(CUgraph from, CUgraph to, CUgraphExecUpdateResult result, CUgraphNode at, int line) {
    CUgraphExec executable;
    CUgraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    CHECK(cuGraphInstantiate_(&executable, from, 0));
    CUresult expected = result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    require(cuGraphExecUpdate_(executable, to, &info), expected, "cuGraphExecUpdate", line);
    if (info.result != result || info.errorNode != at) {
        fprintf(stderr, "line %d: result %d, expected %d; %s node\n", line, (int)info.result, (int)result, info.errorNode == at ? "the" : "another");
        exit(1);
    }
    checksum = checksum * 31 + (uint64_t)result;
    CHECK(cuGraphExecDestroy_(executable));
    CHECK(cuGraphDestroy_(from));
    CHECK(cuGraphDestroy_(to));
}
#define UPDATE(from, to, result, at) update(from, to, CU_GRAPH_EXEC_UPDATE_##result, at, __LINE__)

static void updates(void) {
    CUgraph from, to;
    CUgraphNode node;
    CUlaunchAttributeValue value;
    CUDA_MEMSET_NODE_PARAMS row = {words, 0, 1, 4, 4, 1}, plane = {others, 64, 1, 4, 4, 4}, other;
    memset(&value, 0, sizeof value);
#define BOTH (from = new_graph(), to = new_graph())

    BOTH, kernel(from, NULL, add), kernel(to, NULL, add);
    UPDATE(from, to, SUCCESS, NULL);
    BOTH, kernel(from, NULL, add), kernel(to, NULL, clear);
    UPDATE(from, to, SUCCESS, NULL);
    BOTH, kernel(from, NULL, add);
    UPDATE(from, to, ERROR_TOPOLOGY_CHANGED, NULL);
    BOTH, kernel(from, NULL, add);
    CHECK(cuGraphAddEmptyNode_(&node, to, NULL, 0));
    UPDATE(from, to, ERROR_NODE_TYPE_CHANGED, node);
    BOTH, node = kernel(from, NULL, add), kernel(from, &node, add), node = kernel(to, NULL, add), kernel(to, NULL, add);
    UPDATE(from, to, ERROR_TOPOLOGY_CHANGED, node);
    BOTH, kernel(from, NULL, add), node = kernel(to, NULL, add);
    value.cooperative = 1;
    CHECK(cuGraphKernelNodeSetAttribute_(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    UPDATE(from, to, ERROR_ATTRIBUTES_CHANGED, node);
    BOTH, kernel(from, NULL, add), node = kernel(to, NULL, add);
    value.priority = -1;
    CHECK(cuGraphKernelNodeSetAttribute_(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    UPDATE(from, to, SUCCESS, NULL);

    BOTH, fill(from, row), node = fill(to, plane);
    UPDATE(from, to, ERROR_PARAMETERS_CHANGED, node);
    BOTH, fill(from, plane), other = plane, other.value = 5, fill(to, other);
    UPDATE(from, to, SUCCESS, NULL);
    BOTH, fill(from, plane), other = plane, other.height = 3, node = fill(to, other);
    UPDATE(from, to, ERROR_PARAMETERS_CHANGED, node);
    BOTH, fill(from, row), other = row, other.width = 8, other.elementSize = 1, fill(to, other);
    UPDATE(from, to, SUCCESS, NULL);

    void *host;
    CHECK(cuMemAllocHost_(&host, 256));
    CUDA_MEMCPY3D line, changed;
    memset(&line, 0, sizeof line);
    line.srcMemoryType = line.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    line.srcDevice = words, line.dstDevice = others;
    line.WidthInBytes = 64, line.Height = line.Depth = 1;
    BOTH, copy(from, line), changed = line, changed.WidthInBytes = 32, copy(to, changed);
    UPDATE(from, to, SUCCESS, NULL);
    BOTH, copy(from, line), changed = line, changed.dstMemoryType = CU_MEMORYTYPE_HOST, changed.dstHost = host, node = copy(to, changed);
    UPDATE(from, to, ERROR_PARAMETERS_CHANGED, node);
    line.Height = line.srcHeight = line.dstHeight = 2, line.srcPitch = line.dstPitch = 64;
    BOTH, copy(from, line), changed = line, changed.dstDevice += 512, node = copy(to, changed);
    UPDATE(from, to, ERROR_PARAMETERS_CHANGED, node);

    CUDA_HOST_NODE_PARAMS call = {nothing, NULL};
    BOTH;
    CHECK(cuGraphAddHostNode_(&node, from, NULL, 0, &call));
    call.userData = &call;
    CHECK(cuGraphAddHostNode_(&node, to, NULL, 0, &call));
    UPDATE(from, to, SUCCESS, NULL);
    CUevent first, second;
    CHECK(cuEventCreate_(&first, 0));
    CHECK(cuEventCreate_(&second, 0));
    BOTH;
    CHECK(cuGraphAddEventRecordNode_(&node, from, NULL, 0, first));
    CHECK(cuGraphAddEventRecordNode_(&node, to, NULL, 0, second));
    UPDATE(from, to, SUCCESS, NULL);

    CUstreamBatchMemOpParams operation = writes(others, 3, CU_STREAM_MEM_OP_WRITE_VALUE_32);
    BOTH, batch(from, &operation, 1), operation.writeValue.value = 4, batch(to, &operation, 1);
    UPDATE(from, to, SUCCESS, NULL);
    BOTH, batch(from, &operation, 1), operation = writes(others, 3, CU_STREAM_MEM_OP_WRITE_VALUE_64), node = batch(to, &operation, 1);
    UPDATE(from, to, ERROR_PARAMETERS_CHANGED, node);
    CHECK(cuMemFreeHost_(host));
}

static void enabled_nodes(void) {
    CUgraph graph = new_graph();
    CUgraphNode nodes[6];
    CUDA_MEMSET_NODE_PARAMS row = {others, 0, 1, 4, 16, 1};
    CUDA_HOST_NODE_PARAMS call = {nothing, NULL};
    CUstreamBatchMemOpParams operation = writes(others, 3, CU_STREAM_MEM_OP_WRITE_VALUE_32);
    CUDA_MEMCPY3D line;
    memset(&line, 0, sizeof line);
    line.srcMemoryType = line.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    line.srcDevice = others, line.dstDevice = others + 512;
    line.WidthInBytes = 64, line.Height = line.Depth = 1;
    nodes[0] = kernel(graph, NULL, add);
    nodes[1] = fill(graph, row);
    nodes[2] = copy(graph, line);
    CHECK(cuGraphAddHostNode_(&nodes[3], graph, NULL, 0, &call));
    CHECK(cuGraphAddEmptyNode_(&nodes[4], graph, NULL, 0));
    nodes[5] = batch(graph, &operation, 1);
    CUgraphExec executable;
    CHECK(cuGraphInstantiate_(&executable, graph, 0));
    for (int i = 0; i < 6; ++i) {
        unsigned enabled = 9;
        CUresult expected = i < 3 ? CUDA_SUCCESS : refused;
        REFUSED(expected, cuGraphNodeSetEnabled_(executable, nodes[i], 0));
        REFUSED(expected, cuGraphNodeGetEnabled_(executable, nodes[i], &enabled));
        REQUIRE(enabled == (i < 3 ? 0 : 9));
    }
    REFUSED(refused, cuGraphNodeGetEnabled_(executable, nodes[0], NULL));
    REFUSED(refused, cuGraphNodeSetEnabled_(executable, NULL, 1));
    CHECK(cuMemsetD32Async_(words, 5, 4, stream));
    CHECK(cuGraphLaunch_(executable, stream));
    REQUIRE(word(0) == 5);
    CHECK(cuGraphNodeSetEnabled_(executable, nodes[0], 1));
    CHECK(cuGraphLaunch_(executable, stream));
    REQUIRE(word(0) == 6);
    CHECK(cuGraphExecDestroy_(executable));

    CUgraphNode other = kernel(graph, NULL, add);
    CUlaunchAttributeValue value;
    memset(&value, 0, sizeof value);
    value.priority = -2;
    CHECK(cuGraphKernelNodeSetAttribute_(nodes[0], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    CHECK(cuGraphKernelNodeCopyAttributes_(other, nodes[0]));
    memset(&value, 0, sizeof value);
    CHECK(cuGraphKernelNodeGetAttribute_(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    REQUIRE(value.priority == -2);
    REFUSED(refused, cuGraphKernelNodeCopyAttributes_(nodes[1], nodes[0]));
    REFUSED(refused, cuGraphKernelNodeCopyAttributes_(nodes[0], nodes[1]));
    REFUSED(refused, cuGraphKernelNodeSetAttribute_(nodes[1], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    CHECK(cuGraphKernelNodeGetAttribute_(nodes[0], CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value));
    REQUIRE(value.clusterDim.x == 0 && value.clusterDim.y == 0 && value.clusterDim.z == 0);
    REFUSED(refused, cuGraphKernelNodeGetAttribute_(nodes[0], 99, &value));
    REFUSED(refused, cuGraphKernelNodeGetAttribute_(nodes[0], CU_LAUNCH_ATTRIBUTE_IGNORE, &value));
    /* Clamped to what there is. */
    value.priority = 99;
    CHECK(cuGraphKernelNodeSetAttribute_(nodes[0], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    CHECK(cuGraphKernelNodeGetAttribute_(nodes[0], CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    REQUIRE(value.priority == 0);
    CHECK(cuGraphDestroy_(graph));
}

static void batches(void) {
    CUgraph graph = new_graph();
    CUstreamBatchMemOpParams operations[3] = {
        writes(words, 7, CU_STREAM_MEM_OP_WRITE_VALUE_32),
        writes(words, 0, CU_STREAM_MEM_OP_BARRIER),
        writes(words + 8, 0x1200000034ull, CU_STREAM_MEM_OP_WRITE_VALUE_64),
    };
    operations[1].memoryBarrier.flags = 0;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {context, 3, operations, 0}, got;
    CUgraphNode node = batch(graph, operations, 3), empty;
    memset(&got, 0, sizeof got);
    CHECK(cuGraphBatchMemOpNodeGetParams_(node, &got));
    REQUIRE(got.count == 3 && got.flags == 0 && got.ctx == context);
    REQUIRE(got.paramArray[2].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 && got.paramArray[2].writeValue.value64 == 0x1200000034ull);
    CUgraphExec executable;
    CHECK(cuGraphInstantiate_(&executable, graph, 0));
    CHECK(cuGraphLaunch_(executable, stream));
    REQUIRE(word(0) == 7 && word(2) == 0x34 && word(3) == 0x12);
    /* As many as before, and the same operations. */
    params.count = 2;
    REFUSED(refused, cuGraphExecBatchMemOpNodeSetParams_(executable, node, &params));
    params.count = 3;
    operations[0].writeValue.value = 8;
    CHECK(cuGraphExecBatchMemOpNodeSetParams_(executable, node, &params));
    CHECK(cuGraphLaunch_(executable, stream));
    REQUIRE(word(0) == 8);
    operations[1] = operations[0];
    REFUSED(refused, cuGraphExecBatchMemOpNodeSetParams_(executable, node, &params));
    CHECK(cuGraphBatchMemOpNodeSetParams_(node, &params));
    params.count = 0;
    CHECK(cuGraphBatchMemOpNodeSetParams_(node, &params));
    CHECK(cuGraphAddBatchMemOpNode_(&empty, graph, NULL, 0, &params));
    params.count = 1;
    params.flags = 1;
    REFUSED(refused, cuGraphBatchMemOpNodeSetParams_(node, &params));
    params.flags = 0;
    params.ctx = NULL;
    REFUSED(refused, cuGraphBatchMemOpNodeSetParams_(node, &params));
    params.ctx = context;
    operations[0].writeValue.address = words + 3;
    REFUSED(refused, cuGraphBatchMemOpNodeSetParams_(node, &params));
    operations[0] = writes(words, 1, 99);
    REFUSED(refused, cuGraphBatchMemOpNodeSetParams_(node, &params));
    operations[0] = writes(words, 1, CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES);
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuGraphBatchMemOpNodeSetParams_(node, &params));
    CHECK(cuGraphExecDestroy_(executable));
    CHECK(cuGraphDestroy_(graph));

    /* A captured batch is one node, also without operations. */
    operations[0] = writes(words, 21, CU_STREAM_MEM_OP_WRITE_VALUE_32);
    operations[1] = writes(words + 4, 22, CU_STREAM_MEM_OP_WRITE_VALUE_32);
    CHECK(cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuStreamBatchMemOp_(stream, 2, operations, 0));
    CHECK(cuStreamBatchMemOp_(stream, 0, operations, 0));
    CHECK(cuStreamEndCapture_(stream, &graph));
    size_t count = 0;
    CHECK(cuGraphGetNodes_(graph, NULL, &count));
    REQUIRE(count == 2);
    CHECK(cuGraphInstantiate_(&executable, graph, 0));
    CHECK(cuGraphLaunch_(executable, stream));
    REQUIRE(word(0) == 21 && word(1) == 22);
    REFUSED(refused, cuStreamBatchMemOp_(stream, 300, operations, 0));
    CHECK(cuGraphExecDestroy_(executable));
    CHECK(cuGraphDestroy_(graph));
}

static void memory(void) {
    CUgraph graph = new_graph(), other = new_graph();
    CUgraphNode taken, between, freed, none;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    memset(&params, 0, sizeof params);
    params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.poolProps.location.id = device;
    params.bytesize = 1 << 20;
    CHECK(cuGraphAddMemAllocNode_(&taken, graph, NULL, 0, &params));
    CHECK(cuGraphAddEmptyNode_(&between, graph, &taken, 1));
    CHECK(cuGraphAddMemFreeNode_(&freed, graph, &between, 1, params.dptr));
    REFUSED(refused, cuGraphAddMemFreeNode_(&none, graph, &between, 1, params.dptr));
    REFUSED(refused, cuGraphAddMemFreeNode_(&none, graph, &between, 1, words));
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuGraphRemoveDependencies_(graph, &taken, &between, NULL, 1));
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuGraphDestroyNode_(between));
    CUgraph clone;
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone_(&clone, graph));
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddChildGraphNode_(&none, other, NULL, 0, graph));
    CUgraphExec executable, second;
    CHECK(cuGraphInstantiate_(&executable, graph, 0));
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, cuGraphInstantiate_(&second, graph, 0));
    CHECK(cuGraphLaunch_(executable, stream));
    CHECK(cuStreamSynchronize_(stream));
    CUdeviceptr address;
    CHECK(cuGraphMemFreeNodeGetParams_(freed, &address));
    REQUIRE(address == params.dptr);
    cuuint64_t reserved = 1;
    CHECK(cuDeviceGetGraphMemAttribute_(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &reserved));
    REQUIRE(reserved >= 1 << 20);
    CHECK(cuGraphExecDestroy_(executable));
    CHECK(cuGraphDestroy_(graph));
    CHECK(cuDeviceGraphMemTrim_(device));
    CHECK(cuDeviceGetGraphMemAttribute_(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    REQUIRE(reserved == 0);
    CHECK(cuDeviceSetGraphMemAttribute_(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &reserved));
    CHECK(cuDeviceGetGraphMemAttribute_(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &reserved));
    REQUIRE(reserved == 0);
    REFUSED(refused, cuDeviceGetGraphMemAttribute_(device, 77, &reserved));
    params.bytesize = 0;
    REFUSED(refused, cuGraphAddMemAllocNode_(&none, other, NULL, 0, &params));
    params.bytesize = 64;
    params.poolProps.location.id = 99;
    REFUSED(refused, cuGraphAddMemAllocNode_(&none, other, NULL, 0, &params));
    CHECK(cuGraphDestroy_(other));
}

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    FUNCTIONS(FIND)
    CUmodule module;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&context, device));
    CHECK(cuCtxSetCurrent_(context));
    CHECK(cuModuleLoadData_(&module, code));
    CHECK(cuModuleGetFunction_(&add, module, "add"));
    CHECK(cuModuleGetFunction_(&clear, module, "clear"));
    CHECK(cuMemAlloc_(&words, 4096));
    CHECK(cuMemAlloc_(&others, 4096));
    CHECK(cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemsetD32Async_(words, 0, 1024, stream));
    CHECK(cuMemsetD32Async_(others, 0, 1024, stream));
    updates();
    enabled_nodes();
    batches();
    memory();
    CHECK(cuMemFree_(words));
    CHECK(cuMemFree_(others));
    CHECK(cuStreamDestroy_(stream));
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("graph_rules: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
