// Executable graphs that go from one green context of all SMs to another: are they right when they are set again and launched in another lane as
// soon as their last node has said that it is there, when they are set again while they run, and when they are destroyed while they run?
//
//   nvcc -O1 -std=c++17 -arch=native graphs_in_lanes.cu -o graphs_in_lanes -lcuda && ./graphs_in_lanes [SECONDS]
//
// Each way is tried in a process of its own, without green contexts and with four.
#include <cuda_runtime.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "probe.cuh"

static double seconds(clk::time_point since) { return ms(since) / 1e3; }

// As large as the parameters of optimizers' kernels are. The words are the thread's; `check` is the sum of all but itself.
struct Parameters {
    unsigned* words[32];
    unsigned number, check;
    unsigned rest[800];
};
__host__ __device__ static unsigned sum(const Parameters& p) {
    unsigned found = p.number;
    for (int i = 0; i < 32; i++) found += (unsigned)(size_t)p.words[i] ^ (unsigned)((size_t)p.words[i] >> 32);
    for (int i = 0; i < 800; i++) found = found * 3 + p.rest[i];
    return found;
}
__global__ void step(const __grid_constant__ Parameters p, unsigned* torn) {
    if (threadIdx.x == 0 && sum(p) != p.check) {
        atomicAdd(torn, 1);
        return;
    }
    for (int i = threadIdx.x; i < 32; i += blockDim.x) atomicAdd(p.words[i], p.number);
}
__global__ void say(volatile unsigned long long* word, unsigned long long value) {
    __threadfence_system();
    *word = value;
}

static const int LANES = 5, LENGTH = 8, STREAMS = 16;
static CUdevice device;
static std::vector<cudaStream_t> streams;
static unsigned *words, *torn;

static void make_streams(bool green) {
    CUcontext primary;
    CK(cuInit(0)); CK(cuDeviceGet(&device, 0)); CK(cuDevicePrimaryCtxRetain(&primary, device)); CK(cuCtxSetCurrent(primary));
    std::vector<CUgreenCtx> lanes;
    for (int lane = 1; green && lane < LANES; lane++) lanes.push_back(green_context(device, {all_sms(device)}));
    for (int i = 0; i < STREAMS; i++) {
        cudaStream_t stream;
        int lane = green ? i % LANES : 0;
        if (lane == 0) CK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        else CK(cuGreenCtxStreamCreate((CUstream*)&stream, lanes[lane - 1], CU_STREAM_NON_BLOCKING, 0));
        streams.push_back(stream);
    }
    CK(cudaMalloc(&words, 4 * 64 * STREAMS)); CK(cudaMemset(words, 0, 4 * 64 * STREAMS));
    CK(cudaMalloc(&torn, 4)); CK(cudaMemset(torn, 0, 4));
}

struct Chain {
    cudaGraph_t graph; cudaGraphExec_t exec;
    cudaGraphNode_t nodes[LENGTH + 1];
};
static std::mutex making, stock_lock;
static std::vector<Chain> stock;

template <class... Values>
static cudaKernelNodeParams node(const void* function, void** arguments, int threads) {
    cudaKernelNodeParams made = {};
    made.func = (void*)function; made.gridDim = dim3(1); made.blockDim = dim3(threads); made.kernelParams = arguments;
    return made;
}

// The same nodes, set to what this thread's next round does.
static void set(Chain& chain, int who, unsigned round, unsigned long long* word, unsigned long long value, bool is_new, unsigned* added) {
    Parameters p; memset(&p, 0, sizeof p);
    cudaGraphNode_t before = nullptr;
    for (int i = 0; i <= LENGTH; i++) {
        cudaKernelNodeParams params;
        void* ends[] = {&word, &value}; void* steps[] = {&p, &torn};
        if (i < LENGTH) {
            for (int w = 0; w < 32; w++) p.words[w] = words + 64 * who + (w + i) % 64;
            p.number = round * 7 + i; p.rest[i] = round; p.check = sum(p);
            params = node((const void*)step, steps, 32);
            if (added) for (int w = 0; w < 32; w++) added[(w + i) % 64] += p.number;
        } else params = node((const void*)say, ends, 1);
        if (is_new) CK(cudaGraphAddKernelNode(&chain.nodes[i], chain.graph, before ? &before : nullptr, before ? 1 : 0, &params));
        else CK(cudaGraphExecKernelNodeSetParams(chain.exec, chain.nodes[i], &params));
        before = chain.nodes[i];
    }
}
static Chain make(int who, unsigned long long* word) {
    std::lock_guard<std::mutex> one(making);
    Chain chain;
    CK(cudaGraphCreate(&chain.graph, 0));
    set(chain, who, 0, word, 0, true, nullptr);
    CK(cudaGraphInstantiate(&chain.exec, chain.graph, 0));
    return chain;
}

