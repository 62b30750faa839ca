// What `speed.rs` measures. Regenerate the PTX with: nvcc -ptx -arch=compute_75 kernels.cu -o kernels.ptx

extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void product(const float *a, const float *b, float *c, int n) {
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

extern "C" __global__ void n_body(const float4 *p, float3 *acceleration, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = p[i];
    float3 a = {0, 0, 0};
    for (int j = 0; j < n; j++) {
        float4 q = p[j];
        float dx = q.x - me.x, dy = q.y - me.y, dz = q.z - me.z;
        float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
        float s = q.w * inverse * inverse * inverse;
        a.x += dx * s; a.y += dy * s; a.z += dz * s;
    }
    acceleration[i] = a;
}

extern "C" __global__ void mandelbrot(int *out, int width, int limit) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float cx = -2.0f + 3.0f * (i % width) / width, cy = -1.5f + 3.0f * (i / width) / width;
    float x = 0, y = 0;
    int n = 0;
    while (n < limit && x * x + y * y < 4.0f) {
        float next = x * x - y * y + cx;
        y = 2 * x * y + cy;
        x = next;
        n++;
    }
    out[i] = n;
}
