// Memory of every kind: constants, local arrays, loads and stores of all widths and cache hints, volatile and generic
// access, queries of address spaces, the device's heap, copies, globals with initial values, packed and unaligned
// structures.
#include "suite.h"

#include <numeric>
#include <string>

constexpr int kCount = 256;

template <typename T> static std::vector<T> counted(int count = kCount, uint32_t seed = 9) {
    Random random(seed);
    std::vector<T> values(count);
    for (T &value : values) {
        value = static_cast<T>(random.next());
    }
    return values;
}

// Runs a kernel from `in` to an array like `expected`.
template <typename In, typename Out>
static void run(void (*kernel)(const In *, Out *), const std::vector<In> &in, const std::vector<Out> &expected,
                int threads = kCount) {
    DeviceArray<In> device_in(in);
    DeviceArray<Out> out(expected.size());
    CHECK(cudaMemset(out.get(), 0, out.size_bytes()));
    suite::launch(kernel, 1, threads, device_in.get(), out.get());
    suite::compare(out, expected);
}

// ---- Constants and globals ----

struct Table {
    int8_t bytes[8];
    int16_t shorts[4];
    int32_t words[4];
    int64_t wides[2];
    float floats[4];
    double doubles[2];
};
__constant__ Table constant_table = {{1, -2, 3, -4, 5, -6, 7, -8}, {100, -200, 300, -400},
                                     {1000000, -2000000, 3, 4},    {1ll << 40, -(1ll << 41)},
                                     {0.5f, -1.5f, 2.25f, 3e10f},  {1e-100, -2e200}};
static const Table host_table = {{1, -2, 3, -4, 5, -6, 7, -8}, {100, -200, 300, -400},      {1000000, -2000000, 3, 4},
                                 {1ll << 40, -(1ll << 41)},    {0.5f, -1.5f, 2.25f, 3e10f}, {1e-100, -2e200}};
template <typename T> __host__ __device__ double from_table(const T &table, uint32_t i) {
    return table.bytes[i % 8] + table.shorts[i % 4] * 2.0 + table.words[i / 3 % 4] +
           static_cast<double>(table.wides[i % 2]) + table.floats[i / 2 % 4] + table.doubles[i % 2] * 1e-200;
}
// Each lane reads another constant.
REF1(constant_lookup, double, uint32_t, from_table(constant_table, a), from_table(host_table, a))
__constant__ uint32_t constant_words[64];
__global__ void constant_uploaded(const uint32_t *in, uint32_t *out) {
    out[threadIdx.x] = constant_words[in[threadIdx.x] % 64] + constant_words[5];
}
CASE(constant_uploaded) {
    const std::vector<uint32_t> words = counted<uint32_t>(64), in = counted<uint32_t>();
    CHECK(cudaMemcpyToSymbol(constant_words, words.data(), 64 * 4));
    std::vector<uint32_t> expected;
    for (uint32_t i : in) {
        expected.push_back(words[i % 64] + words[5]);
    }
    run(constant_uploaded, in, expected);
}

__device__ int global_words[8] = {8, 7, 6, 5};
__device__ int *global_pointer = &global_words[2];
__device__ const char *global_text = "gamma rays";
struct Node {
    int value;
    const Node *next;
};
__device__ Node third_node = {30, nullptr};
__device__ Node second_node = {20, &third_node};
__device__ Node first_node = {10, &second_node};
__global__ void globals_with_relocations(const int *, int *out) {
    int i = threadIdx.x;
    if (i < 8) {
        out[i] = global_words[i] * 10 + (i < 4 ? global_pointer[i] : 0);
    } else if (i < 18) {
        out[i] = global_text[i - 8];
    } else if (i == 18) {
        for (const Node *node = &first_node; node != nullptr; node = node->next) {
            out[18] += node->value;
        }
    }
}
CASE(globals_with_relocations) {
    std::vector<int> expected = {86, 75, 60, 50, 0, 0, 0, 0};
    for (char letter : std::string("gamma rays")) {
        expected.push_back(letter);
    }
    expected.push_back(60);
    run(globals_with_relocations, std::vector<int>(1), expected, 32);
}
__device__ uint32_t launches_seen;
__global__ void global_state(uint32_t *out) {
    if (threadIdx.x == 0) {
        *out = ++launches_seen;
    }
}
CASE(global_state) {
    DeviceArray<uint32_t> out(1);
    for (uint32_t i = 1; i <= 3; ++i) {
        suite::launch(global_state, 1, 32, out.get());
        suite::compare(out, {i});
    }
    uint32_t forty = 40, read = 0;
    CHECK(cudaMemcpyToSymbol(launches_seen, &forty, 4));
    suite::launch(global_state, 1, 32, out.get());
    CHECK(cudaMemcpyFromSymbol(&read, launches_seen, 4));
    HOLDS(read == 41);
}

