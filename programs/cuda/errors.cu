// What CUDA refuses at the call, what it reports later, and which errors stay: bad launches and handles leave the
// context usable, a kernel that writes outside of memory does not.
#include "check.h"

__global__ void fill(int *out, int value) { out[blockIdx.x * blockDim.x + threadIdx.x] = value; }

__global__ void __launch_bounds__(64) fill_small(int *out, int value) { out[threadIdx.x] = value; }

int main() {
    DeviceArray<int> memory(1024);
    Checksum checksum;

    // Refused at the launch, and forgotten once asked for. The runtime library of CUDA 12 translates the driver's word.
    int runtime_version;
    CHECK(cudaRuntimeGetVersion(&runtime_version));
    cudaError_t bad_shape = runtime_version < 13000 ? cudaErrorInvalidConfiguration : cudaErrorInvalidValue;
    fill<<<1, 4096>>>(memory.get(), 1);
    EXPECT(bad_shape, cudaGetLastError());
    CHECK(cudaGetLastError());
    fill<<<dim3(1, 70000), 32>>>(memory.get(), 1);
    EXPECT(bad_shape, cudaGetLastError());
    fill<<<1, 32, 1 << 20>>>(memory.get(), 1);
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    fill_small<<<1, 1024>>>(memory.get(), 1);
    REQUIRE(cudaGetLastError() != cudaSuccess); // invalid value or too many resources, by driver

    // Refused at the call.
    void *pointer = nullptr;
    EXPECT(cudaErrorMemoryAllocation, cudaMalloc(&pointer, size_t(1) << 50));
    EXPECT(cudaErrorMemoryAllocation, cudaGetLastError());
    REQUIRE(cudaMemcpy(memory.get(), nullptr, 16, cudaMemcpyHostToDevice) != cudaSuccess);
    REQUIRE(cudaGetLastError() != cudaSuccess);
    EXPECT(cudaErrorInvalidValue, cudaFree(reinterpret_cast<void *>(memory.get() + 3)));
    EXPECT(cudaErrorInvalidValue, cudaGetLastError());
    EXPECT(cudaErrorInvalidDevice, cudaSetDevice(1000));
    EXPECT(cudaErrorInvalidDevice, cudaGetLastError());

    // The context still works.
    fill<<<8, 128>>>(memory.get(), 42);
    CHECK(cudaGetLastError());
    std::vector<int> values = memory.to_host();
    require_equal(values, std::vector<int>(1024, 42), "after refused calls");
    checksum.add(values);

    // Reported by the next synchronisation, and by everything after it.
    fill<<<1, 32>>>(reinterpret_cast<int *>(0x10), 1);
    EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    EXPECT(cudaErrorIllegalAddress, cudaGetLastError());
    EXPECT(cudaErrorIllegalAddress, cudaMalloc(&pointer, 16));
    EXPECT(cudaErrorIllegalAddress, cudaDeviceSynchronize());
    return report_ok("errors", checksum);
}
