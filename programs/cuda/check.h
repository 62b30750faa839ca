// What every CUDA program here needs: calls that must succeed, and one line that says how it went.
//
// A program computes on the device, compares with the CPU and prints `NAME: ok checksum=HEX`, the same line on every
// device; on a wrong result it prints what differs to standard error and exits with 1.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

// Ends the program when a CUDA runtime call did not return `expected`.
inline void require_result(cudaError_t got, cudaError_t expected, const char *call, int line) {
    if (got != expected) {
        std::fprintf(stderr, "line %d: %s returned %s (%d), expected %s (%d)\n", line, call, cudaGetErrorName(got),
                     static_cast<int>(got), cudaGetErrorName(expected), static_cast<int>(expected));
        std::exit(1);
    }
}

#define CHECK(call) require_result((call), cudaSuccess, #call, __LINE__)
#define EXPECT(expected, call) require_result((call), (expected), #call, __LINE__)

// Ends the program when a condition does not hold.
inline void require_true(bool holds, const char *condition, int line) {
    if (!holds) {
        std::fprintf(stderr, "line %d: not true: %s\n", line, condition);
        std::exit(1);
    }
}

#define REQUIRE(condition) require_true((condition), #condition, __LINE__)

// Device memory for `count` elements of T, freed at the end of the scope.
template <typename T> class DeviceArray {
  public:
    explicit DeviceArray(size_t count) : count_(count) { CHECK(cudaMalloc(&pointer_, count * sizeof(T))); }
    explicit DeviceArray(const std::vector<T> &from) : DeviceArray(from.size()) {
        CHECK(cudaMemcpy(pointer_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~DeviceArray() { cudaFree(pointer_); }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;

    T *get() const { return pointer_; }
    size_t size_bytes() const { return count_ * sizeof(T); }
    std::vector<T> to_host() const {
        std::vector<T> host(count_);
        CHECK(cudaMemcpy(host.data(), pointer_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
        return host;
    }

  private:
    T *pointer_ = nullptr;
    size_t count_;
};

// FNV-1a over the bytes of what the device computed.
class Checksum {
  public:
    void add(const void *data, size_t size_bytes) {
        const auto *bytes = static_cast<const unsigned char *>(data);
        for (size_t i = 0; i < size_bytes; ++i) {
            state_ = (state_ ^ bytes[i]) * 0x100000001b3ull;
        }
    }
    template <typename T> void add(const std::vector<T> &values) { add(values.data(), values.size() * sizeof(T)); }
    template <typename T> void add_value(T value) { add(&value, sizeof value); }
    uint64_t value() const { return state_; }

  private:
    uint64_t state_ = 0xcbf29ce484222325ull;
};

// Compares element by element and exits with 1 at the first difference.
template <typename T> void require_equal(const std::vector<T> &got, const std::vector<T> &expected, const char *what) {
    if (got.size() != expected.size()) {
        std::fprintf(stderr, "%s: %zu elements, expected %zu\n", what, got.size(), expected.size());
        std::exit(1);
    }
    for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] != expected[i]) {
            std::fprintf(stderr, "%s: element %zu is %.17g, expected %.17g\n", what, i, static_cast<double>(got[i]),
                         static_cast<double>(expected[i]));
            std::exit(1);
        }
    }
}

// A small deterministic generator (xorshift32), the same on every machine.
class Random {
  public:
    explicit Random(uint32_t seed) : state_(seed) {}
    uint32_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 17;
        state_ ^= state_ << 5;
        return state_;
    }
    // An integer value in [0, bound) as T: sums of products of small integers are exact in any order.
    template <typename T> T below(uint32_t bound) { return static_cast<T>(next() % bound); }

  private:
    uint32_t state_;
};

// Prints the program's one line and gives its exit status.
inline int report_ok(const char *program, const Checksum &checksum) {
    std::printf("%s: ok checksum=%016" PRIx64 "\n", program, checksum.value());
    return 0;
}
