// Products of small matrices by a warp: wmma of every type, shape and layout, and mma by inline PTX. The numbers are
// small integers, so that every order of summation is exact.
// nvcc-arch: compute_80
#include "suite.h"

#include <mma.h>

namespace wmma = nvcuda::wmma;

// The element of type T that is `value`.
template <typename T> static T element(int value) {
    if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>) {
        return T(static_cast<float>(value));
    } else {
        return static_cast<T>(value);
    }
}
template <typename T> static double number(T value) {
    if constexpr (std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>) {
        return static_cast<double>(static_cast<float>(value));
    } else {
        return static_cast<double>(value);
    }
}

// d = a * b + c of M x K and K x N, in memory by rows or columns.
template <int M, int N, int K, typename In, typename LayoutA, typename LayoutB, typename Sum, typename Precision = In>
__device__ void product(const In *a, const In *b, const Sum *c, Sum *d) {
    constexpr bool kRowsA = std::is_same_v<LayoutA, wmma::row_major>, kRowsB = std::is_same_v<LayoutB, wmma::row_major>;
    wmma::fragment<wmma::matrix_a, M, N, K, Precision, LayoutA> left;
    wmma::fragment<wmma::matrix_b, M, N, K, Precision, LayoutB> right;
    wmma::fragment<wmma::accumulator, M, N, K, Sum> sum, start;
    wmma::load_matrix_sync(left, a, kRowsA ? K : M);
    wmma::load_matrix_sync(right, b, kRowsB ? N : K);
    wmma::load_matrix_sync(start, c, N, wmma::mem_row_major);
    wmma::fill_fragment(sum, Sum(0));
    wmma::mma_sync(sum, left, right, sum);
    for (int i = 0; i < sum.num_elements; ++i) {
        sum.x[i] = sum.x[i] + start.x[i];
    }
    wmma::mma_sync(sum, left, right, sum);
    // By columns: the reference is turned likewise.
    wmma::store_matrix_sync(d, sum, M, wmma::mem_col_major);
}

template <int M, int N, int K, typename In, typename Sum>
static void run_product(void (*kernel)(const In *, const In *, const Sum *, Sum *), bool rows_a, bool rows_b, int low,
                        int bound) {
    Random random(M * 100 + N * 10 + K);
    std::vector<In> a(M * K), b(K * N);
    std::vector<Sum> c(M * N), expected(M * N);
    for (In &value : a) {
        value = element<In>(low + random.below<int>(bound));
    }
    for (In &value : b) {
        value = element<In>(low + random.below<int>(bound));
    }
    for (Sum &value : c) {
        value = element<Sum>(random.below<int>(9) - 4);
    }
    for (int row = 0; row < M; ++row) {
        for (int column = 0; column < N; ++column) {
            double sum = 0;
            for (int k = 0; k < K; ++k) {
                sum +=
                    number(a[rows_a ? row * K + k : k * M + row]) * number(b[rows_b ? k * N + column : column * K + k]);
            }
            expected[column * M + row] = element<Sum>(static_cast<int>(2 * sum + number(c[row * N + column])));
        }
    }
    DeviceArray<In> device_a(a), device_b(b);
    DeviceArray<Sum> device_c(c), d(M * N);
    suite::launch(kernel, 1, 32, static_cast<const In *>(device_a.get()), static_cast<const In *>(device_b.get()),
                  static_cast<const Sum *>(device_c.get()), d.get());
    suite::compare(d, expected);
}

using Rows = wmma::row_major;
using Columns = wmma::col_major;
#define PRODUCT(NAME, M, N, K, IN, LAYOUT_A, LAYOUT_B, SUM, PRECISION, LOW, BOUND)                                     \
    __global__ void NAME(const IN *a, const IN *b, const SUM *c, SUM *d) {                                             \
        product<M, N, K, IN, LAYOUT_A, LAYOUT_B, SUM, PRECISION>(a, b, c, d);                                          \
    }                                                                                                                  \
    CASE(NAME) {                                                                                                       \
        run_product<M, N, K, IN, SUM>(NAME, std::is_same_v<LAYOUT_A, Rows>, std::is_same_v<LAYOUT_B, Rows>, LOW,       \
                                      BOUND);                                                                          \
    }