// ---- Local arrays ----

__host__ __device__ inline uint32_t shuffled_digits(uint32_t seed) {
    uint8_t digits[16];
    uint32_t counts[5] = {};
    for (int i = 0; i < 16; ++i) {
        digits[i] = static_cast<uint8_t>(i);
    }
    for (int i = 15; i > 0; --i) {
        seed = seed * 1103515245u + 12345u;
        int j = static_cast<int>(seed >> 16) % (i + 1);
        uint8_t kept = digits[i];
        digits[i] = digits[j];
        digits[j] = kept;
        counts[seed >> 20 & 3] += j;
    }
    uint32_t hash = counts[0] + counts[1] * 3 + counts[2] * 5 + counts[3] * 7 + counts[4];
    for (int i = 0; i < 16; ++i) {
        hash = hash * 17 + digits[i];
    }
    return hash;
}
MAP1(local_array, uint32_t, uint32_t, shuffled_digits(a))
__host__ __device__ inline double local_matrix(int32_t a) {
    double matrix[3][3];
    for (int i = 0; i < 9; ++i) {
        matrix[i / 3][i % 3] = (a >> i & 15) - 7.5;
    }
    int row = a & 1, column = (a >> 1) % 2;
    row = row < 0 ? -row : row, column = column < 0 ? -column : column;
    return matrix[row][column] * matrix[2][2] - matrix[row + 1][column + 1] * matrix[column][row];
}
MAP1(local_array_2d, double, int32_t, local_matrix(a))
__noinline__ __host__ __device__ void accumulate(uint64_t *slots, uint32_t which, uint64_t value) {
    slots[which % 4] += value;
}
__host__ __device__ inline uint64_t through_pointers(uint32_t a) {
    uint64_t slots[4] = {1, 2, 3, 4};
    for (uint32_t i = 0; i < 9; ++i) {
        accumulate(i % 2 ? slots : slots, a >> i, i * a);
    }
    return slots[0] ^ slots[1] << 1 ^ slots[2] << 2 ^ slots[3] << 3;
}
MAP1(local_by_pointer, uint64_t, uint32_t, through_pointers(a))

// ---- Widths of loads and stores ----

