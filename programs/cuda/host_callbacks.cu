// Functions that the driver calls on the host between the commands of a stream.
#include "check.h"

__global__ void add_to_all(int *values, int addend, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] += addend;
    }
}

struct Stage {
    int *pinned;
    int count;
    int calls;
    bool seen_right;
};

// Sees the kernel's result of this turn in pinned memory and prepares the next turn's input there.
static void CUDART_CB check_and_double(void *argument) {
    auto *stage = static_cast<Stage *>(argument);
    for (int i = 0; i < stage->count; ++i) {
        if (stage->pinned[i] != stage->pinned[0] + i * (1 << stage->calls)) {
            stage->seen_right = false;
        }
    }
    for (int i = 0; i < stage->count; ++i) {
        stage->pinned[i] *= 2;
    }
    ++stage->calls;
}

static void CUDART_CB count_call(cudaStream_t, cudaError_t status, void *argument) {
    if (status == cudaSuccess) {
        ++*static_cast<int *>(argument);
    }
}

int main() {
    constexpr int kCount = 2048, kTurns = 4;
    int *pinned = nullptr;
    CHECK(cudaMallocHost(&pinned, kCount * sizeof(int)));
    std::vector<int> expected(kCount);
    for (int i = 0; i < kCount; ++i) {
        pinned[i] = expected[i] = i;
    }
    Stage stage = {pinned, kCount, 0, true};
    int status_calls = 0;
    DeviceArray<int> values(kCount);
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int turn = 0; turn < kTurns; ++turn) {
        CHECK(cudaMemcpyAsync(values.get(), pinned, kCount * sizeof(int), cudaMemcpyHostToDevice, stream));
        add_to_all<<<kCount / 128, 128, 0, stream>>>(values.get(), turn + 1, kCount);
        CHECK(cudaMemcpyAsync(pinned, values.get(), kCount * sizeof(int), cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(stream, check_and_double, &stage));
        CHECK(cudaStreamAddCallback(stream, count_call, &status_calls, 0));
        for (int &value : expected) {
            value = (value + turn + 1) * 2;
        }
    }
    CHECK(cudaStreamSynchronize(stream));
    REQUIRE(stage.calls == kTurns);
    REQUIRE(stage.seen_right);
    REQUIRE(status_calls == kTurns);
    std::vector<int> got(pinned, pinned + kCount);
    require_equal(got, expected, "doubled values");
    Checksum checksum;
    checksum.add(got);
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFreeHost(pinned));
    return report_ok("host_callbacks", checksum);
}
