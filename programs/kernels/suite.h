// What the kernel suite's programs share: cases that register themselves, inputs at the edges of a type, comparison bit
// by bit or within a bound in units in the last place, and `main`.
//
// A program runs all its cases, or those named on its command line, and prints
// `NAME: ok checksum=HEX kernels=K launches=L`, the same line on every device; what differs goes to standard error, and
// the exit status is then 1. Host references are compiled so that the compiler neither contracts nor reorders
// roundings, device code without contraction.
#pragma once

#include "../cuda/check.h"

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>

namespace suite {

struct Case {
    const char *name;
    void (*run)();
};

struct State {
    std::vector<Case> cases;
    const char *current = "";
    unsigned failures = 0;
    unsigned launches = 0;
    std::set<const void *> kernels;
    Checksum checksum;
};

inline State &state() {
    static State state;
    return state;
}

struct Registration {
    Registration(const char *name, void (*run)()) { state().cases.push_back({name, run}); }
};

// Counts the launch of `kernel`, which must succeed.
inline void count_launch(const void *kernel) {
    CHECK(cudaGetLastError());
    state().kernels.insert(kernel);
    ++state().launches;
}

template <typename... P, typename... A>
void launch_shared(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A... arguments) {
    kernel<<<grid, block, shared_bytes>>>(arguments...);
    count_launch(reinterpret_cast<const void *>(kernel));
}

template <typename... P, typename... A> void launch(void (*kernel)(P...), dim3 grid, dim3 block, A... arguments) {
    launch_shared(kernel, grid, block, 0, arguments...);
}

// Says in hexadecimal what a value is.
template <typename T> void print_value(const char *what, const T &value) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    std::fprintf(stderr, " %s 0x", what);
    for (size_t i = sizeof(T); i-- > 0;) {
        std::fprintf(stderr, "%02x", bytes[i]);
    }
    if constexpr (std::is_arithmetic_v<T>) {
        std::fprintf(stderr, " (%.17g)", static_cast<double>(value));
    }
}

// Whether a value is a NaN; overloaded for the types that the language does not know.
template <typename T> bool is_nan(const T &value) {
    if constexpr (std::is_floating_point_v<T>) {
        return value != value;
    }
    return false;
}

// Equal bit by bit, and a NaN equals any NaN.
template <typename T> bool same(const T &left, const T &right) {
    return (is_nan(left) && is_nan(right)) || std::memcmp(&left, &right, sizeof(T)) == 0;
}

template <typename T> void add_to_checksum(const T &value) {
    if (is_nan(value)) {
        state().checksum.add_value('n');
    } else {
        state().checksum.add_value(value);
    }
}

constexpr unsigned kShownFailures = 6;

// Begins the report of a wrong element; false when enough were shown.
inline bool show_failure(size_t index) {
    ++state().failures;
    if (state().failures > kShownFailures) {
        return false;
    }
    std::fprintf(stderr, "%s: element %zu:", state().current, index);
    return true;
}

// Compares what the device computed with what the host did, and adds it to the checksum.
template <typename T> void compare(const std::vector<T> &got, const std::vector<T> &expected) {
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
        if (!same(got[i], expected[i]) && show_failure(i)) {
            print_value("is", got[i]);
            print_value("expected", expected[i]);
            std::fputc('\n', stderr);
        }
        add_to_checksum(got[i]);
    }
}

template <typename T> void compare(const DeviceArray<T> &got, const std::vector<T> &expected) {
    compare(got.to_host(), expected);
}

// A condition that must hold.
inline void expect(bool holds, const char *condition) {
    if (!holds && ++state().failures <= kShownFailures) {
        std::fprintf(stderr, "%s: not true: %s\n", state().current, condition);
    }
}

#define CASE(NAME)                                                                                                     \
    static void case_##NAME();                                                                                         \
    static const suite::Registration registration_##NAME(#NAME, case_##NAME);                                          \
    static void case_##NAME()

#define HOLDS(condition) suite::expect((condition), #condition)

// ---- Inputs ----

template <typename T> T from_bits(uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof(T));
    return value;
}

