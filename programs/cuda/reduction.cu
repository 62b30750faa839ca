// Sum, maximum and population count by warp shuffles and votes, then one atomic per block.
#include "check.h"

#include <algorithm>

struct Totals {
    unsigned long long sum;
    unsigned int maximum;
    unsigned int odd_count;
};

__device__ unsigned int warp_sum(unsigned int value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_down_sync(0xffffffffu, value, offset);
    }
    return value;
}

__device__ unsigned int warp_maximum(unsigned int value) {
    for (int mask = 16; mask > 0; mask /= 2) {
        value = max(value, __shfl_xor_sync(0xffffffffu, value, mask));
    }
    return value;
}

__global__ void reduce(const unsigned int *values, int count, Totals *totals) {
    __shared__ unsigned int sums[32];
    __shared__ unsigned int maxima[32];
    unsigned int sum = 0, maximum = 0, odd_count = 0;
    // Every thread of a block makes the same number of turns, so that the votes see whole warps.
    for (int start = blockIdx.x * blockDim.x; start < count; start += gridDim.x * blockDim.x) {
        int i = start + threadIdx.x;
        unsigned int value = i < count ? values[i] : 0;
        sum += value;
        maximum = max(maximum, value);
        odd_count += __popc(__ballot_sync(0xffffffffu, value & 1u));
    }
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sum = warp_sum(sum);
    maximum = warp_maximum(maximum);
    if (lane == 0) {
        sums[warp] = sum;
        maxima[warp] = maximum;
        atomicAdd(&totals->odd_count, odd_count);
    }
    __syncthreads();
    if (warp == 0) {
        int warps = blockDim.x / 32;
        sum = warp_sum(lane < warps ? sums[lane] : 0);
        maximum = warp_maximum(lane < warps ? maxima[lane] : 0);
        if (lane == 0) {
            atomicAdd(&totals->sum, static_cast<unsigned long long>(sum));
            atomicMax(&totals->maximum, maximum);
        }
    }
}

int main() {
    constexpr int kCount = 150001;
    Random random(3);
    std::vector<unsigned int> values(kCount);
    Totals expected = {};
    for (unsigned int &value : values) {
        value = random.below<unsigned int>(100000);
        expected.sum += value;
        expected.maximum = std::max(expected.maximum, value);
        expected.odd_count += value & 1u;
    }
    DeviceArray<unsigned int> device_values(values);
    DeviceArray<Totals> device_totals(1);
    CHECK(cudaMemset(device_totals.get(), 0, sizeof(Totals)));
    reduce<<<24, 256>>>(device_values.get(), kCount, device_totals.get());
    CHECK(cudaGetLastError());

    Totals totals = device_totals.to_host()[0];
    REQUIRE(totals.sum == expected.sum);
    REQUIRE(totals.maximum == expected.maximum);
    REQUIRE(totals.odd_count == expected.odd_count);
    Checksum checksum;
    checksum.add_value(totals.sum);
    checksum.add_value(totals.maximum);
    checksum.add_value(totals.odd_count);
    return report_ok("reduction", checksum);
}
