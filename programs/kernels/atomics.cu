// Atomic operations of every type, scope and memory; what they return, checked whatever the order; locks, tickets, and
// blocks that wait for one another.
#include "suite.h"

#include <algorithm>
#include <cuda_fp16.h>

constexpr int kBlock = 96, kGrid = 5, kThreads = kBlock * kGrid;

using u64 = unsigned long long;
using s64 = long long;
// The language has no 64-bit signed add: the bits are those of the unsigned one.
__device__ s64 atomicAdd(s64 *at, s64 value) { return atomicAdd(reinterpret_cast<u64 *>(at), static_cast<u64>(value)); }
__device__ s64 atomicAdd_system(s64 *at, s64 value) {
    return atomicAdd_system(reinterpret_cast<u64 *>(at), static_cast<u64>(value));
}
__device__ s64 atomicAdd_block(s64 *at, s64 value) {
    return atomicAdd_block(reinterpret_cast<u64 *>(at), static_cast<u64>(value));
}

// ---- Results that no order changes ----

// The value of a thread for operations on T; the host computes the same.
template <typename T> __host__ __device__ T operand(int thread) {
    uint32_t mixed = static_cast<uint32_t>(thread) * 2654435761u;
    return static_cast<T>(static_cast<T>(mixed >> 7) * static_cast<T>(sizeof(T) == 8 ? 5000000001ull : 1) -
                          static_cast<T>(mixed & 0xffff));
}

enum Scope { kDevice, kSystem, kBlockScope, kShared };

// One word per operation: add, sub, min, max, and, or, xor, all from `start`.
template <typename T> __host__ __device__ constexpr T start() { return static_cast<T>(0x2468acf013579bdfull); }

#define OPERATIONS(SUFFIX)                                                                                             \
    atomicAdd##SUFFIX(&words[0], value);                                                                               \
    atomicAdd##SUFFIX(&words[1], T(0) - value);                                                                        \
    atomicMin##SUFFIX(&words[2], value);                                                                               \
    atomicMax##SUFFIX(&words[3], value);                                                                               \
    atomicAnd##SUFFIX(&words[4], T(value | 0xfff));                                                                    \
    atomicOr##SUFFIX(&words[5], T(value & 0xff00ff00));                                                                \
    atomicXor##SUFFIX(&words[6], value)

template <typename T> __device__ void apply(T *words, T value, Scope scope) {
    if (scope == kSystem) {
        OPERATIONS(_system);
    } else if (scope == kBlockScope) {
        OPERATIONS(_block);
    } else {
        OPERATIONS();
    }
}
template <typename T> __device__ void operations(T *out, Scope scope) {
    __shared__ T shared[7];
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    // Block scope only orders a block: each block has words of its own.
    T *words = scope == kShared ? shared : scope == kBlockScope ? out + 7 * blockIdx.x : out;
    if (scope == kShared && threadIdx.x < 7) {
        shared[threadIdx.x] = start<T>();
    }
    __syncthreads();
    apply(words, operand<T>(thread), scope);
    __syncthreads();
    if (scope == kShared && threadIdx.x < 7) {
        out[7 * blockIdx.x + threadIdx.x] = shared[threadIdx.x];
    }
}
template <typename T> static void run_operations(void (*kernel)(T *), Scope scope) {
    const int groups = scope == kShared || scope == kBlockScope ? kGrid : 1, each = kThreads / groups;
    std::vector<T> expected;
    for (int group = 0; group < groups; ++group) {
        T words[7];
        std::fill(words, words + 7, start<T>());
        for (int thread = group * each; thread < (group + 1) * each; ++thread) {
            T value = operand<T>(thread);
            words[0] = static_cast<T>(static_cast<std::make_unsigned_t<T>>(words[0]) +
                                      static_cast<std::make_unsigned_t<T>>(value));
            words[1] = static_cast<T>(static_cast<std::make_unsigned_t<T>>(words[1]) -
                                      static_cast<std::make_unsigned_t<T>>(value));
            words[2] = std::min(words[2], value);
            words[3] = std::max(words[3], value);
            words[4] = static_cast<T>(words[4] & (value | 0xfff));
            words[5] = static_cast<T>(words[5] | (value & 0xff00ff00));
            words[6] = static_cast<T>(words[6] ^ value);
        }
        expected.insert(expected.end(), words, words + 7);
    }
    DeviceArray<T> out(std::vector<T>(expected.size(), start<T>()));
    suite::launch(kernel, kGrid, kBlock, out.get());
    suite::compare(out, expected);
}
#define ATOMICS(NAME, T, SCOPE)                                                                                        \
    __global__ void NAME(T *out) { operations<T>(out, SCOPE); }                                                        \
    CASE(NAME) { run_operations<T>(NAME, SCOPE); }