inline uint64_t random_bits(Random &random) {
    uint64_t high = random.next();
    return high << 32 | random.next();
}

// The values at which implementations go wrong, and random ones of every magnitude.
template <typename T> struct Domain {
    static std::vector<T> edges() {
        using Limits = std::numeric_limits<T>;
        if constexpr (std::is_floating_point_v<T>) {
            const T tiny = Limits::denorm_min(), normal = Limits::min(), large = Limits::max();
            const T precise = T(1) / Limits::epsilon();
            return {T(0),
                    T(-0.0),
                    T(1),
                    T(-1),
                    T(0.5),
                    T(-0.5),
                    T(1.5),
                    T(2.5),
                    T(-2.5),
                    T(3),
                    T(-7),
                    T(0.1),
                    T(255.5),
                    T(-32768.5),
                    T(65536),
                    T(1e-20),
                    T(1e18),
                    T(-1e9),
                    tiny,
                    -tiny,
                    normal - tiny,
                    normal,
                    -normal,
                    large,
                    -large,
                    precise,
                    precise - T(1),
                    precise + T(0.5),
                    T(1) + Limits::epsilon(),
                    T(4294967296.0),
                    Limits::infinity(),
                    -Limits::infinity(),
                    Limits::quiet_NaN()};
        } else {
            const T ones = static_cast<T>(~T(0));
            std::vector<T> edges = {T(0),
                                    T(1),
                                    T(2),
                                    T(3),
                                    T(7),
                                    T(31),
                                    T(32),
                                    T(33),
                                    T(100),
                                    ones,
                                    Limits::max(),
                                    Limits::min(),
                                    static_cast<T>(Limits::max() - 1),
                                    static_cast<T>(Limits::min() + 1),
                                    static_cast<T>(ones / 3),
                                    static_cast<T>(~T(6))};
            for (unsigned shift = 7; shift < 8 * sizeof(T); shift += 8) {
                edges.push_back(static_cast<T>(T(1) << (shift - 1)));
                edges.push_back(static_cast<T>((uint64_t(1) << shift) + 1));
            }
            return edges;
        }
    }
    static T random(Random &random) {
        uint64_t bits = random_bits(random);
        if constexpr (std::is_floating_point_v<T>) {
            if (random.next() % 2 == 0) {
                return std::ldexp(static_cast<T>(static_cast<int32_t>(bits)), static_cast<int>(bits >> 40 & 31) - 31);
            }
            return from_bits<T>(bits);
        } else {
            return static_cast<T>(bits >> (random.next() % (8 * sizeof(T))));
        }
    }
};

constexpr int kMapCount = 1536;

// `kMapCount` values of T: for argument `position` of a function with several, so that edges meet edges.
template <typename T> std::vector<T> inputs(unsigned position) {
    const std::vector<T> edges = Domain<T>::edges();
    Random random(77 + position), choice(5 + 3 * position);
    std::vector<T> values;
    for (size_t i = 0; i < kMapCount; ++i) {
        size_t stride = position == 0 ? 1 : edges.size();
        if (position < 2 && i < edges.size() * edges.size()) {
            values.push_back(edges[i / stride % edges.size()]);
        } else {
            values.push_back(choice.next() % 3 == 0 ? edges[choice.next() % edges.size()] : Domain<T>::random(random));
        }
    }
    return values;
}

// ---- One expression over many values ----

template <typename R, typename A> void run_map(void (*kernel)(const A *, R *, int), R (*host)(A)) {
    const std::vector<A> a = inputs<A>(0);
    std::vector<R> expected;
    for (int i = 0; i < kMapCount; ++i) {
        expected.push_back(host(a[i]));
    }
    DeviceArray<A> device_a(a);
    DeviceArray<R> out(kMapCount);
    launch(kernel, kMapCount / 128, 128, device_a.get(), out.get(), kMapCount);
    compare(out, expected);
}

