// Kernels that reach memory in every way that the language has: spaces, vector types, cache hints, alignment, pointers
// whose space is not known, parameters by value, and atomics of every operation, type and scope.
// nvcc-flags: -gencode arch=compute_80,code=compute_80
#include "check.h"

#include <algorithm>
#include <cstring>

#include <cuda_fp16.h>

constexpr int kCount = 1024, kBlock = 128, kGrid = kCount / kBlock;

using Word = unsigned int;
using Wide = unsigned long long;

__device__ int index() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Cache hints: a load that is one of the intrinsics, and a store that is another.
#define THROUGH(name, load, store)                                                                                    \
    __global__ void name(const Word *in, Word *out) { store(out + index(), load(in + index()) + 1); }
THROUGH(read_only, __ldg, __stwb)
THROUGH(cache_all, __ldca, __stcg)
THROUGH(cache_global, __ldcg, __stcs)
THROUGH(streaming, __ldcs, __stwt)
THROUGH(last_use, __ldlu, __stwb)
THROUGH(not_cached, __ldcv, __stwt)

__global__ void volatile_access(const Word *in, Word *out) {
    const volatile Word *from = in;
    volatile Word *to = out;
    to[index()] = from[index()] + 1;
}

__global__ void restricted(const Word *__restrict__ in, Word *__restrict__ out) { out[index()] = in[index()] + 1; }

// Vector types: a thread moves several elements at once and adds one to each.
template <typename V, typename E> __global__ void vectors(const Word *in, Word *out) {
    int i = index();
    if (i < kCount * 4 / static_cast<int>(sizeof(V))) {
        V value = reinterpret_cast<const V *>(in)[i];
        E parts[sizeof(V) / sizeof(E)];
        memcpy(parts, &value, sizeof value);
        for (E &part : parts) {
            part = part + 1;
        }
        memcpy(&value, parts, sizeof value);
        reinterpret_cast<V *>(out)[i] = value;
    }
}

template <typename E> std::vector<Word> plus_one(const std::vector<Word> &in) {
    std::vector<E> parts(kCount * 4 / sizeof(E));
    std::memcpy(parts.data(), in.data(), kCount * 4);
    for (E &part : parts) {
        part = static_cast<E>(part + 1);
    }
    std::vector<Word> out(kCount);
    std::memcpy(out.data(), parts.data(), kCount * 4);
    return out;
}

struct __attribute__((packed)) Packed {
    unsigned char tag;
    Word value;
    unsigned short rest;
};
__global__ void packed_structures(const Word *in, Word *out) {
    __shared__ Packed shared[kBlock];
    Packed &mine = shared[threadIdx.x];
    mine.tag = in[index()];
    mine.value = in[index()] * 3;
    mine.rest = in[index()] >> 7;
    __syncthreads();
    const Packed &other = shared[threadIdx.x ^ 1];
    out[index()] = other.tag + other.value + other.rest;
}

struct Fields {
    Word low : 5, middle : 13, high : 14;
};
__global__ void bit_fields(const Word *in, Word *out) {
    Fields fields;
    memcpy(&fields, in + index(), 4);
    fields.middle += 77;
    fields.low = fields.high;
    memcpy(out + index(), &fields, 4);
}

__constant__ Word table[64] = {7, 11, 13, 17};
__global__ void constants(const Word *in, Word *out) { out[index()] = table[in[index()] % 64] + table[2]; }

struct Block {
    Word values[24];
    double factor;
};
__global__ void by_value(const Word *in, Word *out, Block block) {
    block.values[3] += 5;
    out[index()] = block.values[in[index()] % 24] + static_cast<Word>(block.factor);
}

__global__ void local_array(const Word *in, Word *out) {
    Word values[32];
    for (int k = 0; k < 32; ++k) {
        values[k] = in[(index() + k) % kCount];
    }
    for (int k = 0; k < 32; ++k) {
        values[in[index()] >> 8 & 31] += values[k] >> 3;
    }
    out[index()] = values[in[index()] >> 8 & 31] ^ values[9];
}

__global__ void static_shared(const Word *in, Word *out) {
    __shared__ Word values[kBlock];
    values[threadIdx.x] = in[index()];
    __syncthreads();
    out[index()] = values[kBlock - 1 - threadIdx.x];
}

