// Graphs whose kernels decide what is done: if and else, loops, one loop in another, a choice of several, branches in a loop, work captured into a
// loop, parameters changed in place inside, an update to another graph, what cannot be.
#include "check.h"

#include <cstring>
#include <tuple>
#include <utility>

#include <cuda.h>
#include <dlfcn.h>

constexpr int kCount = 1000, kBlock = 128;

// The runtime's function for all types of nodes has other parameters in CUDA 12 than in 13; the driver's has not.
static decltype(&cuGraphAddNode) add_driver_node = nullptr;
static CUcontext context = nullptr;

__global__ void halve(cudaGraphConditionalHandle handle, unsigned *value, unsigned *steps) {
    unsigned next = *value % 2 == 0 ? *value / 2 : *value * 3 + 1;
    *value = next;
    ++*steps;
    cudaGraphSetConditional(handle, next != 1);
}

__global__ void decide(cudaGraphConditionalHandle handle, const unsigned *value) { cudaGraphSetConditional(handle, *value); }

__global__ void count_to(cudaGraphConditionalHandle handle, unsigned *value, unsigned stop) {
    *value += 1;
    cudaGraphSetConditional(handle, *value < stop);
}

__global__ void add(unsigned *values, unsigned addend) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < kCount) {
        values[i] += addend;
    }
}

template <typename... Parameters, typename... Arguments>
static cudaGraphNode_t kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, int threads,
                              void (*function)(Parameters...), Arguments... given) {
    std::tuple<Parameters...> values(given...);
    return std::apply(
        [&](auto &...each) {
            void *arguments[] = {&each...};
            cudaKernelNodeParams params = {};
            params.func = reinterpret_cast<void *>(function);
            params.gridDim = dim3((threads + kBlock - 1) / kBlock);
            params.blockDim = dim3(threads < kBlock ? threads : kBlock);
            params.kernelParams = arguments;
            cudaGraphNode_t node;
            CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
            return node;
        },
        values);
}

struct Conditional {
    cudaGraphNode_t node;
    std::vector<cudaGraph_t> bodies;
};

static cudaGraphConditionalHandle condition(cudaGraph_t graph, unsigned value, unsigned flags = cudaGraphCondAssignDefault) {
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, value, flags));
    return handle;
}

static CUresult try_conditional(Conditional &made, cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after,
                                cudaGraphConditionalHandle handle, CUgraphConditionalNodeType type, unsigned size) {
    CUgraphNodeParams params;
    std::memset(&params, 0, sizeof params);
    params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    params.conditional.ctx = context;
    CUresult result = add_driver_node(&made.node, graph, after.data(), nullptr, after.size(), &params);
    if (result == CUDA_SUCCESS) {
        made.bodies.assign(params.conditional.phGraph_out, params.conditional.phGraph_out + size);
    }
    return result;
}

static Conditional conditional(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, cudaGraphConditionalHandle handle,
                               CUgraphConditionalNodeType type, unsigned size) {
    Conditional made;
    REQUIRE(try_conditional(made, graph, after, handle, type, size) == CUDA_SUCCESS);
    return made;
}

static cudaGraph_t new_graph() {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    return graph;
}

static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    return executable;
}

static void run(cudaGraphExec_t executable, cudaStream_t stream) {
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaStreamSynchronize(stream));
}

