// Host reference for 16-bit floating point: decoding, exact arithmetic and rounding to a narrow format, written without
// the toolkit's own conversions.
#pragma once

#include "suite.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace narrow {

// A binary format: digits of the significand with its hidden one, least normal exponent, largest finite value.
template <typename T> struct Format;
template <> struct Format<__half> {
    static constexpr int kDigits = 11, kLeastExponent = -14;
    static constexpr double kLargest = 65504.0;
};
template <> struct Format<__nv_bfloat16> {
    static constexpr int kDigits = 8, kLeastExponent = -126;
    static constexpr double kLargest = 3.3895313892515354759e38;
};

template <typename T> uint16_t bits(const T &value) {
    uint16_t result;
    std::memcpy(&result, &value, 2);
    return result;
}

template <typename T> double decode(const T &value) {
    using F = Format<T>;
    const uint16_t b = bits(value);
    const int fraction_bits = F::kDigits - 1, exponent_mask = (1 << (15 - fraction_bits)) - 1;
    const int fraction = b & ((1 << fraction_bits) - 1), exponent = b >> fraction_bits & exponent_mask;
    double magnitude;
    if (exponent == exponent_mask) {
        magnitude = fraction != 0 ? NAN : INFINITY;
    } else if (exponent == 0) {
        magnitude = std::ldexp(fraction, F::kLeastExponent - fraction_bits);
    } else {
        magnitude = std::ldexp(fraction + (1 << fraction_bits), F::kLeastExponent - fraction_bits + exponent - 1);
    }
    return b >> 15 ? -magnitude : magnitude;
}

// A double, exact or rounded to odd, in a narrow format.
template <typename T, int Mode = FE_TONEAREST> T encode(double x) {
    using F = Format<T>;
    const int fraction_bits = F::kDigits - 1, exponent_mask = (1 << (15 - fraction_bits)) - 1;
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0,
                   infinite = static_cast<uint16_t>(exponent_mask << fraction_bits);
    uint16_t result;
    if (x != x) {
        result = 0x7fff;
    } else if (std::isinf(x)) {
        result = sign | infinite;
    } else {
        int exponent = x == 0 ? F::kLeastExponent : std::max(std::ilogb(x), F::kLeastExponent);
        double units = std::ldexp(x, fraction_bits - exponent), rounded;
        {
            suite::Rounding rounding(Mode);
            volatile double volatile_units = units, volatile_rounded = std::nearbyint(volatile_units);
            rounded = volatile_rounded;
        }
        double value = std::ldexp(rounded, exponent - fraction_bits);
        if (std::fabs(value) > F::kLargest) {
            bool to_infinity = Mode == FE_TONEAREST || (Mode == FE_UPWARD && x > 0) || (Mode == FE_DOWNWARD && x < 0);
            result = sign | (to_infinity ? infinite : static_cast<uint16_t>(infinite - 1));
        } else {
            double magnitude = std::fabs(value);
            int at = magnitude == 0 ? F::kLeastExponent : std::max(std::ilogb(magnitude), F::kLeastExponent);
            auto significand = static_cast<uint32_t>(std::ldexp(magnitude, fraction_bits - at));
            // The hidden one carries into the exponent.
            result = static_cast<uint16_t>(sign | (((at - F::kLeastExponent) << fraction_bits) + significand));
        }
    }
    T narrow;
    std::memcpy(&narrow, &result, 2);
    return narrow;
}

// a * b + c rounded to odd: no second rounding can go wrong.
inline double fma_to_odd(double a, double b, double c) {
    double down = suite::fma_rounded<FE_TOWARDZERO, double>(a, b, c);
    double up = suite::fma_rounded<FE_UPWARD, double>(a, b, c), low = suite::fma_rounded<FE_DOWNWARD, double>(a, b, c);
    if (up == low || down != down || std::isinf(down)) {
        return a * b + c;
    }
    uint64_t word;
    std::memcpy(&word, &down, 8);
    return suite::from_bits<double>(word | 1);
}

template <typename T> std::vector<T> edges() {
    std::vector<T> edges;
    for (uint32_t b :
         {0x0000u, 0x8000u, 0x0001u, 0x8001u, 0x0002u, 0x03ffu, 0x0400u, 0x8400u, 0x007fu, 0x0080u, 0x3c00u,
          0xbc00u, 0x3c01u, 0x3bffu, 0x3f80u, 0xbf80u, 0x3f81u, 0x4000u, 0x4200u, 0x4040u, 0x7bffu, 0xfbffu,
          0x7c00u, 0xfc00u, 0x7f7fu, 0xff7fu, 0x7f80u, 0xff80u, 0x7fffu, 0x6400u, 0x4f80u, 0x3555u}) {
        edges.push_back(suite::from_bits<T>(b));
    }
    return edges;
}

template <typename T> struct Inputs {
    static std::vector<T> edges() { return narrow::edges<T>(); }
    static T random(Random &random) {
        uint32_t b = random.next();
        if (b >> 16 & 1) {
            return suite::from_bits<T>(b & 0xffff);
        }
        return encode<T>(std::ldexp(static_cast<int16_t>(b), -8));
    }
};

} // namespace narrow

inline bool is_nan(const __half &value) { return (narrow::bits(value) & 0x7fff) > 0x7c00; }
inline bool is_nan(const __nv_bfloat16 &value) { return (narrow::bits(value) & 0x7fff) > 0x7f80; }

namespace suite {
template <> struct Domain<__half> : narrow::Inputs<__half> {};
template <> struct Domain<__nv_bfloat16> : narrow::Inputs<__nv_bfloat16> {};
} // namespace suite

