// Executable graphs whose nodes are set to other kernels again and again, with parameters of other lengths, as an executor's chains are: does each
// kernel find its own parameters? Streams of the primary context, and of green contexts of all SMs.
//
//   nvcc -O1 -std=c++17 -arch=native graphs_in_flight.cu -o graphs_in_flight -lcuda && ./graphs_in_flight [SECONDS [WAYS]]
//
// WAYS: `s` chains go from thread to thread, `r` a chain is set again while it may run, `d` kernels are launched directly in between,
// `w` chains wait behind a kernel of half a millisecond, `x` and are destroyed there. Each set of
// ways is tried in a process of its own, without green contexts and with four. A kernel that finds others' parameters says whose they are. Exits with 1
// then: natively with `x`, on NVIDIA's driver 580. Under `openmps run` no kernel finds them.
#include <cuda_runtime.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "probe.cuh"

struct Head { unsigned kind, words, check, how, thread, round, node, pad; };
struct Seen { Head head; unsigned kernel, block, blocks, sm, pad[4]; };
static const unsigned MOST_SEEN = 64;
struct Found { unsigned count, pad[7]; Seen seen[MOST_SEEN]; };
__device__ Found found;

template <unsigned KIND, unsigned WORDS> struct Parameters { Head head; unsigned rest[WORDS]; };
template <unsigned KIND, unsigned WORDS> __global__ void checks(const __grid_constant__ Parameters<KIND, WORDS> p) {
    __shared__ unsigned total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    unsigned sum = 0;
    for (unsigned i = threadIdx.x; i < WORDS; i += blockDim.x) sum += p.rest[i] * (2 * i + 1);
    atomicAdd(&total, sum);
    __syncthreads();
    if (threadIdx.x == 0 && (p.head.kind != KIND || p.head.words != WORDS || p.head.check != total)) {
        unsigned at = atomicAdd(&found.count, 1);
        if (at < MOST_SEEN) { 
            unsigned sm; asm("mov.u32 %0, %%smid;" : "=r"(sm));
            Seen& seen = found.seen[at];
            seen.head = p.head; seen.kernel = KIND; seen.block = blockIdx.x; seen.blocks = gridDim.x; seen.sm = sm;
        }
    }
}
__global__ void say(volatile unsigned long long* word, unsigned long long value) { __threadfence_system(); *word = value; }

__global__ void spins(unsigned long long ns) { unsigned long long t0, t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t0)); do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); while (t - t0 < ns); }

static const unsigned KINDS = 8;
static const unsigned WORDS[KINDS] = {1, 4, 10, 30, 100, 250, 600, 1000};
static CUfunction functions[KINDS], sayer, spinner;
static CUdevice device;
static CUcontext primary;
static std::vector<CUstream> streams;
static const int LANES = 5, STREAMS = 16, LENGTHS[] = {2, 3, 4, 5, 8, 13, 16};

template <class F> static CUfunction function(F* kernel) { cudaFunction_t f; CK(cudaGetFuncBySymbol(&f, (const void*)kernel)); return (CUfunction)f; }

static void prepare(bool green) {
    CK(cuInit(0)); CK(cuDeviceGet(&device, 0)); CK(cuDevicePrimaryCtxRetain(&primary, device)); CK(cuCtxSetCurrent(primary));
    CK(cudaFree(nullptr));
    functions[0] = function(checks<0, 1>); functions[1] = function(checks<1, 4>); functions[2] = function(checks<2, 10>); functions[3] = function(checks<3, 30>);
    functions[4] = function(checks<4, 100>); functions[5] = function(checks<5, 250>); functions[6] = function(checks<6, 600>); functions[7] = function(checks<7, 1000>);
    sayer = function(say); spinner = function(spins);
    std::vector<CUgreenCtx> lanes;
    for (int lane = 1; green && lane < LANES; lane++) lanes.push_back(green_context(device, {all_sms(device)}));
    for (int i = 0; i < STREAMS; i++) {
        CUstream stream;
        int lane = green ? i % LANES : 0;
        if (lane == 0) CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        else CK(cuGreenCtxStreamCreate(&stream, lanes[lane - 1], CU_STREAM_NON_BLOCKING, 0));
        streams.push_back(stream);
    }
}

