// Managed variables: read and written by both sides in turns.
#include "check.h"

__managed__ int total = 5;
__managed__ int table[64];

__global__ void step(int turn) {
    table[threadIdx.x] = table[threadIdx.x] * 3 + threadIdx.x + turn;
    atomicAdd(&total, table[threadIdx.x] & 1);
}

int main() {
    int expected[64] = {}, expected_total = 5;
    Checksum checksum;
    for (int turn = 0; turn < 4; ++turn) {
        step<<<1, 64>>>(turn);
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < 64; ++i) {
            expected[i] = expected[i] * 3 + i + turn;
            expected_total += expected[i] & 1;
            REQUIRE(table[i] == expected[i]);
        }
        REQUIRE(total == expected_total);
        table[turn] += 1000;
        expected[turn] += 1000;
        total *= 2;
        expected_total *= 2;
    }
    checksum.add(expected, sizeof expected);
    checksum.add_value(expected_total);
    return report_ok("managed_variables", checksum);
}
