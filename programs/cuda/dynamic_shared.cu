// Shared memory sized at the launch, beside static shared memory, up to more than the default limit.
#include "check.h"

#include <algorithm>

// Sorts `per_block` values in shared memory by odd-even transposition.
__global__ void sort_blocks(const int *in, int *out, int per_block) {
    extern __shared__ int values[];
    __shared__ int swaps;
    int *block_out = out + blockIdx.x * per_block;
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) {
        values[i] = in[blockIdx.x * per_block + i];
    }
    for (int phase = 0;; ++phase) {
        if (threadIdx.x == 0 && phase % 2 == 0) {
            swaps = 0;
        }
        __syncthreads();
        for (int i = 2 * threadIdx.x + phase % 2; i + 1 < per_block; i += 2 * blockDim.x) {
            if (values[i] > values[i + 1]) {
                int larger = values[i];
                values[i] = values[i + 1];
                values[i + 1] = larger;
                atomicAdd(&swaps, 1);
            }
        }
        __syncthreads();
        bool sorted = phase % 2 == 1 && swaps == 0;
        __syncthreads();
        if (sorted) {
            break;
        }
    }
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) {
        block_out[i] = values[i];
    }
}

// Mirrors a large array through dynamic shared memory.
__global__ void mirror(const int *in, int *out, int count) {
    extern __shared__ int values[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        values[count - 1 - i] = in[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        out[i] = values[i];
    }
}

int main() {
    constexpr int kBlocks = 8, kPerBlock = 128;
    Random random(11);
    std::vector<int> in(kBlocks * kPerBlock);
    for (int &value : in) {
        value = static_cast<int>(random.next());
    }
    std::vector<int> expected = in;
    for (int block = 0; block < kBlocks; ++block) {
        std::sort(expected.begin() + block * kPerBlock, expected.begin() + (block + 1) * kPerBlock);
    }
    DeviceArray<int> device_in(in), device_out(in.size());
    sort_blocks<<<kBlocks, 64, kPerBlock * sizeof(int)>>>(device_in.get(), device_out.get(), kPerBlock);
    CHECK(cudaGetLastError());
    std::vector<int> sorted = device_out.to_host();
    require_equal(sorted, expected, "sorted blocks");

    // 64,000 bytes are more than a kernel may have without asking first.
    constexpr int kLarge = 16000;
    std::vector<int> large(kLarge);
    for (int i = 0; i < kLarge; ++i) {
        large[i] = i * 3 - 5;
    }
    DeviceArray<int> large_in(large), large_out(kLarge);
    mirror<<<1, 256, kLarge * sizeof(int)>>>(large_in.get(), large_out.get(), kLarge);
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    CHECK(cudaFuncSetAttribute(mirror, cudaFuncAttributeMaxDynamicSharedMemorySize, kLarge * sizeof(int)));
    mirror<<<1, 256, kLarge * sizeof(int)>>>(large_in.get(), large_out.get(), kLarge);
    CHECK(cudaGetLastError());
    std::reverse(large.begin(), large.end());
    std::vector<int> mirrored = large_out.to_host();
    require_equal(mirrored, large, "mirrored");

    Checksum checksum;
    checksum.add(sorted);
    checksum.add(mirrored);
    return report_ok("dynamic_shared", checksum);
}