struct Chain { int length; CUgraph graph; CUgraphExec exec; std::vector<CUgraphNode> nodes; unsigned long long ends_with; };
static std::mutex making, stock_lock;
static std::vector<Chain> stock;

struct Launch {
    CUfunction function; unsigned threads, blocks; std::vector<unsigned char> bytes;
    template <class Body> auto with(Body body) {
        size_t size = bytes.size();
        void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
        CUDA_KERNEL_NODE_PARAMS params = {};
        params.func = function; params.gridDimX = blocks; params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
        params.blockDimX = threads; params.extra = extra;
        return body(&params);
    }
};
static Launch says(unsigned long long* word, unsigned long long value) {
    Launch made{sayer, 1, 1, std::vector<unsigned char>(16)};
    memcpy(&made.bytes[0], &word, 8); memcpy(&made.bytes[8], &value, 8);
    return made;
}
static const unsigned BLOCKS[] = {1, 4, 19, 64, 256};
static Launch random_launch(std::mt19937& any, unsigned how, unsigned thread, unsigned round, unsigned node) {
    unsigned kind = any() % KINDS, words = WORDS[kind];
    Launch made{functions[kind], 32u << any() % 4, BLOCKS[any() % 5], std::vector<unsigned char>(sizeof(Head) + 4 * words)};
    Head head{kind, words, 0, how, thread, round, node, 0};
    std::vector<unsigned> rest(words);
    for (unsigned i = 0; i < words; i++) { rest[i] = any(); head.check += rest[i] * (2 * i + 1); }
    memcpy(&made.bytes[0], &head, sizeof head); memcpy(&made.bytes[sizeof head], rest.data(), 4 * words);
    return made;
}

static Chain make(int length) {
    std::lock_guard<std::mutex> one(making);
    Chain chain{length, nullptr, nullptr, {}, 0};
    CK(cuGraphCreate(&chain.graph, 0));
    CUgraphNode before = nullptr;
    for (int i = 0; i <= length; i++) {
        CUgraphNode node;
        says(nullptr, 0).with([&](CUDA_KERNEL_NODE_PARAMS* params) { CK(cuGraphAddKernelNode(&node, chain.graph, before ? &before : nullptr, before ? 1 : 0, params)); return 0; });
        chain.nodes.push_back(node);
        before = node;
    }
    CK(cuGraphInstantiateWithFlags(&chain.exec, chain.graph, 0));
    return chain;
}

