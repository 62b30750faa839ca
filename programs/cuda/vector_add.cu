// Element-wise sum of two vectors whose length is no multiple of the block: the smallest whole CUDA program.
#include "check.h"

__global__ void vector_add(const float *a, const float *b, float *sum, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        sum[i] = a[i] + b[i];
    }
}

int main() {
    constexpr int kCount = 100003;
    constexpr int kBlock = 256;
    Random random(1);
    std::vector<float> a(kCount), b(kCount), expected(kCount);
    for (int i = 0; i < kCount; ++i) {
        a[i] = random.below<float>(1u << 20) * 0.125f;
        b[i] = random.below<float>(1u << 20) * 0.5f;
        expected[i] = a[i] + b[i];
    }
    DeviceArray<float> device_a(a), device_b(b), device_sum(kCount);
    vector_add<<<(kCount + kBlock - 1) / kBlock, kBlock>>>(device_a.get(), device_b.get(), device_sum.get(), kCount);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());

    std::vector<float> sum = device_sum.to_host();
    require_equal(sum, expected, "sum");
    Checksum checksum;
    checksum.add(sum);
    return report_ok("vector_add", checksum);
}