template <typename T> __device__ void reverse(const T *in, T *out) {
    out[blockDim.x - 1 - threadIdx.x] = in[threadIdx.x];
}
template <typename T> __device__ void reverse_shared(const T *in, T *out) {
    __shared__ T words[64];
    words[63 - threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = words[threadIdx.x];
}
template <typename T> static void run_reverse(void (*kernel)(const T *, T *)) {
    const std::vector<uint8_t> bytes = counted<uint8_t>(64 * sizeof(T));
    std::vector<uint8_t> expected;
    for (int i = 63; i >= 0; --i) {
        expected.insert(expected.end(), bytes.begin() + sizeof(T) * i, bytes.begin() + sizeof(T) * (i + 1));
    }
    DeviceArray<uint8_t> in(bytes), out(bytes.size());
    suite::launch(kernel, 1, 64, reinterpret_cast<const T *>(in.get()), reinterpret_cast<T *>(out.get()));
    suite::compare(out, expected);
}
#define REVERSES(T)                                                                                                    \
    __global__ void reverse_##T(const T *in, T *out) { reverse(in, out); }                                             \
    __global__ void reverse_shared_##T(const T *in, T *out) { reverse_shared(in, out); }                               \
    CASE(reverse_##T) {                                                                                                \
        run_reverse<T>(reverse_##T);                                                                                   \
        run_reverse<T>(reverse_shared_##T);                                                                            \
    }
REVERSES(uint8_t)
REVERSES(uint16_t)
REVERSES(uint64_t)
REVERSES(char2)
REVERSES(uchar4)
REVERSES(short2)
REVERSES(ushort4)
REVERSES(float2)
REVERSES(float3)
REVERSES(float4)
REVERSES(double2)
REVERSES(longlong2)
REVERSES(uint4)

// ---- Cache hints, volatile and ordered access ----

__global__ void cache_hints(const uint32_t *in, uint32_t *out) {
    int i = threadIdx.x;
    uint32_t sum = __ldg(&in[i]) + __ldcg(&in[i]) * 3 + __ldca(&in[i]) * 5 + __ldcs(&in[i]) * 7 + __ldlu(&in[i]) * 11 +
                   __ldcv(&in[i]) * 13;
    uint4 four = __ldg(reinterpret_cast<const uint4 *>(in) + i / 4);
    ushort2 two = __ldcs(reinterpret_cast<const ushort2 *>(in) + i);
    float real = __ldg(reinterpret_cast<const float *>(in) + i);
    sum += four.x ^ four.y ^ four.z ^ four.w ^ two.x ^ __float_as_uint(real);
    __stcg(&out[5 * i], sum);
    __stwb(&out[5 * i + 1], sum + 1);
    __stcs(&out[5 * i + 2], sum + 2);
    __stwt(&out[5 * i + 3], sum + 3);
    asm volatile("st.global.L1::no_allocate.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(&out[5 * i + 4])),
                 "r"(sum + 4)
                 : "memory");
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(in)));
}
CASE(cache_hints) {
    std::vector<uint32_t> in = counted<uint32_t>(), expected;
    for (uint32_t &word : in) {
        // No NaN: its bits need not survive a register of floating point on the way.
        word &= 0x7effffff;
    }
    for (int i = 0; i < kCount; ++i) {
        const uint32_t *four = &in[i / 4 * 4];
        uint32_t sum = in[i] * 40 + (four[0] ^ four[1] ^ four[2] ^ four[3] ^ (in[i] & 0xffff) ^ in[i]);
        for (uint32_t j = 0; j < 5; ++j) {
            expected.push_back(sum + j);
        }
    }
    run(cache_hints, in, expected);
}
__global__ void volatile_access(const uint32_t *in, uint32_t *out) {
    __shared__ volatile uint32_t shared[kCount];
    volatile uint32_t *words = out;
    volatile uint8_t *bytes = reinterpret_cast<volatile uint8_t *>(out + kCount);
    int i = threadIdx.x;
    shared[i] = in[i];
    shared[i] = shared[i] + shared[i] / 2;
    words[i] = shared[i];
    words[i] = words[i] ^ 0xff;
    bytes[i] = static_cast<uint8_t>(words[i]);
    bytes[i] = bytes[i] + 1;
}
CASE(volatile_access) {
    const std::vector<uint32_t> in = counted<uint32_t>();
    std::vector<uint32_t> expected;
    std::vector<uint8_t> bytes;
    for (uint32_t word : in) {
        expected.push_back((word + word / 2) ^ 0xff);
        bytes.push_back(static_cast<uint8_t>(expected.back() + 1));
    }
    expected.resize(kCount + kCount / 4);
    std::memcpy(&expected[kCount], bytes.data(), kCount);
    run(volatile_access, in, expected);
}
__global__ void ordered_access(uint32_t *out) {
    uint32_t value = threadIdx.x, a, b, c, d;
    uint64_t wide;
    uint32_t *mine = out + 8 * threadIdx.x;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(mine)), "r"(value + 1)
                 : "memory");
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(mine + 1)), "r"(value + 2)
                 : "memory");
    asm volatile("st.release.cta.u32 [%0], %1;" ::"l"(mine + 2), "r"(value + 3) : "memory");
    asm volatile("st.relaxed.gpu.v2.u32 [%0], {%1, %2};" ::"l"(mine + 4), "r"(value + 4), "r"(value + 5) : "memory");
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(a) : "l"(__cvta_generic_to_global(mine)) : "memory");
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(b) : "l"(mine + 1) : "memory");
    asm volatile("ld.acquire.cta.b32 %0, [%1];" : "=r"(c) : "l"(mine + 2) : "memory");
    asm volatile("ld.relaxed.gpu.b64 %0, [%1];" : "=l"(wide) : "l"(mine + 4) : "memory");
    asm volatile("ld.volatile.global.b32 %0, [%1];" : "=r"(d) : "l"(__cvta_generic_to_global(mine + 5)) : "memory");
    mine[6] = a * b + c * d;
    mine[7] = static_cast<uint32_t>(wide >> 32) ^ static_cast<uint32_t>(wide);
}
CASE(ordered_access) {
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < 64; ++i) {
        expected.insert(expected.end(), {i + 1, i + 2, i + 3, 0, i + 4, i + 5, (i + 1) * (i + 2) + (i + 3) * (i + 5),
                                         (i + 5) ^ (i + 4)});
    }
    DeviceArray<uint32_t> out(expected.size());
    CHECK(cudaMemset(out.get(), 0, out.size_bytes()));
    suite::launch(ordered_access, 1, 64, out.get());
    suite::compare(out, expected);
}

