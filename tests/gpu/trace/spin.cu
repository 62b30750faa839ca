// Launches of one kernel that takes as long as it is told; how long each took, launch by launch or all together.
// usage: spin NANOSECONDS LAUNCHES ahead|waited: after a warm-up it says `ready`, and begins when a line comes.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>

__global__ void spin(long long clocks) {
    long long first = clock64();
    while (clock64() - first < clocks) {
    }
}

static int launch(int launches, bool waited, long long clocks, cudaStream_t stream) {
    for (int i = 0; i < launches; ++i) {
        spin<<<1, 32, 0, stream>>>(clocks);
        if (waited && cudaStreamSynchronize(stream) != cudaSuccess) {
            return 1;
        }
    }
    return cudaStreamSynchronize(stream) != cudaSuccess;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: spin NANOSECONDS LAUNCHES ahead|waited\n");
        return 2;
    }
    const long long nanoseconds = std::atoll(argv[1]);
    const int launches = std::atoi(argv[2]);
    const bool waited = std::strcmp(argv[3], "waited") == 0;
    int khz = 0;
    cudaStream_t stream;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0) != cudaSuccess || cudaStreamCreate(&stream) != cudaSuccess) {
        return 1;
    }
    const long long clocks = nanoseconds * khz / 1000000;
    char line[16];
    // As many launches as make the chains and the estimates that the rest is served with.
    if (launch(2000, false, clocks, stream) != 0 || launch(200, true, clocks, stream) != 0) {
        return 1;
    }
    std::printf("ready\n");
    std::fflush(stdout);
    if (!std::fgets(line, sizeof line, stdin)) {
        return 1;
    }
    auto begun = std::chrono::steady_clock::now();
    if (launch(launches, waited, clocks, stream) != 0) {
        return 1;
    }
    double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
    std::printf("%.4f\n", us / launches);
    return 0;
}
