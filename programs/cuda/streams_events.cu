// Several streams with pinned asynchronous copies, ordered across streams by events; queries and elapsed time.
#include "check.h"

__global__ void scale_add(const int *in, int *out, int factor, int addend, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        out[i] = in[i] * factor + addend;
    }
}

__global__ void sum_parts(const int *parts, int *sums, int part_count, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        int sum = 0;
        for (int part = 0; part < part_count; ++part) {
            sum += parts[part * count + i];
        }
        sums[i] = sum;
    }
}

int main() {
    constexpr int kStreams = 4, kCount = 8192, kBlock = 128, kGrid = kCount / kBlock, kRounds = 3;
    int *host_in, *host_out;
    CHECK(cudaMallocHost(&host_in, kStreams * kCount * sizeof(int)));
    CHECK(cudaHostAlloc(&host_out, kCount * sizeof(int), cudaHostAllocPortable));
    DeviceArray<int> in(kStreams * kCount), parts(kStreams * kCount), sums(kCount);

    int least, greatest;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t streams[kStreams], joined;
    cudaEvent_t ready[kStreams], consumed, begin, end;
    for (int s = 0; s < kStreams; ++s) {
        CHECK(s == 0 ? cudaStreamCreate(&streams[s]) : cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&ready[s], cudaEventDisableTiming));
    }
    CHECK(cudaStreamCreateWithPriority(&joined, cudaStreamNonBlocking, greatest));
    CHECK(cudaEventCreateWithFlags(&consumed, cudaEventDisableTiming | cudaEventBlockingSync));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventQuery(consumed)); // an event that was never recorded counts as complete

    Random random(8);
    Checksum checksum;
    CHECK(cudaEventRecord(begin, joined));
    for (int round = 0; round < kRounds; ++round) {
        std::vector<int> expected(kCount, 0);
        for (int i = 0; i < kStreams * kCount; ++i) {
            host_in[i] = random.below<int>(1000);
            expected[i % kCount] += host_in[i] * (i / kCount + 1) + round;
        }
        for (int s = 0; s < kStreams; ++s) {
            size_t offset = static_cast<size_t>(s) * kCount;
            CHECK(cudaStreamWaitEvent(streams[s], consumed, 0));
            CHECK(cudaMemcpyAsync(in.get() + offset, host_in + offset, kCount * sizeof(int), cudaMemcpyHostToDevice,
                                  streams[s]));
            scale_add<<<kGrid, kBlock, 0, streams[s]>>>(in.get() + offset, parts.get() + offset, s + 1, round, kCount);
            CHECK(cudaEventRecord(ready[s], streams[s]));
            CHECK(cudaStreamWaitEvent(joined, ready[s], 0));
        }
        sum_parts<<<kGrid, kBlock, 0, joined>>>(parts.get(), sums.get(), kStreams, kCount);
        CHECK(cudaEventRecord(consumed, joined));
        CHECK(cudaMemcpyAsync(host_out, sums.get(), kCount * sizeof(int), cudaMemcpyDeviceToHost, joined));
        CHECK(cudaStreamSynchronize(joined));
        CHECK(cudaStreamQuery(joined));
        CHECK(cudaEventSynchronize(consumed));
        std::vector<int> got(host_out, host_out + kCount);
        require_equal(got, expected, "joined sums");
        checksum.add(got);
    }
    CHECK(cudaEventRecord(end, joined));
    CHECK(cudaEventSynchronize(end));
    float elapsed_ms = -1.0f;
    CHECK(cudaEventElapsedTime(&elapsed_ms, begin, end));
    REQUIRE(elapsed_ms >= 0.0f);
    EXPECT(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&elapsed_ms, consumed, end));

    for (int s = 0; s < kStreams; ++s) {
        CHECK(cudaStreamDestroy(streams[s]));
        CHECK(cudaEventDestroy(ready[s]));
    }
    CHECK(cudaStreamDestroy(joined));
    CHECK(cudaEventDestroy(consumed));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaFreeHost(host_in));
    CHECK(cudaFreeHost(host_out));
    return report_ok("streams_events", checksum);
}