// ---- Generic addresses ----

__device__ int somewhere;
__constant__ int constant_somewhere = 3;
__global__ void address_spaces(int *out) {
    __shared__ int shared[32];
    int local[4] = {threadIdx.x > 40, 2, 3, 4};
    const void *pointers[5] = {&shared[threadIdx.x], &local[threadIdx.x % 4], &somewhere, out, &constant_somewhere};
    int bits = 0;
    for (int i = 0; i < 5; ++i) {
        const void *pointer = pointers[(i + threadIdx.x) % 5];
        bits += (__isShared(pointer) + 2 * __isLocal(pointer) + 4 * __isGlobal(pointer) + 8 * __isConstant(pointer))
                << (4 * ((i + threadIdx.x) % 5));
    }
    out[threadIdx.x] = bits;
}
CASE(address_spaces) {
    DeviceArray<int> out(32);
    suite::launch(address_spaces, 1, 32, out.get());
    suite::compare(out, std::vector<int>(32, 1 | 2 << 4 | 4 << 8 | 4 << 12 | 8 << 16));
}

// One pointer per lane, into shared, local, global or constant memory, read and written through.
__global__ void generic_mixture(const int *in, int *out) {
    __shared__ int shared[64];
    int local[2] = {in[threadIdx.x] + 1000, 7};
    shared[threadIdx.x] = in[threadIdx.x] + 2000;
    __syncthreads();
    int *pointer;
    switch (threadIdx.x % 3) {
    case 0:
        pointer = &shared[63 - threadIdx.x / 3 * 3];
        break;
    case 1:
        pointer = &local[threadIdx.x / 3 % 2];
        break;
    default:
        pointer = &out[threadIdx.x];
        break;
    }
    int before = threadIdx.x % 3 == 2 ? in[threadIdx.x] : *pointer;
    __syncthreads();
    *pointer = before * 2;
    __syncthreads();
    if (threadIdx.x % 3 != 2) {
        out[threadIdx.x] = *pointer + local[0] * (threadIdx.x % 3 == 1);
    }
}
CASE(generic_mixture) {
    std::vector<int> in(64), expected(64);
    std::iota(in.begin(), in.end(), 1);
    for (int i = 0; i < 64; ++i) {
        if (i % 3 == 0) {
            expected[i] = (in[63 - i] + 2000) * 2;
        } else if (i % 3 == 1) {
            int local[2] = {in[i] + 1000, 7};
            local[i / 3 % 2] *= 2;
            expected[i] = local[i / 3 % 2] + local[0];
        } else {
            expected[i] = in[i] * 2;
        }
    }
    run(generic_mixture, in, expected, 64);
}
__global__ void address_conversions(uint64_t *out) {
    __shared__ uint32_t words[4];
    extern __shared__ uint32_t dynamic[];
    words[threadIdx.x % 4] = 100 + threadIdx.x % 4;
    dynamic[threadIdx.x] = threadIdx.x * 9;
    __syncthreads();
    size_t offset = __cvta_generic_to_shared(&dynamic[31 - threadIdx.x]);
    uint32_t from_offset, shared_size, dynamic_size;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(from_offset) : "r"(static_cast<uint32_t>(offset)) : "memory");
    asm("mov.u32 %0, %%total_smem_size;\n\tmov.u32 %1, %%dynamic_smem_size;" : "=r"(shared_size), "=r"(dynamic_size));
    auto *again = static_cast<uint32_t *>(__cvta_shared_to_generic(__cvta_generic_to_shared(&words[1])));
    out[threadIdx.x] = from_offset + *again * 1000ull + dynamic_size * 1000000ull +
                       (shared_size >= dynamic_size + 16 ? 1ull << 60 : 0);
}
CASE(address_conversions) {
    std::vector<uint64_t> expected;
    for (int i = 0; i < 32; ++i) {
        expected.push_back((31 - i) * 9 + 101 * 1000ull + 128 * 1000000ull + (1ull << 60));
    }
    DeviceArray<uint64_t> out(32);
    suite::launch_shared(address_conversions, 1, 32, 128, out.get());
    suite::compare(out, expected);
}