template <typename R, typename A, typename B>
void run_map(void (*kernel)(const A *, const B *, R *, int), R (*host)(A, B)) {
    const std::vector<A> a = inputs<A>(0);
    const std::vector<B> b = inputs<B>(1);
    std::vector<R> expected;
    for (int i = 0; i < kMapCount; ++i) {
        expected.push_back(host(a[i], b[i]));
    }
    DeviceArray<A> device_a(a);
    DeviceArray<B> device_b(b);
    DeviceArray<R> out(kMapCount);
    launch(kernel, kMapCount / 128, 128, device_a.get(), device_b.get(), out.get(), kMapCount);
    compare(out, expected);
}

template <typename R, typename A, typename B, typename C>
void run_map(void (*kernel)(const A *, const B *, const C *, R *, int), R (*host)(A, B, C)) {
    const std::vector<A> a = inputs<A>(0);
    const std::vector<B> b = inputs<B>(1);
    const std::vector<C> c = inputs<C>(2);
    std::vector<R> expected;
    for (int i = 0; i < kMapCount; ++i) {
        expected.push_back(host(a[i], b[i], c[i]));
    }
    DeviceArray<A> device_a(a);
    DeviceArray<B> device_b(b);
    DeviceArray<C> device_c(c);
    DeviceArray<R> out(kMapCount);
    launch(kernel, kMapCount / 128, 128, device_a.get(), device_b.get(), device_c.get(), out.get(), kMapCount);
    compare(out, expected);
}

