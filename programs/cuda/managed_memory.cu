// Managed memory: allocated and static, read and written by both sides in turns.
#include "check.h"

__managed__ int shared_counter = 5;

__global__ void step(int *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] = values[i] * 3 + i;
        atomicAdd(&shared_counter, values[i] & 1);
    }
}

int main() {
    constexpr int kCount = 4096, kTurns = 3;
    int *values = nullptr;
    CHECK(cudaMallocManaged(&values, kCount * sizeof(int)));
    std::vector<int> expected(kCount);
    int expected_counter = 5;
    for (int i = 0; i < kCount; ++i) {
        values[i] = expected[i] = i % 17;
    }
    for (int turn = 0; turn < kTurns; ++turn) {
        step<<<kCount / 128, 128>>>(values, kCount);
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < kCount; ++i) {
            expected[i] = expected[i] * 3 + i;
            expected_counter += expected[i] & 1;
        }
        require_equal(std::vector<int>(values, values + kCount), expected, "managed values");
        REQUIRE(shared_counter == expected_counter);
        for (int i = 0; i < kCount; i += 5) {
            values[i] += turn;
            expected[i] += turn;
        }
        shared_counter += 100;
        expected_counter += 100;
    }
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, values));
    REQUIRE(attributes.type == cudaMemoryTypeManaged);
    Checksum checksum;
    checksum.add(expected);
    checksum.add_value(shared_counter);
    CHECK(cudaFree(values));
    return report_ok("managed_memory", checksum);
}
