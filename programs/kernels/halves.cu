// Half precision: scalars and pairs, conversions in every rounding mode, approximate functions.
// nvcc-arch: compute_80
#include "narrow.h"

NARROW_CASES(half, __half, __half2, half)

REF1(half_from_f32_rn, __half, float, __float2half_rn(a), narrow::encode<__half>(a))
REF1(half_from_f32_rz, __half, float, __float2half_rz(a), (narrow::encode<__half, FE_TOWARDZERO>(a)))
REF1(half_from_f32_ru, __half, float, __float2half_ru(a), (narrow::encode<__half, FE_UPWARD>(a)))
REF1(half_from_f32_rd, __half, float, __float2half_rd(a), (narrow::encode<__half, FE_DOWNWARD>(a)))
REF1(half_from_f64, __half, double, __double2half(a), narrow::encode<__half>(a))
REF2(half_pair_from_f32, __half, float, __high2half(__floats2half2_rn(a, b)), narrow::encode<__half>(b))

static double bounded(double x, double low, double high) { return x != x ? 0 : x < low ? low : x > high ? high : x; }
REF1(half_to_s32, int32_t, __half, __half2int_rn(a), std::nearbyint(bounded(narrow::decode(a), INT32_MIN, INT32_MAX)))
REF1(half_to_s32_rz, int32_t, __half, __half2int_rz(a), bounded(narrow::decode(a), INT32_MIN, INT32_MAX))
REF1(half_to_u32_ru, uint32_t, __half, __half2uint_ru(a), std::ceil(bounded(narrow::decode(a), 0, UINT32_MAX)))
REF1(half_to_s16_rd, int16_t, __half, __half2short_rd(a), std::floor(bounded(narrow::decode(a), INT16_MIN, INT16_MAX)))
REF1(half_to_u16_rn, uint16_t, __half, __half2ushort_rn(a), std::nearbyint(bounded(narrow::decode(a), 0, UINT16_MAX)))
static int64_t wide_of(double x) {
    return std::isinf(x) ? (x < 0 ? INT64_MIN : INT64_MAX) : x != x ? INT64_MIN : int64_t(std::nearbyint(x));
}
REF1(half_to_s64, int64_t, __half, __half2ll_rn(a), wide_of(narrow::decode(a)))
REF1(half_from_s32, __half, int32_t, __int2half_rn(a), narrow::encode<__half>(a))
REF1(half_from_s32_rd, __half, int32_t, __int2half_rd(a), (narrow::encode<__half, FE_DOWNWARD>(a)))
REF1(half_from_u16, __half, uint16_t, __ushort2half_rz(a), (narrow::encode<__half, FE_TOWARDZERO>(a)))
REF1(half_from_s64, __half, int64_t, __ll2half_rn(a),
     narrow::encode<__half>(std::fabs(double(a)) < 1e6 ? double(a)
                            : a < 0                    ? -1e9
                                                       : 1e9))
REF1(half_floor_ceil, __half, __half, hfloor(a), narrow::encode<__half>(std::floor(narrow::decode(a))))
REF1(half_rint, __half, __half, hrint(a), narrow::encode<__half>(std::nearbyint(narrow::decode(a))))
REF1(half_trunc_pair, __half, __half, __high2half(h2trunc(__half2(a, a))),
     narrow::encode<__half>(std::trunc(narrow::decode(a))))
REF3(half_fma_relu, __half, __half, __hfma_relu(a, b, c),
     is_nan(half_fused(a, b, c)) || narrow::decode(half_fused(a, b, c)) > 0
         ? (is_nan(half_fused(a, b, c)) ? narrow::encode<__half>(NAN) : half_fused(a, b, c))
         : narrow::encode<__half>(0))
REF2(half_min_nan, __half, __half, __hmin_nan(a, b),
     is_nan(a) || is_nan(b) ? narrow::encode<__half>(NAN) : half_least(a, b))
REF1(half_bits, uint16_t, __half, __hisnan(a) ? 0 : __half_as_ushort(a) ^ uint16_t(__half_as_short(a) >> 3),
     is_nan(a) ? 0 : narrow::bits(a) ^ uint16_t(int16_t(narrow::bits(a)) >> 3))

// Division and functions, within two units of half precision's last place.
__global__ void half_functions(const __half *a, const __half *b, float *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        float *at = out + 10 * i;
        at[0] = __hdiv(a[i], b[i]);
        at[1] = hsqrt(a[i]);
        at[2] = hrsqrt(a[i]);
        at[3] = hrcp(a[i]);
        at[4] = hexp(b[i]);
        at[5] = hexp2(b[i]);
        at[6] = hlog(a[i]);
        at[7] = hlog2(a[i]);
        at[8] = hsin(b[i]);
        at[9] = hcos(b[i]);
    }
}
CASE(half_functions) {
    constexpr int kCount = 1024;
    Random random(9);
    std::vector<__half> a, b;
    for (int i = 0; i < kCount; ++i) {
        a.push_back(narrow::encode<__half>((1 + random.below<double>(4000)) / 64));
        b.push_back(narrow::encode<__half>((random.below<double>(1024) - 512 + 0.5) / 64));
    }
    DeviceArray<__half> device_a(a), device_b(b);
    DeviceArray<float> out(10 * kCount);
    suite::launch(half_functions, kCount / 128, 128, device_a.get(), device_b.get(), out.get(), kCount);
    std::vector<float> got = out.to_host();
    for (int i = 0; i < kCount; ++i) {
        double x = narrow::decode(a[i]), y = narrow::decode(b[i]);
        const double expected[10] = {x / y,        std::sqrt(x), 1 / std::sqrt(x), 1 / x,       std::exp(y),
                                     std::exp2(y), std::log(x),  std::log2(x),     std::sin(y), std::cos(y)};
        for (int j = 0; j < 10; ++j) {
            double unit = std::ldexp(1.0, std::max(std::ilogb(expected[j]), -14) - 10);
            if (!(std::fabs(got[10 * i + j] - expected[j]) <= 2 * unit + 1e-3 * (j >= 8)) && suite::show_failure(i)) {
                std::fprintf(stderr, " function %d of %g, %g is %g, expected %g\n", j, x, y, got[10 * i + j],
                             expected[j]);
            }
        }
    }
}
SUITE_MAIN("halves")
