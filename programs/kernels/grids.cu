// Whole grids: two and three dimensions, grid-stride loops, cooperative launches with a barrier of the grid, launches
// that follow one another and launches that meet.
#include "suite.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// ---- Indices ----

// Every thread says where it is; each place is visited once.
__global__ void indices_3d(uint64_t *out) {
    uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + static_cast<uint64_t>(gridDim.y) * blockIdx.z);
    uint64_t thread = threadIdx.x + blockDim.x * (threadIdx.y + static_cast<uint64_t>(blockDim.y) * threadIdx.z);
    uint64_t at = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
    out[at] += blockIdx.x | blockIdx.y << 4 | blockIdx.z << 8 | threadIdx.x << 12 | threadIdx.y << 16 |
               static_cast<uint64_t>(threadIdx.z) << 24 |
               static_cast<uint64_t>(gridDim.x * 100 + gridDim.y * 10 + gridDim.z) << 32;
}
CASE(indices_3d) {
    const dim3 grid(3, 2, 4), block(5, 4, 3);
    std::vector<uint64_t> expected;
    for (uint64_t z = 0; z < 4; ++z) {
        for (uint64_t y = 0; y < 2; ++y) {
            for (uint64_t x = 0; x < 3; ++x) {
                for (uint64_t i = 0; i < 60; ++i) {
                    expected.push_back(x | y << 4 | z << 8 | i % 5 << 12 | i / 5 % 4 << 16 | i / 20 << 24 |
                                       324ull << 32);
                }
            }
        }
    }
    DeviceArray<uint64_t> out(std::vector<uint64_t>(expected.size(), 0));
    suite::launch(indices_3d, grid, block, out.get());
    suite::compare(out, expected);
}

// Special registers agree with the language's variables.
__global__ void special_registers(uint32_t *out) {
    uint32_t lane, warp, warps, sm, sms, warp_size, tid, ctaid, nctaid;
    uint64_t clock, timer;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(warps));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u32 %0, %%nsmid;" : "=r"(sms));
    asm volatile("mov.u32 %0, WARP_SZ;" : "=r"(warp_size));
    asm volatile("mov.u32 %0, %%tid.y;" : "=r"(tid));
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(ctaid));
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(nctaid));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(timer));
    uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x;
    bool later = clock64() >= static_cast<long long>(clock);
    out[blockIdx.x * 96 + thread] = (lane == thread % 32) | (warp < warps) << 1 | (sm < sms) << 2 |
                                    (warp_size == 32) << 3 | (tid == threadIdx.y) << 4 | (ctaid == blockIdx.x) << 5 |
                                    (nctaid == gridDim.x) << 6 | later << 7 | (timer != 0) << 8 | (warpSize == 32) << 9;
}
CASE(special_registers) {
    DeviceArray<uint32_t> out(4 * 96);
    suite::launch(special_registers, 4, dim3(16, 6), out.get());
    suite::compare(out, std::vector<uint32_t>(4 * 96, 0x3ff));
}

// Two passes over a plane, by a grid smaller than it.
__global__ void plane_strides(const float *in, float *out, int width, int height) {
    for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < height; y += gridDim.y * blockDim.y) {
        for (int x = blockIdx.x * blockDim.x + threadIdx.x; x < width; x += gridDim.x * blockDim.x) {
            out[y * width + x] = in[y * width + x] * static_cast<float>(x) - static_cast<float>(y);
        }
    }
}
CASE(plane_strides) {
    constexpr int kWidth = 131, kHeight = 67;
    std::vector<float> in, expected;
    for (int i = 0; i < kWidth * kHeight; ++i) {
        in.push_back(static_cast<float>(i % 101) / 3);
        expected.push_back(in.back() * static_cast<float>(i % kWidth) - static_cast<float>(i / kWidth));
    }
    DeviceArray<float> device_in(in), out(in.size());
    suite::launch(plane_strides, dim3(3, 2), dim3(16, 8), device_in.get(), out.get(), kWidth, kHeight);
    suite::compare(out, expected);
}

// A volume smoothed along each axis.
__global__ void volume_smooth(const int *in, int *out, int side) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
        z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x < side && y < side && z < side) {
        int sum = 0;
        for (int d = -1; d <= 1; ++d) {
            sum += in[(z * side + y) * side + min(max(x + d, 0), side - 1)] +
                   in[(z * side + min(max(y + d, 0), side - 1)) * side + x] +
                   in[(min(max(z + d, 0), side - 1) * side + y) * side + x];
        }
        out[(z * side + y) * side + x] = sum;
    }
}
CASE(volume_smooth) {
    constexpr int kSide = 11;
    std::vector<int> in, expected;
    Random random(4);
    for (int i = 0; i < kSide * kSide * kSide; ++i) {
        in.push_back(random.below<int>(1000));
    }
    auto clamp = [](int i) { return i < 0 ? 0 : i >= kSide ? kSide - 1 : i; };
    for (int z = 0; z < kSide; ++z) {
        for (int y = 0; y < kSide; ++y) {
            for (int x = 0; x < kSide; ++x) {
                int sum = 0;
                for (int d = -1; d <= 1; ++d) {
                    sum += in[(z * kSide + y) * kSide + clamp(x + d)] + in[(z * kSide + clamp(y + d)) * kSide + x] +
                           in[(clamp(z + d) * kSide + y) * kSide + x];
                }
                expected.push_back(sum);
            }
        }
    }
    DeviceArray<int> device_in(in), out(in.size());
    suite::launch(volume_smooth, dim3(3, 3, 3), dim3(4, 4, 4), device_in.get(), out.get(), kSide);
    suite::compare(out, expected);
}