ATOMICS(atomics_s32_device, int, kDevice)
ATOMICS(atomics_s32_system, int, kSystem)
ATOMICS(atomics_s32_block, int, kBlockScope)
ATOMICS(atomics_s32_shared, int, kShared)
ATOMICS(atomics_u32_device, unsigned, kDevice)
ATOMICS(atomics_u32_system, unsigned, kSystem)
ATOMICS(atomics_u32_block, unsigned, kBlockScope)
ATOMICS(atomics_u32_shared, unsigned, kShared)
ATOMICS(atomics_u64_device, u64, kDevice)
ATOMICS(atomics_u64_system, u64, kSystem)
ATOMICS(atomics_u64_block, u64, kBlockScope)
ATOMICS(atomics_u64_shared, u64, kShared)
ATOMICS(atomics_s64_device, s64, kDevice)
ATOMICS(atomics_s64_shared, s64, kShared)

// Sums of small integers are exact in any order.
template <typename T> __device__ void float_sums(T *out) {
    __shared__ T shared;
    if (threadIdx.x == 0) {
        shared = T(0);
    }
    __syncthreads();
    T value = T(static_cast<float>(threadIdx.x % 8));
    atomicAdd(&shared, value);
    atomicAdd(&out[1], value);
    __syncthreads();
    if (threadIdx.x == 0) {
        out[2 + blockIdx.x] = shared;
        atomicAdd(&out[0], shared);
    }
}
template <typename T> static void run_float_sums(void (*kernel)(T *)) {
    const double block = kBlock / 8 * 28;
    std::vector<T> expected(2 + kGrid, T(static_cast<float>(block)));
    expected[0] = expected[1] = T(static_cast<float>(block * kGrid));
    DeviceArray<T> out(std::vector<T>(2 + kGrid, T(0.0f)));
    suite::launch(kernel, kGrid, kBlock, out.get());
    suite::compare(out, expected);
}
__global__ void float_sums_f32(float *out) { float_sums(out); }
__global__ void float_sums_f64(double *out) { float_sums(out); }
__global__ void float_sums_f16(__half *out) { float_sums(out); }
CASE(float_sums_f32) { run_float_sums(float_sums_f32); }
CASE(float_sums_f64) { run_float_sums(float_sums_f64); }
CASE(float_sums_f16) { run_float_sums(float_sums_f16); }
__global__ void half_pair_sums(__half2 *out) {
    atomicAdd(out, __half2(__half(float(threadIdx.x % 2)), __half(float(threadIdx.x % 3))));
}
CASE(half_pair_sums) {
    DeviceArray<__half2> out(1);
    CHECK(cudaMemset(out.get(), 0, sizeof(__half2)));
    suite::launch(half_pair_sums, 1, kBlock, out.get());
    suite::compare(out, {__half2(__half(float(kBlock / 2)), __half(float(kBlock)))});
}

// ---- What they return ----

