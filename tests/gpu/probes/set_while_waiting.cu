// An executable graph of kernels in a row is launched, set to other kernels while it waits, and launched again: does each kernel find its own
// parameters?
//
//   nvcc -O1 -std=c++17 -arch=native set_while_waiting.cu -o set_while_waiting -lcuda && ./set_while_waiting [TRIES [THREADS [WAY]]]
//
// Each try, by each of THREADS threads with a stream and a new graph of its own: behind a kernel of some milliseconds a graph of NODES kernels is launched
// DEPTH times, and all its nodes are set in between. A kernel checks a sum of its parameters, and says how many launches ago those were set that it found.
// What the nodes are set to is tried in several ways; `the most first`: to the kernel with the most parameters, launched and awaited, before the first try;
// `waits to grow`: what waits is awaited before a node gets more parameters than it ever had.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "probe.cuh"

struct Found { unsigned count, first[8]; };
__device__ Found found;
struct Head { unsigned check, thread, launch, node; };
template <unsigned WORDS> struct Parameters { Head head; unsigned rest[WORDS]; };
template <unsigned WORDS, unsigned = 0> __global__ void checks(const __grid_constant__ Parameters<WORDS> p) {
    unsigned sum = WORDS;
    for (unsigned i = 0; i < WORDS; i++) sum += p.rest[i] * (2 * i + 1);
    if (threadIdx.x == 0 && sum != p.head.check && atomicAdd(&found.count, 1) == 0) {
        found.first[0] = p.head.thread; found.first[1] = p.head.launch; found.first[2] = p.head.node; found.first[3] = WORDS;
    }
}
__global__ void spins(unsigned long long ns) { unsigned long long t0, t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0)); do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); while (t - t0 < ns); }
__global__ void nothing(unsigned long long, unsigned long long) {}

static const unsigned KINDS = 9;
static const unsigned WORDS[KINDS] = {1, 3, 7, 15, 40, 63, 120, 400, 1000};
static const unsigned ALIKE = 4;
static CUfunction functions[KINDS], alike[ALIKE], none, spinner;

template <class F> static CUfunction function(F* kernel) { cudaFunction_t f; CK(cudaGetFuncBySymbol(&f, (const void*)kernel)); return (CUfunction)f; }

template <class Body> static void with(CUfunction function, std::vector<unsigned> words, unsigned blocks, Body body) {
    size_t size = 4 * words.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = function; params.gridDimX = blocks; params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
    params.blockDimX = 32; params.extra = extra;
    body(&params);
}

struct Chain {
    CUgraph graph; CUgraphExec exec; std::vector<CUgraphNode> nodes;
    Chain(unsigned length, CUfunction made_of, unsigned words) {
        CK(cuGraphCreate(&graph, 0));
        for (unsigned i = 0; i < length; i++) {
            CUgraphNode node, before = i ? nodes.back() : nullptr;
            with(made_of, std::vector<unsigned>(words), 1, [&](CUDA_KERNEL_NODE_PARAMS* params) { CK(cuGraphAddKernelNode(&node, graph, i ? &before : nullptr, i ? 1 : 0, params)); });
            nodes.push_back(node);
        }
        CK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    }
    ~Chain() { CK(cuGraphExecDestroy(exec)); CK(cuGraphDestroy(graph)); }
};

enum Set { RANDOM, ONE_KERNEL, ONE_SIZE, SHRINKING, MOST_FIRST, MOST_SET_FIRST, MADE_OF_MOST, WAITS_TO_GROW, GROWS_ALONE, SETS };
static const char* NAMES[SETS] = {"random sizes", "one kernel", "kernels of one size", "fewer and fewer", "the most first", "the most first, not launched", "made of the most", "waits to grow", "one thread grows at a time"};
static std::mutex growing;
struct Way { unsigned nodes, depth; Set set; };

static void set(Chain& chain, unsigned i, CUfunction function, unsigned count, unsigned who, unsigned launch, std::mt19937& random) {
    std::vector<unsigned> words(4 + count);
    words[0] = count; words[1] = who; words[2] = launch; words[3] = i;
    for (unsigned w = 0; w < count; w++) words[0] += (words[4 + w] = random()) * (2 * w + 1);
    with(function, words, 1 + random() % 20, [&](CUDA_KERNEL_NODE_PARAMS* params) { CK(cuGraphExecKernelNodeSetParams(chain.exec, chain.nodes[i], params)); });
}