// ---- The device's heap ----

struct Link {
    int value;
    Link *next;
};
__global__ void heap_lists(const int *in, int *out) {
    Link *list = nullptr;
    for (int i = 0; i <= in[threadIdx.x] % 6 + 6; ++i) {
        list = new Link{i * in[threadIdx.x], list};
    }
    int sum = 0, place = 1;
    while (list != nullptr) {
        Link *next = list->next;
        sum += list->value * place++;
        delete list;
        list = next;
    }
    int *array = static_cast<int *>(malloc(sizeof(int) * (threadIdx.x + 1)));
    for (unsigned i = 0; i <= threadIdx.x; ++i) {
        array[i] = sum + i;
    }
    out[threadIdx.x] = array[threadIdx.x / 2];
    free(array);
}
CASE(heap_lists) {
    std::vector<int> in, expected;
    for (int i = 0; i < 64; ++i) {
        in.push_back(i - 30);
        int sum = 0, place = 1;
        for (int link = in[i] % 6 + 6; link >= 0; --link) {
            sum += link * in[i] * place++;
        }
        expected.push_back(sum + i / 2);
    }
    run(heap_lists, in, expected, 64);
}

// What one kernel allocates, another reads and frees.
__device__ uint32_t *kept_memory[32];
__global__ void heap_allocate(uint32_t *) {
    kept_memory[threadIdx.x] = static_cast<uint32_t *>(malloc(128));
    for (int i = 0; i < 32; ++i) {
        kept_memory[threadIdx.x][i] = threadIdx.x * 100 + i;
    }
}
__global__ void heap_release(uint32_t *out) {
    uint32_t sum = 0;
    for (int i = 0; i < 32; ++i) {
        sum += kept_memory[31 - threadIdx.x][i] * i;
    }
    out[threadIdx.x] = sum;
    __syncthreads();
    free(kept_memory[threadIdx.x]);
}
CASE(heap_across_kernels) {
    std::vector<uint32_t> expected;
    for (uint32_t thread = 0; thread < 32; ++thread) {
        expected.push_back((31 - thread) * 100 * 496 + 10416);
    }
    DeviceArray<uint32_t> out(32);
    suite::launch(heap_allocate, 1, 32, out.get());
    suite::launch(heap_release, 1, 32, out.get());
    suite::compare(out, expected);
}

// ---- Copies and layouts ----

