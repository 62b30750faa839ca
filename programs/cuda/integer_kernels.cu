// Integer kernels, one for each operation that compilers turn into instructions of their own; the host computes the same.
#include "elementwise.h"

using Long = long long;
using Word = unsigned int;
using Wide = unsigned long long;
using Half = unsigned short;
using Byte = unsigned char;

#define HD __host__ __device__ inline

// What the device has an intrinsic for, and the host a loop.
#ifdef __CUDA_ARCH__
#define ON(device, ...) return device;
#else
#define ON(device, ...) __VA_ARGS__
#endif

HD int population(Wide x) { ON(__popcll(x), return __builtin_popcountll(x);) }
HD int population(Word x) { ON(__popc(x), return __builtin_popcount(x);) }
HD int leading(Word x) { ON(__clz(x), return x == 0 ? 32 : __builtin_clz(x);) }
HD int leading(Wide x) { ON(__clzll(x), return x == 0 ? 64 : __builtin_clzll(x);) }
HD int first(Word x) { ON(__ffs(x), return __builtin_ffs(x);) }
HD int first(Wide x) { ON(__ffsll(x), return __builtin_ffsll(x);) }
HD Word reversed(Word x) {
    ON(__brev(x), Word y = 0; for (int i = 0; i < 32; ++i) { y |= (x >> i & 1) << (31 - i); } return y;)
}
HD Wide reversed(Wide x) {
    ON(__brevll(x), Wide y = 0; for (int i = 0; i < 64; ++i) { y |= (x >> i & 1) << (63 - i); } return y;)
}
HD Word high(Word a, Word b) { ON(__umulhi(a, b), return Wide(a) * b >> 32;) }
HD int high(int a, int b) { ON(__mulhi(a, b), return Long(a) * b >> 32;) }
HD Wide high(Wide a, Wide b) { ON(__umul64hi(a, b), return (unsigned __int128)(a) * b >> 64;) }
HD Long high(Long a, Long b) { ON(__mul64hi(a, b), return (__int128)(a) * b >> 64;) }
HD Word permuted(Word a, Word b, Word s) {
    ON(__byte_perm(a, b, s), Wide pair = Wide(b) << 32 | a; Word y = 0; for (int k = 0; k < 4; ++k) {
        y |= Word(pair >> 8 * (s >> 4 * k & 7) & 255) << 8 * k;
    } return y;)
}
HD Word funnel_left(Word low, Word high, Word n) {
    ON(__funnelshift_l(low, high, n), return ((Wide(high) << 32 | low) << (n & 31)) >> 32;)
}
HD Word funnel_left_clamped(Word low, Word high, Word n) {
    ON(__funnelshift_lc(low, high, n), return n >= 32 ? low : ((Wide(high) << 32 | low) << n) >> 32;)
}
HD Word funnel_right(Word low, Word high, Word n) {
    ON(__funnelshift_r(low, high, n), return (Wide(high) << 32 | low) >> (n & 31);)
}
HD Word funnel_right_clamped(Word low, Word high, Word n) {
    ON(__funnelshift_rc(low, high, n), return n >= 32 ? high : (Wide(high) << 32 | low) >> n;)
}
HD Word distance(int a, int b, Word c) { ON(__sad(a, b, c), return (a > b ? Word(a) - b : Word(b) - a) + c;) }
HD Word distance(Word a, Word b, Word c) { ON(__usad(a, b, c), return (a > b ? a - b : b - a) + c;) }
HD int half_sum(int a, int b) { ON(__hadd(a, b), return (Long(a) + b) >> 1;) }
HD int rounded_half_sum(int a, int b) { ON(__rhadd(a, b), return (Long(a) + b + 1) >> 1;) }
HD int low_24(int a, int b) { ON(__mul24(a, b), return int(Word(a << 8 >> 8) * Word(b << 8 >> 8));) }
HD int dot(int a, int b, int c) {
    ON(__dp4a(a, b, c), Word sum = c; for (int k = 0; k < 4; ++k) {
        sum += Word(int(static_cast<signed char>(a >> 8 * k)) * int(static_cast<signed char>(b >> 8 * k)));
    } return int(sum);)
}
HD Word dot(Word a, Word b, Word c) {
    ON(__dp4a(a, b, c), for (int k = 0; k < 4; ++k) { c += (a >> 8 * k & 255) * (b >> 8 * k & 255); } return c;)
}
template <typename F> HD Word bytewise(Word a, Word b, F f) {
    Word y = 0;
    for (int k = 0; k < 4; ++k) {
        y |= Word(Byte(f(int(a >> 8 * k & 255), int(b >> 8 * k & 255)))) << 8 * k;
    }
    return y;
}
struct Distance { HD int operator()(int a, int b) const { return a > b ? a - b : b - a; } };
struct Sum { HD int operator()(int a, int b) const { return a + b; } };
struct Larger { HD int operator()(int a, int b) const { return a > b ? a : b; } };
struct Equal { HD int operator()(int a, int b) const { return a == b ? 255 : 0; } };
HD Word byte_distances(Word a, Word b) { ON(__vabsdiffu4(a, b), return bytewise(a, b, Distance());) }
HD Word byte_sums(Word a, Word b) { ON(__vadd4(a, b), return bytewise(a, b, Sum());) }
HD Word byte_maxima(Word a, Word b) { ON(__vmaxu4(a, b), return bytewise(a, b, Larger());) }
HD Word byte_equalities(Word a, Word b) { ON(__vcmpeq4(a, b), return bytewise(a, b, Equal());) }
HD Word inserted(Word a, Word b, Word at, Word length) {
    Word mask = ((1u << length) - 1) << at;
    return (a & ~mask) | (b << at & mask);
}
HD Word greatest_divisor(Word a, Word b) {
    while (b != 0) {
        Word rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}
HD Word root(Word x) {
    Word y = 0;
    for (Word bit = 1u << 15; bit != 0; bit >>= 1) {
        y += (y + bit) * (y + bit) <= x ? bit : 0;
    }
    return y;
}
HD Word check_sum(Word x) {
    Word crc = ~0u;
    for (int k = 0; k < 4; ++k) {
        crc ^= x >> 8 * k & 255;
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320u : 0u);
        }
    }
    return ~crc;
}
HD int collatz(Word x) {
    int steps = 0;
    for (Wide n = (x & 0xffff) + 1; n != 1; ++steps) {
        n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    }
    return steps;
}
HD Wide sum_128(Wide a, Wide b, Wide c) {
    auto sum = (unsigned __int128)(a) * b + c;
    sum += (unsigned __int128)(c) << 64;
    return Wide(sum) ^ Wide(sum >> 64);
}
HD Long difference_128(Long a, Long b, Long c) {
    __int128 value = (__int128)(a) - b - ((__int128)(c) << 17);
    return Long(value >> 64) ^ Long(value);
}

