// Kernels of the first programs that anybody writes. See README.md for how to regenerate the PTX.
#include <cstdio>

__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter = 5;
__device__ int *counter_pointer = &counter;

extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i] * coefficients[i & 3];
}

extern "C" __global__ void matmul(const float *a, const float *b, float *c, int n) {
    __shared__ float sa[16][16], sb[16][16];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    float sum = 0;
    for (int t = 0; t < n; t += 16) {
        sa[threadIdx.y][threadIdx.x] = a[y * n + t + threadIdx.x];
        sb[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + x];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += sa[threadIdx.y][k] * sb[k][threadIdx.x];
        __syncthreads();
    }
    c[y * n + x] = sum;
}

extern "C" __global__ void reduce(const float *a, float *out, int n) {
    __shared__ float partial[32];
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) v += a[i];
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(~0u, v, d);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float t = 0;
        for (int i = 0; i < blockDim.x / 32; i++) t += partial[i];
        atomicAdd(out, t);
    }
}

extern "C" __global__ void histogram(const unsigned char *data, unsigned *bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) atomicAdd(&local[data[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}

extern "C" __global__ void nbody(const float4 *p, float3 *acc, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = p[i];
    float3 a = {0, 0, 0};
    for (int j = 0; j < n; j++) {
        float4 q = p[j];
        float dx = q.x - me.x, dy = q.y - me.y, dz = q.z - me.z;
        float d = dx * dx + dy * dy + dz * dz + 1e-3f;
        float inv = rsqrtf(d);
        float s = q.w * inv * inv * inv;
        a.x += dx * s; a.y += dy * s; a.z += dz * s;
    }
    acc[i] = a;
}

extern "C" __global__ void transpose(const double *in, double *out, int n) {
    __shared__ double tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32;
    for (int j = threadIdx.y; j < 32; j += 8) tile[j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32;
    for (int j = threadIdx.y; j < 32; j += 8) out[(y + j) * n + x] = tile[threadIdx.x][j];
}

extern "C" __global__ void scan(const int *in, int *out) {
    extern __shared__ int temp[];
    int t = threadIdx.x;
    temp[t] = in[t];
    for (int d = 1; d < blockDim.x; d *= 2) {
        __syncthreads();
        int v = t >= d ? temp[t - d] : 0;
        __syncthreads();
        temp[t] += v;
    }
    out[t] = temp[t];
}

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

extern "C" __global__ void recursion(int *out) {
    out[threadIdx.x] = fibonacci(threadIdx.x);
    atomicAdd(counter_pointer, 1);
}

__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ int (*table[2])(int) = {twice, square};

extern "C" __global__ void pointers(int *out) { out[threadIdx.x] = table[threadIdx.x & 1](threadIdx.x); }

extern "C" __global__ void print(const char *who) {
    if (threadIdx.x < 2) printf("thread %d of %s: %5.2f %llx %c %s\n", threadIdx.x, "block", 1.5 * threadIdx.x, 0x123456789abcULL, 'z', "end");
}

extern "C" __global__ void wide(const long long *a, const long long *b, long long *out) {
    int i = threadIdx.x;
    out[i] = a[i] * b[i] + a[i] / b[i] - (a[i] % b[i]) + (a[i] >> 3) + __mul64hi(a[i], b[i]);
}

// Locks between lanes of one warp.
extern "C" __global__ void lock_in_loop(int *lock, int *value) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *(volatile int *)value = *(volatile int *)value + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

extern "C" __global__ void lock_then_work(int *lock, int *value) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    *(volatile int *)value = *(volatile int *)value + 1;
    __threadfence();
    atomicExch(lock, 0);
}

extern "C" __global__ void ping_pong(volatile int *turn, int rounds) {
    int me = threadIdx.x & 1;
    for (int i = 0; i < rounds; i++) {
        while (*turn != 2 * i + me) {}
        __threadfence();
        *turn = 2 * i + me + 1;
    }
}

extern "C" __global__ void deadlock(int *out) {
    if (threadIdx.x < 16) { asm volatile("barrier.sync 1, 64;"); }
    out[threadIdx.x] = 1;
}

extern "C" __global__ void local_array(int *out, int n) {
    int a[32];
    for (int i = 0; i < 32; i++) a[i] = i * threadIdx.x;
    int s = 0;
    for (int i = 0; i < n; i++) s += a[(i * 7) & 31];
    out[threadIdx.x] = s;
}

extern "C" __global__ void overrun(int *out) { out[threadIdx.x] = 1; }

extern "C" __global__ void endless(volatile int *flag) { while (!*flag) {} }

struct Big { int values[12]; };
__device__ __noinline__ int sum(Big b, int i) { return b.values[i] + b.values[11 - i]; }
extern "C" __global__ void by_value(Big b, int *out) { b.values[3] = 100; out[threadIdx.x] = sum(b, threadIdx.x % 12); }