__global__ void copies_in_device(const uint8_t *in, uint8_t *out) {
    uint8_t *mine = out + 64 * threadIdx.x;
    memset(mine, threadIdx.x, 64);
    memcpy(mine + 3, in + threadIdx.x, 40);
    for (int i = 29; i >= 0; --i) {
        mine[10 + i] = mine[3 + i];
    }
    struct Block {
        uint64_t words[2];
        uint8_t tail[5];
    } block;
    memcpy(&block, mine + 8 * (threadIdx.x % 2), sizeof block);
    Block other = block;
    other.tail[4] ^= 0x80;
    memcpy(mine + 40, &other, sizeof(uint64_t) * 2 + 5);
}
CASE(copies_in_device) {
    const std::vector<uint8_t> in = counted<uint8_t>(128);
    std::vector<uint8_t> expected(64 * 64);
    for (int thread = 0; thread < 64; ++thread) {
        uint8_t *mine = &expected[64 * thread], block[21];
        std::memset(mine, thread, 64);
        std::memcpy(mine + 3, &in[thread], 40);
        std::memmove(mine + 10, mine + 3, 30);
        std::memcpy(block, mine + 8 * (thread % 2), 21);
        block[20] ^= 0x80;
        std::memcpy(mine + 40, block, 21);
    }
    run(copies_in_device, in, expected, 64);
}
#pragma pack(push, 1)
struct Packed {
    uint8_t tag;
    uint32_t word;
    uint16_t half;
    double real;
};
#pragma pack(pop)
static_assert(sizeof(Packed) == 15, "no padding");
__global__ void packed_structures(const Packed *in, Packed *out) {
    Packed packed = in[threadIdx.x];
    packed.tag += 1;
    packed.word = packed.word * 3 + packed.half;
    packed.half = static_cast<uint16_t>(packed.word >> 4);
    packed.real = packed.real * 0.5 + packed.tag;
    out[31 - threadIdx.x] = packed;
}
CASE(packed_structures) {
    std::vector<Packed> in(32), expected(32);
    Random random(31);
    for (int i = 0; i < 32; ++i) {
        in[i] = {static_cast<uint8_t>(random.next()), random.next(), static_cast<uint16_t>(random.next()),
                 random.next() * 0.25};
        Packed &packed = expected[31 - i] = in[i];
        packed.tag = static_cast<uint8_t>(packed.tag + 1);
        packed.word = packed.word * 3 + packed.half;
        packed.half = static_cast<uint16_t>(packed.word >> 4);
        packed.real = packed.real * 0.5 + packed.tag;
    }
    run(packed_structures, in, expected, 32);
}
union Parts {
    double real;
    uint64_t wide;
    uint32_t words[2];
    uint16_t halves[4];
    uint8_t bytes[8];
};
struct Fields {
    uint32_t a : 3, b : 13, c : 16;
    int32_t d : 5, e : 27;
};
__host__ __device__ inline uint64_t through_union(uint64_t a) {
    Parts parts;
    parts.wide = a;
    parts.halves[1] += parts.bytes[0];
    parts.words[1] ^= parts.halves[1];
    Fields fields = {};
    fields.a = parts.words[0];
    fields.b = parts.words[1];
    fields.c = parts.halves[3];
    fields.d = static_cast<int32_t>(parts.words[0]) >> 7;
    fields.e = fields.d * 77 - static_cast<int32_t>(fields.b);
    return parts.wide + fields.a * 3 + fields.b * 5 + fields.c * 7 +
           static_cast<uint64_t>(static_cast<int64_t>(fields.d) * 11 + fields.e);
}
MAP1(unions_and_bit_fields, uint64_t, uint64_t, through_union(a))

// Parameters of every size, by value, up to 4 KiB together.
struct Large {
    uint32_t words[600];
};
__global__ void parameters(int8_t a, uint16_t b, int32_t c, uint64_t d, float e, double f, float3 g, uchar4 h,
                           Large large, bool i, double *out) {
    out[threadIdx.x] = a + b + c + static_cast<double>(d) + e + f + g.x + g.y * 2 + g.z * 3 + h.x + h.w +
                       large.words[threadIdx.x] + large.words[599] + i;
}
CASE(parameters) {
    Large large;
    for (uint32_t i = 0; i < 600; ++i) {
        large.words[i] = i * i;
    }
    std::vector<double> expected;
    for (int i = 0; i < 64; ++i) {
        expected.push_back(-5 + 60000 - 100000 + 4294967296.0 + 0.5 + 0.125 + 1 + 4 + 9 + 10 + 40 + i * i + 599 * 599 +
                           1);
    }
    DeviceArray<double> out(64);
    suite::launch(parameters, 1, 64, int8_t(-5), uint16_t(60000), -100000, uint64_t(4294967296), 0.5f, 0.125,
                  float3{1, 2, 3}, uchar4{10, 20, 30, 40}, large, true, out.get());
    suite::compare(out, expected);
}

// Managed and pinned memory, from the device's side and the host's.
__global__ void host_visible(const uint32_t *pinned, uint32_t *out) { out[threadIdx.x] = pinned[threadIdx.x] * 2 + 1; }
CASE(host_visible) {
    uint32_t *pinned, *out;
    CHECK(cudaMallocHost(&pinned, 128));
    CHECK(cudaMallocHost(&out, 128));
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < 32; ++i) {
        pinned[i] = i * 77;
        expected.push_back(i * 154 + 1);
    }
    suite::launch(host_visible, 1, 32, static_cast<const uint32_t *>(pinned), out);
    CHECK(cudaDeviceSynchronize());
    suite::compare(std::vector<uint32_t>(out, out + 32), expected);
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFreeHost(out));
}
SUITE_MAIN("memory")