enum Way { ACROSS, RUNNING, DESTROYED };
static const char* WAYS[] = {"set again in another thread's stream once its word is there", "set again while it runs, in the same stream", "destroyed while it runs, another made"};

static void thread(int who, Way way, double limit, std::atomic<long>* rounds, unsigned* added) {
    CK(cudaSetDevice(0));
    unsigned long long* word; CK(cudaHostAlloc((void**)&word, 4096, cudaHostAllocMapped)); *(volatile unsigned long long*)word = 0;
    unsigned long long posted = 0;
    auto began = clk::now();
    std::vector<Chain> own;
    for (unsigned round = 1; seconds(began) < limit; round++) {
        Chain chain;
        if (way == ACROSS) {
            std::unique_lock<std::mutex> held(stock_lock);
            if (stock.empty()) { held.unlock(); chain = make(who, word); }
            else { chain = stock.back(); stock.pop_back(); }
        } else if (way == RUNNING) {
            if (own.size() < 2) own.push_back(make(who, word));
            chain = own[round % own.size()];
        } else chain = make(who, word);
        set(chain, who, round, word, ++posted, false, added);
        CK(cudaGraphLaunch(chain.exec, streams[who]));
        if (way == DESTROYED) { CK(cudaGraphExecDestroy(chain.exec)); CK(cudaGraphDestroy(chain.graph)); }
        if (way != RUNNING || round % 16 == 0) while (way != DESTROYED || posted % 16 == 0) if (*(volatile unsigned long long*)word >= posted) break;
        if (way == ACROSS) { std::lock_guard<std::mutex> held(stock_lock); stock.push_back(chain); }
        ++*rounds;
    }
    CK(cudaStreamSynchronize(streams[who]));
}

static void run(Way way, bool green, double limit) {
    make_streams(green);
    std::atomic<long> rounds{0};
    std::vector<std::vector<unsigned>> added(STREAMS, std::vector<unsigned>(64));
    std::vector<std::thread> threads;
    for (int who = 0; who < STREAMS; who++) threads.emplace_back(thread, who, way, limit, &rounds, added[who].data());
    for (auto& one : threads) one.join();
    CK(cudaDeviceSynchronize());
    std::vector<unsigned> found(64 * STREAMS); unsigned found_torn;
    CK(cudaMemcpy(found.data(), words, 4 * 64 * STREAMS, cudaMemcpyDeviceToHost)); CK(cudaMemcpy(&found_torn, torn, 4, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int who = 0; who < STREAMS; who++) for (int w = 0; w < 64; w++) wrong += found[64 * who + w] != added[who][w];
    printf("| %s | %s | %ld chains of %d: %d words wrong, %u kernels with torn parameters |\n", WAYS[way], green ? "four green contexts" : "none", rounds.load(), LENGTH + 1, wrong, found_torn);
    fflush(stdout);
    _exit(0);
}

int main(int count, char** values) {
    double limit = count > 1 ? atof(values[1]) : 4;
    printf("| a chain is | green contexts | found |\n|---|---|---|\n");
    fflush(stdout);
    for (Way way : {ACROSS, RUNNING, DESTROYED})
        for (bool green : {false, true}) {
            if (fork() == 0) run(way, green, limit);
            int status;
            wait(&status);
            if (status) printf("| %s | %s | **the process failed** |\n", WAYS[way], green ? "four green contexts" : "none"), fflush(stdout);
        }
}
