// Blocking streams whose work comes before any of the default stream: the first thing that the default stream does waits for all of it, and what the blocking
// streams do next waits for the default stream.
#include "check.h"

constexpr unsigned STREAMS = 3, COUNT = 64, STEPS = 5000, ROUNDS = 4;

__host__ __device__ unsigned after_steps(unsigned value) {
    for (unsigned step = 0; step < STEPS; ++step) {
        value = value * 1664525u + 1013904223u;
    }
    return value;
}

__global__ void begin(unsigned *x, unsigned seed) { x[threadIdx.x] = seed + threadIdx.x; }

// Takes a while, and writes at its end.
__global__ void take_steps(unsigned *x) { x[threadIdx.x] = after_steps(x[threadIdx.x]); }

__global__ void add_all(unsigned *to, const unsigned *x) {
    unsigned sum = 0;
    for (unsigned stream = 0; stream < STREAMS; ++stream) {
        sum += x[stream * COUNT + threadIdx.x];
    }
    to[threadIdx.x] = after_steps(sum);
}

__global__ void double_all(unsigned *to, const unsigned *from) { to[threadIdx.x] = from[threadIdx.x] * 2; }

int main() {
    cudaStream_t streams[STREAMS];
    DeviceArray<unsigned> x(STREAMS * COUNT), sum(COUNT), doubled(STREAMS * COUNT);
    for (cudaStream_t &stream : streams) {
        CHECK(cudaStreamCreate(&stream));
    }
    // Nothing has to be loaded later, which may take until the device is idle.
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, begin));
    CHECK(cudaFuncGetAttributes(&attributes, take_steps));
    CHECK(cudaFuncGetAttributes(&attributes, add_all));
    CHECK(cudaFuncGetAttributes(&attributes, double_all));
    for (unsigned stream = 0; stream < STREAMS; ++stream) {
        unsigned *part = x.get() + stream * COUNT;
        begin<<<1, COUNT, 0, streams[stream]>>>(part, stream * COUNT);
        for (unsigned round = 0; round < ROUNDS; ++round) {
            take_steps<<<1, COUNT, 0, streams[stream]>>>(part);
        }
    }
    add_all<<<1, COUNT>>>(sum.get(), x.get());
    for (unsigned stream = 0; stream < STREAMS; ++stream) {
        double_all<<<1, COUNT, 0, streams[stream]>>>(doubled.get() + stream * COUNT, sum.get());
    }
    CHECK(cudaGetLastError());
    const std::vector<unsigned> got = doubled.to_host();
    std::vector<unsigned> expected(STREAMS * COUNT);
    for (unsigned i = 0; i < COUNT; ++i) {
        unsigned all = 0;
        for (unsigned stream = 0; stream < STREAMS; ++stream) {
            unsigned value = stream * COUNT + i;
            for (unsigned round = 0; round < ROUNDS; ++round) {
                value = after_steps(value);
            }
            all += value;
        }
        for (unsigned stream = 0; stream < STREAMS; ++stream) {
            expected[stream * COUNT + i] = after_steps(all) * 2;
        }
    }
    require_equal(got, expected, "doubled sums");
    for (cudaStream_t stream : streams) {
        CHECK(cudaStreamDestroy(stream));
    }
    Checksum checksum;
    checksum.add(got);
    return report_ok("blocking_streams", checksum);
}
