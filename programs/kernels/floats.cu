// Single and double precision where the result is exact: arithmetic in four rounding modes, fused products, rounding to
// integral values, minimum and maximum, comparisons, saturation, remainders, bits.
#include "suite.h"

// Reference for fmin and fmax: a number wins over NaN, and -0 is less than +0.
template <typename T> static T least(T a, T b) {
    return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
}
template <typename T> static T greatest(T a, T b) {
    return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}
static float saturated(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

#define ROUNDED2(NAME, T, DEVICE, HOST)                                                                                \
    REF2(NAME##_rn, T, T, DEVICE##_rn(a, b), (suite::HOST<FE_TONEAREST, T>(a, b)))                                     \
    REF2(NAME##_rz, T, T, DEVICE##_rz(a, b), (suite::HOST<FE_TOWARDZERO, T>(a, b)))                                    \
    REF2(NAME##_ru, T, T, DEVICE##_ru(a, b), (suite::HOST<FE_UPWARD, T>(a, b)))                                        \
    REF2(NAME##_rd, T, T, DEVICE##_rd(a, b), (suite::HOST<FE_DOWNWARD, T>(a, b)))
#define ROUNDED1(NAME, T, DEVICE, HOST)                                                                                \
    REF1(NAME##_rn, T, T, DEVICE##_rn(a), (HOST<FE_TONEAREST, T>(a)))                                                  \
    REF1(NAME##_rz, T, T, DEVICE##_rz(a), (HOST<FE_TOWARDZERO, T>(a)))                                                 \
    REF1(NAME##_ru, T, T, DEVICE##_ru(a), (HOST<FE_UPWARD, T>(a)))                                                     \
    REF1(NAME##_rd, T, T, DEVICE##_rd(a), (HOST<FE_DOWNWARD, T>(a)))
#define ROUNDED3(NAME, T, DEVICE, HOST)                                                                                \
    REF3(NAME##_rn, T, T, DEVICE##_rn(a, b, c), (suite::HOST<FE_TONEAREST, T>(a, b, c)))                               \
    REF3(NAME##_rz, T, T, DEVICE##_rz(a, b, c), (suite::HOST<FE_TOWARDZERO, T>(a, b, c)))                              \
    REF3(NAME##_ru, T, T, DEVICE##_ru(a, b, c), (suite::HOST<FE_UPWARD, T>(a, b, c)))                                  \
    REF3(NAME##_rd, T, T, DEVICE##_rd(a, b, c), (suite::HOST<FE_DOWNWARD, T>(a, b, c)))

template <int Mode, typename T> static T reciprocal(T a) { return suite::divide_rounded<Mode, T>(T(1), a); }

ROUNDED2(add_f32, float, __fadd, add_rounded)
ROUNDED2(mul_f32, float, __fmul, multiply_rounded)
ROUNDED2(div_f32, float, __fdiv, divide_rounded)
ROUNDED1(sqrt_f32, float, __fsqrt, suite::root_rounded)
ROUNDED1(rcp_f32, float, __frcp, reciprocal)
ROUNDED3(fma_f32, float, __fmaf, fma_rounded)
ROUNDED2(add_f64, double, __dadd, add_rounded)
ROUNDED2(mul_f64, double, __dmul, multiply_rounded)
ROUNDED2(div_f64, double, __ddiv, divide_rounded)
ROUNDED1(sqrt_f64, double, __dsqrt, suite::root_rounded)
ROUNDED1(rcp_f64, double, __drcp, reciprocal)
ROUNDED3(fma_f64, double, __fma, fma_rounded)
REF2(sub_f32_rounded, float, float, __fsub_ru(a, b), (suite::add_rounded<FE_UPWARD, float>(a, -b)))
REF2(sub_f64_rounded, double, double, __dsub_rd(a, b), (suite::add_rounded<FE_DOWNWARD, double>(a, -b)))

MAP3(mul_add_f32, float, float, a *b + c)
MAP3(mul_add_f64, double, double, a *b - c)
MAP2(div_by_expression_f32, float, float, a / (b + 1.0f) - b / 3.0f)
MAP2(div_by_expression_f64, double, double, a / (b + 1.0) - b / 3.0)

REF2(min_f32, float, float, fminf(a, b), least(a, b))
REF2(max_f32, float, float, fmaxf(a, b), greatest(a, b))
REF2(min_f64, double, double, fmin(a, b), least(a, b))
REF2(max_f64, double, double, fmax(a, b), greatest(a, b))
REF1(saturate_f32, float, float, __saturatef(a), saturated(a))
REF3(fma_saturate_f32, float, float, __saturatef(__fmaf_rn(a, b, c)), saturated(std::fma(a, b, c)))
REF2(mul_saturate_f32, float, float, __saturatef(a *b), saturated(a *b))
REF1(clamp_f32, float, float, fminf(fmaxf(a, -2.0f), 3.5f), least(greatest(a, -2.0f), 3.5f))

// Bits of every predicate, ordered and unordered.
#define COMPARED                                                                                                       \
    (a < b) | (a <= b) << 1 | (a == b) << 2 | (a != b) << 3 | (a > b) << 4 | (a >= b) << 5 | (!(a < b)) << 6 |         \
        (!(a <= b)) << 7 | (!(a > b)) << 8 | (!(a >= b)) << 9
MAP2(compare_f32, uint32_t, float, (COMPARED | (a != a || b != b) << 10 | (a == a && b == b) << 11))
MAP2(compare_f64, uint32_t, double, (COMPARED | (a != a || b != b) << 10 | (a == a && b == b) << 11))

#define ASM_SETP(NAME, TYPE, LETTER, T)                                                                                \
    __device__ uint32_t NAME(T a, T b) {                                                                               \
        uint32_t d;                                                                                                    \
        asm("{ .reg .pred p; .reg .u32 t;\n\t"                                                                         \
            "setp.equ." TYPE " p, %1, %2; selp.u32 %0, 1, 0, p;\n\t"                                                   \
            "setp.neu." TYPE " p, %1, %2; selp.u32 t, 2, 0, p; or.b32 %0, %0, t;\n\t"                                  \
            "setp.ltu." TYPE " p, %1, %2; selp.u32 t, 4, 0, p; or.b32 %0, %0, t;\n\t"                                  \
            "setp.leu." TYPE " p, %1, %2; selp.u32 t, 8, 0, p; or.b32 %0, %0, t;\n\t"                                  \
            "setp.gtu." TYPE " p, %1, %2; selp.u32 t, 16, 0, p; or.b32 %0, %0, t;\n\t"                                 \
            "setp.geu." TYPE " p, %1, %2; selp.u32 t, 32, 0, p; or.b32 %0, %0, t;\n\t"                                 \
            "setp.num." TYPE " p, %1, %2; selp.u32 t, 64, 0, p; or.b32 %0, %0, t;\n\t"                                 \
            "setp.nan." TYPE " p, %1, %2; selp.u32 t, 128, 0, p; or.b32 %0, %0, t; }"                                  \
            : "=r"(d)                                                                                                  \
            : LETTER(a), LETTER(b));                                                                                   \
        return d;                                                                                                      \
    }
ASM_SETP(unordered_f32, "f32", "f", float)
ASM_SETP(unordered_f64, "f64", "d", double)
template <typename T> static uint32_t unordered_host(T a, T b) {
    uint32_t nan = a != a || b != b;
    return (nan | (a == b)) | (nan | (a != b)) << 1 | (nan | (a < b)) << 2 | (nan | (a <= b)) << 3 |
           (nan | (a > b)) << 4 | (nan | (a >= b)) << 5 | (1 - nan) << 6 | nan << 7;
}
REF2(setp_unordered_f32, uint32_t, float, unordered_f32(a, b), unordered_host(a, b))
REF2(setp_unordered_f64, uint32_t, double, unordered_f64(a, b), unordered_host(a, b))

__device__ float asm_set_f32(float a, float b) {
    float d;
    asm("set.gt.f32.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}
REF2(set_f32, float, float, asm_set_f32(a, b), a > b ? 1.0f : 0.0f)
__device__ float asm_slct_f32(float a, float b, float c) {
    float d;
    asm("slct.f32.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}
REF3(slct_f32, float, float, asm_slct_f32(a, b, c), c >= 0 ? a : b)

// Rounding to integral values.
MAP1(floor_ceil_f32, float, float, (std::floor(a) == std::ceil(a) ? a : std::floor(a) * 0.5f))
REF1(floor_f32, float, float, floorf(a), std::floor(a))
REF1(ceil_f32, float, float, ceilf(a), std::ceil(a))
REF1(trunc_f32, float, float, truncf(a), std::trunc(a))
REF1(rint_f32, float, float, rintf(a), (suite::convert_rounded<FE_TONEAREST, float>(std::nearbyint(a))))
REF1(round_f32, float, float, roundf(a), std::round(a))
REF1(floor_f64, double, double, floor(a), std::floor(a))
REF1(ceil_f64, double, double, ceil(a), std::ceil(a))
REF1(trunc_f64, double, double, trunc(a), std::trunc(a))
REF1(rint_f64, double, double, rint(a), std::nearbyint(a))
REF1(round_f64, double, double, round(a), std::round(a))

// Exact functions of the mathematical library.
REF2(fmod_f32, float, float, fmodf(a, b), std::fmod(a, b))
REF2(fmod_f64, double, double, fmod(a, b), std::fmod(a, b))
REF2(remainder_f32, float, float, remainderf(a, b), std::remainder(a, b))
REF2(remainder_f64, double, double, remainder(a, b), std::remainder(a, b))
REF1(sqrt_default_f32, float, float, sqrtf(a), std::sqrt(a))
REF1(sqrt_default_f64, double, double, sqrt(a), std::sqrt(a))
REF2(copysign_f32, float, float, copysignf(a, b), std::copysign(a, b))
REF2(copysign_f64, double, double, copysign(a, b), std::copysign(a, b))
REF2(fdim_f32, float, float, fdimf(a, b), std::fdim(a, b))
REF2(fdim_f64, double, double, fdim(a, b), std::fdim(a, b))
REF2(nextafter_f32, float, float, nextafterf(a, b), std::nextafter(a, b))
REF2(nextafter_f64, double, double, nextafter(a, b), std::nextafter(a, b))
REF_AB(ldexp_f32, float, float, int32_t, ldexpf(a, b % 300), std::ldexp(a, b % 300))
REF_AB(ldexp_f64, double, double, int32_t, ldexp(a, b % 2200), std::ldexp(a, b % 2200))
REF1(logb_f32, float, float, logbf(a), std::logb(a))
REF1(logb_f64, double, double, logb(a), std::logb(a))
REF1(ilogb_f64, int32_t, double, std::isfinite(a) && a != 0 ? ilogb(a) : 0,
     std::isfinite(a) && a != 0 ? std::ilogb(a) : 0)

__device__ float device_fraction(float a) {
    int exponent = 0;
    float whole, fraction = frexpf(a, &exponent);
    float part = modff(a, &whole);
    return isfinite(a) ? fraction * 3 + exponent + part + (whole < 0 ? 1 : 2) : 0.0f;
}
static float host_fraction(float a) {
    int exponent = 0;
    float whole, fraction = std::frexp(a, &exponent);
    float part = std::modf(a, &whole);
    return std::isfinite(a) ? fraction * 3 + exponent + part + (whole < 0 ? 1 : 2) : 0.0f;
}
REF1(frexp_modf_f32, float, float, device_fraction(a), host_fraction(a))
REF1(classes_f32, uint32_t, float, !!isnan(a) | !!isinf(a) << 1 | !!isfinite(a) << 2 | !!signbit(a) << 3,
     std::isnan(a) | std::isinf(a) << 1 | std::isfinite(a) << 2 | std::signbit(a) << 3)
REF1(classes_f64, uint32_t, double, !!isnan(a) | !!isinf(a) << 1 | !!isfinite(a) << 2 | !!signbit(a) << 3,
     std::isnan(a) | std::isinf(a) << 1 | std::isfinite(a) << 2 | std::signbit(a) << 3)
__device__ uint32_t asm_testp(float a) {
    uint32_t d;
    asm("{ .reg .pred p; .reg .u32 t;\n\t"
        "testp.finite.f32 p, %1; selp.u32 %0, 1, 0, p;\n\t"
        "testp.infinite.f32 p, %1; selp.u32 t, 2, 0, p; or.b32 %0, %0, t;\n\t"
        "testp.number.f32 p, %1; selp.u32 t, 4, 0, p; or.b32 %0, %0, t;\n\t"
        "testp.notanumber.f32 p, %1; selp.u32 t, 8, 0, p; or.b32 %0, %0, t;\n\t"
        "testp.normal.f32 p, %1; selp.u32 t, 16, 0, p; or.b32 %0, %0, t;\n\t"
        "testp.subnormal.f32 p, %1; selp.u32 t, 32, 0, p; or.b32 %0, %0, t; }"
        : "=r"(d)
        : "f"(a));
    return d;
}
REF1(testp_f32, uint32_t, float, asm_testp(a),
     std::isfinite(a) | std::isinf(a) << 1 | !std::isnan(a) << 2 | std::isnan(a) << 3 |
         (std::isnormal(a) || a == 0) << 4 | (std::fpclassify(a) == FP_SUBNORMAL) << 5)
MAP1(abs_neg_f32, float, float, (a < 0 ? -a : a) * (a > 1 ? -1.0f : 1.0f))
REF1(abs_f64, double, double, -fabs(a), -std::fabs(a))
REF1(
    bits_f32, uint32_t, float, a != a ? 0 : __float_as_uint(a) * 3,
    a != a ? 0 : suite::from_bits<uint32_t>(0) + [](float x) {
        uint32_t bits;
        std::memcpy(&bits, &x, 4);
        return bits;
    }(a) * 3)
REF1(
    words_f64, uint32_t, double, a != a ? 0 : uint32_t(__double2hiint(a)) * 3 + uint32_t(__double2loint(a)),
    a != a ? 0 : [](double x) {
        uint64_t bits;
        std::memcpy(&bits, &x, 8);
        return uint32_t(bits >> 32) * 3 + uint32_t(bits);
    }(a))
SUITE_MAIN("floats")