PRODUCT(half_to_float, 16, 16, 16, __half, Rows, Columns, float, __half, -8, 17)
PRODUCT(half_to_float_rows, 16, 16, 16, __half, Rows, Rows, float, __half, -8, 17)
PRODUCT(half_to_float_columns, 16, 16, 16, __half, Columns, Columns, float, __half, -8, 17)
PRODUCT(half_to_float_turned, 16, 16, 16, __half, Columns, Rows, float, __half, -8, 17)
PRODUCT(half_to_float_tall, 32, 8, 16, __half, Rows, Columns, float, __half, -8, 17)
PRODUCT(half_to_float_wide, 8, 32, 16, __half, Columns, Rows, float, __half, -8, 17)
PRODUCT(half_to_half, 16, 16, 16, __half, Rows, Columns, __half, __half, -4, 9)
PRODUCT(half_to_half_wide, 8, 32, 16, __half, Rows, Rows, __half, __half, -4, 9)
PRODUCT(bfloat_to_float, 16, 16, 16, __nv_bfloat16, Rows, Columns, float, __nv_bfloat16, -8, 17)
PRODUCT(bfloat_to_float_tall, 32, 8, 16, __nv_bfloat16, Columns, Rows, float, __nv_bfloat16, -8, 17)
PRODUCT(tf32_to_float, 16, 16, 8, float, Rows, Columns, float, wmma::precision::tf32, -8, 17)
PRODUCT(tf32_to_float_turned, 16, 16, 8, float, Columns, Rows, float, wmma::precision::tf32, -8, 17)
PRODUCT(doubles, 8, 8, 4, double, Rows, Columns, double, double, -1000, 2001)
PRODUCT(doubles_turned, 8, 8, 4, double, Columns, Rows, double, double, -1000, 2001)
PRODUCT(signed_bytes, 16, 16, 16, signed char, Rows, Columns, int, signed char, -128, 256)
PRODUCT(signed_bytes_wide, 8, 32, 16, signed char, Columns, Rows, int, signed char, -128, 256)
PRODUCT(unsigned_bytes, 16, 16, 16, unsigned char, Rows, Rows, int, unsigned char, 0, 256)
PRODUCT(unsigned_bytes_tall, 32, 8, 16, unsigned char, Columns, Columns, int, unsigned char, 0, 256)

// ---- mma by inline PTX: each lane's part of the matrices as the ISA lays them out ----

// 16 x 8 x 16 halves.
__global__ void mma_half(const __half *a, const __half *b, float *d) {
    unsigned lane = threadIdx.x, group = lane / 4, pair = lane % 4 * 2;
    auto two = [](const __half *at, int stride) {
        return static_cast<uint32_t>(__half_as_ushort(at[0])) | static_cast<uint32_t>(__half_as_ushort(at[stride]))
                                                                    << 16;
    };
    uint32_t a0 = two(&a[group * 16 + pair], 1), a1 = two(&a[(group + 8) * 16 + pair], 1);
    uint32_t a2 = two(&a[group * 16 + pair + 8], 1), a3 = two(&a[(group + 8) * 16 + pair + 8], 1);
    uint32_t b0 = two(&b[pair * 8 + group], 8), b1 = two(&b[(pair + 8) * 8 + group], 8);
    float s[4] = {1, 2, 3, 4};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
                 "%1, %2, %3};"
                 : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    for (int i = 0; i < 4; ++i) {
        d[(group + i / 2 * 8) * 8 + pair + i % 2] = s[i];
    }
}
CASE(mma_half) {
    Random random(3);
    std::vector<__half> a, b;
    for (int i = 0; i < 256; ++i) {
        a.push_back(element<__half>(random.below<int>(31) - 15));
    }
    for (int i = 0; i < 128; ++i) {
        b.push_back(element<__half>(random.below<int>(31) - 15));
    }
    std::vector<float> expected;
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
            double sum = 1 + row / 8 * 2 + column % 2;
            for (int k = 0; k < 16; ++k) {
                sum += number(a[row * 16 + k]) * number(b[k * 8 + column]);
            }
            expected.push_back(static_cast<float>(sum));
        }
    }
    DeviceArray<__half> device_a(a), device_b(b);
    DeviceArray<float> d(128);
    suite::launch(mma_half, 1, 32, static_cast<const __half *>(device_a.get()),
                  static_cast<const __half *>(device_b.get()), d.get());
    suite::compare(d, expected);
}