// More blocks than any device holds at once, one thread each; and the largest block.
__global__ void many_blocks(unsigned *sum) { atomicAdd(sum, blockIdx.x); }
CASE(many_blocks) {
    DeviceArray<unsigned> sum(std::vector<unsigned>(1, 0));
    suite::launch(many_blocks, 20000, 1, sum.get());
    suite::compare(sum, {199990000u});
}
__global__ void __launch_bounds__(1024) largest_block(int *out) {
    __shared__ int words[1024];
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = words[1023 - threadIdx.x] + __syncthreads_count(threadIdx.x % 7 == 0);
}
CASE(largest_block) {
    std::vector<int> expected;
    for (int i = 0; i < 1024; ++i) {
        expected.push_back(1023 - i + 147);
    }
    DeviceArray<int> out(1024);
    suite::launch(largest_block, 1, 1024, out.get());
    suite::compare(out, expected);
}

// ---- Cooperative grids ----

template <typename... P> static void launch_cooperative(void (*kernel)(P...), dim3 grid, dim3 block, P... arguments) {
    void *pointers[] = {&arguments...};
    CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<const void *>(kernel), grid, block, pointers, 0, nullptr));
    suite::count_launch(reinterpret_cast<const void *>(kernel));
}

// Heat on a ring: each step reads what other blocks wrote in the step before.
__global__ void grid_diffusion(int *a, int *b, int count, int steps) {
    cg::grid_group grid = cg::this_grid();
    for (int step = 0; step < steps; ++step) {
        for (int i = static_cast<int>(grid.thread_rank()); i < count; i += static_cast<int>(grid.size())) {
            b[i] = (a[(i + 1) % count] + a[(i + count - 1) % count] + 2 * a[i]) / 4 + step;
        }
        grid.sync();
        int *kept = a;
        a = b;
        b = kept;
    }
}
CASE(grid_diffusion) {
    constexpr int kCount = 600, kSteps = 7;
    Random random(6);
    std::vector<int> a(kCount), b(kCount);
    for (int &value : a) {
        value = random.below<int>(100000);
    }
    DeviceArray<int> device_a(a), device_b(kCount);
    launch_cooperative(grid_diffusion, dim3(6), dim3(64), device_a.get(), device_b.get(), kCount, kSteps);
    for (int step = 0; step < kSteps; ++step) {
        for (int i = 0; i < kCount; ++i) {
            b[i] = (a[(i + 1) % kCount] + a[(i + kCount - 1) % kCount] + 2 * a[i]) / 4 + step;
        }
        a.swap(b);
    }
    suite::compare(device_b, a);
}

// A sum over the grid in three phases, every block waits twice.
__global__ void grid_normalise(const double *in, double *partial, double *out, int count) {
    cg::grid_group grid = cg::this_grid();
    __shared__ double sums[32];
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    sums[threadIdx.x] = at < count ? in[at] : 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0;
        for (int i = 0; i < 32; ++i) {
            sum += sums[i];
        }
        partial[blockIdx.x] = sum;
    }
    grid.sync();
    if (grid.thread_rank() == 0) {
        double sum = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) {
            sum += partial[i];
        }
        partial[gridDim.x] = sum;
    }
    cg::sync(grid);
    if (at < count) {
        out[at] = in[at] / partial[gridDim.x];
    }
}
CASE(grid_normalise) {
    constexpr int kCount = 150, kBlocks = 5;
    std::vector<double> in, expected;
    double total = 0;
    for (int i = 0; i < kCount; ++i) {
        in.push_back(1.0 / (i + 1));
    }
    for (int block = 0; block < kBlocks; ++block) {
        double sum = 0;
        for (int i = 32 * block; i < 32 * block + 32; ++i) {
            sum += i < kCount ? in[i] : 0;
        }
        total += sum;
    }
    for (double value : in) {
        expected.push_back(value / total);
    }
    DeviceArray<double> device_in(in), partial(kBlocks + 1), out(kCount);
    launch_cooperative(grid_normalise, dim3(kBlocks), dim3(32), static_cast<const double *>(device_in.get()),
                       partial.get(), out.get(), kCount);
    suite::compare(out, expected);
}

// ---- Order of launches ----

__global__ void append(uint32_t *hash, uint32_t value) { *hash = *hash * 31 + value; }
CASE(launches_in_order) {
    DeviceArray<uint32_t> hash(std::vector<uint32_t>(1, 1));
    uint32_t expected = 1;
    for (uint32_t i = 0; i < 40; ++i) {
        suite::launch(append, 1, 1, hash.get(), i);
        expected = expected * 31 + i;
    }
    suite::compare(hash, {expected});
}

// Blocks of one stream's kernel wait for a word that another stream's kernel writes.
__global__ void wait_for_word(const volatile uint32_t *word, uint32_t *out) {
    while (*word == 0) {
        __nanosleep(100);
    }
    out[threadIdx.x] = *word + threadIdx.x;
}
__global__ void write_word(volatile uint32_t *word) { *word = 4711; }
CASE(streams_meet) {
    cudaStream_t first, second;
    CHECK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    DeviceArray<uint32_t> word(std::vector<uint32_t>(1, 0)), out(32);
    // Both must be loaded before the first runs: loading may wait for it.
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, wait_for_word));
    CHECK(cudaFuncGetAttributes(&attributes, write_word));
    wait_for_word<<<1, 32, 0, first>>>(word.get(), out.get());
    suite::count_launch(reinterpret_cast<const void *>(wait_for_word));
    write_word<<<1, 1, 0, second>>>(word.get());
    suite::count_launch(reinterpret_cast<const void *>(write_word));
    CHECK(cudaStreamSynchronize(first));
    CHECK(cudaStreamSynchronize(second));
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < 32; ++i) {
        expected.push_back(4711 + i);
    }
    suite::compare(out, expected);
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
}
SUITE_MAIN("grids")