static void work(unsigned who, Way way, unsigned tries, CUstream stream, std::atomic<long>* waits) {
    CUcontext context; CUdevice device;
    CK(cuDeviceGet(&device, 0)); CK(cuDevicePrimaryCtxRetain(&context, device)); CK(cuCtxSetCurrent(context));
    std::mt19937 random(who * 977 + 1);
    auto spin = [&] {
        unsigned long long ns = 100000 + 20000ull * way.depth * way.nodes; if (ns > 5000000) ns = 5000000;
        void* arguments[] = {&ns};
        CK(cuLaunchKernel(spinner, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
    };
    for (unsigned one = 0; one < tries; one++) {
        bool of_most = way.set == MADE_OF_MOST;
        Chain chain(way.nodes, of_most ? functions[KINDS - 1] : none, of_most ? 4 + WORDS[KINDS - 1] : 4);
        std::vector<unsigned> most(way.nodes, 0);
        if (way.set == MOST_FIRST || way.set == MOST_SET_FIRST) {
            for (unsigned i = 0; i < way.nodes; i++) set(chain, i, functions[KINDS - 1], WORDS[KINDS - 1], who, ~0u, random);
            if (way.set == MOST_FIRST) { CK(cuGraphLaunch(chain.exec, stream)); CK(cuStreamSynchronize(stream)); }
        }
        bool waiting = false;
        for (unsigned launch = 0; launch < way.depth; launch++) {
            std::vector<unsigned> kinds(way.nodes);
            bool grows = false;
            for (unsigned i = 0; i < way.nodes; i++) {
                kinds[i] = way.set == SHRINKING ? KINDS - 1 - launch % KINDS : random() % KINDS;
                if (WORDS[kinds[i]] > most[i]) { most[i] = WORDS[kinds[i]]; grows = true; }
            }
            if (way.set == WAITS_TO_GROW && grows && waiting) { CK(cuStreamSynchronize(stream)); ++*waits; waiting = false; }
            std::unique_lock<std::mutex> alone(growing, std::defer_lock);
            if (way.set == GROWS_ALONE && grows) alone.lock();
            for (unsigned i = 0; i < way.nodes; i++) {
                if (way.set == ONE_KERNEL) set(chain, i, functions[4], WORDS[4], who, launch, random);
                else if (way.set == ONE_SIZE) set(chain, i, alike[random() % ALIKE], WORDS[4], who, launch, random);
                else set(chain, i, functions[kinds[i]], WORDS[kinds[i]], who, launch, random);
            }
            if (alone.owns_lock()) alone.unlock();
            if (!waiting) spin();
            waiting = true;
            CK(cuGraphLaunch(chain.exec, stream));
        }
        CK(cuStreamSynchronize(stream));
    }
}

int main(int count, char** values) {
    unsigned tries = count > 1 ? atoi(values[1]) : 100, most_threads = count > 2 ? atoi(values[2]) : 16, all = 0;
    CK(cudaFree(nullptr));
    functions[0] = function(checks<1>); functions[1] = function(checks<3>); functions[2] = function(checks<7>); functions[3] = function(checks<15>); functions[4] = function(checks<40>);
    functions[5] = function(checks<63>); functions[6] = function(checks<120>); functions[7] = function(checks<400>); functions[8] = function(checks<1000>);
    alike[0] = functions[4]; alike[1] = function(checks<40, 1>); alike[2] = function(checks<40, 2>); alike[3] = function(checks<40, 3>);
    none = function(nothing); spinner = function(spins);
    std::vector<CUstream> streams(most_threads);
    for (auto& stream : streams) CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    printf("| set to | threads | nodes | depth | kernels | awaited | blocks with others' parameters | the first |\n|---|---|---|---|---|---|---|---|\n");
    for (int how = 0; how < SETS; how++) if (count < 4 || atoi(values[3]) == how) for (unsigned depth : {4, 8}) for (unsigned threads : {1u, most_threads}) {
        Way way{16, depth, Set(how)};
        std::atomic<long> waits{0};
        static const Found zero = {}; CK(cudaMemcpyToSymbol(found, &zero, sizeof zero));
        std::vector<std::thread> them;
        for (unsigned who = 0; who < threads; who++) them.emplace_back(work, who, way, tries, streams[who], &waits);
        for (auto& one : them) one.join();
        Found now; CK(cudaMemcpyFromSymbol(&now, found, sizeof now));
        printf("| %s | %u | %u | %u | %u | %ld | %u |", NAMES[how], threads, way.nodes, depth, threads * way.nodes * depth * tries, waits.load(), now.count);
        if (now.count) printf(" with %u words: thread %u, launch %u, node %u", now.first[3], now.first[0], now.first[1], now.first[2]);
        printf(" |\n"); fflush(stdout);
        all += now.count;
    }
    return all != 0;
}