__global__ void dynamic_shared(const Word *in, Word *out) {
    extern __shared__ unsigned short halves[];
    halves[threadIdx.x] = in[index()];
    __syncthreads();
    out[index()] = halves[(threadIdx.x + 5) % kBlock];
}

__device__ Word somewhere[kCount];
__global__ void generic_pointers(const Word *in, Word *out) {
    __shared__ Word shared[kBlock];
    Word local[2];
    Word *places[3] = {somewhere + index(), shared + threadIdx.x, local + (index() & 1)};
    Word *place = places[in[index()] % 3];
    *place = in[index()];
    *place += 9;
    bool global = __isGlobal(place), in_shared = __isShared(place), in_local = __isLocal(place);
    out[index()] = *place * 8 + global + 2 * in_shared + 4 * in_local;
}

__global__ void spaces(const Word *in, Word *out) {
    __shared__ Word shared;
    Word local = in[index()];
    shared = 0;
    const void *volatile pointers[4] = {in, &shared, &local, table};
    Word found = 0;
    for (int k = 0; k < 4; ++k) {
        const void *p = pointers[k];
        found = found * 8 + __isGlobal(p) + 2 * __isShared(p) + 4 * __isLocal(p);
    }
    out[index()] = found >> 3;
}

__global__ void unions(const Word *in, Word *out) {
    union {
        float number;
        Word bits;
        unsigned char bytes[4];
    } value;
    value.number = static_cast<float>(in[index()] & 0xffff);
    value.bytes[0] ^= 0x55;
    out[index()] = value.bits;
}

__global__ void heap(const Word *in, Word *out) {
    auto *values = static_cast<Word *>(malloc(16 * sizeof(Word)));
    for (int k = 0; k < 16; ++k) {
        values[k] = in[index()] + k;
    }
    Word sum = 0;
    for (int k = 0; k < 16; ++k) {
        sum += values[k];
    }
    free(values);
    out[index()] = sum;
}

__global__ void copies(const Word *in, Word *out) {
    Word buffer[8];
    memset(buffer, 0x5a, sizeof buffer);
    memcpy(buffer + 2, in + (index() & ~3), 16);
    memcpy(out + index(), buffer + 2 + (index() & 3), 4);
    out[index()] ^= buffer[0] ^ buffer[7];
}

// Atomics: all threads on a cell in global memory and on one in shared memory, whose blocks' results are combined.
#define ATOMIC(name, T, initial, operation, scoped)                                                                   \
    __global__ void name(const Word *in, T *cells) {                                                                  \
        __shared__ T shared;                                                                                          \
        T value = static_cast<T>(in[index()]);                                                                        \
        if (threadIdx.x == 0) {                                                                                       \
            shared = initial;                                                                                         \
        }                                                                                                             \
        __syncthreads();                                                                                              \
        operation(cells, value);                                                                                      \
        scoped(&shared, value);                                                                                       \
        __syncthreads();                                                                                              \
        if (threadIdx.x == 0) {                                                                                       \
            operation(cells + 1, shared);                                                                             \
        }                                                                                                             \
    }
ATOMIC(add_int, int, 0, atomicAdd, atomicAdd_block)
ATOMIC(add_word, Word, 0, atomicAdd, atomicAdd_block)
ATOMIC(add_wide, Wide, 0, atomicAdd, atomicAdd_system)
ATOMIC(add_float, float, 0, atomicAdd, atomicAdd_block)
ATOMIC(add_double, double, 0, atomicAdd_system, atomicAdd)
ATOMIC(min_int, int, 0x7fffffff, atomicMin, atomicMin_block)
ATOMIC(max_int, int, -0x7fffffff, atomicMax_system, atomicMax)
ATOMIC(min_word, Word, ~0u, atomicMin, atomicMin)
ATOMIC(max_word, Word, 0, atomicMax, atomicMax_block)
ATOMIC(min_long, long long, 1ll << 62, atomicMin, atomicMin)
ATOMIC(max_long, long long, -(1ll << 62), atomicMax, atomicMax)
ATOMIC(min_wide, Wide, ~0ull, atomicMin, atomicMin)
ATOMIC(max_wide, Wide, 0, atomicMax, atomicMax)
ATOMIC(and_word, Word, ~0u, atomicAnd, atomicAnd_block)
ATOMIC(or_word, Word, 0, atomicOr_system, atomicOr)
ATOMIC(xor_word, Word, 0, atomicXor, atomicXor_block)
ATOMIC(and_wide, Wide, ~0ull, atomicAnd, atomicAnd)
ATOMIC(or_wide, Wide, 0, atomicOr, atomicOr)
ATOMIC(xor_wide, Wide, 0, atomicXor, atomicXor)

