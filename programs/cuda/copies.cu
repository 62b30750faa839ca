// Every common way to move and set bytes: pageable, pinned, device to device, pitched, odd offsets, large.
#include "check.h"

#include <algorithm>

// Keeps the legacy stream at work for some milliseconds.
__global__ void linger(unsigned *result, int rounds) {
    unsigned value = *result;
    for (int i = 0; i < rounds; ++i) {
        value = value * 1664525u + 1013904223u;
    }
    *result = value;
}

// A synchronous copy from pageable memory has arrived when the call returns, whatever the legacy stream had to do before: a stream that waits for
// nobody finds it, and so does the host where the destination is pinned.
static void synchronous_copies_have_arrived(Checksum &checksum) {
    constexpr int kCount = 5000, kRounds = 2000000;
    std::vector<int> values(kCount);
    DeviceArray<unsigned> sink(1);
    DeviceArray<int> device(kCount);
    int *pinned = nullptr;
    CHECK(cudaMallocHost(&pinned, 2 * kCount * sizeof(int)));
    cudaStream_t alone;
    CHECK(cudaStreamCreateWithFlags(&alone, cudaStreamNonBlocking));
    CHECK(cudaMemset(sink.get(), 0, sizeof(unsigned)));
    for (int round = 1; round <= 3; ++round) {
        for (int i = 0; i < kCount; ++i) {
            values[i] = i * round + 1;
        }
        linger<<<1, 1>>>(sink.get(), kRounds);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(device.get(), values.data(), device.size_bytes(), cudaMemcpyHostToDevice));
        CHECK(cudaMemcpyAsync(pinned, device.get(), device.size_bytes(), cudaMemcpyDeviceToHost, alone));
        CHECK(cudaStreamSynchronize(alone));
        REQUIRE(std::equal(values.begin(), values.end(), pinned));
        linger<<<1, 1>>>(sink.get(), kRounds);
        CHECK(cudaMemcpy(pinned + kCount, values.data(), device.size_bytes(), cudaMemcpyHostToHost));
        REQUIRE(std::equal(values.begin(), values.end(), pinned + kCount));
        checksum.add(values);
    }
    CHECK(cudaStreamDestroy(alone));
    CHECK(cudaFreeHost(pinned));
}

int main() {
    Random random(13);
    Checksum checksum;

    // A large pageable copy there and back, device to device between, at odd offsets.
    constexpr size_t kLarge = (9u << 20) + 13;
    std::vector<unsigned char> large(kLarge), back(kLarge, 0);
    for (unsigned char &value : large) {
        value = static_cast<unsigned char>(random.next());
    }
    DeviceArray<unsigned char> first(kLarge + 64), second(kLarge + 64);
    CHECK(cudaMemcpy(first.get() + 3, large.data(), kLarge, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(second.get() + 5, first.get() + 3, kLarge, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(back.data(), second.get() + 5, kLarge, cudaMemcpyDefault));
    REQUIRE(back == large);
    checksum.add(back);

    // Memory set in bytes, whole and in part, asynchronously and pitched.
    CHECK(cudaMemset(first.get(), 0xab, 1000));
    CHECK(cudaMemsetAsync(first.get() + 100, 0x11, 50));
    std::vector<unsigned char> set(1000), expected_set(1000, 0xab);
    std::fill(expected_set.begin() + 100, expected_set.begin() + 150, 0x11);
    CHECK(cudaMemcpy(set.data(), first.get(), set.size(), cudaMemcpyDeviceToHost));
    require_equal(set, expected_set, "set bytes");

    constexpr size_t kWidth = 37, kHeight = 29;
    unsigned char *pitched = nullptr;
    size_t pitch = 0;
    CHECK(cudaMallocPitch(&pitched, &pitch, kWidth, kHeight));
    REQUIRE(pitch >= kWidth);
    std::vector<unsigned char> image(kWidth * kHeight), image_back(kWidth * kHeight);
    for (unsigned char &value : image) {
        value = static_cast<unsigned char>(random.next());
    }
    CHECK(cudaMemset2D(pitched, pitch, 0x77, kWidth, kHeight));
    CHECK(cudaMemcpy2D(pitched, pitch, image.data(), kWidth, kWidth - 2, kHeight, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2D(image_back.data(), kWidth, pitched, pitch, kWidth, kHeight, cudaMemcpyDeviceToHost));
    for (size_t row = 0; row < kHeight; ++row) {
        image[row * kWidth + kWidth - 2] = image[row * kWidth + kWidth - 1] = 0x77;
    }
    require_equal(image_back, image, "pitched rows");
    checksum.add(image_back);
    CHECK(cudaFree(pitched));

    // So many rows that several threads may carry them.
    constexpr size_t kRows = 2101, kRowBytes = 4099;
    CHECK(cudaMallocPitch(&pitched, &pitch, kRowBytes, kRows));
    CHECK(cudaMemcpy2D(pitched, pitch, large.data(), kRowBytes, kRowBytes, kRows, cudaMemcpyHostToDevice));
    std::fill(back.begin(), back.end(), 0);
    CHECK(cudaMemcpy2D(back.data(), kRowBytes, pitched, pitch, kRowBytes, kRows, cudaMemcpyDeviceToHost));
    REQUIRE(std::equal(back.begin(), back.begin() + kRows * kRowBytes, large.begin()));
    CHECK(cudaFree(pitched));

    // Pinned memory in a stream, and ordinary memory that was registered.
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    int *pinned = nullptr;
    constexpr int kCount = 30000;
    CHECK(cudaHostAlloc(&pinned, 2 * kCount * sizeof(int), cudaHostAllocDefault));
    DeviceArray<int> device(kCount);
    for (int i = 0; i < kCount; ++i) {
        pinned[i] = i * 7;
        pinned[kCount + i] = -1;
    }
    CHECK(cudaMemcpyAsync(device.get(), pinned, device.size_bytes(), cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(pinned + kCount, device.get(), device.size_bytes(), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) {
        REQUIRE(pinned[kCount + i] == i * 7);
    }
    std::vector<int> ordinary(kCount, 0);
    CHECK(cudaHostRegister(ordinary.data(), kCount * sizeof(int), cudaHostRegisterDefault));
    CHECK(cudaMemcpyAsync(ordinary.data(), device.get(), device.size_bytes(), cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaHostUnregister(ordinary.data()));
    require_equal(ordinary, std::vector<int>(pinned, pinned + kCount), "registered memory");
    checksum.add(ordinary);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFreeHost(pinned));
    synchronous_copies_have_arrived(checksum);
    return report_ok("copies", checksum);
}
