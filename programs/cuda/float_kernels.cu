// Floating-point kernels: exact operations, every rounding, conversions, half precision, and functions within their bounds.
#include "elementwise.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define HD __host__ __device__ inline

#ifdef __CUDA_ARCH__
#define ON(device, ...) return device;
#else
#define ON(device, ...) __VA_ARGS__
#endif

// Rounds what double precision has exactly: towards zero, up, down.
HD float toward_zero(double x) { float y = x; return std::fabs(double(y)) > std::fabs(x) ? nextafterf(y, 0.0f) : y; }
HD float up(double x) { float y = x; return double(y) < x ? nextafterf(y, HUGE_VALF) : y; }
HD float down(double x) { float y = x; return double(y) > x ? nextafterf(y, -HUGE_VALF) : y; }
// Rounds a quotient or a root by the sign of what is left.
HD float quotient_up(float a, float b) {
    float q = a / b;
    double rest = double(a) - double(q) * b;
    return rest != 0 && (rest > 0) == (b > 0) ? nextafterf(q, HUGE_VALF) : q;
}
HD float quotient_down(float a, float b) {
    float q = a / b;
    double rest = double(a) - double(q) * b;
    return rest != 0 && (rest > 0) != (b > 0) ? nextafterf(q, -HUGE_VALF) : q;
}
HD float root_down(float a) {
    float q = std::sqrt(a);
    return double(q) * q > a ? nextafterf(q, 0.0f) : q;
}

HD float add_rz(float a, float b) { ON(__fadd_rz(a, b), return toward_zero(double(a) + b);) }
HD float add_ru(float a, float b) { ON(__fadd_ru(a, b), return up(double(a) + b);) }
HD float add_rd(float a, float b) { ON(__fadd_rd(a, b), return down(double(a) + b);) }
HD float mul_rz(float a, float b) { ON(__fmul_rz(a, b), return toward_zero(double(a) * b);) }
HD float mul_ru(float a, float b) { ON(__fmul_ru(a, b), return up(double(a) * b);) }
HD float mul_rd(float a, float b) { ON(__fmul_rd(a, b), return down(double(a) * b);) }
HD float div_ru(float a, float b) { ON(__fdiv_ru(a, b), return quotient_up(a, b);) }
HD float div_rd(float a, float b) { ON(__fdiv_rd(a, b), return quotient_down(a, b);) }
HD float sqrt_rd(float a) { ON(__fsqrt_rd(a), return root_down(a);) }
HD int to_int_rn(float x) { ON(__float2int_rn(x), return int(std::nearbyint(x));) }
HD int to_int_ru(float x) { ON(__float2int_ru(x), return int(std::ceil(x));) }
HD int to_int_rd(float x) { ON(__float2int_rd(x), return int(std::floor(x));) }
HD int to_int_rn(double x) { ON(__double2int_rn(x), return int(std::nearbyint(x));) }
HD int to_int_ru(double x) { ON(__double2int_ru(x), return int(std::ceil(x));) }
HD int to_int_rd(double x) { ON(__double2int_rd(x), return int(std::floor(x));) }
HD float from_int_rz(int x) { ON(__int2float_rz(x), return toward_zero(double(x));) }
HD float from_int_ru(int x) { ON(__int2float_ru(x), return up(double(x));) }
HD float from_uint_rd(unsigned x) { ON(__uint2float_rd(x), return down(double(x));) }
HD float narrow_rz(double x) { ON(__double2float_rz(x), return toward_zero(x);) }
HD float narrow_ru(double x) { ON(__double2float_ru(x), return up(x);) }
HD float saturated(float x) { ON(__saturatef(x), return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;) }
HD unsigned bits(float x) { ON(__float_as_uint(x), unsigned y; std::memcpy(&y, &x, 4); return y;) }
HD float number(unsigned x) { ON(__uint_as_float(x), float y; std::memcpy(&y, &x, 4); return y;) }
HD long long bits(double x) { ON(__double_as_longlong(x), long long y; std::memcpy(&y, &x, 8); return y;) }
HD int upper(double x) { ON(__double2hiint(x), return int(bits(x) >> 32);) }
HD float reciprocal_root(float x) { ON(rsqrtf(x), return float(1.0 / std::sqrt(double(x)));) }
HD float fast_quotient(float a, float b) { ON(__fdividef(a, b), return a / b;) }
HD float fast_sine(float x) { ON(__sinf(x), return std::sin(x);) }
HD float fast_exponential(float x) { ON(__expf(x), return std::exp(x);) }
HD float fast_logarithm(float x) { ON(__logf(x), return std::log(x);) }
HD float sine_pi(float x) { ON(sinpif(x), return float(std::sin(M_PI * std::fmod(double(x), 2.0)));) }

