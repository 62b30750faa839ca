// Inclusive prefix sum in three kernels: blocks, the sums of the blocks, and their addition. The image holds machine
// code for one GPU beside the PTX.
// nvcc-flags: -gencode arch=compute_75,code=sm_75
#include "check.h"

constexpr int kBlock = 256;

__device__ unsigned int scan_warp(unsigned int value) {
    int lane = threadIdx.x % 32;
    for (int offset = 1; offset < 32; offset *= 2) {
        unsigned int below = __shfl_up_sync(0xffffffffu, value, offset);
        if (lane >= offset) {
            value += below;
        }
    }
    return value;
}

__device__ unsigned int scan_block(unsigned int value) {
    __shared__ unsigned int warp_sums[kBlock / 32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = scan_warp(value);
    if (lane == 31) {
        warp_sums[warp] = value;
    }
    __syncthreads();
    for (int before = 0; before < warp; ++before) {
        value += warp_sums[before];
    }
    return value;
}

__global__ void scan_blocks(const unsigned int *in, unsigned int *out, unsigned int *block_sums, int count) {
    int i = blockIdx.x * kBlock + threadIdx.x;
    unsigned int value = scan_block(i < count ? in[i] : 0);
    if (i < count) {
        out[i] = value;
    }
    if (threadIdx.x == kBlock - 1) {
        block_sums[blockIdx.x] = value;
    }
}

__global__ void scan_sums(unsigned int *block_sums, int blocks) {
    unsigned int value = scan_block(threadIdx.x < blocks ? block_sums[threadIdx.x] : 0);
    if (threadIdx.x < blocks) {
        block_sums[threadIdx.x] = value;
    }
}

__global__ void add_sums(unsigned int *out, const unsigned int *block_sums, int count) {
    int i = blockIdx.x * kBlock + threadIdx.x;
    if (blockIdx.x > 0 && i < count) {
        out[i] += block_sums[blockIdx.x - 1];
    }
}

int main() {
    constexpr int kCount = 40009;
    constexpr int kBlocks = (kCount + kBlock - 1) / kBlock;
    static_assert(kBlocks <= kBlock, "the sums of the blocks are scanned by one block");
    Random random(7);
    std::vector<unsigned int> in(kCount), expected(kCount);
    unsigned int running = 0;
    for (int i = 0; i < kCount; ++i) {
        in[i] = random.next();
        running += in[i];
        expected[i] = running;
    }
    DeviceArray<unsigned int> device_in(in), device_out(kCount), device_sums(kBlocks);
    scan_blocks<<<kBlocks, kBlock>>>(device_in.get(), device_out.get(), device_sums.get(), kCount);
    scan_sums<<<1, kBlock>>>(device_sums.get(), kBlocks);
    add_sums<<<kBlocks, kBlock>>>(device_out.get(), device_sums.get(), kCount);
    CHECK(cudaDeviceSynchronize());

    std::vector<unsigned int> out = device_out.to_host();
    require_equal(out, expected, "prefix sums");
    Checksum checksum;
    checksum.add(out);
    return report_ok("scan", checksum);
}