// Each thread draws a number: all different, none missing.
__global__ void tickets_add(unsigned *counter, unsigned *drawn) { drawn[atomicAdd(counter, 3u) / 3] += 1; }
__global__ void tickets_inc(unsigned *counter, unsigned *drawn) { atomicAdd(&drawn[atomicInc(counter, 99)], 1u); }
__global__ void tickets_dec(unsigned *counter, unsigned *drawn) { atomicAdd(&drawn[atomicDec(counter, 99)], 1u); }
__global__ void tickets_cas(unsigned *counter, unsigned *drawn) {
    unsigned seen = *counter, wanted;
    do {
        wanted = seen;
        seen = atomicCAS(counter, wanted, wanted + 1);
    } while (seen != wanted);
    drawn[seen] += 1;
}
__global__ void tickets_shared(unsigned *counter, unsigned *drawn) {
    __shared__ unsigned next;
    if (threadIdx.x == 0) {
        next = 0;
    }
    __syncthreads();
    drawn[blockIdx.x * blockDim.x + atomicAdd(&next, 1u)] += 1;
    if (threadIdx.x == 0) {
        atomicAdd(counter, blockDim.x);
    }
}
static void run_tickets(void (*kernel)(unsigned *, unsigned *), unsigned counter_after,
                        std::vector<unsigned> expected) {
    DeviceArray<unsigned> counter(std::vector<unsigned>(1, 0)), drawn(std::vector<unsigned>(kThreads, 0));
    suite::launch(kernel, kGrid, kBlock, counter.get(), drawn.get());
    suite::compare(drawn, expected);
    suite::compare(counter, {counter_after});
}
static std::vector<unsigned> around_100(unsigned extra_low, unsigned extra_high) {
    std::vector<unsigned> counts(kThreads, 0);
    for (unsigned i = 0; i < 100; ++i) {
        counts[i] = 4 + (i >= extra_low && i < extra_high);
    }
    return counts;
}
CASE(tickets_add) { run_tickets(tickets_add, 3 * kThreads, std::vector<unsigned>(kThreads, 1)); }
CASE(tickets_cas) { run_tickets(tickets_cas, kThreads, std::vector<unsigned>(kThreads, 1)); }
CASE(tickets_shared) { run_tickets(tickets_shared, kThreads, std::vector<unsigned>(kThreads, 1)); }
// 480 steps of a cycle of 100.
CASE(tickets_inc) { run_tickets(tickets_inc, 80, around_100(0, 80)); }
CASE(tickets_dec) {
    std::vector<unsigned> expected = around_100(21, 100);
    expected[0] = 5;
    run_tickets(tickets_dec, 20, expected);
}

// An exchange passes values on: each is received once, and the last stays.
template <typename T> __device__ void pass_on(T *at, unsigned *received) {
    T mine = static_cast<T>(blockIdx.x * blockDim.x + threadIdx.x + 1);
    atomicAdd(&received[static_cast<unsigned>(atomicExch(at, mine))], 1u);
}
__global__ void exchange_u32(unsigned *at, unsigned *received) { pass_on(at, received); }
__global__ void exchange_u64(u64 *at, unsigned *received) { pass_on(at, received); }
__global__ void exchange_f32(float *at, unsigned *received) { pass_on(at, received); }
template <typename T> static void run_exchange(void (*kernel)(T *, unsigned *)) {
    DeviceArray<T> at(std::vector<T>(1, T(0)));
    DeviceArray<unsigned> received(std::vector<unsigned>(kThreads + 1, 0));
    suite::launch(kernel, kGrid, kBlock, at.get(), received.get());
    std::vector<unsigned> counts = received.to_host();
    counts[static_cast<size_t>(at.to_host()[0])] += 1;
    suite::compare(counts, std::vector<unsigned>(kThreads + 1, 1));
}
CASE(exchange_u32) { run_exchange(exchange_u32); }
CASE(exchange_u64) { run_exchange(exchange_u64); }
CASE(exchange_f32) { run_exchange(exchange_f32); }

