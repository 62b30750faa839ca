// What compute capabilities 8.0 and 9.0 added: reductions of a warp in one instruction, asynchronous and bulk copies,
// barriers in shared memory, elections, stored matrices, tf32.
// nvcc-arch: compute_90
#include "suite.h"

#include <cuda_pipeline.h>

#include <algorithm>
#include <numeric>

constexpr unsigned kAll = 0xffffffffu;

static std::vector<uint32_t> random_words(size_t count, uint32_t seed) {
    Random random(seed);
    std::vector<uint32_t> words(count);
    for (uint32_t &word : words) {
        word = random.next();
    }
    return words;
}
__device__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- redux ----

__global__ void reduce_sync(const uint32_t *in, uint32_t *out) {
    unsigned lane = threadIdx.x % 32;
    uint32_t word = in[threadIdx.x];
    int32_t number = static_cast<int32_t>(word);
    uint32_t *at = out + 16 * threadIdx.x;
    at[0] = __reduce_add_sync(kAll, word);
    at[1] = static_cast<uint32_t>(__reduce_add_sync(kAll, number));
    at[2] = __reduce_min_sync(kAll, word);
    at[3] = static_cast<uint32_t>(__reduce_min_sync(kAll, number));
    at[4] = __reduce_max_sync(kAll, word);
    at[5] = static_cast<uint32_t>(__reduce_max_sync(kAll, number));
    at[6] = __reduce_and_sync(kAll, word | 0xffff);
    at[7] = __reduce_or_sync(kAll, word & 0xff00ff);
    at[8] = __reduce_xor_sync(kAll, word);
    // The lanes of three groups, each by itself.
    unsigned group = lane % 3, mask = 0x49249249u << group;
    mask = group == 0 ? 0x49249249u : group == 1 ? 0x92492492u : 0x24924924u;
    if (group == 0) {
        at[9] = __reduce_add_sync(mask, word);
    } else if (group == 1) {
        at[9] = __reduce_max_sync(mask, word);
    } else {
        at[9] = __reduce_xor_sync(mask, word);
    }
}
CASE(reduce_sync) {
    const std::vector<uint32_t> in = random_words(64, 1);
    std::vector<uint32_t> expected(64 * 16, 0);
    for (int warp = 0; warp < 2; ++warp) {
        const uint32_t *w = &in[32 * warp];
        auto fold = [&](auto f, uint32_t start, int first, int step) {
            uint32_t value = start;
            for (int lane = first; lane < 32; lane += step) {
                value = f(value, w[lane]);
            }
            return value;
        };
        auto add = [](uint32_t a, uint32_t b) { return a + b; };
        auto exclusive = [](uint32_t a, uint32_t b) { return a ^ b; };
        auto most = [](uint32_t a, uint32_t b) { return std::max(a, b); };
        auto least = [](uint32_t a, uint32_t b) { return std::min(a, b); };
        auto most_signed = [](uint32_t a, uint32_t b) {
            return static_cast<uint32_t>(std::max(int32_t(a), int32_t(b)));
        };
        auto least_signed = [](uint32_t a, uint32_t b) {
            return static_cast<uint32_t>(std::min(int32_t(a), int32_t(b)));
        };
        for (int lane = 0; lane < 32; ++lane) {
            uint32_t *at = &expected[16 * (32 * warp + lane)];
            at[0] = at[1] = fold(add, 0, 0, 1);
            at[2] = fold(least, UINT32_MAX, 0, 1);
            at[3] = fold(least_signed, INT32_MAX, 0, 1);
            at[4] = fold(most, 0, 0, 1);
            at[5] = fold(most_signed, 0x80000000u, 0, 1);
            at[6] = fold([](uint32_t a, uint32_t b) { return a & (b | 0xffff); }, kAll, 0, 1);
            at[7] = fold([](uint32_t a, uint32_t b) { return a | (b & 0xff00ff); }, 0, 0, 1);
            at[8] = fold(exclusive, 0, 0, 1);
            at[9] = lane % 3 == 0 ? fold(add, 0, 0, 3) : lane % 3 == 1 ? fold(most, 0, 1, 3) : fold(exclusive, 0, 2, 3);
        }
    }
    DeviceArray<uint32_t> device_in(in), out(std::vector<uint32_t>(expected.size(), 0));
    suite::launch(reduce_sync, 1, 64, device_in.get(), out.get());
    suite::compare(out, expected);
}