// A kernel that computes DEVICE of every a (b, c), and its reference HOST; the results have the type R.
#define REF1(NAME, R, A, DEVICE, HOST)                                                                                 \
    __global__ void NAME(const A *as, R *out, int count) {                                                             \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                                                 \
        if (i < count) {                                                                                               \
            A a = as[i];                                                                                               \
            out[i] = static_cast<R>(DEVICE);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static R NAME##_host(A a) { return static_cast<R>(HOST); }                                                         \
    CASE(NAME) { suite::run_map(NAME, NAME##_host); }

#define REF_AB(NAME, R, A, B, DEVICE, HOST)                                                                            \
    __global__ void NAME(const A *as, const B *bs, R *out, int count) {                                                \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                                                 \
        if (i < count) {                                                                                               \
            A a = as[i];                                                                                               \
            B b = bs[i];                                                                                               \
            out[i] = static_cast<R>(DEVICE);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static R NAME##_host(A a, B b) { return static_cast<R>(HOST); }                                                    \
    CASE(NAME) { suite::run_map(NAME, NAME##_host); }

#define REF_ABC(NAME, R, A, B, C, DEVICE, HOST)                                                                        \
    __global__ void NAME(const A *as, const B *bs, const C *cs, R *out, int count) {                                   \
        int i = blockIdx.x * blockDim.x + threadIdx.x;                                                                 \
        if (i < count) {                                                                                               \
            A a = as[i];                                                                                               \
            B b = bs[i];                                                                                               \
            C c = cs[i];                                                                                               \
            out[i] = static_cast<R>(DEVICE);                                                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static R NAME##_host(A a, B b, C c) { return static_cast<R>(HOST); }                                               \
    CASE(NAME) { suite::run_map(NAME, NAME##_host); }

#define REF2(NAME, R, T, DEVICE, HOST) REF_AB(NAME, R, T, T, DEVICE, HOST)
#define REF3(NAME, R, T, DEVICE, HOST) REF_ABC(NAME, R, T, T, T, DEVICE, HOST)

// The same expression on the device and, by the host's compiler and processor, on the host.
#define MAP1(NAME, R, T, EXPRESSION) REF1(NAME, R, T, EXPRESSION, EXPRESSION)
#define MAP2(NAME, R, T, EXPRESSION) REF_AB(NAME, R, T, T, EXPRESSION, EXPRESSION)
#define MAP3(NAME, R, T, EXPRESSION) REF_ABC(NAME, R, T, T, T, EXPRESSION, EXPRESSION)
#define MAP_AB(NAME, R, A, B, EXPRESSION) REF_AB(NAME, R, A, B, EXPRESSION, EXPRESSION)

// ---- Rounding on the host ----

// The host rounds this way until the end of the scope; operands and results must be volatile.
class Rounding {
  public:
    explicit Rounding(int mode) : previous_(std::fegetround()) { std::fesetround(mode); }
    ~Rounding() { std::fesetround(previous_); }
    Rounding(const Rounding &) = delete;
    Rounding &operator=(const Rounding &) = delete;

  private:
    int previous_;
};

template <int Mode, typename T> T add_rounded(T a, T b) {
    Rounding rounding(Mode);
    volatile T x = a, y = b, result = x + y;
    return result;
}
template <int Mode, typename T> T multiply_rounded(T a, T b) {
    Rounding rounding(Mode);
    volatile T x = a, y = b, result = x * y;
    return result;
}
template <int Mode, typename T> T divide_rounded(T a, T b) {
    Rounding rounding(Mode);
    volatile T x = a, y = b, result = x / y;
    return result;
}
template <int Mode, typename T> T root_rounded(T a) {
    Rounding rounding(Mode);
    volatile T x = a, result = std::sqrt(x);
    return result;
}
template <int Mode, typename T> T fma_rounded(T a, T b, T c) {
    Rounding rounding(Mode);
    volatile T x = a, y = b, z = c, result = std::fma(x, y, z);
    return result;
}
template <int Mode, typename To, typename From> To convert_rounded(From a) {
    Rounding rounding(Mode);
    volatile From x = a;
    volatile To result = static_cast<To>(x);
    return result;
}

// ---- Results within a bound ----

// The distance of `got` from a more precise `reference` in units of T's last place there.
template <typename T, typename Wide> double distance_ulp(T got, Wide reference) {
    const T nearest = static_cast<T>(reference);
    if (is_nan(reference) || is_nan(got)) {
        return is_nan(reference) && is_nan(got) ? 0 : INFINITY;
    }
    if (std::isinf(nearest) || std::isinf(got)) {
        const Wide large = std::numeric_limits<T>::max();
        return got == nearest || std::fabs(reference) > large * (1 - 8 * Wide(std::numeric_limits<T>::epsilon()))
                   ? 0
                   : INFINITY;
    }
    const int lowest = std::numeric_limits<T>::min_exponent - 1;
    const int exponent = reference == 0 ? lowest : std::max(std::ilogb(reference), lowest);
    const Wide unit = std::ldexp(Wide(std::numeric_limits<T>::epsilon()), exponent);
    return static_cast<double>(std::fabs(static_cast<Wide>(got) - reference) / unit);
}

// Compares within a bound; such results may differ between devices and are no part of the checksum.
template <typename T, typename Wide>
void compare_within(double bound_ulp, const std::vector<T> &got, const std::vector<Wide> &reference) {
    for (size_t i = 0; i < got.size(); ++i) {
        double distance = distance_ulp(got[i], reference[i]);
        if (!(distance <= bound_ulp) && show_failure(i)) {
            std::fprintf(stderr, " %.3g ulp off,", distance);
            print_value("is", got[i]);
            print_value("expected", static_cast<T>(reference[i]));
            std::fputc('\n', stderr);
        }
    }
}

} // namespace suite

// Runs the cases and prints the program's line.
inline int run_suite(const char *program, int argument_count, char **arguments) {
    suite::State &state = suite::state();
    unsigned failed = 0;
    for (const suite::Case &each : state.cases) {
        bool wanted = argument_count < 2;
        for (int i = 1; i < argument_count; ++i) {
            wanted |= std::strcmp(arguments[i], each.name) == 0;
        }
        if (!wanted) {
            continue;
        }
        state.current = each.name;
        state.failures = 0;
        each.run();
        CHECK(cudaDeviceSynchronize());
        if (state.failures != 0) {
            ++failed;
            std::fprintf(stderr, "%s: case %s: %u wrong\n", program, each.name, state.failures);
        }
    }
    if (failed != 0) {
        std::fprintf(stderr, "%s: %u cases failed\n", program, failed);
        return 1;
    }
    std::printf("%s: ok checksum=%016" PRIx64 " kernels=%zu launches=%u\n", program, state.checksum.value(),
                state.kernels.size(), state.launches);
    return 0;
}

#define SUITE_MAIN(NAME)                                                                                               \
    int main(int argument_count, char **arguments) { return run_suite(NAME, argument_count, arguments); }
