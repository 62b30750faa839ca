// Variables that kernels alone use: they count in one, look things up in others, and keep a history. The host never
// asks where a variable is, and no kernel stores it.
#include "check.h"

constexpr int kCount = 1000, kBlock = 128, kRounds = 40, kHistory = 8;

__device__ unsigned int calls;
__device__ unsigned int history[kHistory] = {5, 6, 7};
__device__ const unsigned int primes[16] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};
__constant__ unsigned int offsets[4] = {1, 20, 300, 4000};

__global__ void advance(unsigned int *values, int round) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < kCount) {
        values[i] = values[i] * primes[(i + round) % 16] + offsets[i % 4];
        atomicAdd(&history[round % kHistory], values[i]);
        if (i == 0) {
            calls += 1;
        }
    }
}

__global__ void tell(unsigned int *to) {
    to[0] = calls;
    for (int i = 0; i < kHistory; ++i) {
        to[1 + i] = history[i];
    }
}

int main() {
    const unsigned int small[16] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};
    const unsigned int added[4] = {1, 20, 300, 4000};
    std::vector<unsigned int> expected(kCount), remembered = {0, 5, 6, 7, 0, 0, 0, 0, 0};
    for (int i = 0; i < kCount; ++i) {
        expected[i] = 7 * i;
    }
    DeviceArray<unsigned int> values(expected), told(remembered.size());
    Checksum checksum;
    for (int round = 0; round < kRounds; ++round) {
        advance<<<(kCount + kBlock - 1) / kBlock, kBlock>>>(values.get(), round);
        tell<<<1, 1>>>(told.get());
        remembered[0] += 1;
        for (int i = 0; i < kCount; ++i) {
            expected[i] = expected[i] * small[(i + round) % 16] + added[i % 4];
            remembered[1 + round % kHistory] += expected[i];
        }
        require_equal(told.to_host(), remembered, "variables");
        require_equal(values.to_host(), expected, "values");
    }
    checksum.add(expected);
    checksum.add(remembered);
    return report_ok("code_variables", checksum);
}