__global__ void elect_one(uint32_t *out) {
    uint32_t elected, leader;
    unsigned mask = threadIdx.x < 32 ? 0xffffffffu : 0xfffff000u;
    if (threadIdx.x < 32 || threadIdx.x % 32 >= 12) {
        asm volatile("{ .reg .pred p;\n\telect.sync %1|p, %2;\n\tselp.u32 %0, 1, 0, p; }"
                     : "=r"(elected), "=r"(leader)
                     : "r"(mask));
        atomicAdd(&out[threadIdx.x / 32], elected);
        out[2 + threadIdx.x] = (mask >> leader & 1) && elected == (leader == threadIdx.x % 32);
    }
}
CASE(elect_one) {
    std::vector<uint32_t> expected(66, 1);
    std::fill(expected.begin() + 2 + 32, expected.begin() + 2 + 44, 0);
    DeviceArray<uint32_t> out(std::vector<uint32_t>(66, 0));
    suite::launch(elect_one, 1, 64, out.get());
    suite::compare(out, expected);
}

// ---- cp.async ----

// Copies of 4, 8 and 16 bytes, in groups; waits for all but the last group, then for all.
__global__ void async_copies(const uint32_t *in, uint32_t *out) {
    __shared__ alignas(16) uint32_t words[3][256];
    unsigned i = threadIdx.x;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&words[0][i])),
                 "l"(__cvta_generic_to_global(&in[i]))
                 : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (i < 32) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(&words[1][2 * i])),
                     "l"(__cvta_generic_to_global(&in[64 + 2 * i]))
                     : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (i < 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&words[2][4 * i])),
                     "l"(__cvta_generic_to_global(&in[128 + 4 * i]))
                     : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    uint32_t sum = words[0][63 - i] + words[1][63 - i] * 3;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    out[i] = sum + words[2][63 - i] * 5;
}
CASE(async_copies) {
    const std::vector<uint32_t> in = random_words(256, 2);
    std::vector<uint32_t> expected;
    for (int i = 0; i < 64; ++i) {
        expected.push_back(in[63 - i] + in[127 - i] * 3 + in[191 - i] * 5);
    }
    DeviceArray<uint32_t> device_in(in), out(64);
    suite::launch(async_copies, 1, 64, device_in.get(), out.get());
    suite::compare(out, expected);
}
// A copy that fills with zeros what its source lacks.
__global__ void async_zero_fill(const uint8_t *in, uint8_t *out) {
    __shared__ alignas(16) uint8_t bytes[32 * 16];
    unsigned lane = threadIdx.x, present = lane % 17;
    for (int i = 0; i < 16; ++i) {
        bytes[16 * lane + i] = 0xee;
    }
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&bytes[16 * lane])),
                 "l"(__cvta_generic_to_global(&in[16 * lane])), "r"(present)
                 : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    for (int i = 0; i < 16; ++i) {
        out[16 * lane + i] = bytes[16 * lane + i];
    }
}
CASE(async_zero_fill) {
    std::vector<uint8_t> in(512), expected(512);
    for (int i = 0; i < 512; ++i) {
        in[i] = static_cast<uint8_t>(i * 7 + 1);
        expected[i] = i % 16 < i / 16 % 17 ? in[i] : 0;
    }
    DeviceArray<uint8_t> device_in(in), out(512);
    suite::launch(async_zero_fill, 1, 32, device_in.get(), out.get());
    suite::compare(out, expected);
}
// Two buffers: the next tile travels while this one is added up.
__global__ void pipelined_sum(const uint4 *in, uint32_t *out, int tiles) {
    __shared__ uint4 buffers[2][64];
    unsigned i = threadIdx.x;
    uint32_t sum = 0;
    __pipeline_memcpy_async(&buffers[0][i], &in[i], sizeof(uint4));
    __pipeline_commit();
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) {
            __pipeline_memcpy_async(&buffers[(tile + 1) % 2][i], &in[(tile + 1) * 64 + i], sizeof(uint4));
        }
        __pipeline_commit();
        __pipeline_wait_prior(1);
        __syncthreads();
        uint4 word = buffers[tile % 2][63 - i];
        sum = sum * 3 + (word.x ^ word.y) + (word.z ^ word.w);
        __syncthreads();
    }
    out[i] = sum;
}
CASE(pipelined_sum) {
    constexpr int kTiles = 7;
    const std::vector<uint32_t> in = random_words(kTiles * 256, 3);
    std::vector<uint32_t> expected;
    for (int i = 0; i < 64; ++i) {
        uint32_t sum = 0;
        for (int tile = 0; tile < kTiles; ++tile) {
            const uint32_t *word = &in[(tile * 64 + 63 - i) * 4];
            sum = sum * 3 + (word[0] ^ word[1]) + (word[2] ^ word[3]);
        }
        expected.push_back(sum);
    }
    DeviceArray<uint32_t> device_in(in), out(64);
    suite::launch(pipelined_sum, 1, 64, reinterpret_cast<const uint4 *>(device_in.get()), out.get(), kTiles);
    suite::compare(out, expected);
}

