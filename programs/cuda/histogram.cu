// Histogram of bytes: atomics in shared memory, then in global memory; and once more in global memory alone.
// nvcc-flags: --no-compress
#include "check.h"

constexpr int kBins = 256;

__global__ void histogram_shared(const unsigned char *data, int count, unsigned int *bins) {
    __shared__ unsigned int local[kBins];
    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
        local[bin] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        atomicAdd(&local[data[i]], 1u);
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
        if (local[bin] != 0) {
            atomicAdd(&bins[bin], local[bin]);
        }
    }
}

// Counts in the two halves of each 32-bit word by compare-and-swap.
__global__ void histogram_packed(const unsigned char *data, int count, unsigned int *words) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        unsigned int *word = &words[data[i] / 2];
        unsigned int increment = data[i] % 2 == 0 ? 1u : 0x10000u;
        unsigned int seen = *word, wanted;
        do {
            wanted = seen;
            seen = atomicCAS(word, wanted, wanted + increment);
        } while (seen != wanted);
    }
}

int main() {
    constexpr int kCount = 60000;
    Random random(4);
    std::vector<unsigned char> data(kCount);
    std::vector<unsigned int> expected(kBins, 0);
    for (unsigned char &value : data) {
        value = static_cast<unsigned char>((random.below<unsigned int>(256) * random.below<unsigned int>(256)) >> 8);
        ++expected[value];
    }
    DeviceArray<unsigned char> device_data(data);
    DeviceArray<unsigned int> device_bins(kBins), device_words(kBins / 2);
    CHECK(cudaMemset(device_bins.get(), 0, device_bins.size_bytes()));
    CHECK(cudaMemset(device_words.get(), 0, device_words.size_bytes()));
    histogram_shared<<<12, 128>>>(device_data.get(), kCount, device_bins.get());
    histogram_packed<<<6, 64>>>(device_data.get(), kCount, device_words.get());
    CHECK(cudaDeviceSynchronize());

    std::vector<unsigned int> bins = device_bins.to_host();
    std::vector<unsigned int> words = device_words.to_host();
    std::vector<unsigned int> unpacked;
    for (unsigned int word : words) {
        unpacked.push_back(word & 0xffffu);
        unpacked.push_back(word >> 16);
    }
    require_equal(bins, expected, "bins");
    require_equal(unpacked, expected, "packed bins");
    Checksum checksum;
    checksum.add(bins);
    return report_ok("histogram", checksum);
}
