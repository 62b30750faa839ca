// bfloat16: scalars and pairs, conversions.
// nvcc-arch: compute_90
#include "narrow.h"

NARROW_CASES(bfloat, __nv_bfloat16, __nv_bfloat162, bfloat16)

REF1(bfloat_from_f32_rn, __nv_bfloat16, float, __float2bfloat16_rn(a), narrow::encode<__nv_bfloat16>(a))
REF1(bfloat_from_f32_rz, __nv_bfloat16, float, __float2bfloat16_rz(a),
     (narrow::encode<__nv_bfloat16, FE_TOWARDZERO>(a)))
REF1(bfloat_from_f64, __nv_bfloat16, double, __double2bfloat16(a), narrow::encode<__nv_bfloat16>(a))
REF2(bfloat_pair_from_f32, __nv_bfloat16, float, __high2bfloat16(__floats2bfloat162_rn(a, b)),
     narrow::encode<__nv_bfloat16>(b))
static double bounded(double x, double low, double high) { return x != x ? 0 : x < low ? low : x > high ? high : x; }
REF1(bfloat_to_s32, int32_t, __nv_bfloat16, __bfloat162int_rn(a),
     std::nearbyint(bounded(narrow::decode(a), INT32_MIN, INT32_MAX)))
REF1(bfloat_to_u16, uint16_t, __nv_bfloat16, __bfloat162ushort_rz(a), bounded(narrow::decode(a), 0, UINT16_MAX))
REF1(bfloat_from_s32, __nv_bfloat16, int32_t, __int2bfloat16_rn(a), narrow::encode<__nv_bfloat16>(a))
REF1(bfloat_from_u32_rd, __nv_bfloat16, uint32_t, __uint2bfloat16_rd(a),
     (narrow::encode<__nv_bfloat16, FE_DOWNWARD>(a)))
REF1(bfloat_from_s16, __nv_bfloat16, int16_t, __short2bfloat16_rn(a), narrow::encode<__nv_bfloat16>(a))
REF1(bfloat_rint, __nv_bfloat16, __nv_bfloat16, hrint(a),
     narrow::encode<__nv_bfloat16>(std::nearbyint(narrow::decode(a))))
REF1(bfloat_ceil, __nv_bfloat16, __nv_bfloat16, hceil(a), narrow::encode<__nv_bfloat16>(std::ceil(narrow::decode(a))))
REF2(bfloat_max_nan, __nv_bfloat16, __nv_bfloat16, __hmax_nan(a, b),
     is_nan(a) || is_nan(b) ? narrow::encode<__nv_bfloat16>(NAN) : bfloat_greatest(a, b))
SUITE_MAIN("bfloats")
