// The mathematical functions within the bounds of the language's documentation, and what they give for special
// arguments.
#include "suite.h"

#include <algorithm>

constexpr int kPoints = 2048;

// `kPoints` numbers from `low` to `high`, both among them; evenly, or evenly in the logarithm when both are positive.
template <typename T> static std::vector<T> points(double low, double high, uint32_t seed) {
    Random random(seed);
    std::vector<T> values;
    bool logarithmic = low > 0 && high / low > 1000;
    for (int i = 0; i < kPoints; ++i) {
        double at = i == 0 ? 0 : i == 1 ? 1 : random.next() / 4294967296.0 + random.next() / 18446744073709551616.0;
        values.push_back(static_cast<T>(logarithmic ? low * std::pow(high / low, at) : low + (high - low) * at));
    }
    return values;
}

template <typename T> using Precise = std::conditional_t<std::is_same_v<T, float>, double, long double>;

#define CLOSE1(NAME, T, LOW, HIGH, BOUND_ULP, DEVICE, HOST)                                                            \
    __global__ void NAME(const T *as, T *out, int count) {                                                             \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                                                 \
        if (i < count) {                                                                                               \
            T a = as[i];                                                                                               \
            out[i] = DEVICE;                                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    CASE(NAME) {                                                                                                       \
        const std::vector<T> as = points<T>(LOW, HIGH, 17);                                                            \
        std::vector<Precise<T>> expected;                                                                              \
        for (T each : as) {                                                                                            \
            const Precise<T> a = each;                                                                                 \
            expected.push_back(HOST);                                                                                  \
        }                                                                                                              \
        DeviceArray<T> device_as(as), out(kPoints);                                                                    \
        suite::launch(NAME, kPoints / 128, 128, device_as.get(), out.get(), kPoints);                                  \
        suite::compare_within(BOUND_ULP, out.to_host(), expected);                                                     \
    }

#define CLOSE2(NAME, T, LOW_A, HIGH_A, LOW_B, HIGH_B, BOUND_ULP, DEVICE, HOST)                                         \
    __global__ void NAME(const T *as, const T *bs, T *out, int count) {                                                \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                                                 \
        if (i < count) {                                                                                               \
            T a = as[i], b = bs[i];                                                                                    \
            out[i] = DEVICE;                                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    CASE(NAME) {                                                                                                       \
        const std::vector<T> as = points<T>(LOW_A, HIGH_A, 17), bs = points<T>(LOW_B, HIGH_B, 18);                     \
        std::vector<Precise<T>> expected;                                                                              \
        for (int i = 0; i < kPoints; ++i) {                                                                            \
            const Precise<T> a = as[i], b = bs[i];                                                                     \
            expected.push_back(HOST);                                                                                  \
        }                                                                                                              \
        DeviceArray<T> device_as(as), device_bs(bs), out(kPoints);                                                     \
        suite::launch(NAME, kPoints / 128, 128, device_as.get(), device_bs.get(), out.get(), kPoints);                 \
        suite::compare_within(BOUND_ULP, out.to_host(), expected);                                                     \
    }

constexpr long double kPi = 3.14159265358979323846264338327950288L;

CLOSE1(sin_f32, float, -1e4, 1e4, 2.1, sinf(a), std::sin(a))
CLOSE1(sin_large_f32, float, 1e5, 1e30, 2.1, sinf(a), std::sin(a))
CLOSE1(cos_f32, float, -1e4, 1e4, 2.1, cosf(a), std::cos(a))
CLOSE1(tan_f32, float, -1e3, 1e3, 4.1, tanf(a), std::tan(a))
CLOSE1(sinpi_f32, float, -0.5, 0.5, 2.1, sinpif(a), double(std::sin(kPi *a)))
CLOSE1(cospi_f32, float, -0.4, 0.4, 2.1, cospif(a), double(std::cos(kPi *a)))
CLOSE1(asin_f32, float, -1, 1, 4.1, asinf(a), std::asin(a))
CLOSE1(acos_f32, float, -1, 1, 3.1, acosf(a), std::acos(a))
CLOSE1(atan_f32, float, -50, 50, 2.1, atanf(a), std::atan(a))
CLOSE2(atan2_f32, float, -10, 10, -10, 10, 3.1, atan2f(a, b), std::atan2(a, b))
CLOSE1(sinh_f32, float, -80, 80, 3.1, sinhf(a), std::sinh(a))
CLOSE1(cosh_f32, float, -80, 80, 2.1, coshf(a), std::cosh(a))
CLOSE1(tanh_f32, float, -9, 9, 2.1, tanhf(a), std::tanh(a))
CLOSE1(asinh_f32, float, -1e6, 1e6, 3.1, asinhf(a), std::asinh(a))
CLOSE1(acosh_f32, float, 1, 1e6, 4.1, acoshf(a), std::acosh(a))
CLOSE1(atanh_f32, float, -0.99, 0.99, 3.1, atanhf(a), std::atanh(a))
CLOSE1(exp_f32, float, -100, 88, 2.1, expf(a), std::exp(a))
CLOSE1(exp2_f32, float, -140, 127, 2.1, exp2f(a), std::exp2(a))
CLOSE1(exp10_f32, float, -40, 38, 2.1, exp10f(a), double(std::pow(10.0L, static_cast<long double>(a))))
CLOSE1(expm1_f32, float, -20, 80, 1.1, expm1f(a), std::expm1(a))
CLOSE1(log_f32, float, 1e-44, 3e38, 1.1, logf(a), std::log(a))
CLOSE1(log2_f32, float, 1e-44, 3e38, 1.1, log2f(a), std::log2(a))
CLOSE1(log10_f32, float, 1e-44, 3e38, 2.1, log10f(a), std::log10(a))
CLOSE1(log1p_f32, float, -0.99, 1e3, 1.1, log1pf(a), std::log1p(a))
CLOSE2(pow_f32, float, 1e-6, 1e6, -6, 6, 4.1, powf(a, b), std::pow(a, b))
CLOSE1(powi_f32, float, -9, 9, 4.1, powf(a, 7.0f), std::pow(a, 7.0))
CLOSE1(cbrt_f32, float, -1e9, 1e9, 1.1, cbrtf(a), std::cbrt(a))
CLOSE1(rcbrt_f32, float, 1e-9, 1e9, 2.1, rcbrtf(a), 1 / std::cbrt(a))
CLOSE1(rsqrt_f32, float, 1e-30, 1e30, 2.1, rsqrtf(a), 1 / std::sqrt(a))
CLOSE2(hypot_f32, float, -1e18, 1e18, -1e18, 1e18, 3.1, hypotf(a, b), std::hypot(a, b))
CLOSE2(rhypot_f32, float, 1, 1e9, 1, 1e9, 2.1, rhypotf(a, b), 1 / std::hypot(a, b))
CLOSE2(norm3d_f32, float, -1e3, 1e3, -1e3, 1e3, 3.1, norm3df(a, b, 5.0f), std::sqrt(a *a + b * b + 25))
CLOSE1(erf_f32, float, -4, 4, 2.1, erff(a), std::erf(a))
CLOSE1(erfc_f32, float, -4, 9, 4.1, erfcf(a), std::erfc(a))
CLOSE1(erfcx_f32, float, -2, 4, 4.1, erfcxf(a),
       double(std::exp(static_cast<long double>(a) * a) * std::erfc(static_cast<long double>(a))))
CLOSE1(normcdf_f32, float, -5, 5, 6.1, normcdff(a),
       double(std::erfc(-static_cast<long double>(a) / std::sqrt(2.0L)) / 2))
CLOSE1(tgamma_f32, float, 0.1, 30, 8.1, tgammaf(a), std::tgamma(a))
CLOSE1(lgamma_f32, float, 3, 1e4, 6.1, lgammaf(a), std::lgamma(a))
CLOSE1(bessel_j0_f32, float, 0.01, 2, 9.1, j0f(a), ::j0(a))
CLOSE1(bessel_y1_f32, float, 0.01, 1.5, 9.1, y1f(a), ::y1(a))
CLOSE1(erfinv_f32, float, -0.95, 0.95, 400, erff(erfinvf(a)), a)

CLOSE1(sin_f64, double, -1e5, 1e5, 2.1, sin(a), std::sin(a))
CLOSE1(cos_large_f64, double, 1e6, 1e18, 2.1, cos(a), std::cos(a))
CLOSE1(tan_f64, double, -1e3, 1e3, 2.1, tan(a), std::tan(a))
CLOSE1(sinpi_f64, double, -0.5, 0.5, 2.1, sinpi(a), std::sin(kPi *a))
CLOSE1(asin_f64, double, -1, 1, 2.1, asin(a), std::asin(a))
CLOSE1(acos_f64, double, -1, 1, 2.1, acos(a), std::acos(a))
CLOSE1(atan_f64, double, -50, 50, 2.1, atan(a), std::atan(a))
CLOSE2(atan2_f64, double, -10, 10, -10, 10, 2.1, atan2(a, b), std::atan2(a, b))
CLOSE1(sinh_f64, double, -700, 700, 2.1, sinh(a), std::sinh(a))
CLOSE1(cosh_f64, double, -700, 700, 2.1, cosh(a), std::cosh(a))
CLOSE1(tanh_f64, double, -20, 20, 2.1, tanh(a), std::tanh(a))
CLOSE1(asinh_f64, double, -1e6, 1e6, 3.1, asinh(a), std::asinh(a))
CLOSE1(acosh_f64, double, 1, 1e6, 3.1, acosh(a), std::acosh(a))
CLOSE1(atanh_f64, double, -0.99, 0.99, 2.1, atanh(a), std::atanh(a))
CLOSE1(exp_f64, double, -740, 709, 1.1, exp(a), std::exp(a))
CLOSE1(exp2_f64, double, -1070, 1023, 1.1, exp2(a), std::exp2(a))
CLOSE1(exp10_f64, double, -300, 308, 1.1, exp10(a), std::pow(10.0L, a))
CLOSE1(expm1_f64, double, -40, 700, 1.1, expm1(a), std::expm1(a))
CLOSE1(log_f64, double, 1e-320, 1e308, 1.1, log(a), std::log(a))
CLOSE1(log2_f64, double, 1e-300, 1e308, 1.1, log2(a), std::log2(a))
CLOSE1(log10_f64, double, 1e-300, 1e308, 1.1, log10(a), std::log10(a))
CLOSE1(log1p_f64, double, -0.99, 1e3, 1.1, log1p(a), std::log1p(a))
CLOSE2(pow_f64, double, 1e-9, 1e9, -20, 20, 2.1, pow(a, b), std::pow(a, b))
CLOSE1(cbrt_f64, double, -1e9, 1e9, 1.1, cbrt(a), std::cbrt(a))
CLOSE1(rcbrt_f64, double, 1e-9, 1e9, 1.1, rcbrt(a), 1 / std::cbrt(a))
CLOSE1(rsqrt_f64, double, 1e-300, 1e300, 1.1, rsqrt(a), 1 / std::sqrt(a))
CLOSE2(hypot_f64, double, -1e150, 1e150, -1e150, 1e150, 2.1, hypot(a, b), std::hypot(a, b))
CLOSE1(erf_f64, double, -6, 6, 2.1, erf(a), std::erf(a))
CLOSE1(erfc_f64, double, -5, 25, 5.1, erfc(a), std::erfc(a))
CLOSE1(tgamma_f64, double, 0.1, 150, 10.1, tgamma(a), std::tgamma(a))
CLOSE1(lgamma_f64, double, 3, 1e6, 4.1, lgamma(a), std::lgamma(a))
CLOSE1(bessel_j1_f64, double, 0.01, 3, 7.1, j1(a), ::j1l(a))

// The fast functions: bounds in units of the result, or absolute ones.
struct Fast {
    float sine, cosine, exponential, exponential10, logarithm, logarithm2, logarithm10, power, tangent, quotient, root,
        tanh;
};
__global__ void fast_functions(const float *as, const float *bs, Fast *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        float a = as[i], b = bs[i], sine, cosine, root, hyperbolic;
        __sincosf(a, &sine, &cosine);
        asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(b));
        asm("tanh.approx.f32 %0, %1;" : "=f"(hyperbolic) : "f"(a));
        out[i] = {sine,        cosine,       __expf(a),        __exp10f(a),      __logf(b), __log2f(b),
                  __log10f(b), __powf(b, a), __tanf(a * 0.3f), __fdividef(a, b), root,      hyperbolic};
    }
}
CASE(fast_functions) {
    const std::vector<float> as = points<float>(-3.1, 3.1, 5), bs = points<float>(0.01, 1000, 6);
    DeviceArray<float> device_as(as), device_bs(bs);
    DeviceArray<Fast> out(kPoints);
    suite::launch(fast_functions, kPoints / 128, 128, device_as.get(), device_bs.get(), out.get(), kPoints);
    const std::vector<Fast> got = out.to_host();
    auto near = [](float got, double expected, double relative, double absolute) {
        return std::fabs(got - expected) <= relative * std::fabs(expected) + absolute;
    };
    const double ulp = std::ldexp(1.0, -23);
    bool right[12];
    std::fill(right, right + 12, true);
    for (int i = 0; i < kPoints; ++i) {
        double a = as[i], b = bs[i];
        const Fast &fast = got[i];
        right[0] &= near(fast.sine, std::sin(a), 0, std::ldexp(1.0, -21));
        right[1] &= near(fast.cosine, std::cos(a), 0, std::ldexp(1.0, -21));
        right[2] &= near(fast.exponential, std::exp(a), (2 + std::floor(std::fabs(1.173 * a))) * ulp, 0);
        right[3] &= near(fast.exponential10, std::pow(10, a), (2 + std::floor(std::fabs(2.97 * a))) * ulp, 0);
        right[4] &= near(fast.logarithm, std::log(b), 3 * ulp, std::ldexp(1.0, -21));
        right[5] &= near(fast.logarithm2, std::log2(b), 2 * ulp, std::ldexp(1.0, -21));
        right[6] &= near(fast.logarithm10, std::log10(b), 3 * ulp, std::ldexp(1.0, -21));
        right[7] &= near(fast.power, std::pow(b, a), 1e-5, 0);
        right[8] &= near(fast.tangent, std::tan(double(as[i] * 0.3f)), 1e-5, 1e-6);
        right[9] &= near(fast.quotient, a / b, 2 * ulp, 0);
        right[10] &= near(fast.root, std::sqrt(b), 2 * ulp, 0);
        right[11] &= near(fast.tanh, std::tanh(a), std::ldexp(1.0, -10), 0);
    }
    for (int i = 0; i < 12; ++i) {
        if (!right[i]) {
            std::fprintf(stderr, "fast function %d is outside its bound\n", i);
        }
        HOLDS(right[i]);
    }
}

// Special arguments, where the result is exact.
// `one`, `infinity` and `nan` are arguments so that the compiler cannot compute the results.
__global__ void special_arguments(float one, float infinity, float nan, float *out) {
    const float values[] = {sinf(infinity),
                            cosf(-infinity),
                            sinf(-0.0f * one),
                            expf(-infinity),
                            expf(infinity),
                            expf(0.0f * one),
                            logf(0.0f * one),
                            logf(-1.0f * one),
                            logf(1.0f * one),
                            logf(infinity),
                            powf(0.0f * one, 0.0f * one),
                            powf(-2.0f * one, 3.0f * one),
                            powf(-2.0f * one, 0.5f * one),
                            powf(infinity, -1.0f * one),
                            powf(nan, 0.0f * one),
                            powf(1.0f * one, nan),
                            powf(-0.0f * one, -3.0f * one),
                            powf(2.0f * one, 10.0f * one),
                            sqrtf(-1.0f * one),
                            sqrtf(-0.0f * one),
                            rsqrtf(0.0f * one),
                            cbrtf(-27.0f * one),
                            atan2f(0.0f * one, -0.0f * one) > 3.14f ? 1.0f : 0.0f,
                            atan2f(-0.0f * one, 1.0f * one),
                            tanhf(infinity),
                            tanhf(-infinity),
                            erff(infinity),
                            erfcf(infinity),
                            tgammaf(3.0f * one),
                            tgammaf(-1.0f * one),
                            lgammaf(1.0f * one),
                            lgammaf(-infinity),
                            exp2f(-3.0f * one),
                            exp2f(10.0f * one),
                            fmodf(infinity, 2.0f * one),
                            asinf(2.0f * one),
                            acosf(1.0f * one),
                            acoshf(0.5f * one),
                            atanhf(1.0f * one),
                            log1pf(-1.0f * one),
                            expm1f(-infinity),
                            hypotf(infinity, nan),
                            ldexpf(0.75f * one, 4),
                            sinpif(3.0f * one),
                            cospif(0.5f * one),
                            cospif(1.0f * one)};
    for (int i = 0; i < static_cast<int>(sizeof values / sizeof values[0]); ++i) {
        out[i] = values[i];
    }
}
CASE(special_arguments) {
    const float infinity = INFINITY, nan = NAN;
    const std::vector<float> expected = {
        nan,       nan,  -0.0f, 0,     infinity, 1,   -infinity, nan,       0,  infinity, 1,  -8, nan, 0,   1, 1,
        -infinity, 1024, nan,   -0.0f, infinity, -3,  1,         -0.0f,     1,  -1,       1,  0,  2,   nan, 0, infinity,
        0.125f,    1024, nan,   nan,   0,        nan, infinity,  -infinity, -1, infinity, 12, 0,  0,   -1};
    DeviceArray<float> out(expected.size());
    suite::launch(special_arguments, 1, 1, 1.0f, infinity, nan, out.get());
    suite::compare(out, expected);
}
SUITE_MAIN("mathematics")