// What the order of threads cannot change about the other operations.
__global__ void subtract(const Word *in, Word *cells) {
    atomicSub(cells, in[index()]);
    atomicSub_block(cells + 1 + blockIdx.x, in[index()]);
}
__global__ void wrap_up(const Word *, Word *cells) { atomicInc(cells, 99); }
__global__ void wrap_down(const Word *, Word *cells) { atomicDec(cells, 99); }
__global__ void exchange_links(const Word *, Word *cells) {
    // Each thread takes what the one before left: every number is taken once.
    Word before = atomicExch(cells, index() + 1);
    cells[1 + index()] = before;
}
__global__ void exchange_wide(const Word *, Wide *cells) {
    Wide before = atomicExch(cells, (index() + 1ull) << 32);
    cells[1 + index()] = before >> 32;
}
__global__ void compare_loop(const Word *in, float *cells) {
    auto *bits = reinterpret_cast<int *>(cells);
    int old = *bits, seen;
    do {
        seen = old;
        float larger = fmaxf(__int_as_float(seen), static_cast<float>(in[index()] & 0xffff));
        old = atomicCAS(bits, seen, __float_as_int(larger));
    } while (old != seen);
}
__global__ void compare_wide(const Word *in, Wide *cells) {
    Wide seen, old = *cells;
    do {
        seen = old;
        old = atomicCAS(cells, seen, seen * 1 + in[index()]);
    } while (old != seen);
}
__global__ void compare_short(const Word *, unsigned short *cells) {
    unsigned short seen, old = *cells;
    do {
        seen = old;
        old = atomicCAS(cells, seen, static_cast<unsigned short>(seen + 3));
    } while (old != seen);
}
__global__ void half_pairs(const Word *, __half2 *cells) { atomicAdd(cells, __floats2half2_rn(1.0f, 0.5f)); }
__global__ void spin_lock(const Word *in, Word *cells) {
    bool done = false;
    while (!done) {
        if (atomicCAS(cells, 0, 1) == 0) {
            __threadfence();
            *(volatile Word *)(cells + 1) = *(volatile Word *)(cells + 1) + in[index()];
            __threadfence_system();
            atomicExch(cells, 0);
            done = true;
        }
        __nanosleep(20);
    }
}
__global__ void last_block(const Word *in, Word *cells) {
    __shared__ bool last;
    atomicAdd(cells + 2 + blockIdx.x, in[index()]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(cells, 1) == gridDim.x - 1;
        __threadfence_block();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        for (int k = 0; k < kGrid; ++k) {
            cells[1] += *(volatile Word *)(cells + 2 + k);
        }
    }
}

static Checksum checksum;
static std::vector<Word> input(kCount);

template <typename Kernel, typename... More>
void run(const char *name, Kernel kernel, const std::vector<Word> &expected, More... more) {
    DeviceArray<Word> in(input), out(kCount);
    CHECK(cudaMemset(out.get(), 0, out.size_bytes()));
    kernel<<<kGrid, kBlock, kBlock * 2>>>(in.get(), out.get(), more...);
    CHECK(cudaGetLastError());
    std::vector<Word> got = out.to_host();
    require_equal(got, expected, name);
    checksum.add(got);
}

template <typename F> std::vector<Word> each(F f) {
    std::vector<Word> values(kCount);
    for (int i = 0; i < kCount; ++i) {
        values[i] = f(i);
    }
    return values;
}