// Operations that the language lacks, by compare-and-swap: maximum of doubles, product modulo a prime, on 16 bits.
__global__ void cas_loops(u64 *largest, unsigned *product, unsigned short *sum) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    double value = (thread * 7919 % 1000) / 7.0;
    u64 seen = *largest, wanted;
    do {
        wanted = seen;
        if (__longlong_as_double(wanted) >= value) {
            break;
        }
        seen = atomicCAS(largest, wanted, static_cast<u64>(__double_as_longlong(value)));
    } while (seen != wanted);
    unsigned old = *product, before;
    do {
        before = old;
        old = atomicCAS(product, before, before * (thread % 30 + 2u) % 65521u);
    } while (old != before);
    unsigned short now = *sum, then;
    do {
        then = now;
        now = atomicCAS(sum, then, static_cast<unsigned short>(then + thread));
    } while (now != then);
}
CASE(cas_loops) {
    double largest = 0;
    unsigned product = 1;
    unsigned short sum = 0;
    for (int thread = 0; thread < kThreads; ++thread) {
        largest = std::max(largest, (thread * 7919 % 1000) / 7.0);
        product = product * (thread % 30 + 2u) % 65521u;
        sum = static_cast<unsigned short>(sum + thread);
    }
    DeviceArray<u64> device_largest(std::vector<u64>(1, 0));
    DeviceArray<unsigned> device_product(std::vector<unsigned>(1, 1));
    DeviceArray<unsigned short> device_sum(std::vector<unsigned short>(2, 0));
    suite::launch(cas_loops, kGrid, kBlock, device_largest.get(), device_product.get(), device_sum.get());
    u64 bits;
    std::memcpy(&bits, &largest, 8);
    suite::compare(device_largest, {bits});
    suite::compare(device_product, {product});
    suite::compare(device_sum, {sum, 0});
}

// ---- Locks ----

// All lanes of a warp want the same lock: each must get it though its neighbours wait.
__global__ void lock_within_warp(int *lock, unsigned *guarded) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
    volatile unsigned *words = guarded;
    words[0] = words[0] * 3 + 1;
    words[1] = words[1] + 1;
    __threadfence();
    atomicExch(lock, 0);
}
CASE(lock_within_warp) {
    unsigned chained = 0;
    for (int i = 0; i < kThreads; ++i) {
        chained = chained * 3 + 1;
    }
    DeviceArray<int> lock(std::vector<int>(1, 0));
    DeviceArray<unsigned> guarded(std::vector<unsigned>(2, 0));
    suite::launch(lock_within_warp, kGrid, kBlock, lock.get(), guarded.get());
    suite::compare(guarded, {chained, unsigned(kThreads)});
}

// First come, first served, one thread per block; the order of service is the order of the tickets.
__global__ void ticket_lock(unsigned *next, volatile unsigned *serving, volatile unsigned *log) {
    if (threadIdx.x == 0) {
        for (int round = 0; round < 4; ++round) {
            unsigned ticket = atomicAdd(next, 1u);
            while (*serving != ticket) {
            }
            __threadfence();
            log[ticket] = ticket * 10 + (ticket == 0 ? 0 : log[ticket - 1] % 10 + 1) % 10;
            __threadfence();
            *serving = ticket + 1;
        }
    }
}
CASE(ticket_lock) {
    std::vector<unsigned> expected;
    for (unsigned ticket = 0; ticket < 8 * 4; ++ticket) {
        expected.push_back(ticket * 10 + ticket % 10);
    }
    DeviceArray<unsigned> next(std::vector<unsigned>(1, 0)), serving(std::vector<unsigned>(1, 0)), log(expected.size());
    suite::launch(ticket_lock, 8, 32, next.get(), static_cast<volatile unsigned *>(serving.get()),
                  static_cast<volatile unsigned *>(log.get()));
    suite::compare(log, expected);
}

// A block produces into a ring, the other consumes; each waits for the other.
__global__ void producer_consumer(volatile unsigned *ring, volatile unsigned *written, volatile unsigned *read,
                                  unsigned *out, int count) {
    constexpr unsigned kSlots = 4;
    if (threadIdx.x != 0) {
        return;
    }
    for (unsigned i = 0; i < static_cast<unsigned>(count); ++i) {
        if (blockIdx.x == 0) {
            while (i - *read >= kSlots) {
            }
            ring[i % kSlots] = i * i + 7;
            __threadfence();
            *written = i + 1;
        } else {
            while (*written <= i) {
            }
            __threadfence();
            out[i] = ring[i % kSlots];
            __threadfence();
            *read = i + 1;
        }
    }
}
CASE(producer_consumer) {
    constexpr int kCount = 200;
    std::vector<unsigned> expected;
    for (unsigned i = 0; i < kCount; ++i) {
        expected.push_back(i * i + 7);
    }
    DeviceArray<unsigned> ring(4), counters(std::vector<unsigned>(2, 0)), out(kCount);
    volatile unsigned *counter = counters.get();
    suite::launch(producer_consumer, 2, 32, static_cast<volatile unsigned *>(ring.get()), counter, counter + 1,
                  out.get(), kCount);
    suite::compare(out, expected);
}

