// Double precision and 64-bit integers: arithmetic, division, conversions, mathematical functions, atomics.
#include "check.h"

#include <cmath>

__global__ void doubles(const double *in, double *exact, double *functions, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        double x = in[i];
        exact[i] = fma(x, x, 1.0) / (sqrt(fabs(x)) + 3.0) + floor(x) - trunc(x * 0.5) + rint(x);
        functions[i] = sin(x) * exp(-x * x) + log1p(fabs(x)) + pow(fabs(x) + 0.5, 1.5) + atan2(x, 2.0) + cbrt(x);
    }
}

__global__ void integers(const long long *in, long long *out, unsigned long long *total, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        long long x = in[i];
        unsigned long long u = static_cast<unsigned long long>(x);
        long long divisor = (x >> 40) | 1;
        long long result = x / divisor + x % 1000003;
        result ^= static_cast<long long>(__umul64hi(u, 0x9e3779b97f4a7c15ull));
        result += __popcll(u) + __clzll(x) + __ffsll(x) + static_cast<long long>(__brevll(u) >> 60);
        result += static_cast<long long>(static_cast<double>(x) * 0.25) + static_cast<long long>(u % 97u);
        out[i] = result;
        atomicAdd(total, static_cast<unsigned long long>(result));
        atomicMax(total + 1, static_cast<unsigned long long>(result));
    }
}

static long long reference(long long x) {
    unsigned long long u = static_cast<unsigned long long>(x);
    long long divisor = (x >> 40) | 1;
    long long result = x / divisor + x % 1000003;
    result ^= static_cast<long long>((static_cast<unsigned __int128>(u) * 0x9e3779b97f4a7c15ull) >> 64);
    unsigned long long reversed = 0;
    for (int bit = 0; bit < 4; ++bit) {
        reversed |= ((u >> bit) & 1) << (3 - bit);
    }
    result += __builtin_popcountll(u) + (u == 0 ? 64 : __builtin_clzll(u)) + __builtin_ffsll(x);
    result += static_cast<long long>(reversed);
    return result + static_cast<long long>(static_cast<double>(x) * 0.25) + static_cast<long long>(u % 97u);
}

int main() {
    constexpr int kCount = 6000, kBlock = 128, kGrid = (kCount + kBlock - 1) / kBlock;
    Random random(12);
    Checksum checksum;

    std::vector<double> in(kCount);
    for (double &value : in) {
        value = (random.below<double>(1u << 24) - (1 << 23)) / 524288.0;
    }
    DeviceArray<double> device_in(in), device_exact(kCount), device_functions(kCount);
    doubles<<<kGrid, kBlock>>>(device_in.get(), device_exact.get(), device_functions.get(), kCount);
    CHECK(cudaGetLastError());
    std::vector<double> exact = device_exact.to_host(), functions = device_functions.to_host();
    for (int i = 0; i < kCount; ++i) {
        double x = in[i];
        double expected_exact =
            std::fma(x, x, 1.0) / (std::sqrt(std::fabs(x)) + 3.0) + std::floor(x) - std::trunc(x * 0.5) + std::rint(x);
        double expected = std::sin(x) * std::exp(-x * x) + std::log1p(std::fabs(x)) + std::pow(std::fabs(x) + 0.5, 1.5) +
                          std::atan2(x, 2.0) + std::cbrt(x);
        REQUIRE(std::fabs(exact[i] - expected_exact) <= 1e-13 * std::fmax(1.0, std::fabs(expected_exact)));
        REQUIRE(std::fabs(functions[i] - expected) <= 1e-12 * std::fmax(1.0, std::fabs(expected)));
    }
    checksum.add(exact);

    std::vector<long long> wide(kCount), expected(kCount);
    unsigned long long expected_total[2] = {0, 0};
    for (int i = 0; i < kCount; ++i) {
        uint64_t high = random.next(), low = random.next();
        wide[i] = static_cast<long long>(((high << 32) | low) >> (i % 60)) * (i % 2 == 0 ? 1 : -1);
        expected[i] = reference(wide[i]);
        auto result = static_cast<unsigned long long>(expected[i]);
        expected_total[0] += result;
        expected_total[1] = result > expected_total[1] ? result : expected_total[1];
    }
    DeviceArray<long long> device_wide(wide), device_out(kCount);
    DeviceArray<unsigned long long> device_total(2);
    CHECK(cudaMemset(device_total.get(), 0, device_total.size_bytes()));
    integers<<<kGrid, kBlock>>>(device_wide.get(), device_out.get(), device_total.get(), kCount);
    CHECK(cudaGetLastError());
    std::vector<long long> out = device_out.to_host();
    std::vector<unsigned long long> total = device_total.to_host();
    for (int i = 0; i < kCount; ++i) {
        REQUIRE(out[i] == expected[i]);
    }
    REQUIRE(total[0] == expected_total[0] && total[1] == expected_total[1]);
    checksum.add(out);
    checksum.add(total);
    return report_ok("wide_numbers", checksum);
}
