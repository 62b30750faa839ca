// Graphs built node by node: branches, copies of pinned and pageable memory, host functions in the middle, an embedded
// graph; parameters changed in place, an update from another graph, nodes left out, events, memory of the graph.
#include "check.h"

#include <cstring>

__global__ void add(int *values, int addend, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] += addend;
    }
}

__global__ void add_both(const int *left, const int *right, int *sums, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        sums[i] = left[i] + right[i];
    }
}

constexpr int kCount = 3000, kBlock = 128;

static cudaGraphNode_t add_node(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, int *values, int addend) {
    int count = kCount;
    void *arguments[] = {&values, &addend, &count};
    cudaKernelNodeParams params = {};
    params.func = reinterpret_cast<void *>(add);
    params.gridDim = dim3((kCount + kBlock - 1) / kBlock);
    params.blockDim = dim3(kBlock);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
    return node;
}

static cudaGraphNode_t fill_node(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, int *values, int value) {
    cudaMemsetParams params = {};
    params.dst = values;
    params.value = value;
    params.elementSize = sizeof(int);
    params.width = kCount;
    params.height = 1;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddMemsetNode(&node, graph, after.data(), after.size(), &params));
    return node;
}

static cudaGraphNode_t copy_node(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, void *to, const void *from,
                                 cudaMemcpyKind kind) {
    cudaGraphNode_t node;
    CHECK(cudaGraphAddMemcpyNode1D(&node, graph, after.data(), after.size(), to, from, kCount * sizeof(int), kind));
    return node;
}

// Pinned: when a driver reads pageable memory of a graph is its own affair.
struct Turn {
    int *seen;
    int *next;
    int calls;
};

// Between the two halves of the graph: takes over what the device has written and prepares what it reads next.
static void CUDART_CB between(void *argument) {
    auto *turn = static_cast<Turn *>(argument);
    for (int i = 0; i < kCount; ++i) {
        turn->next[i] = turn->seen[i] * 2 + turn->calls;
    }
    ++turn->calls;
}

static void CUDART_CB count_call(void *argument) { ++*static_cast<int *>(argument); }

static size_t node_count(cudaGraph_t graph) {
    size_t count = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    return count;
}

// Two branches, joined; the parameters of one are changed, then of all, then a node is left out.
static void branches(Checksum &checksum) {
    DeviceArray<int> left(kCount), right(kCount), sums(kCount);
    int *host;
    CHECK(cudaMallocHost(&host, kCount * sizeof(int)));
    auto build = [&](int first, int second) {
        cudaGraph_t graph;
        CHECK(cudaGraphCreate(&graph, 0));
        auto a = add_node(graph, {fill_node(graph, {}, left.get(), first)}, left.get(), 10);
        auto b = add_node(graph, {fill_node(graph, {}, right.get(), second)}, right.get(), 20);
        int *l = left.get(), *r = right.get(), *s = sums.get();
        int count = kCount;
        void *arguments[] = {&l, &r, &s, &count};
        cudaKernelNodeParams params = {};
        params.func = reinterpret_cast<void *>(add_both);
        params.gridDim = dim3((kCount + kBlock - 1) / kBlock);
        params.blockDim = dim3(kBlock);
        params.kernelParams = arguments;
        cudaGraphNode_t joined, ends[] = {a, b};
        CHECK(cudaGraphAddKernelNode(&joined, graph, ends, 2, &params));
        copy_node(graph, {joined}, host, sums.get(), cudaMemcpyDeviceToHost);
        REQUIRE(node_count(graph) == 6);
        return std::vector<void *>{graph, a, joined};
    };
    auto built = build(1, 2);
    auto graph = static_cast<cudaGraph_t>(built[0]);
    auto node = static_cast<cudaGraphNode_t>(built[1]);
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(node, &type));
    REQUIRE(type == cudaGraphNodeTypeKernel);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto launch = [&](int expected) {
        std::memset(host, 0, kCount * sizeof(int));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaStreamSynchronize(stream));
        std::vector<int> got(host, host + kCount);
        require_equal(got, std::vector<int>(kCount, expected), "branches");
        checksum.add(got);
    };
    launch(33);
    launch(33);
    // One node in place; the graph itself keeps what it had.
    cudaKernelNodeParams params = {};
    CHECK(cudaGraphKernelNodeGetParams(node, &params));
    REQUIRE(params.func == reinterpret_cast<void *>(add) && params.blockDim.x == kBlock);
    REQUIRE(*static_cast<int *>(params.kernelParams[1]) == 10);
    int *values = left.get(), addend = 1000, count = kCount;
    void *arguments[] = {&values, &addend, &count};
    params.kernelParams = arguments;
    CHECK(cudaGraphExecKernelNodeSetParams(executable, node, &params));
    launch(1023);
    // All of it, from a graph of the same shape; then one of another shape, which changes nothing.
    auto other = build(5, 6);
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(executable, static_cast<cudaGraph_t>(other[0]), &info));
    REQUIRE(info.result == cudaGraphExecUpdateSuccess);
    launch(41);
    add_node(static_cast<cudaGraph_t>(other[0]), {}, left.get(), 1);
    EXPECT(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(executable, static_cast<cudaGraph_t>(other[0]), &info));
    REQUIRE(info.result == cudaGraphExecUpdateErrorTopologyChanged);
    (void)cudaGetLastError();
    CHECK(cudaGraphNodeSetEnabled(executable, node, 0));
    launch(31);
    CHECK(cudaGraphNodeSetEnabled(executable, node, 1));
    launch(41);
    CHECK(cudaGraphExecDestroy(executable));
    // A clone has nodes of its own.
    cudaGraph_t clone;
    cudaGraphNode_t cloned;
    CHECK(cudaGraphClone(&clone, graph));
    CHECK(cudaGraphNodeFindInClone(&cloned, node, clone));
    REQUIRE(cloned != node);
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphInstantiate(&executable, clone, 0));
    CHECK(cudaGraphUpload(executable, stream));
    launch(33);
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(clone));
    CHECK(cudaGraphDestroy(static_cast<cudaGraph_t>(other[0])));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFreeHost(host));
}

