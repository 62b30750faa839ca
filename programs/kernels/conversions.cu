// Conversions between every pair of number types: rounding modes, saturation, truncation, sign extension.
#include "suite.h"

#include <algorithm>

// What a conversion to an integer gives: rounded, then clamped to the type's range. NaN becomes 0 from single precision
// to 32 bits and fewer, else the sign bit alone.
template <typename To, int Mode, typename From> static To clamped(From x) {
    if (x != x) {
        return sizeof(To) == 8 || sizeof(From) == 8 ? static_cast<To>(uint64_t(1) << (8 * sizeof(To) - 1)) : To(0);
    }
    suite::Rounding rounding(Mode);
    volatile From value = x, rounded = std::nearbyint(value);
    const From low = static_cast<From>(std::numeric_limits<To>::min());
    const From beyond = std::ldexp(From(1), std::numeric_limits<To>::digits);
    return rounded < low       ? std::numeric_limits<To>::min()
           : rounded >= beyond ? std::numeric_limits<To>::max()
                               : static_cast<To>(rounded);
}

#define TO_INTEGER(NAME, TO, FROM, DEVICE)                                                                             \
    REF1(NAME##_rn, TO, FROM, DEVICE##_rn(a), (clamped<TO, FE_TONEAREST, FROM>(a)))                                    \
    REF1(NAME##_rz, TO, FROM, DEVICE##_rz(a), (clamped<TO, FE_TOWARDZERO, FROM>(a)))                                   \
    REF1(NAME##_ru, TO, FROM, DEVICE##_ru(a), (clamped<TO, FE_UPWARD, FROM>(a)))                                       \
    REF1(NAME##_rd, TO, FROM, DEVICE##_rd(a), (clamped<TO, FE_DOWNWARD, FROM>(a)))
TO_INTEGER(f32_to_s32, int32_t, float, __float2int)
TO_INTEGER(f32_to_u32, uint32_t, float, __float2uint)
TO_INTEGER(f32_to_s64, int64_t, float, __float2ll)
TO_INTEGER(f32_to_u64, uint64_t, float, __float2ull)
TO_INTEGER(f64_to_s32, int32_t, double, __double2int)
TO_INTEGER(f64_to_u32, uint32_t, double, __double2uint)
TO_INTEGER(f64_to_s64, int64_t, double, __double2ll)
TO_INTEGER(f64_to_u64, uint64_t, double, __double2ull)

#define FROM_INTEGER(NAME, TO, FROM, DEVICE)                                                                           \
    REF1(NAME##_rn, TO, FROM, DEVICE##_rn(a), (suite::convert_rounded<FE_TONEAREST, TO, FROM>(a)))                     \
    REF1(NAME##_rz, TO, FROM, DEVICE##_rz(a), (suite::convert_rounded<FE_TOWARDZERO, TO, FROM>(a)))                    \
    REF1(NAME##_ru, TO, FROM, DEVICE##_ru(a), (suite::convert_rounded<FE_UPWARD, TO, FROM>(a)))                        \
    REF1(NAME##_rd, TO, FROM, DEVICE##_rd(a), (suite::convert_rounded<FE_DOWNWARD, TO, FROM>(a)))
// Unsigned 64-bit numbers have no rounding conversion on the host's processor: integer arithmetic instead.
template <typename T, int Mode> static T from_u64(uint64_t x) {
    const int digits = std::numeric_limits<T>::digits;
    int excess = 0;
    while (excess < 64 && x >> excess >= uint64_t(1) << digits) {
        ++excess;
    }
    uint64_t kept = x >> excess, rest = x - (kept << excess), half = excess == 0 ? 0 : uint64_t(1) << (excess - 1);
    bool up = Mode == FE_UPWARD      ? rest != 0
              : Mode == FE_TONEAREST ? rest > half || (excess != 0 && rest == half && kept % 2 == 1)
                                     : false;
    return std::ldexp(static_cast<T>(kept + up), excess);
}
FROM_INTEGER(s32_to_f32, float, int32_t, __int2float)
FROM_INTEGER(u32_to_f32, float, uint32_t, __uint2float)
FROM_INTEGER(s64_to_f32, float, int64_t, __ll2float)
FROM_INTEGER(s64_to_f64, double, int64_t, __ll2double)
FROM_INTEGER(f64_to_f32, float, double, __double2float)
REF1(u64_to_f32_rn, float, uint64_t, __ull2float_rn(a), (from_u64<float, FE_TONEAREST>(a)))
REF1(u64_to_f32_ru, float, uint64_t, __ull2float_ru(a), (from_u64<float, FE_UPWARD>(a)))
REF1(u64_to_f32_rd, float, uint64_t, __ull2float_rd(a), (from_u64<float, FE_DOWNWARD>(a)))
REF1(u64_to_f64_rn, double, uint64_t, __ull2double_rn(a), (from_u64<double, FE_TONEAREST>(a)))
REF1(u64_to_f64_ru, double, uint64_t, __ull2double_ru(a), (from_u64<double, FE_UPWARD>(a)))
REF1(u64_to_f64_rz, double, uint64_t, __ull2double_rz(a), (from_u64<double, FE_TOWARDZERO>(a)))
MAP1(s32_to_f64, double, int32_t, double(a))
MAP1(u32_to_f64, double, uint32_t, double(a))
MAP1(f32_to_f64, double, float, double(a))
MAP1(s8_to_f32, float, int8_t, float(a))
MAP1(u8_to_f32, float, uint8_t, float(a))
MAP1(s16_to_f64, double, int16_t, double(a))
MAP1(u16_to_f32, float, uint16_t, float(a))

// Between integers: truncation and extension of each width and sign.
#define INTEGER_PAIRS(FROM)                                                                                            \
    MAP1(FROM##_to_s8, int8_t, FROM, a)                                                                                \
    MAP1(FROM##_to_u8, uint8_t, FROM, a)                                                                               \
    MAP1(FROM##_to_s16, int16_t, FROM, a)                                                                              \
    MAP1(FROM##_to_u16, uint16_t, FROM, a)                                                                             \
    MAP1(FROM##_to_s32, int32_t, FROM, a)                                                                              \
    MAP1(FROM##_to_u32, uint32_t, FROM, a)                                                                             \
    MAP1(FROM##_to_s64, int64_t, FROM, a)                                                                              \
    MAP1(FROM##_to_u64, uint64_t, FROM, a)
INTEGER_PAIRS(int8_t)
INTEGER_PAIRS(uint8_t)
INTEGER_PAIRS(int16_t)
INTEGER_PAIRS(uint16_t)
INTEGER_PAIRS(int32_t)
INTEGER_PAIRS(uint32_t)
INTEGER_PAIRS(int64_t)
INTEGER_PAIRS(uint64_t)

// PTX's saturating conversions, each with the letters of its operands.
#define ASM_CVT(NAME, INSTRUCTION, TO, TO_LETTER, FROM, FROM_LETTER)                                                   \
    __device__ TO NAME(FROM a) {                                                                                       \
        TO d;                                                                                                          \
        asm(INSTRUCTION " %0, %1;" : "=" TO_LETTER(d) : FROM_LETTER(a));                                               \
        return d;                                                                                                      \
    }
template <typename To> static To within(int64_t x) {
    return static_cast<To>(
        std::min<int64_t>(std::max<int64_t>(x, std::numeric_limits<To>::min()), std::numeric_limits<To>::max()));
}
ASM_CVT(sat_s16_s32, "cvt.sat.s16.s32", int16_t, "h", int32_t, "r")
ASM_CVT(sat_u16_s32, "cvt.sat.u16.s32", uint16_t, "h", int32_t, "r")
ASM_CVT(sat_s32_s64, "cvt.sat.s32.s64", int32_t, "r", int64_t, "l")
ASM_CVT(sat_u32_s64, "cvt.sat.u32.s64", uint32_t, "r", int64_t, "l")
ASM_CVT(sat_s8_s32, "cvt.sat.s8.s32", int32_t, "r", int32_t, "r")
ASM_CVT(sat_u8_s32, "cvt.sat.u8.s32", uint32_t, "r", int32_t, "r")
ASM_CVT(sat_u64_s64, "cvt.sat.u64.s64", uint64_t, "l", int64_t, "l")
ASM_CVT(sat_s32_u32, "cvt.sat.s32.u32", int32_t, "r", uint32_t, "r")
REF1(cvt_sat_s16_s32, int16_t, int32_t, sat_s16_s32(a), within<int16_t>(a))
REF1(cvt_sat_u16_s32, uint16_t, int32_t, sat_u16_s32(a), within<uint16_t>(a))
REF1(cvt_sat_s32_s64, int32_t, int64_t, sat_s32_s64(a), within<int32_t>(a))
REF1(cvt_sat_u32_s64, uint32_t, int64_t, sat_u32_s64(a), within<uint32_t>(a))
REF1(cvt_sat_s8_s32, int32_t, int32_t, sat_s8_s32(a), within<int8_t>(a))
REF1(cvt_sat_u8_s32, uint32_t, int32_t, sat_u8_s32(a), within<uint8_t>(a))
REF1(cvt_sat_u64_s64, uint64_t, int64_t, sat_u64_s64(a), a < 0 ? 0 : a)
REF1(cvt_sat_s32_u32, int32_t, uint32_t, sat_s32_u32(a), within<int32_t>(a))
ASM_CVT(sat_f32_f64, "cvt.rn.sat.f32.f64", float, "f", double, "d")
ASM_CVT(rzi_s16_f32, "cvt.rzi.s16.f32", int16_t, "h", float, "f")
ASM_CVT(rni_u16_f64, "cvt.rni.u16.f64", uint16_t, "h", double, "d")
ASM_CVT(rmi_u8_f32, "cvt.rmi.sat.u8.f32", uint32_t, "r", float, "f")
ASM_CVT(rpi_f32_f32, "cvt.rpi.sat.f32.f32", float, "f", float, "f")
static float unit(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
REF1(cvt_sat_f32_f64, float, double, sat_f32_f64(a), unit(float(a)))
REF1(cvt_rzi_s16_f32, int16_t, float, rzi_s16_f32(a), (clamped<int16_t, FE_TOWARDZERO, float>(a)))
REF1(cvt_rni_u16_f64, uint16_t, double, rni_u16_f64(a), (clamped<uint16_t, FE_TONEAREST, double>(a)))
REF1(cvt_rmi_u8_f32, uint32_t, float, rmi_u8_f32(a), (clamped<uint8_t, FE_DOWNWARD, float>(a)))
REF1(cvt_rpi_f32_f32, float, float, rpi_f32_f32(a), unit(std::ceil(a)))

// The bytes of a word, as the compiler reads them out of registers.
MAP1(bytes_of_word, uint32_t, uint32_t,
     (a & 0xff) * 3 + (a >> 8 & 0xff) * 5 + (a >> 16 & 0xff) * 7 + int32_t(int8_t(a >> 24)))
MAP1(bits_round_trip, uint64_t, uint64_t, uint64_t(uint32_t(a >> 32)) << 32 | uint32_t(a))
SUITE_MAIN("conversions")