// The last block to finish adds up what all wrote.
__global__ void last_block(unsigned *partial, unsigned *finished, unsigned *total) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = blockIdx.x * blockIdx.x;
        __threadfence();
        last = atomicAdd(finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last) {
        for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
            atomicAdd(total, *static_cast<volatile unsigned *>(&partial[i]));
        }
    }
}
CASE(last_block) {
    constexpr unsigned kBlocks = 50;
    DeviceArray<unsigned> partial(kBlocks), words(std::vector<unsigned>(2, 0));
    suite::launch(last_block, kBlocks, 64, partial.get(), words.get(), words.get() + 1);
    suite::compare(words, {kBlocks, (kBlocks - 1) * kBlocks * (2 * kBlocks - 1) / 6});
}

// ---- Inline PTX: orders and reductions that return nothing ----

__global__ void ordered_atomics(unsigned *words) {
    [[maybe_unused]] unsigned old;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(words))
                 : "memory");
    asm volatile("atom.add.acquire.gpu.u32 %0, [%1], 1;" : "=r"(old) : "l"(words + 1) : "memory");
    asm volatile("atom.add.release.cta.u32 %0, [%1], 1;" : "=r"(old) : "l"(words + 2) : "memory");
    asm volatile("atom.global.acq_rel.sys.add.u32 %0, [%1], 1;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(words + 3))
                 : "memory");
    asm volatile("red.global.add.u32 [%0], 2;" ::"l"(__cvta_generic_to_global(words + 4)) : "memory");
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(words + 5)), "r"(threadIdx.x)
                 : "memory");
    asm volatile("red.or.b32 [%0], %1;" ::"l"(words + 6), "r"(1u << threadIdx.x % 32) : "memory");
    asm volatile("red.release.gpu.global.xor.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(words + 7)), "r"(threadIdx.x)
                 : "memory");
    asm volatile("red.inc.u32 [%0], 1000;" ::"l"(words + 8) : "memory");
    asm volatile("fence.sc.gpu; fence.acq_rel.cta; membar.gl; membar.sys; membar.cta;" ::: "memory");
}
CASE(ordered_atomics) {
    constexpr unsigned kCount = 64;
    unsigned mixed = 0;
    for (unsigned i = 0; i < kCount; ++i) {
        mixed ^= i;
    }
    DeviceArray<unsigned> words(std::vector<unsigned>(9, 0));
    suite::launch(ordered_atomics, 1, kCount, words.get());
    suite::compare(words, {kCount, kCount, kCount, kCount, 2 * kCount, kCount - 1, 0xffffffffu, mixed, kCount});
}

// A 64-bit compare-and-swap of two 32-bit fields, and of generic addresses of shared memory.
__global__ void cas_shared_u64(u64 *out) {
    __shared__ u64 pair;
    if (threadIdx.x == 0) {
        pair = 0;
    }
    __syncthreads();
    u64 seen = *static_cast<volatile u64 *>(&pair), wanted;
    do {
        wanted = seen;
        seen = atomicCAS(&pair, wanted, wanted + (1ull << 32) + threadIdx.x);
    } while (seen != wanted);
    __syncthreads();
    out[0] = pair;
}
CASE(cas_shared_u64) {
    DeviceArray<u64> out(1);
    suite::launch(cas_shared_u64, 1, kBlock, out.get());
    suite::compare(out, {u64(kBlock) << 32 | (kBlock * (kBlock - 1) / 2)});
}
SUITE_MAIN("atomics")
