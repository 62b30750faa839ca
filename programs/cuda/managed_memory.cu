// Managed memory: read and written by both sides in turns.
#include "check.h"

__global__ void step(int *values, int *odd_count, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] = values[i] * 3 + i;
        atomicAdd(odd_count, values[i] & 1);
    }
}

int main() {
    constexpr int kCount = 4096, kTurns = 3;
    int *values = nullptr, *odd_count = nullptr;
    CHECK(cudaMallocManaged(&values, kCount * sizeof(int)));
    CHECK(cudaMallocManaged(&odd_count, sizeof(int)));
    *odd_count = 5;
    std::vector<int> expected(kCount);
    int expected_count = 5;
    for (int i = 0; i < kCount; ++i) {
        values[i] = expected[i] = i % 17;
    }
    for (int turn = 0; turn < kTurns; ++turn) {
        step<<<kCount / 128, 128>>>(values, odd_count, kCount);
        CHECK(cudaGetLastError());
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < kCount; ++i) {
            expected[i] = expected[i] * 3 + i;
            expected_count += expected[i] & 1;
        }
        require_equal(std::vector<int>(values, values + kCount), expected, "managed values");
        REQUIRE(*odd_count == expected_count);
        for (int i = 0; i < kCount; i += 5) {
            values[i] += turn;
            expected[i] += turn;
        }
        *odd_count += 100;
        expected_count += 100;
    }
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, values));
    REQUIRE(attributes.type == cudaMemoryTypeManaged);
    Checksum checksum;
    checksum.add(expected);
    checksum.add_value(*odd_count);
    CHECK(cudaFree(values));
    CHECK(cudaFree(odd_count));
    return report_ok("managed_memory", checksum);
}
