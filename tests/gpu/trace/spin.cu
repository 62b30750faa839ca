// Launches of one kernel that takes as long as it is told, and how long they took together. usage: spin NANOSECONDS LAUNCHES
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

__global__ void spin(unsigned long long nanoseconds) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    // The timer's steps are coarse on some devices: the clock counts what is left.
    long long clocks = nanoseconds * 175 / 100, first = clock64();
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (clock64() - first < clocks && now - begun < 10 * nanoseconds + 1000000);
}

int main(int argc, char **argv) {
    unsigned long long nanoseconds = argc > 1 ? std::atoll(argv[1]) : 5000;
    int launches = argc > 2 ? std::atoi(argv[2]) : 100000;
    cudaStream_t stream;
    if (cudaStreamCreate(&stream) != cudaSuccess) {
        return 1;
    }
    for (int i = 0; i < 2000; ++i) {
        spin<<<1, 32, 0, stream>>>(nanoseconds);
    }
    cudaStreamSynchronize(stream);
    auto begun = std::chrono::steady_clock::now();
    for (int i = 0; i < launches; ++i) {
        spin<<<1, 32, 0, stream>>>(nanoseconds);
    }
    if (cudaStreamSynchronize(stream) != cudaSuccess) {
        return 1;
    }
    double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
    std::printf("%.4f\n", us / launches);
    return 0;
}
