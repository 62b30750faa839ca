// Programs of many small kernels: each computes one expression of three inputs, element by element, on the device and by
// the same C++ on the host.
//
// A program lists its kernels once, as `#define KERNELS(X) X(name, result type, input type, expression of a, b, c) ..`;
// `KERNELS(DEFINE_ELEMENTWISE)` defines them, `KERNELS(RUN_ELEMENTWISE)` in `main` runs them.
#pragma once

#include "check.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#define DEFINE_ELEMENTWISE(name, Out, In, ...)                                                                        \
    __host__ __device__ Out name##_value(In a, In b, In c) {                                                          \
        (void)a, (void)b, (void)c;                                                                                    \
        return __VA_ARGS__;                                                                                           \
    }                                                                                                                 \
    __global__ void name(const In *a, const In *b, const In *c, Out *out, int count) {                                \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                                                \
        if (i < count) {                                                                                              \
            out[i] = name##_value(a[i], b[i], c[i]);                                                                  \
        }                                                                                                             \
    }

// Exact kernels, whose results go into `checksum`.
#define RUN_ELEMENTWISE(name, Out, In, ...) run_elementwise<Out, In>(#name, name, name##_value, 0.0, &checksum);

// Kernels whose results may differ from the host's by a relative error.
#define RUN_APPROXIMATE(name, Out, In, ...) run_elementwise<Out, In>(#name, name, name##_value, kTolerance, nullptr);

constexpr int kElements = 1500;

// Integers at which instructions change their behaviour, small ones, and any.
template <typename T> std::enable_if_t<std::is_integral<T>::value, std::vector<T>> elementwise_inputs(uint32_t seed) {
    Random random(seed);
    const uint64_t edges[] = {0,          1,          2,      31,         32,          0x7f,       0x80,       0xff,
                              0x7fff,     0x8000,     0xffff, 0x7fffffff, 0x80000000,  0xffffffff, ~0ull,      ~0ull << 31,
                              1ull << 32, 1ull << 63, ~0ull >> 1};
    std::vector<T> values(kElements);
    for (T &value : values) {
        uint32_t choice = random.next() % 8;
        uint64_t high = random.next(), low = random.next();
        uint64_t word = high << 32 | low;
        value = static_cast<T>(choice < 3 ? edges[low % (sizeof edges / 8)] : choice < 5 ? low % 33 - 16 : word >> (high % 50));
    }
    return values;
}

// Finite numbers of moderate size, among them halves and integers.
template <typename T> std::enable_if_t<!std::is_integral<T>::value, std::vector<T>> elementwise_inputs(uint32_t seed) {
    Random random(seed);
    std::vector<T> values(kElements);
    for (T &value : values) {
        int mantissa = static_cast<int>(random.next() >> 8) - (1 << 23);
        int exponent = static_cast<int>(random.next() % 20) - 29;
        bool simple = random.next() % 4 == 0;
        value = simple ? static_cast<T>((mantissa >> 12) * 0.5) : static_cast<T>(std::ldexp(mantissa | 1, exponent));
    }
    return values;
}

template <typename T> bool same(T got, T expected, double tolerance) {
    if (std::memcmp(&got, &expected, sizeof got) == 0) {
        return true;
    }
    double g = static_cast<double>(got), e = static_cast<double>(expected);
    if (g != g && e != e) {
        return true;
    }
    return tolerance > 0 && std::fabs(g - e) <= tolerance * std::fmax(1.0, std::fabs(e));
}

template <typename Out, typename In>
void run_elementwise(const char *name, void (*kernel)(const In *, const In *, const In *, Out *, int),
                     Out (*value)(In, In, In), double tolerance, Checksum *checksum) {
    std::vector<In> a = elementwise_inputs<In>(11), b = elementwise_inputs<In>(22), c = elementwise_inputs<In>(33);
    DeviceArray<In> device_a(a), device_b(b), device_c(c);
    DeviceArray<Out> device_out(kElements);
    kernel<<<(kElements + 127) / 128, 128>>>(device_a.get(), device_b.get(), device_c.get(), device_out.get(), kElements);
    CHECK(cudaGetLastError());
    std::vector<Out> out = device_out.to_host();
    for (int i = 0; i < kElements; ++i) {
        Out expected = value(a[i], b[i], c[i]);
        if (!same(out[i], expected, tolerance)) {
            std::fprintf(stderr, "%s: element %d of (%.17g, %.17g, %.17g) is %.17g, expected %.17g\n", name, i,
                         static_cast<double>(a[i]), static_cast<double>(b[i]), static_cast<double>(c[i]),
                         static_cast<double>(out[i]), static_cast<double>(expected));
            std::exit(1);
        }
    }
    if (checksum != nullptr) {
        checksum->add(out);
    }
}
