// Do cooperative launches of several streams run at once, and if not, what do they wait for?
//
//     nvcc -O2 -std=c++17 -arch=native cooperative_launches.cu -o cooperative_launches -lcuda
//     ./cooperative_launches
//
// Each of some threads launches a kernel of 50 us on a stream of its own and waits for it, again and again. "At once" is how many ran at a time:
// kernels a second times 50 us. The kernel is launched as usual, cooperatively, or by a graph; the streams are the primary context's, or each is of
// a green context of all SMs. Then one cooperative launch is timed that has something long before it on another stream.

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "probe.cuh"

__device__ unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__global__ void spin(unsigned us, int syncs) {
    auto end = now_ns() + us * 1000ull;
    while (now_ns() < end) {}
    if (syncs) cooperative_groups::this_grid().sync();
}

enum Way { PLAIN, COOPERATIVE, GRAPH, GRAPH_OF_COOPERATIVE };
const char *WAYS[] = {"a kernel", "a cooperative kernel", "a graph of a kernel", "a graph of a cooperative kernel"};

constexpr int BLOCKS = 8, THREADS = 128;

void launch(cudaStream_t stream, bool cooperative, unsigned us, int blocks = BLOCKS) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = cooperative;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = THREADS, config.stream = stream, config.attrs = &attribute, config.numAttrs = 1;
    CK(cudaLaunchKernelEx(&config, spin, us, int(cooperative)));
}

CUcontext primary;

cudaStream_t green_stream() {
    CUstream stream;
    auto green = green_context(0, {all_sms(0)});
    CK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    return stream;
}

void rate(Way way, const std::vector<cudaStream_t> &streams) {
    constexpr unsigned US = 50;
    std::atomic<long> launches{0};
    std::atomic<bool> go{false}, stop{false};
    std::vector<std::thread> threads;
    for (auto stream : streams) {
        cudaGraphExec_t exec = nullptr;
        if (way >= GRAPH) {
            cudaGraph_t graph;
            CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            launch(stream, way == GRAPH_OF_COOPERATIVE, US);
            CK(cudaStreamEndCapture(stream, &graph));
            CK(cudaGraphInstantiate(&exec, graph, 0));
        }
        threads.emplace_back([=, &launches, &go, &stop] {
            CK(cuCtxSetCurrent(primary));
            while (!go) {}
            while (!stop) {
                if (exec) CK(cudaGraphLaunch(exec, stream));
                else launch(stream, way == COOPERATIVE, US);
                CK(cudaStreamSynchronize(stream));
                launches++;
            }
        });
    }
    go = true;
    auto began = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    long count = launches;
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    stop = true;
    for (auto &thread : threads) thread.join();
    std::printf("  %-32s %zu streams: %6.0f a second, %4.1f at once\n", WAYS[way], streams.size(), count / seconds, count / seconds * US / 1e6);
}

// What the second stream's launch waits for that is on the first.
void behind(const char *what, cudaStream_t first, cudaStream_t second, bool long_is_cooperative, bool with_cooperative_behind) {
    CK(cudaDeviceSynchronize());
    launch(first, long_is_cooperative, 20000);
    if (with_cooperative_behind) launch(first, true, 10);
    auto began = std::chrono::steady_clock::now();
    launch(second, true, 10);
    double accepted = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    CK(cudaStreamSynchronize(second));
    double ended = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    std::printf("  %-70s accepted after %.2f ms, ended after %.2f\n", what, accepted, ended);
    CK(cudaDeviceSynchronize());
}

int main() {
    CK(cudaSetDevice(0));
    CK(cudaFree(nullptr));
    CK(cuCtxGetCurrent(&primary));
    for (bool green : {false, true}) {
        std::vector<cudaStream_t> streams;
        for (int i = 0; i < 8; i++) {
            cudaStream_t stream;
            if (green) stream = green_stream();
            else CK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            streams.push_back(stream);
        }
        std::printf("%s\n", green ? "a green context of all SMs for each stream" : "streams of the primary context");
        for (auto way : {PLAIN, COOPERATIVE, GRAPH, GRAPH_OF_COOPERATIVE})
            for (int count : {1, 4, 8}) rate(way, {streams.begin(), streams.begin() + count});
        behind("beside a long kernel", streams[0], streams[1], false, false);
        behind("beside a long kernel and a cooperative one behind it", streams[0], streams[1], false, true);
        behind("beside a long cooperative kernel", streams[0], streams[1], true, false);
    }
}