static void thread(int who, std::string ways, double limit, std::atomic<long>* launches, std::atomic<long>* destroyed) {
    CK(cuCtxSetCurrent(primary));
    bool shares = ways.find('s') != ways.npos, reuses = ways.find('r') != ways.npos, directly = ways.find('d') != ways.npos, destroys = ways.find('x') != ways.npos, stands_sometimes = destroys || ways.find('w') != ways.npos;
    std::mt19937 any(who * 977 + 1);
    unsigned long long* word; CK(cudaHostAlloc((void**)&word, 4096, cudaHostAllocMapped)); *(volatile unsigned long long*)word = 0;
    unsigned long long posted = 0;
    auto began = clk::now();
    std::vector<Chain> own[32];
    for (unsigned round = 1; ms(began) / 1e3 < limit; round++) {
        int length = LENGTHS[any() % (sizeof LENGTHS / sizeof *LENGTHS)];
        if (directly)
            for (unsigned i = 0, count = any() % 4; i < count; i++) {
                Launch one = random_launch(any, 1, who, round, i);
                size_t size = one.bytes.size();
                void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, one.bytes.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
                CK(cuLaunchKernel(one.function, one.blocks, 1, 1, one.threads, 1, 1, 0, streams[who], nullptr, extra));
                ++*launches;
            }
        auto& kept = own[length];
        if (kept.size() < 2) {
            std::unique_lock<std::mutex> held(stock_lock);
            size_t at = 0;
            while (at < stock.size() && stock[at].length != length) at++;
            if (at < stock.size()) { Chain chain = stock[at]; stock.erase(stock.begin() + at); held.unlock(); chain.ends_with = 0; kept.push_back(chain); }
            else { held.unlock(); kept.push_back(make(length)); }
        }
        Chain chain = kept.front(); kept.erase(kept.begin());
        if (!reuses) while (*(volatile unsigned long long*)word < chain.ends_with) {}
        for (int i = 0; i < length; i++)
            random_launch(any, 0, who, round, i).with([&](CUDA_KERNEL_NODE_PARAMS* params) { CK(cuGraphExecKernelNodeSetParams(chain.exec, chain.nodes[i], params)); return 0; });
        bool stands = stands_sometimes && any() % 4 == 0, ends = stands && destroys;
        if (stands) {
            unsigned long long ns = 500000;
            void* arguments[] = {&ns};
            CK(cuLaunchKernel(spinner, 1, 1, 1, 1, 1, 1, 0, streams[who], arguments, nullptr));
        }
        chain.ends_with = ++posted;
        says(word, posted).with([&](CUDA_KERNEL_NODE_PARAMS* params) { CK(cuGraphExecKernelNodeSetParams(chain.exec, chain.nodes[length], params)); return 0; });
        CK(cuGraphLaunch(chain.exec, streams[who]));
        *launches += length;
        if (ends) {
            CK(cuGraphExecDestroy(chain.exec)); CK(cuGraphDestroy(chain.graph));
            ++*destroyed;
        } else if (shares && any() % 3 == 0) {
            // Given up: when its word is there, it names nothing of this thread's.
            while (*(volatile unsigned long long*)word < chain.ends_with) {}
            for (auto node : chain.nodes) says(nullptr, 0).with([&](CUDA_KERNEL_NODE_PARAMS* params) { CK(cuGraphExecKernelNodeSetParams(chain.exec, node, params)); return 0; });
            std::lock_guard<std::mutex> held(stock_lock);
            stock.push_back(chain);
        } else kept.push_back(chain);
        // As a program waits: for all that it has posted, now and then.
        if (any() % 6 == 0) while (*(volatile unsigned long long*)word < posted) {}
    }
    CK(cuStreamSynchronize(streams[who]));
}

static void run(const std::string& ways, bool green, double limit) {
    prepare(green);
    std::atomic<long> launches{0}, destroyed{0};
    std::vector<std::thread> threads;
    for (int who = 0; who < STREAMS; who++) threads.emplace_back(thread, who, ways, limit, &launches, &destroyed);
    for (auto& one : threads) one.join();
    CK(cuCtxSynchronize());
    static Found all; CK(cudaMemcpyFromSymbol(&all, found, sizeof all));
    printf("| %s | %s | %ld kernels, %ld chains destroyed, %u with others' parameters |\n", ways.c_str(), green ? "four green contexts" : "none", launches.load(), destroyed.load(), all.count);
    for (unsigned i = 0; i < all.count && i < 20; i++) {
        Seen& seen = all.seen[i];
        printf("|   kernel %u, block %u of %u on SM %u | found kind %u words %u %s | of thread %u, round %u, node %u |\n", seen.kernel, seen.block, seen.blocks, seen.sm, seen.head.kind, seen.head.words, seen.head.how ? "direct" : "chain", seen.head.thread, seen.head.round, seen.head.node);
    }
    fflush(stdout);
    _exit(all.count ? 2 : 0);
}

int main(int count, char** values) {
    double limit = count > 1 ? atof(values[1]) : 5;
    printf("| ways | green contexts | found |\n|---|---|---|\n");
    fflush(stdout);
    int outcome = 0;
    for (std::string ways : count > 2 ? std::vector<std::string>{values[2]} : std::vector<std::string>{"", "r", "srd", "x"})
        for (bool green : {false, true}) {
            if (fork() == 0) run(ways, green, limit);
            int status;
            wait(&status);
            if (status) outcome = 1;
            if (status && WEXITSTATUS(status) != 2) printf("| %s | %s | **the process failed** |\n", ways.c_str(), green ? "four green contexts" : "none"), fflush(stdout);
        }
    return outcome;
}
