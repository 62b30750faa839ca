/* One of several parts of a program that each bring a CUDA runtime library of their own; see several_runtimes.c. */
#include <cuda_runtime.h>

__device__ unsigned calls;

__global__ void mix(unsigned *values, int count, unsigned seed) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        atomicAdd(&calls, 1u);
    }
    if (i < count) {
        values[i] = (values[i] ^ seed) * 2654435761u + i;
    }
}

/* Allocates in this part's runtime. */
extern "C" int part_allocate(void **memory, size_t size_bytes) {
    return cudaMalloc(memory, size_bytes);
}

extern "C" int part_free(void *memory) {
    return cudaFree(memory);
}

/* Changes memory of any part's and waits. */
extern "C" int part_mix(void *memory, int count, unsigned seed) {
    cudaStream_t stream;
    cudaEvent_t event;
    int error = cudaStreamCreate(&stream);
    error = error ? error : cudaEventCreate(&event);
    if (error) {
        return error;
    }
    mix<<<(count + 127) / 128, 128, 0, stream>>>(static_cast<unsigned *>(memory), count, seed);
    error = cudaGetLastError();
    error = error ? error : cudaEventRecord(event, stream);
    error = error ? error : cudaEventSynchronize(event);
    error = error ? error : cudaEventDestroy(event);
    return error ? error : cudaStreamDestroy(stream);
}

extern "C" int part_read(void *to, const void *memory, size_t size_bytes) {
    return cudaMemcpy(to, memory, size_bytes, cudaMemcpyDeviceToHost);
}

extern "C" int part_write(void *memory, const void *from, size_t size_bytes) {
    return cudaMemcpy(memory, from, size_bytes, cudaMemcpyHostToDevice);
}

/* How often this part's kernel ran: each has a variable of its own. */
extern "C" int part_calls(unsigned *count) {
    return cudaMemcpyFromSymbol(count, calls, sizeof *count);
}

extern "C" int part_version(int *version) {
    return cudaRuntimeGetVersion(version);
}
