// Integers of every width: arithmetic, division, high and wide products, shifts, bits, sums of products, carries.
#include "suite.h"

// Arithmetic wraps around in unsigned types; signed ones are reached through them.
#define U(T, x) static_cast<std::make_unsigned_t<T>>(x)

MAP2(add_sub_u8, uint8_t, uint8_t, a + b - (a ^ b) * 3)
MAP2(mul_s8, int8_t, int8_t, a *b + (a < b))
MAP2(div_s8, int8_t, int8_t, b == 0 ? a : a / b + a % b)
MAP2(add_mul_u16, uint16_t, uint16_t, uint32_t(a) * b + a - b)
MAP2(div_u16, uint16_t, uint16_t, b == 0 ? a : a / b ^ a % b)
MAP2(div_s16, int16_t, int16_t, b == 0 ? a : a / b - a % b)
MAP2(mul_wide_s16, int32_t, int16_t, int32_t(a) * int32_t(b))
MAP2(mul_wide_u16, uint32_t, uint16_t, uint32_t(a) * uint32_t(b))
MAP2(compare_s16, int32_t, int16_t, (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a > b) + 16 * (a >= b) + 32 * (a != b))
MAP2(compare_u16, int32_t, uint16_t,
     (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a > b) + 16 * (a >= b) + 32 * (a != b))
MAP2(minmax_u16, uint16_t, uint16_t, (a < b ? a : b) * 3 + (a > b ? a : b))
MAP2(minmax_s16, int16_t, int16_t, (a < b ? a : b) * 3 + (a > b ? a : b))
MAP2(shift_u16, uint16_t, uint16_t, (a << (b & 15)) ^ (a >> (b & 7)))
MAP2(shift_s16, int16_t, int16_t, (a >> (b & 15)) ^ (uint16_t(a) << (b & 3)))

MAP2(add_sub_mul_u32, uint32_t, uint32_t, a + b * (a - b))
MAP2(div_u32, uint32_t, uint32_t, b == 0 ? a : a / b)
MAP2(rem_u32, uint32_t, uint32_t, b == 0 ? a : a % b)
MAP2(div_s32, int32_t, int32_t, b == 0 || b == -1 ? a : a / b)
MAP2(rem_s32, int32_t, int32_t, b == 0 || b == -1 ? a : a % b)
MAP1(div_constants_u32, uint32_t, uint32_t, a / 3 ^ a / 7 ^ a % 10 ^ a / 641 ^ a % 1000000007u)
MAP1(div_constants_s32, int32_t, int32_t, a / 3 ^ a / -7 ^ a % 10 ^ a / 16 ^ a % 1000003)
MAP2(compare_s32, int32_t, int32_t, (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a > b) + 16 * (a >= b) + 32 * (a != b))
MAP2(compare_u32, int32_t, uint32_t,
     (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a > b) + 16 * (a >= b) + 32 * (a != b))
MAP2(logic_u32, uint32_t, uint32_t, (a & b) * 3 + (a | b) * 5 + (a ^ b) * 7 + ~a + (a & ~b) * 11 + ~(a | b))
MAP3(logic3_u32, uint32_t, uint32_t, ((a & b) | (b & c) | (a & c)) + 3 * (a ^ b ^ c) + 5 * ((a & b) | (~a & c)))

MAP2(add_sub_mul_u64, uint64_t, uint64_t, a + b * (a - b))
MAP2(div_u64, uint64_t, uint64_t, b == 0 ? a : a / b)
MAP2(rem_u64, uint64_t, uint64_t, b == 0 ? a : a % b)
MAP2(div_s64, int64_t, int64_t, b == 0 || b == -1 ? a : a / b)
MAP2(rem_s64, int64_t, int64_t, b == 0 || b == -1 ? a : a % b)
MAP1(div_constants_u64, uint64_t, uint64_t, a / 3 ^ a / 1000000007ull ^ a % 10 ^ a % 0xffffffff00000001ull)
MAP2(compare_s64, int32_t, int64_t, (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a > b) + 16 * (a >= b) + 32 * (a != b))
MAP2(compare_u64, int32_t, uint64_t,
     (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a > b) + 16 * (a >= b) + 32 * (a != b))