#define KERNELS(X)                                                                                                    \
    X(add_32, Word, Word, a + b)                                                                                      \
    X(subtract_32, Word, Word, a - b)                                                                                 \
    X(multiply_32, Word, Word, a *b)                                                                                  \
    X(multiply_add_32, Word, Word, a *b + c)                                                                          \
    X(divide_s32, int, int, b == 0 || b == -1 ? a : a / b)                                                            \
    X(remainder_s32, int, int, b == 0 || b == -1 ? a : a % b)                                                         \
    X(divide_by_constant_s32, int, int, a / 7 + b / 1000003 - c / 16)                                                 \
    X(remainder_by_constant_u32, Word, Word, a % 10u + b % 97u)                                                       \
    X(divide_u32, Word, Word, b == 0 ? a : a / b)                                                                     \
    X(remainder_u32, Word, Word, b == 0 ? a : a % b)                                                                  \
    X(negate_32, Word, Word, 0u - a)                                                                                  \
    X(absolute_32, Word, int, a < 0 ? 0u - Word(a) : Word(a))                                                       \
    X(minimum_s32, int, int, a < b ? a : b)                                                                           \
    X(maximum_s32, int, int, a > b ? a : b)                                                                           \
    X(minimum_u32, Word, Word, a < b ? a : b)                                                                         \
    X(maximum_u32, Word, Word, a > b ? a : b)                                                                         \
    X(shift_left_32, Word, Word, a << (b & 31))                                                                       \
    X(shift_right_s32, int, int, a >> (b & 31))                                                                       \
    X(shift_right_u32, Word, Word, a >> (b & 31))                                                                     \
    X(rotate_32, Word, Word, a << (b & 31) | a >> (-b & 31))                                                          \
    X(logic_32, Word, Word, (a & b) | (~b & c) ^ a)                                                                   \
    X(three_inputs_32, Word, Word, (a & b) ^ (a & c) ^ (b & c))                                                       \
    X(high_u32, Word, Word, high(a, b))                                                                               \
    X(high_s32, int, int, high(a, b))                                                                                 \
    X(wide_u32, Wide, Word, Wide(a) * b + c)                                                                          \
    X(wide_s32, Long, int, Long(a) * b - c)                                                                           \
    X(low_24_s32, int, int, low_24(a, b))                                                                             \
    X(population_32, int, Word, population(a))                                                                        \
    X(leading_zeros_32, int, Word, leading(a))                                                                        \
    X(first_bit_32, int, Word, first(a))                                                                              \
    X(reverse_32, Word, Word, reversed(a))                                                                            \
    X(permute_bytes, Word, Word, permuted(a, b, c & 0x7777))                                                          \
    X(funnel_l, Word, Word, funnel_left(a, b, c))                                                                     \
    X(funnel_lc, Word, Word, funnel_left_clamped(a, b, c))                                                            \
    X(funnel_r, Word, Word, funnel_right(a, b, c))                                                                    \
    X(funnel_rc, Word, Word, funnel_right_clamped(a, b, c))                                                           \
    X(distance_s32, Word, int, distance(a, b, Word(c)))                                                               \
    X(distance_u32, Word, Word, distance(a, b, c))                                                                    \
    X(half_sum_s32, int, int, half_sum(a, b))                                                                         \
    X(rounded_half_sum_s32, int, int, rounded_half_sum(a, b))                                                         \
    X(dot_s8, int, int, dot(a, b, c))                                                                                 \
    X(dot_u8, Word, Word, dot(a, b, c))                                                                               \
    X(byte_distances_u8, Word, Word, byte_distances(a, b))                                                            \
    X(byte_sums_u8, Word, Word, byte_sums(a, b))                                                                      \
    X(byte_maxima_u8, Word, Word, byte_maxima(a, b))                                                                  \
    X(byte_equalities_u8, Word, Word, byte_equalities(a, b))                                                          \
    X(bit_field, Word, Word, a >> (b & 15) & 0x3ff)                                                                   \
    X(bit_field_s32, int, int, int(Word(a) << 5) >> 20)                                                               \
    X(insert_field, Word, Word, inserted(a, b, c & 15, 9))                                                            \
    X(comparisons_s32, int, int, (a < b) + 2 * (a <= c) + 4 * (b == c) + 8 * (a != b) + 16 * (a > c) + 32 * (b >= c)) \
    X(comparisons_u32, int, Word, (a < b) + 2 * (a <= c) + 4 * (a > c) + 8 * (b >= c))                                \
    X(sign_extension, int, int, static_cast<signed char>(a) + static_cast<short>(b) * 3)                              \
    X(zero_extension, Word, Word, Byte(a) + Half(b) * 5u)                                                             \
    X(add_16, Half, Half, Half(a + b))                                                                                \
    X(multiply_16, Half, Half, Half(Word(a) * b))                                                                     \
    X(divide_u16, Half, Half, b == 0 ? a : Half(a / b))                                                               \
    X(wide_u16, Word, Half, Word(a) * b + c)                                                                          \
    X(wide_s16, int, short, int(a) * b - c)                                                                           \
    X(shift_s16, short, short, short(a >> (b & 15)))                                                                  \
    X(compare_16, int, short, (a < b) + 2 * (a == c) + 4 * (Half(a) > Half(b)))                                       \
    X(bytes, Byte, Byte, Byte((a ^ b) + (c >> 2)))                                                                    \
    X(add_64, Wide, Wide, a + b)                                                                                      \
    X(subtract_64, Wide, Wide, a - b)                                                                                 \
    X(multiply_64, Wide, Wide, a *b)                                                                                  \
    X(multiply_add_64, Wide, Wide, a *b + c)                                                                          \
    X(divide_s64, Long, Long, b == 0 || b == -1 ? a : a / b)                                                          \
    X(remainder_s64, Long, Long, b == 0 || b == -1 ? a : a % b)                                                       \
    X(divide_u64, Wide, Wide, b == 0 ? a : a / b)                                                                     \
    X(remainder_u64, Wide, Wide, b == 0 ? a : a % b)                                                                  \
    X(high_u64, Wide, Wide, high(a, b))                                                                               \
    X(high_s64, Long, Long, high(a, b))                                                                               \
    X(minimum_s64, Long, Long, a < b ? a : b)                                                                         \
    X(maximum_u64, Wide, Wide, a > b ? a : b)                                                                         \
    X(shift_left_64, Wide, Wide, a << (b & 63))                                                                       \
    X(shift_right_s64, Long, Long, a >> (b & 63))                                                                     \
    X(shift_right_u64, Wide, Wide, a >> (b & 63))                                                                     \
    X(logic_64, Wide, Wide, (a & b) ^ (~c | a))                                                                       \
    X(population_64, int, Wide, population(a))                                                                        \
    X(leading_zeros_64, int, Wide, leading(a))                                                                        \
    X(first_bit_64, int, Wide, first(a))                                                                              \
    X(reverse_64, Wide, Wide, reversed(a))                                                                            \
    X(comparisons_64, int, Long, (a < b) + 2 * (a == c) + 4 * (Wide(a) >= Wide(b)) + 8 * (b > c))                     \
    X(product_128, Wide, Wide, sum_128(a, b, c))                                                                      \
    X(borrow_128, Long, Long, difference_128(a, b, c))                                                                \
    X(greatest_common_divisor, Word, Word, greatest_divisor(a, b))                                                    \
    X(square_root, Word, Word, root(a))                                                                               \
    X(cyclic_check, Word, Word, check_sum(a))                                                                         \
    X(collatz_steps, int, Word, collatz(a))

KERNELS(DEFINE_ELEMENTWISE)

int main() {
    Checksum checksum;
    KERNELS(RUN_ELEMENTWISE)
    return report_ok("integer_kernels", checksum);
}