// ---- Barriers in shared memory ----

__device__ void barrier_init(uint64_t *barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ uint64_t barrier_arrive(uint64_t *barrier) {
    uint64_t state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(barrier)) : "memory");
    return state;
}
__device__ bool barrier_test(uint64_t *barrier, uint64_t state) {
    uint32_t done;
    asm volatile("{ .reg .pred p;\n\tmbarrier.test_wait.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "l"(state)
                 : "memory");
    return done != 0;
}
__device__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{ .reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    }
}

// Arrive early, work, wait late: every phase exchanges words between the halves of the block.
__global__ void split_barrier(const uint32_t *in, uint32_t *out, int rounds) {
    __shared__ uint64_t barrier;
    __shared__ uint32_t words[2][128];
    unsigned i = threadIdx.x;
    if (i == 0) {
        barrier_init(&barrier, 128);
    }
    __syncthreads();
    uint32_t mine = in[i], own = 0;
    for (int round = 0; round < rounds; ++round) {
        words[round % 2][i] = mine;
        uint64_t state = barrier_arrive(&barrier);
        own = own * 5 + mine;
        while (!barrier_test(&barrier, state)) {
        }
        mine = words[round % 2][127 - i] + own;
    }
    out[i] = mine;
    __syncthreads();
    if (i == 0) {
        asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
    }
}
CASE(split_barrier) {
    constexpr int kRounds = 6;
    const std::vector<uint32_t> in = random_words(128, 4);
    std::vector<uint32_t> mine = in, own(128, 0), next(128);
    for (int round = 0; round < kRounds; ++round) {
        for (int i = 0; i < 128; ++i) {
            own[i] = own[i] * 5 + mine[i];
        }
        for (int i = 0; i < 128; ++i) {
            next[i] = mine[127 - i] + own[i];
        }
        mine.swap(next);
    }
    DeviceArray<uint32_t> device_in(in), out(128);
    suite::launch(split_barrier, 1, 128, device_in.get(), out.get(), kRounds);
    suite::compare(out, mine);
}

// A full and an empty barrier: one warp produces into a slot, another consumes it.
__global__ void barrier_pipeline(const uint32_t *in, uint32_t *out, int rounds) {
    __shared__ uint64_t full, empty;
    __shared__ uint32_t slot[32];
    unsigned lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        barrier_init(&full, 32);
        barrier_init(&empty, 32);
    }
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
        if (threadIdx.x < 32) {
            if (round > 0) {
                barrier_wait(&empty, (round - 1) & 1);
            }
            slot[lane] = in[32 * round + lane];
            barrier_arrive(&full);
        } else {
            barrier_wait(&full, round & 1);
            out[32 * round + lane] = slot[31 - lane] * 3;
            barrier_arrive(&empty);
        }
    }
}
CASE(barrier_pipeline) {
    constexpr int kRounds = 10;
    const std::vector<uint32_t> in = random_words(32 * kRounds, 5);
    std::vector<uint32_t> expected;
    for (int i = 0; i < 32 * kRounds; ++i) {
        expected.push_back(in[i / 32 * 32 + 31 - i % 32] * 3);
    }
    DeviceArray<uint32_t> device_in(in), out(expected.size());
    suite::launch(barrier_pipeline, 1, 64, device_in.get(), out.get(), kRounds);
    suite::compare(out, expected);
}

// Copies that arrive at a barrier when they are done.
__global__ void copies_arrive(const uint32_t *in, uint32_t *out) {
    __shared__ uint64_t barrier;
    __shared__ alignas(16) uint32_t words[256];
    unsigned i = threadIdx.x;
    if (i == 0) {
        barrier_init(&barrier, 64);
    }
    __syncthreads();
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&words[4 * i])),
                 "l"(__cvta_generic_to_global(&in[4 * i]))
                 : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&barrier)) : "memory");
    barrier_wait(&barrier, 0);
    out[i] = words[255 - i] ^ words[i];
}
CASE(copies_arrive) {
    const std::vector<uint32_t> in = random_words(256, 6);
    std::vector<uint32_t> expected;
    for (int i = 0; i < 64; ++i) {
        expected.push_back(in[255 - i] ^ in[i]);
    }
    DeviceArray<uint32_t> device_in(in), out(64);
    suite::launch(copies_arrive, 1, 64, device_in.get(), out.get());
    suite::compare(out, expected);
}

