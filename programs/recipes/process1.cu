// The first of two programs that share a GPU: adds 1 to a million numbers, and says that it is done. See docs/recipes.md.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

static void check(cudaError_t error) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "process1: %s\n", cudaGetErrorString(error));
        std::exit(EXIT_FAILURE);
    }
}

__global__ void add_one(float *data, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] += 1.0f;
    }
}

int main() {
    const int count = 1 << 20;
    std::vector<float> numbers(count, 41.0f);
    float *data;
    check(cudaMalloc(&data, count * sizeof(float)));
    check(cudaMemcpy(data, numbers.data(), count * sizeof(float), cudaMemcpyHostToDevice));
    add_one<<<(count + 255) / 256, 256>>>(data, count);
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(numbers.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost));
    check(cudaFree(data));
    for (float number : numbers) {
        if (number != 42.0f) {
            std::printf("Process 1 is wrong.\n");
            return EXIT_FAILURE;
        }
    }
    std::printf("Process 1 done.\n");
    return EXIT_SUCCESS;
}