// The steps of the Collatz sequence, in a loop that knows only on the device when to end.
static void loop(Checksum &checksum, cudaStream_t stream) {
    DeviceArray<unsigned> state(2);
    auto graph = new_graph();
    auto handle = condition(graph, 1);
    auto node = conditional(graph, {}, handle, CU_GRAPH_COND_TYPE_WHILE, 1);
    kernel(node.bodies[0], {}, 1, halve, handle, state.get(), state.get() + 1);
    auto executable = instantiate(graph);
    for (unsigned start : {6u, 27u, 97u}) {
        unsigned steps = 0;
        for (unsigned value = start; value != 1; ++steps) {
            value = value % 2 == 0 ? value / 2 : value * 3 + 1;
        }
        unsigned begin[] = {start, 0};
        CHECK(cudaMemcpyAsync(state.get(), begin, sizeof begin, cudaMemcpyHostToDevice, stream));
        run(executable, stream);
        auto got = state.to_host();
        require_equal(got, {1u, steps}, "steps");
        checksum.add(got);
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// if, else and choices, decided by a value in memory that the host changes between launches.
static void choices(Checksum &checksum, cudaStream_t stream) {
    DeviceArray<unsigned> value(1), sums(kCount);
    for (auto [type, size] : {std::pair{CU_GRAPH_COND_TYPE_IF, 1u}, {CU_GRAPH_COND_TYPE_IF, 2u}, {CU_GRAPH_COND_TYPE_SWITCH, 3u}}) {
        auto graph = new_graph();
        auto handle = condition(graph, 0, 0);
        auto decision = kernel(graph, {}, 1, decide, handle, value.get());
        auto node = conditional(graph, {decision}, handle, type, size);
        for (unsigned i = 0; i < size; ++i) {
            kernel(node.bodies[i], {}, kCount, add, sums.get(), 100u * (i + 1));
        }
        kernel(graph, {node.node}, kCount, add, sums.get(), 1u);
        auto executable = instantiate(graph);
        CHECK(cudaGraphDestroy(graph));
        for (unsigned chosen : {0u, 1u, 2u, 7u}) {
            unsigned body = type == CU_GRAPH_COND_TYPE_SWITCH ? chosen : chosen != 0 ? 0 : 1;
            CHECK(cudaMemcpyAsync(value.get(), &chosen, sizeof chosen, cudaMemcpyHostToDevice, stream));
            CHECK(cudaMemsetAsync(sums.get(), 0, sums.size_bytes(), stream));
            run(executable, stream);
            auto got = sums.to_host();
            require_equal(got, std::vector<unsigned>(kCount, 1 + (body < size ? 100 * (body + 1) : 0)), "choice");
            checksum.add(got);
        }
        CHECK(cudaGraphExecDestroy(executable));
    }
}

// A loop of three rounds, in each a loop of four captured from a stream and two branches; then other parameters inside, and a node left out.
static void nested(Checksum &checksum, cudaStream_t stream) {
    DeviceArray<unsigned> counters(2), left(kCount), right(kCount);
    auto graph = new_graph();
    auto outer_handle = condition(graph, 1);
    auto outer = conditional(graph, {}, outer_handle, CU_GRAPH_COND_TYPE_WHILE, 1);
    auto body = outer.bodies[0];
    auto inner_handle = condition(body, 1);
    cudaGraphNode_t reset;
    cudaMemsetParams fill = {};
    fill.dst = counters.get();
    fill.elementSize = sizeof(unsigned);
    fill.width = fill.height = 1;
    CHECK(cudaGraphAddMemsetNode(&reset, body, nullptr, 0, &fill));
    auto again = kernel(body, {reset}, 1, count_to, inner_handle, counters.get(), 1000u);
    CHECK(cudaGraphAddMemsetNode(&reset, body, &again, 1, &fill));
    auto inner = conditional(body, {reset}, inner_handle, CU_GRAPH_COND_TYPE_WHILE, 1);
    CHECK(cudaStreamBeginCaptureToGraph(stream, inner.bodies[0], nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
    add<<<(kCount + kBlock - 1) / kBlock, kBlock, 0, stream>>>(left.get(), 1);
    count_to<<<1, 1, 0, stream>>>(inner_handle, counters.get(), 4);
    cudaGraph_t captured;
    CHECK(cudaStreamEndCapture(stream, &captured));
    REQUIRE(captured == inner.bodies[0]);
    auto branch = kernel(body, {inner.node}, kCount, add, right.get(), 10u);
    auto other = kernel(body, {inner.node}, kCount, add, left.get(), 100u);
    kernel(body, {branch, other}, 1, count_to, outer_handle, counters.get() + 1, 3u);
    auto executable = instantiate(graph);
    auto launch = [&](unsigned expected_left, unsigned expected_right) {
        CHECK(cudaMemsetAsync(counters.get(), 0, counters.size_bytes(), stream));
        CHECK(cudaMemsetAsync(left.get(), 0, left.size_bytes(), stream));
        CHECK(cudaMemsetAsync(right.get(), 0, right.size_bytes(), stream));
        run(executable, stream);
        auto got = left.to_host();
        require_equal(got, std::vector<unsigned>(kCount, expected_left), "left");
        checksum.add(got);
        require_equal(right.to_host(), std::vector<unsigned>(kCount, expected_right), "right");
    };
    launch(3 * (4 + 100), 30);
    cudaKernelNodeParams params = {};
    CHECK(cudaGraphKernelNodeGetParams(branch, &params));
    unsigned *values = right.get(), addend = 7;
    void *arguments[] = {&values, &addend};
    params.kernelParams = arguments;
    CHECK(cudaGraphExecKernelNodeSetParams(executable, branch, &params));
    launch(3 * (4 + 100), 21);
    CHECK(cudaGraphNodeSetEnabled(executable, other, 0));
    launch(3 * 4, 21);
    unsigned is_enabled = 1;
    CHECK(cudaGraphNodeGetEnabled(executable, other, &is_enabled));
    REQUIRE(is_enabled == 0);
    CHECK(cudaGraphNodeSetEnabled(executable, other, 1));
    launch(3 * (4 + 100), 21);
    CHECK(cudaGraphExecDestroy(executable));
    // What was changed was the executable graph.
    executable = instantiate(graph);
    launch(3 * (4 + 100), 30);
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// An update takes the other graph's condition over, with its default value.
static void updated(Checksum &checksum, cudaStream_t stream) {
    DeviceArray<unsigned> counter(1);
    auto build = [&](unsigned stop, unsigned value) {
        auto graph = new_graph();
        auto handle = condition(graph, value);
        auto node = conditional(graph, {}, handle, CU_GRAPH_COND_TYPE_WHILE, 1);
        kernel(node.bodies[0], {}, 1, count_to, handle, counter.get(), stop);
        return graph;
    };
    auto graph = build(5, 1), other = build(9, 1), skipped = build(20, 0);
    auto executable = instantiate(graph);
    auto launch = [&](unsigned expected) {
        CHECK(cudaMemsetAsync(counter.get(), 0, counter.size_bytes(), stream));
        run(executable, stream);
        auto got = counter.to_host();
        require_equal(got, {expected}, "counter");
        checksum.add(got);
    };
    launch(5);
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(executable, other, &info));
    launch(9);
    CHECK(cudaGraphExecUpdate(executable, skipped, &info));
    launch(0);
    CHECK(cudaGraphExecUpdate(executable, graph, &info));
    launch(5);
    CHECK(cudaGraphExecDestroy(executable));
    for (auto one : {graph, other, skipped}) {
        CHECK(cudaGraphDestroy(one));
    }
}

static void CUDART_CB nothing(void *) {}

static void refused() {
    auto graph = new_graph(), other = new_graph();
    auto handle = condition(graph, 1);
    Conditional made;
    REQUIRE(try_conditional(made, graph, {}, handle, CU_GRAPH_COND_TYPE_WHILE, 2) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(try_conditional(made, graph, {}, handle, CU_GRAPH_COND_TYPE_IF, 3) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(try_conditional(made, graph, {}, handle, CU_GRAPH_COND_TYPE_SWITCH, 0) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(try_conditional(made, other, {}, handle, CU_GRAPH_COND_TYPE_IF, 1) == CUDA_ERROR_INVALID_VALUE);
    cudaGraphExec_t executable, second;
    // A condition without a node.
    EXPECT(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, graph, 0));
    REQUIRE(try_conditional(made, graph, {}, handle, CU_GRAPH_COND_TYPE_IF, 1) == CUDA_SUCCESS);
    Conditional twice;
    REQUIRE(try_conditional(twice, graph, {}, handle, CU_GRAPH_COND_TYPE_IF, 1) == CUDA_ERROR_INVALID_VALUE);
    executable = instantiate(graph);
    EXPECT(cudaErrorNotSupported, cudaGraphInstantiate(&second, graph, 0));
    cudaGraph_t clone;
    EXPECT(cudaErrorNotSupported, cudaGraphClone(&clone, graph));
    cudaGraphNode_t child;
    EXPECT(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&child, other, nullptr, 0, graph));
    EXPECT(cudaErrorInvalidValue, cudaGraphDestroy(made.bodies[0]));
    EXPECT(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(executable, made.node, 0));
    CHECK(cudaGraphExecDestroy(executable));
    // Made again, the node's graph may not hold what a condition cannot decide about.
    CHECK(cudaGraphDestroyNode(made.node));
    REQUIRE(try_conditional(made, graph, {}, handle, CU_GRAPH_COND_TYPE_IF, 1) == CUDA_SUCCESS);
    cudaHostNodeParams host = {};
    host.fn = nothing;
    CHECK(cudaGraphAddHostNode(&child, made.bodies[0], nullptr, 0, &host));
    EXPECT(cudaErrorInvalidValue, cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphDestroy(other));
}

int main() {
    CHECK(cudaFree(nullptr));
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(driver != nullptr);
    auto current = reinterpret_cast<decltype(&cuCtxGetCurrent)>(dlsym(driver, "cuCtxGetCurrent"));
    add_driver_node = reinterpret_cast<decltype(&cuGraphAddNode)>(dlsym(driver, "cuGraphAddNode_v2"));
    REQUIRE(current && add_driver_node && current(&context) == CUDA_SUCCESS);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Checksum checksum;
    loop(checksum, stream);
    choices(checksum, stream);
    nested(checksum, stream);
    updated(checksum, stream);
    refused();
    CHECK(cudaStreamDestroy(stream));
    return report_ok("conditional_graphs", checksum);
}
