// The default stream of each host thread: launches and copies of several threads without a stream argument.
// nvcc-flags: --default-stream per-thread
#include "check.h"

#include <thread>

__global__ void collatz_steps(const unsigned int *in, unsigned int *steps, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        unsigned int value = in[i], taken = 0;
        while (value != 1) {
            value = value % 2 == 0 ? value / 2 : 3 * value + 1;
            ++taken;
        }
        steps[i] = taken;
    }
}

static void run_thread(unsigned int first, std::vector<unsigned int> &steps) {
    int count = static_cast<int>(steps.size());
    std::vector<unsigned int> in(count);
    for (int i = 0; i < count; ++i) {
        in[i] = first + i;
    }
    DeviceArray<unsigned int> device_in(count), device_steps(count);
    CHECK(cudaMemcpyAsync(device_in.get(), in.data(), device_in.size_bytes(), cudaMemcpyHostToDevice));
    collatz_steps<<<(count + 63) / 64, 64>>>(device_in.get(), device_steps.get(), count);
    CHECK(cudaMemcpyAsync(steps.data(), device_steps.get(), device_steps.size_bytes(), cudaMemcpyDeviceToHost));
    CHECK(cudaStreamSynchronize(cudaStreamPerThread));
}

int main() {
    constexpr int kThreads = 4, kCount = 500;
    std::vector<std::vector<unsigned int>> steps(kThreads, std::vector<unsigned int>(kCount));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back(run_thread, 1 + t * kCount, std::ref(steps[t]));
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    Checksum checksum;
    for (int t = 0; t < kThreads; ++t) {
        std::vector<unsigned int> expected(kCount, 0);
        for (int i = 0; i < kCount; ++i) {
            for (unsigned int value = 1 + t * kCount + i; value != 1; ++expected[i]) {
                value = value % 2 == 0 ? value / 2 : 3 * value + 1;
            }
        }
        require_equal(steps[t], expected, "steps");
        checksum.add(steps[t]);
    }
    return report_ok("per_thread_stream", checksum);
}