// 16 x 8 x 32 bytes, signed by unsigned; sums that saturate and sums that wrap around.
__global__ void mma_bytes(const uint32_t *a, const uint32_t *b, int *d) {
    unsigned lane = threadIdx.x, group = lane / 4, quad = lane % 4;
    // Rows of a and columns of b are 8 words of four bytes.
    uint32_t a0 = a[group * 8 + quad], a1 = a[(group + 8) * 8 + quad], a2 = a[group * 8 + quad + 4],
             a3 = a[(group + 8) * 8 + quad + 4];
    uint32_t b0 = b[group * 8 + quad], b1 = b[group * 8 + quad + 4];
    int wrapped[4], saturated[4];
    for (int i = 0; i < 4; ++i) {
        wrapped[i] = saturated[i] = i % 2 ? INT32_MAX - 5 : INT32_MIN + 5;
    }
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
                 "%1, %2, %3};"
                 : "+r"(wrapped[0]), "+r"(wrapped[1]), "+r"(wrapped[2]), "+r"(wrapped[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    asm volatile("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
                 "%9}, {%0, %1, %2, %3};"
                 : "+r"(saturated[0]), "+r"(saturated[1]), "+r"(saturated[2]), "+r"(saturated[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    for (int i = 0; i < 4; ++i) {
        int at = (group + i / 2 * 8) * 8 + quad * 2 + i % 2;
        d[at] = wrapped[i];
        d[128 + at] = saturated[i];
    }
}
CASE(mma_bytes) {
    Random random(4);
    std::vector<uint32_t> a(128), b(64);
    for (uint32_t &word : a) {
        word = random.next();
    }
    for (uint32_t &word : b) {
        word = random.next();
    }
    std::vector<int> expected(256);
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
            int64_t sum = column % 2 ? INT32_MAX - 5 : INT32_MIN + 5;
            for (int k = 0; k < 32; ++k) {
                sum += static_cast<int8_t>(a[row * 8 + k / 4] >> (k % 4 * 8)) *
                       static_cast<uint8_t>(b[column * 8 + k / 4] >> (k % 4 * 8));
            }
            expected[row * 8 + column] = static_cast<int>(static_cast<uint32_t>(sum));
            expected[128 + row * 8 + column] = static_cast<int>(sum < INT32_MIN   ? INT32_MIN
                                                                : sum > INT32_MAX ? INT32_MAX
                                                                                  : sum);
        }
    }
    DeviceArray<uint32_t> device_a(a), device_b(b);
    DeviceArray<int> d(256);
    suite::launch(mma_bytes, 1, 32, static_cast<const uint32_t *>(device_a.get()),
                  static_cast<const uint32_t *>(device_b.get()), d.get());
    suite::compare(d, expected);
}

// A product of 64 x 64 by four warps over shared memory, tiles of 16.
__global__ void tiled_half_product(const __half *a, const __half *b, float *d) {
    __shared__ __half tile_a[16][64], tile_b[64][16];
    for (unsigned i = threadIdx.x; i < 16 * 64; i += blockDim.x) {
        tile_a[i / 64][i % 64] = a[(blockIdx.y * 16 + i / 64) * 64 + i % 64];
        tile_b[i / 16][i % 16] = b[i / 16 * 64 + blockIdx.x * 16 + i % 16];
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
        wmma::fill_fragment(sum, 0.5f);
        for (int k = 0; k < 64; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> right;
            wmma::load_matrix_sync(left, &tile_a[0][k], 64);
            wmma::load_matrix_sync(right, &tile_b[k][0], 16);
            wmma::mma_sync(sum, left, right, sum);
        }
        wmma::store_matrix_sync(d + blockIdx.y * 16 * 64 + blockIdx.x * 16, sum, 64, wmma::mem_row_major);
    }
}
CASE(tiled_half_product) {
    Random random(5);
    std::vector<__half> a, b;
    for (int i = 0; i < 64 * 64; ++i) {
        a.push_back(element<__half>(random.below<int>(15) - 7));
        b.push_back(element<__half>(random.below<int>(15) - 7));
    }
    std::vector<float> expected;
    for (int row = 0; row < 64; ++row) {
        for (int column = 0; column < 64; ++column) {
            double sum = 0.5;
            for (int k = 0; k < 64; ++k) {
                sum += number(a[row * 64 + k]) * number(b[k * 64 + column]);
            }
            expected.push_back(static_cast<float>(sum));
        }
    }
    DeviceArray<__half> device_a(a), device_b(b);
    DeviceArray<float> d(64 * 64);
    suite::launch(tiled_half_product, dim3(4, 4), 128, static_cast<const __half *>(device_a.get()),
                  static_cast<const __half *>(device_b.get()), d.get());
    suite::compare(d, expected);
}
SUITE_MAIN("matrices")