// ---- Bulk copies ----

// One thread brings a tile by its bytes, all wait for them; the result goes back in bulk.
__global__ void bulk_copies(const uint32_t *in, uint32_t *out) {
    __shared__ uint64_t barrier;
    __shared__ alignas(16) uint32_t tile[512];
    constexpr uint32_t kBytes = sizeof tile;
    uint64_t *const at = &barrier;
    if (threadIdx.x == 0) {
        barrier_init(at, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    for (uint32_t round = 0; round < 3; ++round) {
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(kBytes)
                         : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                    shared_address(tile)),
                "l"(__cvta_generic_to_global(in + 512 * round)), "r"(kBytes), "r"(shared_address(at))
                : "memory");
        }
        barrier_wait(at, round & 1);
        for (int i = threadIdx.x; i < 512; i += blockDim.x) {
            tile[i] = tile[i] * 2 + round;
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                             __cvta_generic_to_global(out + 512 * round)),
                         "r"(shared_address(tile)), "r"(kBytes)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
        __syncthreads();
    }
}
CASE(bulk_copies) {
    const std::vector<uint32_t> in = random_words(3 * 512, 7);
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < 3 * 512; ++i) {
        expected.push_back(in[i] * 2 + i / 512);
    }
    DeviceArray<uint32_t> device_in(in), out(expected.size());
    suite::launch(bulk_copies, 1, 128, device_in.get(), out.get());
    suite::compare(out, expected);
}

// ---- Stored matrices, tf32, dependent launches ----

__global__ void stmatrix_forms(uint32_t *out) {
    __shared__ alignas(16) uint16_t tile[64][8];
    unsigned lane = threadIdx.x;
    uint32_t words[4];
    for (uint32_t m = 0; m < 4; ++m) {
        words[m] = (m << 8 | lane << 1) | (m << 8 | lane << 1 | 1) << 16;
    }
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(&tile[lane][0])),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
        : "memory");
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(&tile[32 + lane][0])),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
    __syncwarp();
    for (int i = 0; i < 8; ++i) {
        out[lane * 16 + i] = tile[lane][i];
        out[lane * 16 + 8 + i] = tile[32 + lane][i];
    }
}
CASE(stmatrix_forms) {
    std::vector<uint32_t> expected;
    for (uint32_t row = 0; row < 32; ++row) {
        uint32_t matrix = row / 8, r = row % 8;
        for (uint32_t c = 0; c < 8; ++c) {
            expected.push_back(matrix << 8 | (r * 4 + c / 2) << 1 | c % 2);
        }
        for (uint32_t c = 0; c < 8; ++c) {
            expected.push_back(matrix << 8 | (c * 4 + r / 2) << 1 | r % 2);
        }
    }
    DeviceArray<uint32_t> out(expected.size());
    suite::launch(stmatrix_forms, 1, 32, out.get());
    suite::compare(out, expected);
}

__device__ uint32_t asm_tf32(float a) {
    uint32_t d;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(a));
    return d;
}
// To 10 bits of fraction, halves away from zero.
static uint32_t tf32_host(float a) {
    uint32_t bits;
    std::memcpy(&bits, &a, 4);
    return (bits + 0x1000) & 0xffffe000u;
}
REF1(tf32_rounding, uint32_t, float, isfinite(a) && fabsf(a) < 1e38f ? asm_tf32(a) & 0xffffe000u : 0,
     std::isfinite(a) && std::fabs(a) < 1e38f ? tf32_host(a) : 0)

__global__ void dependent_first(uint32_t *words) {
    words[threadIdx.x] = threadIdx.x * 3;
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__global__ void dependent_second(const uint32_t *words, uint32_t *out) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    out[threadIdx.x] = words[63 - threadIdx.x] + 1;
}
CASE(dependent_launch) {
    DeviceArray<uint32_t> words(64), out(64);
    suite::launch(dependent_first, 1, 64, words.get());
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(64);
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, dependent_second, static_cast<const uint32_t *>(words.get()), out.get()));
    suite::count_launch(reinterpret_cast<const void *>(dependent_second));
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < 64; ++i) {
        expected.push_back((63 - i) * 3 + 1);
    }
    suite::compare(out, expected);
}
SUITE_MAIN("asynchronous")
