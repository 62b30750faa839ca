// Managed variables: read and written by both sides in turns, also when several streams have to do with them.
#include "check.h"

__managed__ int total = 5;
__managed__ int table[64];
__managed__ int slow_result, quick_result;

__global__ void step(int turn) {
    table[threadIdx.x] = table[threadIdx.x] * 3 + threadIdx.x + turn;
    atomicAdd(&total, table[threadIdx.x] & 1);
}

// Takes a while, and only then writes.
__global__ void slow(unsigned rounds) {
    unsigned state = threadIdx.x;
    for (unsigned i = 0; i < rounds; ++i) {
        state = state * 1664525u + 1013904223u;
    }
    if (threadIdx.x == 0) {
        slow_result = state != 0 ? 11 : 12;
    }
}

__global__ void slow_odd(unsigned rounds) {
    unsigned state = threadIdx.x;
    for (unsigned i = 0; i < rounds; ++i) {
        state = state * 1664525u + 1013904223u;
    }
    int word = 2 * threadIdx.x + 1;
    table[word] = (state != 0 ? 11 : 12) + word;
}

__global__ void quick() { quick_result = 22; }

__global__ void read(int *copy) { copy[threadIdx.x] = table[threadIdx.x]; }

// The host waits for the quick kernel while the slow one runs; what the slow one writes must come with its own end.
static void results_come_with_the_stream_that_made_them(cudaStream_t one, cudaStream_t other) {
    slow<<<1, 64, 0, one>>>(200000);
    quick<<<1, 1, 0, other>>>();
    CHECK(cudaStreamSynchronize(other));
    CHECK(cudaStreamSynchronize(one));
    REQUIRE(slow_result != 0);
    REQUIRE(quick_result == 22);
}

// What the host has written is there for work of any stream that is posted then, whichever comes first and whatever still runs.
static void writes_are_there_for_all_streams(cudaStream_t one, cudaStream_t other, Checksum &checksum) {
    int expected[64], seen[64], *late, *early;
    CHECK(cudaMalloc(&late, sizeof table));
    CHECK(cudaMalloc(&early, sizeof table));
    slow<<<1, 64, 0, one>>>(200000);
    for (int i = 0; i < 64; ++i) {
        table[i] = expected[i] = 7 * i;
    }
    read<<<1, 64, 0, one>>>(late);
    read<<<1, 64, 0, other>>>(early);
    for (int *from : {early, late}) {
        CHECK(cudaMemcpyAsync(seen, from, sizeof seen, cudaMemcpyDeviceToHost, from == early ? other : one));
        CHECK(cudaStreamSynchronize(from == early ? other : one));
        for (int i = 0; i < 64; ++i) {
            REQUIRE(seen[i] == expected[i]);
        }
        checksum.add(seen, sizeof seen);
    }
    CHECK(cudaFree(early));
    CHECK(cudaFree(late));
}

// Both sides change every second word at once: neither loses what the other one wrote.
static void both_sides_write_at_once(cudaStream_t stream, Checksum &checksum) {
    slow_odd<<<1, 32, 0, stream>>>(200000);
    for (int i = 0; i < 64; i += 2) {
        table[i] = 900 + i;
    }
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < 64; ++i) {
        REQUIRE(table[i] == (i % 2 == 0 ? 900 + i : 11 + i));
    }
    checksum.add(table, sizeof table);
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
    cudaStream_t one, other;
    CHECK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    results_come_with_the_stream_that_made_them(one, other);
    writes_are_there_for_all_streams(one, other, checksum);
    both_sides_write_at_once(one, checksum);
    CHECK(cudaStreamDestroy(one));
    CHECK(cudaStreamDestroy(other));
    return report_ok("managed_variables", checksum);
}