// The cases that both formats have; `P` begins their names.
#define NARROW_CASES(P, T, T2, TO_T2)                                                                                  \
    static T P##_least(T a, T b) {                                                                                     \
        double x = narrow::decode(a), y = narrow::decode(b);                                                           \
        return x != x   ? (y != y ? narrow::encode<T>(NAN) : b)                                                        \
               : y != y ? a                                                                                            \
               : x == y ? (std::signbit(x) ? a : b)                                                                    \
               : x < y  ? a                                                                                            \
                        : b;                                                                                           \
    }                                                                                                                  \
    static T P##_greatest(T a, T b) {                                                                                  \
        double x = narrow::decode(a), y = narrow::decode(b);                                                           \
        return x != x   ? (y != y ? narrow::encode<T>(NAN) : b)                                                        \
               : y != y ? a                                                                                            \
               : x == y ? (std::signbit(x) ? b : a)                                                                    \
               : x > y  ? a                                                                                            \
                        : b;                                                                                           \
    }                                                                                                                  \
    static T P##_sum(T a, T b) { return narrow::encode<T>(narrow::decode(a) + narrow::decode(b)); }                    \
    static T P##_difference(T a, T b) { return narrow::encode<T>(narrow::decode(a) - narrow::decode(b)); }             \
    static T P##_product(T a, T b) { return narrow::encode<T>(narrow::decode(a) * narrow::decode(b)); }                \
    static T P##_fused(T a, T b, T c) {                                                                                \
        return narrow::encode<T>(narrow::fma_to_odd(narrow::decode(a), narrow::decode(b), narrow::decode(c)));         \
    }                                                                                                                  \
    static double P##_unit(double x) { return x != x ? 0 : std::min(1.0, std::max(0.0, x)); }                          \
    static uint32_t P##_compared(T left, T right) {                                                                    \
        double a = narrow::decode(left), b = narrow::decode(right);                                                    \
        uint32_t nan = a != a || b != b;                                                                               \
        return (a < b) | (a <= b) << 1 | (a == b) << 2 | (a != b && !nan) << 3 | (a > b) << 4 | (a >= b) << 5 |        \
               (nan || a < b) << 6 | (nan || a == b) << 7 | (nan || a != b) << 8 | (nan || a >= b) << 9 |              \
               (a != a) << 10;                                                                                         \
    }                                                                                                                  \
    REF2(P##_add, T, T, __hadd(a, b), P##_sum(a, b))                                                                   \
    REF2(P##_sub, T, T, __hsub(a, b), P##_difference(a, b))                                                            \
    REF2(P##_mul, T, T, __hmul(a, b), P##_product(a, b))                                                               \
    REF3(P##_fma, T, T, __hfma(a, b, c), P##_fused(a, b, c))                                                           \
    REF2(P##_add_sat, T, T, __hadd_sat(a, b), narrow::encode<T>(P##_unit(narrow::decode(P##_sum(a, b)))))              \
    REF2(P##_mul_sat, T, T, __hmul_sat(a, b), narrow::encode<T>(P##_unit(narrow::decode(P##_product(a, b)))))          \
    REF2(P##_min, T, T, __hmin(a, b), P##_least(a, b))                                                                 \
    REF2(P##_max, T, T, __hmax(a, b), P##_greatest(a, b))                                                              \
    REF1(P##_neg, T, T, __hneg(a), narrow::encode<T>(-narrow::decode(a)))                                              \
    REF1(P##_abs, T, T, __habs(a), narrow::encode<T>(std::fabs(narrow::decode(a))))                                    \
    REF2(P##_compare, uint32_t, T,                                                                                     \
         __hlt(a, b) | __hle(a, b) << 1 | __heq(a, b) << 2 | __hne(a, b) << 3 | __hgt(a, b) << 4 | __hge(a, b) << 5 |  \
             __hltu(a, b) << 6 | __hequ(a, b) << 7 | __hneu(a, b) << 8 | __hgeu(a, b) << 9 | __hisnan(a) << 10,        \
         P##_compared(a, b))                                                                                           \
    REF1(P##_to_f32, float, T, float(a), float(narrow::decode(a)))                                                     \
    REF3(P##_pair_low, T, T, __low2##TO_T2(__hfma2(T2(a, b), T2(b, c), T2(c, a))), P##_fused(a, b, c))                 \
    REF3(P##_pair_high, T, T, __high2##TO_T2(__hfma2(T2(a, b), T2(b, c), T2(c, a))), P##_fused(b, c, a))               \
    REF3(P##_pair_add_mul, T, T, __high2##TO_T2(__hadd2(__hmul2(T2(a, b), T2(c, c)), T2(c, a))),                       \
         P##_sum(P##_product(b, c), a))                                                                                \
    REF2(P##_pair_min_max, T, T, __low2##TO_T2(__hmax2(T2(a, b), __hmin2(T2(b, a), T2(a, a)))),                        \
         P##_greatest(a, P##_least(b, a)))                                                                             \
    REF2(P##_pair_compare, T, T, __high2##TO_T2(__hlt2(T2(b, a), T2(a, b))),                                           \
         narrow::encode<T>(narrow::decode(a) < narrow::decode(b) ? 1 : 0))                                             \
    REF2(P##_pair_all, uint32_t, T, __hblt2(T2(a, a), T2(b, b)) | __hbeq2(T2(a, b), T2(b, a)) << 1,                    \
         (narrow::decode(a) < narrow::decode(b)) | (narrow::decode(a) == narrow::decode(b)) << 1)