// Halves travel as their bits.
HD __half half_of(float x) { return __float2half_rn(x * 0.01f); }
HD unsigned short half_bits(__half x) { return __half_as_ushort(x); }
HD __half rounded_half(double x) { return __double2half(x); }
HD unsigned short half_sum(float a, float b) {
    ON(half_bits(__hadd(half_of(a), half_of(b))),
       return half_bits(rounded_half(double(__half2float(half_of(a))) + __half2float(half_of(b))));)
}
HD unsigned short half_product(float a, float b) {
    ON(half_bits(__hmul(half_of(a), half_of(b))),
       return half_bits(rounded_half(double(__half2float(half_of(a))) * __half2float(half_of(b))));)
}
HD unsigned short half_fma(float a, float b, float c) {
    ON(half_bits(__hfma(half_of(a), half_of(b), half_of(c))),
       return half_bits(rounded_half(double(__half2float(half_of(a))) * __half2float(half_of(b)) +
                                     __half2float(half_of(c))));)
}
HD unsigned half_pair(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    __half2 x = __halves2half2(half_of(a), half_of(b)), y = __half2half2(half_of(c));
    __half2 sum = __hadd2(x, y);
    return half_bits(__low2half(sum)) | unsigned(half_bits(__high2half(sum))) << 16;
#else
    return half_sum(a, c) | unsigned(half_sum(b, c)) << 16;
#endif
}
HD int half_order(float a, float b) {
    ON(__hlt(half_of(a), half_of(b)) + 2 * __heq(half_of(a), half_of(b)),
       float x = __half2float(half_of(a)); float y = __half2float(half_of(b)); return (x < y) + 2 * (x == y);)
}
HD unsigned short brain(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
HD float of_brain(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

#define EXACT(X)                                                                                                      \
    X(add_f32, float, float, a + b)                                                                                   \
    X(subtract_f32, float, float, a - b)                                                                              \
    X(multiply_f32, float, float, a *b)                                                                               \
    X(fma_f32, float, float, fmaf(a, b, c))                                                                           \
    X(divide_f32, float, float, a / b)                                                                                \
    X(square_root_f32, float, float, sqrtf(fabsf(a)))                                                                 \
    X(reciprocal_f32, float, float, 1.0f / a)                                                                         \
    X(add_rz_f32, float, float, add_rz(a, b))                                                                         \
    X(add_ru_f32, float, float, add_ru(a, b))                                                                         \
    X(add_rd_f32, float, float, add_rd(a, b))                                                                         \
    X(multiply_rz_f32, float, float, mul_rz(a, b))                                                                    \
    X(multiply_ru_f32, float, float, mul_ru(a, b))                                                                    \
    X(multiply_rd_f32, float, float, mul_rd(a, b))                                                                    \
    X(divide_ru_f32, float, float, b == 0 ? a : div_ru(a, b))                                                         \
    X(divide_rd_f32, float, float, b == 0 ? a : div_rd(a, b))                                                         \
    X(square_root_rd_f32, float, float, sqrt_rd(fabsf(a)))                                                            \
    X(minimum_f32, float, float, fminf(a, b))                                                                         \
    X(maximum_f32, float, float, fmaxf(a, b))                                                                         \
    X(signs_f32, float, float, copysignf(fabsf(a), -b))                                                               \
    X(saturated_f32, float, float, saturated(a))                                                                      \
    X(floor_f32, float, float, floorf(a) + ceilf(b))                                                                  \
    X(truncate_f32, float, float, truncf(a) - rintf(b))                                                               \
    X(round_f32, float, float, roundf(a))                                                                             \
    X(remainder_f32, float, float, b == 0 ? a : fmodf(a, b))                                                          \
    X(scale_f32, float, float, ldexpf(a, int(b) & 15))                                                                \
    X(comparisons_f32, int, float, (a < b) + 2 * (a <= c) + 4 * (a == b) + 8 * (a != c) + 16 * (a > b) + 32 * (b >= c)) \
    X(unordered_f32, int, float, !(a < b) + 2 * !(a >= (c - c) / (b - b)) + 4 * (a != a) + 8 * (b == b))                  \
    X(classes_f32, int, float, (isnan(a) ? 1 : 0) + (isinf(b / (c - c)) ? 2 : 0) + (signbit(c) ? 4 : 0))                 \
    X(select_f32, float, float, a < b ? c : a)                                                                        \
    X(bits_f32, unsigned, float, bits(a) ^ bits(b))                                                                   \
    X(number_of_bits_f32, float, float, number(bits(a) & 0xfffff000u))                                                \
    X(to_int_rz_f32, int, float, int(a))                                                                              \
    X(to_int_rn_f32, int, float, to_int_rn(a))                                                                        \
    X(to_int_ru_f32, int, float, to_int_ru(a))                                                                        \
    X(to_int_rd_f32, int, float, to_int_rd(a))                                                                        \
    X(to_unsigned_f32, unsigned, float, unsigned(fabsf(a)))                                                           \
    X(to_wide_f32, long long, float, (long long)(a * 65536.0f))                                                       \
    X(to_short_f32, short, float, short(a))                                                                           \
    X(from_int_f32, float, int, float(a))                                                                             \
    X(from_unsigned_f32, float, unsigned, float(a))                                                                   \
    X(from_int_rz_f32, float, int, from_int_rz(a))                                                                    \
    X(from_int_ru_f32, float, int, from_int_ru(a))                                                                    \
    X(from_unsigned_rd_f32, float, unsigned, from_uint_rd(a))                                                         \
    X(from_wide_f32, float, long long, float(a))                                                                      \
    X(from_short_f32, float, short, float(a) + float((unsigned char)(b)))                                             \
    X(widen_f64, double, float, double(a) * b)                                                                        \
    X(narrow_f32, float, double, float(a))                                                                            \
    X(narrow_rz_f32, float, double, narrow_rz(a))                                                                     \
    X(narrow_ru_f32, float, double, narrow_ru(a))                                                                     \
    X(add_f64, double, double, a + b)                                                                                 \
    X(multiply_f64, double, double, a *b)                                                                             \
    X(fma_f64, double, double, fma(a, b, c))                                                                          \
    X(divide_f64, double, double, a / b)                                                                              \
    X(square_root_f64, double, double, sqrt(fabs(a)))                                                                 \
    X(minimum_f64, double, double, fmin(a, b) + fmax(b, c))                                                           \
    X(floor_f64, double, double, floor(a) + ceil(b) - trunc(c) + rint(a))                                             \
    X(comparisons_f64, int, double, (a < b) + 2 * (a <= c) + 4 * (a == b) + 8 * (a > c) + 16 * !(b >= c))             \
    X(to_int_f64, int, double, to_int_rn(a) + to_int_ru(b) - to_int_rd(c))                                            \
    X(to_wide_f64, long long, double, (long long)(a * 1e6))                                                           \
    X(from_int_f64, double, int, double(a) + double(unsigned(b)))                                                     \
    X(from_wide_f64, double, long long, double(a) + double((unsigned long long)(b)))                                  \
    X(bits_f64, long long, double, bits(a) ^ upper(b))                                                                \
    X(half_sum_f16, unsigned short, float, half_sum(a, b))                                                            \
    X(half_product_f16, unsigned short, float, half_product(a, b))                                                    \
    X(half_fma_f16, unsigned short, float, half_fma(a, b, c))                                                         \
    X(half_pair_f16x2, unsigned, float, half_pair(a, b, c))                                                           \
    X(half_order_f16, int, float, half_order(a, b))                                                                   \
    X(to_half_f16, unsigned short, float, half_bits(__float2half_rn(a)))                                              \
    X(to_half_rz_f16, unsigned short, float, half_bits(__float2half_rz(a)))                                           \
    X(of_half_f16, float, float, __half2float(__float2half_rn(a)))                                                    \
    X(brain_bf16, unsigned short, float, brain(a))                                                                    \
    X(of_brain_bf16, float, float, of_brain(a) + of_brain(b))

#define APPROXIMATE(X)                                                                                                \
    X(sine_f32, float, float, sinf(a))                                                                                \
    X(cosine_f32, float, float, cosf(a * 1000.0f))                                                                    \
    X(tangent_f32, float, float, tanf(fmodf(a, 1.0f)))                                                                \
    X(exponential_f32, float, float, expf(fmodf(a, 8.0f)))                                                            \
    X(exponential_2_f32, float, float, exp2f(fmodf(a, 8.0f)))                                                         \
    X(logarithm_f32, float, float, logf(fabsf(a) + 0.1f))                                                             \
    X(logarithm_2_f32, float, float, log2f(fabsf(a) + 0.1f) + log10f(fabsf(b) + 0.1f))                                \
    X(power_f32, float, float, powf(fabsf(fmodf(a, 4.0f)) + 0.1f, fmodf(b, 3.0f)))                                    \
    X(arc_f32, float, float, atan2f(a, b) + asinf(fmodf(c, 1.0f)))                                                    \
    X(hyperbolic_f32, float, float, tanhf(a) + erff(b))                                                               \
    X(cube_root_f32, float, float, cbrtf(a) + hypotf(b, c))                                                           \
    X(reciprocal_root_f32, float, float, reciprocal_root(fabsf(a) + 0.01f))                                           \
    X(sine_pi_f32, float, float, sine_pi(a))                                                                          \
    X(fast_f32, float, float, fast_sine(fmodf(a, 3.0f)) + fast_exponential(fmodf(b, 4.0f)) + fast_logarithm(fabsf(c) + 0.5f)) \
    X(fast_quotient_f32, float, float, fast_quotient(fmodf(a, 100.0f), fabsf(b) + 1.0f))                              \
    X(sine_f64, double, double, sin(a) + cos(b * 1e5))                                                                \
    X(exponential_f64, double, double, exp(fmod(a, 8.0)) + log(fabs(b) + 0.1))                                        \
    X(power_f64, double, double, pow(fabs(fmod(a, 4.0)) + 0.1, fmod(b, 3.0)))                                         \
    X(arc_f64, double, double, atan2(a, b) + tanh(c))                                                                 \
    X(gamma_f64, double, double, lgamma(fabs(fmod(a, 20.0)) + 0.5) + erf(b))

EXACT(DEFINE_ELEMENTWISE)
APPROXIMATE(DEFINE_ELEMENTWISE)

int main() {
    constexpr double kTolerance = 4e-6;
    Checksum checksum;
    EXACT(RUN_ELEMENTWISE)
    APPROXIMATE(RUN_APPROXIMATE)
    return report_ok("float_kernels", checksum);
}
