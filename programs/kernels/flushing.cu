// Single precision with subnormal numbers flushed to zero, and the approximate division and root that go with it.
// nvcc-flags: -ftz=true -prec-div=false -prec-sqrt=false
#include "suite.h"

// What `.ftz` does to operands and results.
static float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

template <int Mode> static float add_flushed(float a, float b) {
    return flushed(suite::add_rounded<Mode, float>(flushed(a), flushed(b)));
}
template <int Mode> static float multiply_flushed(float a, float b) {
    return flushed(suite::multiply_rounded<Mode, float>(flushed(a), flushed(b)));
}
template <int Mode> static float fma_flushed(float a, float b, float c) {
    return flushed(suite::fma_rounded<Mode, float>(flushed(a), flushed(b), flushed(c)));
}
static float least(float a, float b) {
    a = flushed(a), b = flushed(b);
    return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
}
static float greatest(float a, float b) { return -least(-a, -b); }

REF2(add_ftz, float, float, a + b, add_flushed<FE_TONEAREST>(a, b))
REF2(sub_ftz, float, float, a - b, add_flushed<FE_TONEAREST>(a, -b))
REF2(mul_ftz, float, float, a *b, multiply_flushed<FE_TONEAREST>(a, b))
REF2(add_rz_ftz, float, float, __fadd_rz(a, b), add_flushed<FE_TOWARDZERO>(a, b))
REF2(add_rd_ftz, float, float, __fadd_rd(a, b), add_flushed<FE_DOWNWARD>(a, b))
REF2(mul_ru_ftz, float, float, __fmul_ru(a, b), multiply_flushed<FE_UPWARD>(a, b))
REF2(mul_rd_ftz, float, float, __fmul_rd(a, b), multiply_flushed<FE_DOWNWARD>(a, b))
REF3(fma_rn_ftz, float, float, __fmaf_rn(a, b, c), fma_flushed<FE_TONEAREST>(a, b, c))
REF3(fma_ru_ftz, float, float, __fmaf_ru(a, b, c), fma_flushed<FE_UPWARD>(a, b, c))
REF3(fma_ieee_keeps, float, float, __fmaf_ieee_rn(a, b, c), std::fma(a, b, c))
REF2(div_rn_ftz, float, float, __fdiv_rn(a, b), flushed(flushed(a) / flushed(b)))
REF1(sqrt_rn_ftz, float, float, __fsqrt_rn(a), std::sqrt(flushed(a)))
REF1(rcp_rn_ftz, float, float, __frcp_rn(a), flushed(1.0f / flushed(a)))
REF2(min_ftz, float, float, fminf(a, b), least(a, b))
REF2(max_ftz, float, float, fmaxf(a, b), greatest(a, b))
REF1(saturate_ftz, float, float, __saturatef(a *a),
     [](float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }(multiply_flushed<FE_TONEAREST>(a, a)))
static uint32_t compared_host(float a, float b) {
    a = flushed(a), b = flushed(b);
    return (a < b) | (a <= b) << 1 | (a == b) << 2 | (a != b) << 3 | (a > b) << 4 | (a >= b) << 5;
}
REF2(compare_ftz, uint32_t, float,
     (a < b) | (a <= b) << 1 | (a == b) << 2 | (a != b) << 3 | (a > b) << 4 | (a >= b) << 5, compared_host(a, b))
REF1(floor_ftz, float, float, floorf(a), std::floor(flushed(a)))
REF1(ceil_ftz, float, float, ceilf(a), std::ceil(flushed(a)))
REF1(widen_ftz, double, float, double(a), double(flushed(a)))
REF1(narrow_ftz, float, double, float(a), flushed(float(a)))
REF1(doubles_keep_f64, double, double, a * 0.5 + 1e-310, a * 0.5 + 1e-310)

__device__ float asm_abs_neg(float a) {
    float d, e;
    asm("abs.ftz.f32 %0, %2;\n\tneg.ftz.f32 %1, %2;" : "=f"(d), "=f"(e) : "f"(a));
    return __int_as_float(__float_as_int(d) ^ (__float_as_int(e) & 0x80000000));
}
REF1(abs_neg_ftz, float, float, asm_abs_neg(a),
     std::signbit(-flushed(a)) ? -std::fabs(flushed(a)) : std::fabs(flushed(a)))

// Approximate: within the bounds of the language's documentation.
__global__ void approximate(const float *a, const float *b, float *quotient, float *root, float *fast, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        quotient[i] = a[i] / b[i];
        root[i] = sqrtf(a[i]);
        fast[i] = __fdividef(a[i], b[i]) + rsqrtf(b[i]);
    }
}
CASE(approximate) {
    constexpr int kCount = 4096;
    Random random(3);
    std::vector<float> a, b;
    std::vector<double> quotient, root, fast;
    for (int i = 0; i < kCount; ++i) {
        a.push_back(std::ldexp(1.0f + random.below<float>(1 << 20) / (1 << 20), random.below<int>(60) - 30));
        b.push_back(std::ldexp(1.0f + random.below<float>(1 << 20) / (1 << 20), random.below<int>(60) - 30));
        quotient.push_back(double(a[i]) / b[i]);
        root.push_back(std::sqrt(double(a[i])));
        fast.push_back(quotient[i] + 1 / std::sqrt(double(b[i])));
    }
    DeviceArray<float> device_a(a), device_b(b), device_quotient(kCount), device_root(kCount), device_fast(kCount);
    suite::launch(approximate, kCount / 256, 256, device_a.get(), device_b.get(), device_quotient.get(),
                  device_root.get(), device_fast.get(), kCount);
    suite::compare_within(2, device_quotient.to_host(), quotient);
    suite::compare_within(3, device_root.to_host(), root);
    suite::compare_within(4.5, device_fast.to_host(), fast);
}
SUITE_MAIN("flushing")
