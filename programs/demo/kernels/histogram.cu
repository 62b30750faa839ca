// Counts of byte values, by atomics in shared memory and then in global memory.
constexpr int kBins = 256;

extern "C" __global__ void histogram(const unsigned char *data, int count, unsigned int *bins) {
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
        atomicAdd(&bins[bin], local[bin]);
    }
}