// Pageable memory at both ends, a host function in the middle, an embedded graph, an event: launched twice in a row, with
// work of the stream before and after.
static void host_work(Checksum &checksum) {
    DeviceArray<int> values(kCount);
    std::vector<int> input(kCount), output(kCount), after(kCount);
    Turn turn = {};
    CHECK(cudaMallocHost(&turn.seen, kCount * sizeof(int)));
    CHECK(cudaMallocHost(&turn.next, kCount * sizeof(int)));
    cudaGraph_t inner, graph;
    CHECK(cudaGraphCreate(&inner, 0));
    auto first = add_node(inner, {}, values.get(), 1);
    add_node(inner, {first}, values.get(), 2);
    CHECK(cudaGraphCreate(&graph, 0));
    auto in = copy_node(graph, {}, values.get(), input.data(), cudaMemcpyHostToDevice);
    cudaGraphNode_t child, host, recorded;
    CHECK(cudaGraphAddChildGraphNode(&child, graph, &in, 1, inner));
    CHECK(cudaGraphDestroy(inner));
    auto out = copy_node(graph, {child}, turn.seen, values.get(), cudaMemcpyDeviceToHost);
    cudaHostNodeParams function = {between, &turn};
    CHECK(cudaGraphAddHostNode(&host, graph, &out, 1, &function));
    auto again = copy_node(graph, {host}, values.get(), turn.next, cudaMemcpyHostToDevice);
    auto last = add_node(graph, {again}, values.get(), 100);
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaGraphAddEventRecordNode(&recorded, graph, &last, 1, event));
    copy_node(graph, {last}, output.data(), values.get(), cudaMemcpyDeviceToHost);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    cudaStream_t stream, other;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    int calls = 0;
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < kCount; ++i) {
            input[i] = i + round;
        }
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaLaunchHostFunc(stream, count_call, &calls));
        // Another stream waits for what the graph records.
        CHECK(cudaStreamWaitEvent(other, event, 0));
        CHECK(cudaMemcpyAsync(after.data(), values.get(), kCount * sizeof(int), cudaMemcpyDeviceToHost, other));
        CHECK(cudaStreamSynchronize(other));
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaEventQuery(event));
        std::vector<int> expected(kCount);
        for (int i = 0; i < kCount; ++i) {
            expected[i] = (i + round + 3) * 2 + (2 * round + 1) + 100;
        }
        REQUIRE(turn.calls == 2 * round + 2 && calls == round + 1);
        require_equal(output, expected, "output");
        require_equal(after, expected, "seen by the other stream");
        checksum.add(output);
    }
    // Another function, and other host memory for the result.
    int other_calls = 0;
    function = {count_call, &other_calls};
    CHECK(cudaGraphExecHostNodeSetParams(executable, host, &function));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
    REQUIRE(other_calls == 1 && turn.calls == 6);
    checksum.add(output);
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(event));
    CHECK(cudaFreeHost(turn.seen));
    CHECK(cudaFreeHost(turn.next));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaStreamDestroy(other));
}

// Memory that the graph allocates and frees itself, and rows with gaps.
static void memory(Checksum &checksum) {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams allocation = {};
    allocation.poolProps.allocType = cudaMemAllocationTypePinned;
    allocation.poolProps.location.type = cudaMemLocationTypeDevice;
    allocation.bytesize = kCount * sizeof(int);
    cudaGraphNode_t node, freed, copied;
    CHECK(cudaGraphAddMemAllocNode(&node, graph, nullptr, 0, &allocation));
    int *temporary = static_cast<int *>(allocation.dptr);
    REQUIRE(temporary != nullptr);
    auto added = add_node(graph, {fill_node(graph, {node}, temporary, 7)}, temporary, 5);
    size_t pitch;
    int *plane;
    constexpr int kWidth = 100, kHeight = 30;
    CHECK(cudaMallocPitch(&plane, &pitch, kWidth * sizeof(int), kHeight));
    cudaMemcpy3DParms rows = {};
    rows.srcPtr = make_cudaPitchedPtr(temporary, kWidth * sizeof(int), kWidth, kHeight);
    rows.dstPtr = make_cudaPitchedPtr(plane, pitch, kWidth, kHeight);
    rows.extent = make_cudaExtent(kWidth * sizeof(int), kHeight, 1);
    rows.kind = cudaMemcpyDeviceToDevice;
    CHECK(cudaGraphAddMemcpyNode(&copied, graph, &added, 1, &rows));
    CHECK(cudaGraphAddMemFreeNode(&freed, graph, &copied, 1, temporary));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 2; ++round) {
        CHECK(cudaMemset2D(plane, pitch, 0, kWidth * sizeof(int), kHeight));
        CHECK(cudaGraphLaunch(executable, nullptr));
        std::vector<int> got(kWidth * kHeight);
        CHECK(cudaMemcpy2D(got.data(), kWidth * sizeof(int), plane, pitch, kWidth * sizeof(int), kHeight,
                           cudaMemcpyDeviceToHost));
        require_equal(got, std::vector<int>(kWidth * kHeight, 12), "rows");
        checksum.add(got);
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(plane));
}

int main() {
    Checksum checksum;
    branches(checksum);
    host_work(checksum);
    memory(checksum);
    return report_ok("graphs", checksum);
}
