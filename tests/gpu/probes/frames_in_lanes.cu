// Local memory of kernels in several green contexts of all SMs: is there room for larger frames in all of them once one of them has run such a
// kernel, who waits for whom while room is made, and do kernels keep their frames meanwhile?
//
//   nvcc -O1 -std=c++17 -arch=native frames_in_lanes.cu -o frames_in_lanes -lcuda && ./frames_in_lanes
//
// The answers of an H200 are in docs/lab-notebook.md.
#include <cuda_runtime.h>
#include <sys/wait.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "probe.cuh"

// Fills a frame, holds it for a while, and counts words that are not what was written.
template <int WORDS>
__global__ void frame(unsigned* wrong, unsigned seed, long long ns) {
    volatile unsigned local[WORDS];
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i < WORDS; i++) local[(i * 7 + seed) % WORDS] = thread * 31 + (i * 7 + seed) % WORDS;
    long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < ns);
    unsigned bad = 0;
    for (int i = 0; i < WORDS; i++) bad += local[i] != thread * 31 + i;
    if (bad) atomicAdd(wrong, bad);
}
typedef void (*Frame)(unsigned*, unsigned, long long);
static const Frame FRAMES[] = {frame<16>, frame<64>, frame<256>, frame<1024>, frame<4096>, frame<8192>, frame<12000>};
static const int COUNT = 7, LANES = 5;

static CUdevice device;
static cudaStream_t streams[LANES];
static unsigned* wrong;

static void make_lanes() {
    CUcontext primary;
    CK(cuInit(0)); CK(cuDeviceGet(&device, 0)); CK(cuDevicePrimaryCtxRetain(&primary, device)); CK(cuCtxSetCurrent(primary));
    CK(cudaStreamCreateWithFlags(&streams[0], cudaStreamNonBlocking));
    for (int lane = 1; lane < LANES; lane++) {
        CUgreenCtx green = green_context(device, {all_sms(device)});
        CK(cuGreenCtxStreamCreate((CUstream*)&streams[lane], green, CU_STREAM_NON_BLOCKING, 0));
    }
    CK(cudaMalloc(&wrong, 4)); CK(cudaMemset(wrong, 0, 4));
}

static void run(int lane, int size, int blocks, long long ns) {
    void* arguments[] = {&wrong, nullptr, &ns};
    unsigned seed = size * 3 + lane;
    arguments[1] = &seed;
    CK(cudaLaunchKernel((const void*)FRAMES[size], dim3(blocks), dim3(128), arguments, 0, streams[lane]));
}

static unsigned all_wrong() {
    unsigned found;
    CK(cudaDeviceSynchronize()); CK(cudaMemcpy(&found, wrong, 4, cudaMemcpyDeviceToHost));
    return found;
}

static void growth() {
    make_lanes();
    for (int size = 0; size < COUNT; size++) { run(0, 0, 1, 0); }
    CK(cudaDeviceSynchronize());
    // Code is loaded by a first call, of no block's length, in the first lane; the largest frame has had its room made there.
    for (int size = 0; size < COUNT; size++) { run(0, size, 1, 0); CK(cudaStreamSynchronize(streams[0])); }
    run(1, 1, 64, 1500000000);
    usleep(20000);
    for (int lane : {0, 2, 3, 0, 2}) {
        auto t = clk::now();
        run(lane, COUNT - 1, 1, 0);
        double launched = ms(t);
        CK(cudaStreamSynchronize(streams[lane]));
        printf("| the largest frame in lane %d, beside a kernel of 1.5 s in lane 1 | launched after %.2f ms, done after %.2f |\n", lane, launched, ms(t));
    }
    printf("| words of frames that were wrong | %u |\n", all_wrong());
    fflush(stdout);
    _exit(0);
}

// Kernels of all sizes in all lanes at once, room being made while others run.
static void stress(unsigned seed) {
    make_lanes();
    std::vector<std::thread> threads;
    for (int lane = 0; lane < LANES; lane++)
        threads.emplace_back([=] {
            unsigned state = seed * 977 + lane * 31 + 1;
            for (int i = 0; i < 400; i++) {
                state = state * 1664525 + 1013904223;
                // Larger frames come later.
                int most = 1 + i * COUNT / 400;
                run(lane, (state >> 16) % most, 1 + (state >> 8) % 300, (state >> 4) % 100000);
                if (state % 8 == 0) CK(cudaStreamSynchronize(streams[lane]));
            }
            CK(cudaStreamSynchronize(streams[lane]));
        });
    for (auto& thread : threads) thread.join();
    unsigned found = all_wrong();
    if (found) printf("| stress %u | %u words wrong |\n", seed, found);
    fflush(stdout);
    _exit(found != 0);
}

int main(int count, char** values) {
    int rounds = count > 1 ? atoi(values[1]) : 20, failed = 0;
    printf("| what | found |\n|---|---|\n");
    fflush(stdout);
    if (fork() == 0) growth();
    wait(nullptr);
    auto began = clk::now();
    for (int round = 0; round < rounds && ms(began) < 60000; round++) {
        if (fork() == 0) stress(round);
        int status;
        wait(&status);
        failed += status != 0;
    }
    printf("| processes of 5 lanes with 2,000 kernels of seven frame sizes that failed | %d of %d |\n", failed, rounds);
}