MAP2(logic_u64, uint64_t, uint64_t, (a & b) * 3 + (a | b) * 5 + (a ^ b) * 7 + ~a + (a & ~b) * 11)
MAP2(shift_u64, uint64_t, uint64_t, (a << (b & 63)) ^ (a >> (b & 31)))
MAP2(shift_s64, int64_t, int64_t, (a >> (b & 63)) ^ (uint64_t(a) << (b & 15)))

static uint32_t high_u32(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
static int32_t high_s32(int32_t a, int32_t b) { return int32_t(int64_t(a) * b >> 32); }
REF2(mulhi_u32, uint32_t, uint32_t, __umulhi(a, b), high_u32(a, b))
REF2(mulhi_s32, int32_t, int32_t, __mulhi(a, b), high_s32(a, b))
REF2(mulhi_u64, uint64_t, uint64_t, __umul64hi(a, b), (unsigned __int128)(a)*b >> 64)
REF2(mulhi_s64, int64_t, int64_t, __mul64hi(a, b), __int128(a) * b >> 64)
MAP_AB(mad_wide_u32, uint64_t, uint32_t, uint64_t, uint64_t(a) * uint32_t(b >> 7) + b)
MAP_AB(mad_wide_s32, int64_t, int32_t, uint64_t, uint64_t(int64_t(a) * int32_t(b >> 7)) + b)
REF2(mul24, int32_t, int32_t, __mul24(a, b),
     int32_t(uint32_t(int64_t(int32_t(uint32_t(a) << 8) >> 8) * (int32_t(uint32_t(b) << 8) >> 8))))
REF2(umul24, uint32_t, uint32_t, __umul24(a, b), (a & 0xffffff) * (b & 0xffffff))

__device__ uint32_t asm_mad_hi(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ int32_t asm_mad_hi_sat(int32_t a, int32_t b, int32_t c) {
    int32_t d;
    asm("mad.hi.sat.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ int32_t asm_mad24_hi(int32_t a, int32_t b, int32_t c) {
    int32_t d;
    asm("mad24.hi.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
static int32_t saturate(int64_t x) { return int32_t(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x); }
static int32_t mad24_hi_host(int32_t a, int32_t b, int32_t c) {
    int64_t product = int64_t(int32_t(uint32_t(a) << 8) >> 8) * (int32_t(uint32_t(b) << 8) >> 8);
    return int32_t(uint32_t(product >> 16) + uint32_t(c));
}
REF3(mad_hi_u32, uint32_t, uint32_t, asm_mad_hi(a, b, c), high_u32(a, b) + c)
REF3(mad_hi_sat_s32, int32_t, int32_t, asm_mad_hi_sat(a, b, c), saturate(int64_t(high_s32(a, b)) + c))
REF3(mad24_hi_s32, int32_t, int32_t, asm_mad24_hi(a, b, c), mad24_hi_host(a, b, c))

__device__ int32_t asm_add_sat(int32_t a, int32_t b) {
    int32_t d;
    asm("add.sat.s32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ int32_t asm_sub_sat(int32_t a, int32_t b) {
    int32_t d;
    asm("sub.sat.s32 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
REF2(add_sat_s32, int32_t, int32_t, asm_add_sat(a, b), saturate(int64_t(a) + b))
REF2(sub_sat_s32, int32_t, int32_t, asm_sub_sat(a, b), saturate(int64_t(a) - b))

// PTX shifts clamp their counts; C++ leaves such counts undefined.
#define ASM_SHIFT(NAME, INSTRUCTION, T, LETTER)                                                                        \
    __device__ T NAME(T a, uint32_t b) {                                                                               \
        T d;                                                                                                           \
        asm(INSTRUCTION " %0, %1, %2;" : "=" LETTER(d) : LETTER(a), "r"(b));                                           \
        return d;                                                                                                      \
    }
ASM_SHIFT(asm_shl_b32, "shl.b32", uint32_t, "r")
ASM_SHIFT(asm_shr_u32, "shr.u32", uint32_t, "r")
ASM_SHIFT(asm_shr_s32, "shr.s32", int32_t, "r")
ASM_SHIFT(asm_shl_b64, "shl.b64", uint64_t, "l")
ASM_SHIFT(asm_shr_u64, "shr.u64", uint64_t, "l")
ASM_SHIFT(asm_shr_s64, "shr.s64", int64_t, "l")
ASM_SHIFT(asm_shl_b16, "shl.b16", uint16_t, "h")
ASM_SHIFT(asm_shr_s16, "shr.s16", int16_t, "h")
REF2(shl_b32, uint32_t, uint32_t, asm_shl_b32(a, b), b > 31 ? 0 : a << b)
REF2(shr_u32, uint32_t, uint32_t, asm_shr_u32(a, b), b > 31 ? 0 : a >> b)
REF_AB(shr_s32, int32_t, int32_t, uint32_t, asm_shr_s32(a, b), a >> (b > 31 ? 31 : b))
REF_AB(shl_b64, uint64_t, uint64_t, uint32_t, asm_shl_b64(a, b), b > 63 ? 0 : a << b)
REF_AB(shr_u64, uint64_t, uint64_t, uint32_t, asm_shr_u64(a, b), b > 63 ? 0 : a >> b)
REF_AB(shr_s64, int64_t, int64_t, uint32_t, asm_shr_s64(a, b), a >> (b > 63 ? 63 : b))
REF_AB(shl_b16, uint16_t, uint16_t, uint32_t, asm_shl_b16(a, b), b > 15 ? 0 : a << b)
REF_AB(shr_s16, int16_t, int16_t, uint32_t, asm_shr_s16(a, b), a >> (b > 15 ? 15 : b))

static uint32_t funnel(uint32_t low, uint32_t high, uint32_t right) {
    return uint32_t(((uint64_t(high) << 32) | low) >> right);
}
REF3(funnel_l, uint32_t, uint32_t, __funnelshift_l(a, b, c), (c & 31) == 0 ? b : funnel(a, b, 32 - (c & 31)))
REF3(funnel_lc, uint32_t, uint32_t, __funnelshift_lc(a, b, c), c == 0 ? b : funnel(a, b, c > 31 ? 0 : 32 - c))
REF3(funnel_r, uint32_t, uint32_t, __funnelshift_r(a, b, c), funnel(a, b, c & 31))
REF3(funnel_rc, uint32_t, uint32_t, __funnelshift_rc(a, b, c), funnel(a, b, c > 32 ? 32 : c))

static uint32_t popcount(uint64_t x) {
    uint32_t count = 0;
    for (; x != 0; x >>= 1) {
        count += x & 1;
    }
    return count;
}
static uint32_t leading(uint64_t x, uint32_t bits) {
    uint32_t count = 0;
    while (count < bits && (x >> (bits - 1 - count) & 1) == 0) {
        ++count;
    }
    return count;
}
static uint32_t first(uint64_t x) {
    uint32_t position = 1;
    for (; x != 0; x >>= 1, ++position) {
        if (x & 1) {
            return position;
        }
    }
    return 0;
}
static uint64_t reversed(uint64_t x, uint32_t bits) {
    uint64_t result = 0;
    for (uint32_t bit = 0; bit < bits; ++bit) {
        result |= (x >> bit & 1) << (bits - 1 - bit);
    }
    return result;
}
REF1(popc_b32, uint32_t, uint32_t, __popc(a), popcount(a))
REF1(popc_b64, uint32_t, uint64_t, __popcll(a), popcount(a))
REF1(clz_b32, uint32_t, uint32_t, __clz(a), leading(a, 32))
REF1(clz_b64, uint32_t, uint64_t, __clzll(a), leading(a, 64))
REF1(ffs_b32, uint32_t, uint32_t, __ffs(a), first(a))
REF1(ffs_b64, uint32_t, uint64_t, __ffsll(a), first(a))
REF1(brev_b32, uint32_t, uint32_t, __brev(a), reversed(a, 32))
REF1(brev_b64, uint64_t, uint64_t, __brevll(a), reversed(a, 64))

__device__ uint32_t asm_bfind(uint32_t a) {
    uint32_t d, e;
    asm("bfind.u32 %0, %2;\n\tbfind.shiftamt.u32 %1, %2;" : "=r"(d), "=r"(e) : "r"(a));
    return d * 37 + e;
}
__device__ uint32_t asm_bfind_s(int32_t a) {
    uint32_t d;
    asm("bfind.s32 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}
__device__ uint32_t asm_bfind64(int64_t a) {
    uint32_t d, e;
    asm("bfind.u64 %0, %2;\n\tbfind.s64 %1, %2;" : "=r"(d), "=r"(e) : "l"(a));
    return d * 37 + e;
}
static uint32_t highest(uint64_t x, uint32_t bits) { return x == 0 ? 0xffffffffu : bits - 1 - leading(x, bits); }
REF1(bfind_u32, uint32_t, uint32_t, asm_bfind(a), highest(a, 32) * 37 + (a == 0 ? 0xffffffffu : leading(a, 32)))
REF1(bfind_s32, uint32_t, int32_t, asm_bfind_s(a), highest(uint32_t(a < 0 ? ~a : a), 32))
REF1(bfind_b64, uint32_t, int64_t, asm_bfind64(a),
     highest(uint64_t(a), 64) * 37 + highest(uint64_t(a < 0 ? ~a : a), 64))

static uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = (uint64_t(b) << 32) | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        uint32_t nibble = selector >> (4 * i);
        uint32_t byte = uint32_t(bytes >> (8 * (nibble & 7))) & 0xff;
        if (nibble & 8) {
            byte = byte & 0x80 ? 0xff : 0;
        }
        result |= byte << (8 * i);
    }
    return result;
}
__device__ uint32_t asm_prmt(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
REF3(byte_perm, uint32_t, uint32_t, __byte_perm(a, b, c), permuted(a, b, c & 0x7777))
REF3(prmt_b32, uint32_t, uint32_t, asm_prmt(a, b, c), permuted(a, b, c))

// prmt's named modes, each a permutation that depends on the two low bits of the selector.
#define ASM_PRMT(MODE)                                                                                                 \
    __device__ uint32_t asm_prmt_##MODE(uint32_t a, uint32_t b, uint32_t c) {                                          \
        uint32_t d;                                                                                                    \
        asm("prmt.b32." #MODE " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));                                  \
        return d;                                                                                                      \
    }
ASM_PRMT(f4e)
ASM_PRMT(b4e)
ASM_PRMT(rc8)
ASM_PRMT(ecl)
ASM_PRMT(ecr)
ASM_PRMT(rc16)
static uint32_t chosen(uint32_t c, uint32_t s0, uint32_t s1, uint32_t s2, uint32_t s3) {
    const uint32_t selectors[4] = {s0, s1, s2, s3};
    return selectors[c & 3];
}
REF3(prmt_f4e, uint32_t, uint32_t, asm_prmt_f4e(a, b, c), permuted(a, b, chosen(c, 0x3210, 0x4321, 0x5432, 0x6543)))
REF3(prmt_b4e, uint32_t, uint32_t, asm_prmt_b4e(a, b, c), permuted(a, b, chosen(c, 0x5670, 0x6701, 0x7012, 0x0123)))
REF3(prmt_rc8, uint32_t, uint32_t, asm_prmt_rc8(a, b, c), permuted(a, b, chosen(c, 0x0000, 0x1111, 0x2222, 0x3333)))
REF3(prmt_ecl, uint32_t, uint32_t, asm_prmt_ecl(a, b, c), permuted(a, b, chosen(c, 0x3210, 0x3211, 0x3222, 0x3333)))
REF3(prmt_ecr, uint32_t, uint32_t, asm_prmt_ecr(a, b, c), permuted(a, b, chosen(c, 0x0000, 0x1110, 0x2210, 0x3210)))
REF3(prmt_rc16, uint32_t, uint32_t, asm_prmt_rc16(a, b, c), permuted(a, b, chosen(c, 0x1010, 0x3232, 0x1010, 0x3232)))

REF3(sad_s32, uint32_t, int32_t, __sad(a, b, uint32_t(c)),
     uint32_t(a > b ? uint32_t(a) - uint32_t(b) : uint32_t(b) - uint32_t(a)) + uint32_t(c))
REF3(sad_u32, uint32_t, uint32_t, __usad(a, b, c), (a > b ? a - b : b - a) + c)
REF2(average_s32, int32_t, int32_t, __hadd(a, b) ^ __rhadd(a, b), ((int64_t(a) + b) >> 1) ^ ((int64_t(a) + b + 1) >> 1))
REF2(average_u32, uint32_t, uint32_t, __uhadd(a, b) ^ __urhadd(a, b),
     ((uint64_t(a) + b) >> 1) ^ ((uint64_t(a) + b + 1) >> 1))
MAP2(minmax_s32, int32_t, int32_t, U(int32_t, a < b ? a : b) * 3 + U(int32_t, a > b ? a : b))
REF2(minmax_intrinsics_u32, uint32_t, uint32_t, min(a, b) * 3 + max(a, b), (a < b ? a : b) * 3 + (a < b ? b : a))
REF2(minmax_s64, int64_t, int64_t, uint64_t(min((long long)a, (long long)b)) * 3 + max((long long)a, (long long)b),
     uint64_t(a < b ? a : b) * 3 + uint64_t(a < b ? b : a))
REF2(minmax_u64, uint64_t, uint64_t,
     min((unsigned long long)a, (unsigned long long)b) * 3 + max((unsigned long long)a, (unsigned long long)b),
     (a < b ? a : b) * 3 + (a < b ? b : a))
REF1(abs_s32, uint32_t, int32_t, abs(a), a < 0 ? 0u - uint32_t(a) : a)
REF1(abs_s64, uint64_t, int64_t, llabs(a), a < 0 ? 0ull - uint64_t(a) : a)
MAP1(neg_not, uint64_t, uint64_t, (0 - a) * 3 + ~a)

template <typename A, typename B> static int64_t dot4(A a, B b) {
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) {
        sum += std::is_signed_v<A> ? int64_t(int8_t(a >> (8 * i))) * int8_t(b >> (8 * i))
                                   : int64_t(uint8_t(a >> (8 * i))) * uint8_t(b >> (8 * i));
    }
    return sum;
}
static int64_t dot2(int32_t a, int32_t b, int first_byte) {
    return int64_t(int16_t(a)) * int8_t(b >> (8 * first_byte)) +
           int64_t(int16_t(a >> 16)) * int8_t(b >> (8 * first_byte + 8));
}
static uint64_t dot2u(uint32_t a, uint32_t b, int first_byte) {
    return uint64_t(uint16_t(a)) * uint8_t(b >> (8 * first_byte)) +
           uint64_t(a >> 16) * uint8_t(b >> (8 * first_byte + 8));
}
__device__ int32_t asm_dp4a_mixed(uint32_t a, int32_t b, int32_t c) {
    int32_t d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
static int64_t dot4_mixed(uint32_t a, int32_t b) {
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) {
        sum += int64_t(uint8_t(a >> (8 * i))) * int8_t(b >> (8 * i));
    }
    return sum;
}
REF3(dp4a_s32, int32_t, int32_t, __dp4a(a, b, c), uint32_t(dot4(a, b)) + uint32_t(c))
REF3(dp4a_u32, uint32_t, uint32_t, __dp4a(a, b, c), uint32_t(dot4(a, b)) + c)
REF_ABC(dp4a_mixed, int32_t, uint32_t, int32_t, int32_t, asm_dp4a_mixed(a, b, c),
        uint32_t(dot4_mixed(a, b)) + uint32_t(c))
REF3(dp2a_s32, int32_t, int32_t, __dp2a_lo(a, b, c) ^ __dp2a_hi(a, b, c),
     (uint32_t(dot2(a, b, 0)) + uint32_t(c)) ^ (uint32_t(dot2(a, b, 2)) + uint32_t(c)))
REF3(dp2a_u32, uint32_t, uint32_t, __dp2a_lo(a, b, c) ^ __dp2a_hi(a, b, c),
     (uint32_t(dot2u(a, b, 0)) + c) ^ (uint32_t(dot2u(a, b, 2)) + c))

// Bit fields.
__device__ uint32_t asm_bfe(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("bfe.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ int32_t asm_bfe_s(int32_t a, uint32_t b, uint32_t c) {
    int32_t d;
    asm("bfe.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ int64_t asm_bfe_s64(int64_t a, uint32_t b, uint32_t c) {
    int64_t d;
    asm("bfe.s64 %0, %1, %2, %3;" : "=l"(d) : "l"(a), "r"(b), "r"(c));
    return d;
}
__device__ uint32_t asm_bfi(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d, position = c & 0xff, length = c >> 8 & 0xff;
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(position), "r"(length));
    return d;
}
__device__ uint64_t asm_bfi64(uint64_t a, uint64_t b, uint32_t c) {
    uint64_t d;
    uint32_t position = c & 0xff, length = c >> 8 & 0xff;
    asm("bfi.b64 %0, %1, %2, %3, %4;" : "=l"(d) : "l"(a), "l"(b), "r"(position), "r"(length));
    return d;
}
__device__ uint32_t asm_bmsk(uint32_t a, uint32_t b) {
    uint32_t d, e;
    asm("bmsk.clamp.b32 %0, %2, %3;\n\tbmsk.wrap.b32 %1, %2, %3;" : "=r"(d), "=r"(e) : "r"(a), "r"(b));
    return d * 3 + e;
}
template <typename T> static T extract(T a, uint32_t position, uint32_t length, uint32_t bits) {
    position &= 0xff;
    length &= 0xff;
    uint32_t last = position + length - 1 < bits - 1 ? position + length - 1 : bits - 1;
    bool sign = std::is_signed_v<T> && length != 0 && (uint64_t(a) >> last & 1);
    uint64_t result = 0;
    for (uint32_t i = 0; i < bits; ++i) {
        bool bit = i < length && position + i < bits ? uint64_t(a) >> (position + i) & 1 : sign;
        result |= uint64_t(bit) << i;
    }
    return static_cast<T>(result);
}
static uint64_t insert(uint64_t a, uint64_t b, uint32_t position, uint32_t length, uint32_t bits) {
    for (uint32_t i = 0; i < length && position + i < bits; ++i) {
        b = (b & ~(uint64_t(1) << (position + i))) | (a >> i & 1) << (position + i);
    }
    return b;
}
static uint32_t mask_of(uint32_t position, uint32_t length) {
    return uint32_t(position > 31 ? 0 : ((uint64_t(1) << (length > 32 ? 32 : length)) - 1) << position);
}
REF3(bfe_u32, uint32_t, uint32_t, asm_bfe(a, b, c), extract(a, b, c, 32))
REF_ABC(bfe_s32, int32_t, int32_t, uint32_t, uint32_t, asm_bfe_s(a, b, c), extract(a, b, c, 32))
REF_ABC(bfe_s64, int64_t, int64_t, uint32_t, uint32_t, asm_bfe_s64(a, b & 0xff, c & 0xff), extract(a, b, c, 64))
REF3(bfi_b32, uint32_t, uint32_t, asm_bfi(a, b, c), insert(a, b, c & 0xff, c >> 8 & 0xff, 32))
REF_ABC(bfi_b64, uint64_t, uint64_t, uint64_t, uint32_t, asm_bfi64(a, b, c), insert(a, b, c & 0xff, c >> 8 & 0xff, 64))
REF2(bmsk_b32, uint32_t, uint32_t, asm_bmsk(a, b), mask_of(a, b) * 3 + mask_of(a & 31, b & 31))

static uint32_t nth_set(uint32_t mask, uint32_t base, int32_t offset) {
    int32_t step = offset > 0 ? 1 : -1, count = offset < 0 ? -offset : offset;
    if (offset == 0) {
        return mask >> base & 1 ? base : 0xffffffffu;
    }
    for (int32_t position = int32_t(base); position >= 0 && position < 32; position += step) {
        count -= mask >> position & 1;
        if (count == 0) {
            return uint32_t(position);
        }
    }
    return 0xffffffffu;
}
REF3(fns_b32, uint32_t, uint32_t, __fns(a, b & 31, int(c % 17) - 8), nth_set(a, b & 31, int(c % 17) - 8))

// Conditions as values.
__device__ int32_t asm_select(int32_t a, int32_t b, int32_t c) {
    int32_t d, e;
    uint32_t f;
    asm("slct.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    asm("cnot.b32 %0, %1;" : "=r"(e) : "r"(c));
    asm("set.lt.u32.s32 %0, %1, %2;" : "=r"(f) : "r"(a), "r"(b));
    return int32_t(uint32_t(d) * 5 + uint32_t(e) * 3 + f);
}
REF3(select_s32, int32_t, int32_t, asm_select(a, b, c),
     uint32_t(c >= 0 ? a : b) * 5 + (c == 0 ? 3u : 0u) + (a < b ? 0xffffffffu : 0u))

__device__ uint32_t asm_combined(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("{ .reg .pred p, q, r, s;\n\t"
        "setp.lo.u32 r, %3, 100;\n\t"
        "setp.lt.and.s32 p|q, %1, %2, r;\n\t"
        "setp.hs.xor.u32 s, %1, %3, !p;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "@q add.u32 %0, %0, 2;\n\t"
        "@!s add.u32 %0, %0, 4; }"
        : "=r"(d)
        : "r"(a), "r"(b), "r"(c));
    return d;
}
static uint32_t combined_host(uint32_t a, uint32_t b, uint32_t c) {
    bool r = c < 100, p = int32_t(a) < int32_t(b) && r, q = !(int32_t(a) < int32_t(b)) && r, s = (a >= c) != !p;
    return p + 2 * q + 4 * !s;
}
REF3(setp_combined, uint32_t, uint32_t, asm_combined(a, b, c), combined_host(a, b, c))

__device__ uint32_t asm_lop3(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d, e;
    asm("lop3.b32 %0, %2, %3, %4, 0xd8;\n\tlop3.b32 %1, %2, %3, %4, 0x2b;" : "=r"(d), "=r"(e) : "r"(a), "r"(b), "r"(c));
    return d * 3 + e;
}
static uint32_t table(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (int bit = 0; bit < 32; ++bit) {
        uint32_t row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
        result |= (table >> row & 1) << bit;
    }
    return result;
}
REF3(lop3_b32, uint32_t, uint32_t, asm_lop3(a, b, c), table(a, b, c, 0xd8) * 3 + table(a, b, c, 0x2b))
SUITE_MAIN("integers")
