// For debuggers and checkers: `victim good` computes; `victim bad` also writes behind its memory; `victim hold` is a client until its input ends.
#include <cstdio>
#include <cstring>

__global__ void store(int *values, int offset) {
    values[threadIdx.x + offset] = threadIdx.x;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    int *values, read[32];
    if (cudaMalloc(&values, sizeof read) != cudaSuccess) {
        return 1;
    }
    store<<<1, 32>>>(values, 0);
    if (cudaMemcpy(read, values, sizeof read, cudaMemcpyDeviceToHost) != cudaSuccess || read[31] != 31) {
        return 1;
    }
    if (strcmp(what, "bad") == 0) {
        store<<<1, 1>>>(values, 32);
        cudaDeviceSynchronize();
    }
    printf("computed\n");
    fflush(stdout);
    if (strcmp(what, "hold") == 0) {
        while (getchar() != EOF) {
        }
    }
    return 0;
}