// Runs an atomic kernel; returns its cells.
template <typename T> std::vector<T> cells_of(void (*kernel)(const Word *, T *), T initial, size_t count) {
    DeviceArray<Word> in(input);
    DeviceArray<T> cells(std::vector<T>(count, initial));
    kernel<<<kGrid, kBlock>>>(in.get(), cells.get());
    CHECK(cudaGetLastError());
    return cells.to_host();
}

template <typename T, typename F>
void run_atomic(const char *name, void (*kernel)(const Word *, T *), T initial, F combine) {
    T expected = initial;
    for (Word value : input) {
        expected = combine(expected, static_cast<T>(value));
    }
    std::vector<T> cells = cells_of(kernel, initial, 2);
    require_equal(cells, std::vector<T>{expected, expected}, name);
    checksum.add(cells);
}

int main() {
    Random random(5);
    for (Word &value : input) {
        value = random.next() >> 8;
    }
    auto plus = each([](int i) { return input[i] + 1; });
    run("read_only", read_only, plus);
    run("cache_all", cache_all, plus);
    run("cache_global", cache_global, plus);
    run("streaming", streaming, plus);
    run("last_use", last_use, plus);
    run("not_cached", not_cached, plus);
    run("volatile_access", volatile_access, plus);
    run("restricted", restricted, plus);
    run("uint2", vectors<uint2, Word>, plus);
    run("uint4", vectors<uint4, Word>, plus);
    run("uchar1", vectors<uchar1, unsigned char>, each([](int i) { return i < 256 ? plus_one<unsigned char>(input)[i] : 0; }));
    run("uchar2", vectors<uchar2, unsigned char>, each([](int i) { return i < 512 ? plus_one<unsigned char>(input)[i] : 0; }));
    run("uchar4", vectors<uchar4, unsigned char>, plus_one<unsigned char>(input));
    run("ushort2", vectors<ushort2, unsigned short>, plus_one<unsigned short>(input));
    run("short4", vectors<short4, short>, plus_one<short>(input));
    run("ulonglong2", vectors<ulonglong2, Wide>, plus_one<Wide>(input));
    run("packed_structures", packed_structures, each([](int i) {
            Word x = input[i ^ 1];
            return (x & 255) + x * 3 + (x >> 7 & 0xffff);
        }));
    run("bit_fields", bit_fields, each([](int i) {
            Word x = input[i], high = x >> 18;
            return high << 18 | ((x >> 5) + 77 & 0x1fff) << 5 | (high & 31);
        }));
    const Word head[4] = {7, 11, 13, 17};
    run("constants", constants, each([&](int i) { return (input[i] % 64 < 4 ? head[input[i] % 64] : 0) + 13; }));
    Block block{};
    for (Word k = 0; k < 24; ++k) {
        block.values[k] = k * k;
    }
    block.factor = 1e6;
    run("by_value", by_value, each([](int i) {
            Word k = input[i] % 24;
            return k * k + (k == 3 ? 5 : 0) + 1000000;
        }),
        block);
    run("local_array", local_array, each([](int i) {
            Word values[32], at = input[i] >> 8 & 31;
            for (int k = 0; k < 32; ++k) {
                values[k] = input[(i + k) % kCount];
            }
            for (int k = 0; k < 32; ++k) {
                values[at] += values[k] >> 3;
            }
            return values[at] ^ values[9];
        }));
    run("static_shared", static_shared, each([](int i) { return input[i / kBlock * kBlock + kBlock - 1 - i % kBlock]; }));
    run("dynamic_shared", dynamic_shared,
        each([](int i) { return input[i / kBlock * kBlock + (i + 5) % kBlock] & 0xffff; }));
    run("generic_pointers", generic_pointers, each([](int i) { return (input[i] + 9) * 8 + (1u << input[i] % 3); }));
    run("spaces", spaces, each([](int) { return 1u << 6 | 2u << 3 | 4u; }));
    run("unions", unions, each([](int i) {
            float number = static_cast<float>(input[i] & 0xffff);
            Word bits;
            std::memcpy(&bits, &number, 4);
            return bits ^ 0x55;
        }));
    run("heap", heap, each([](int i) { return input[i] * 16 + 120; }));
    run("copies", copies, each([](int i) { return 0x5a5a5a5au ^ input[i] ^ 0x5a5a5a5au; }));

    auto sum = [](auto a, auto b) { return a + b; };
    auto least = [](auto a, auto b) { return std::min(a, b); };
    auto most = [](auto a, auto b) { return std::max(a, b); };
    auto conjunction = [](auto a, auto b) { return a & b; };
    auto disjunction = [](auto a, auto b) { return a | b; };
    auto difference = [](auto a, auto b) { return a ^ b; };
    run_atomic<Word>("add_word", add_word, 0, sum);
    run_atomic<Wide>("add_wide", add_wide, 0, sum);
    run_atomic<int>("min_int", min_int, 0x7fffffff, least);
    run_atomic<int>("max_int", max_int, -0x7fffffff, most);
    run_atomic<Word>("min_word", min_word, ~0u, least);
    run_atomic<Word>("max_word", max_word, 0, most);
    run_atomic<long long>("min_long", min_long, 1ll << 62, least);
    run_atomic<long long>("max_long", max_long, -(1ll << 62), most);
    run_atomic<Wide>("min_wide", min_wide, ~0ull, least);
    run_atomic<Wide>("max_wide", max_wide, 0, most);
    run_atomic<Word>("and_word", and_word, ~0u, conjunction);
    run_atomic<Word>("or_word", or_word, 0, disjunction);
    run_atomic<Word>("xor_word", xor_word, 0, difference);
    run_atomic<Wide>("and_wide", and_wide, ~0ull, conjunction);
    run_atomic<Wide>("or_wide", or_wide, 0, disjunction);
    run_atomic<Wide>("xor_wide", xor_wide, 0, difference);
    Word total = 0, largest = 0;
    for (Word &value : input) {
        total += value;
        largest = std::max(largest, value & 0xffff);
        // From here on small, so that sums of floats are exact in any order.
        value &= 0x3ff;
    }
    run_atomic<int>("add_int", add_int, 0, sum);
    run_atomic<float>("add_float", add_float, 0.0f, sum);
    run_atomic<double>("add_double", add_double, 0.0, sum);

    total = 0;
    largest = 0;
    for (Word value : input) {
        total += value;
        largest = std::max(largest, value);
    }
    std::vector<Word> rest = cells_of<Word>(subtract, 1u << 30, 1 + kGrid);
    REQUIRE(rest[0] == (1u << 30) - total);
    for (int k = 0; k < kGrid; ++k) {
        total -= (1u << 30) - rest[1 + k];
    }
    REQUIRE(total == 0);
    REQUIRE(cells_of<Word>(wrap_up, 0, 1)[0] == kCount % 100);
    REQUIRE(cells_of<Word>(wrap_down, 0, 1)[0] == 100 - kCount % 100);
    std::vector<Word> links = cells_of<Word>(exchange_links, 0, 1 + kCount);
    std::sort(links.begin(), links.end());
    std::vector<Wide> wide_links = cells_of<Wide>(exchange_wide, 0, 1 + kCount);
    wide_links[0] >>= 32;
    std::sort(wide_links.begin(), wide_links.end());
    for (Word k = 0; k <= kCount; ++k) {
        REQUIRE(links[k] == k && wide_links[k] == k);
    }
    REQUIRE(cells_of<float>(compare_loop, 0, 1)[0] == static_cast<float>(largest));
    Wide sum_of_all = 0;
    for (Word value : input) {
        sum_of_all += value;
    }
    REQUIRE(cells_of<Wide>(compare_wide, 0, 1)[0] == sum_of_all);
    REQUIRE(cells_of<unsigned short>(compare_short, 0, 2)[0] == 3 * kCount);
    __half2 pair = cells_of<__half2>(half_pairs, __floats2half2_rn(0.0f, 0.0f), 1)[0];
    REQUIRE(__low2float(pair) == kCount && __high2float(pair) == kCount / 2);
    REQUIRE(cells_of<Word>(spin_lock, 0, 2)[1] == sum_of_all);
    REQUIRE(cells_of<Word>(last_block, 0, 2 + kGrid)[1] == sum_of_all);
    checksum.add(rest);
    checksum.add(links);
    return report_ok("memory_kernels", checksum);
}
