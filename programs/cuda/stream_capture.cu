// Streams captured into graphs: fork and join by events, launches again and again, an update from a second capture,
// what captures forbid and in which mode, allocations in stream order, a thread that captures while another allocates.
#include "check.h"

#include <thread>

__global__ void scale_add(const int *in, int *out, int factor, int addend, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        out[i] = in[i] * factor + addend;
    }
}

__global__ void accumulate(const int *in, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        out[i] += in[i];
    }
}

constexpr int kCount = 4096, kBlock = 128, kGrid = kCount / kBlock;
constexpr size_t kBytes = kCount * sizeof(int);

static void CUDART_CB count_call(void *argument) { ++*static_cast<int *>(argument); }

struct Work {
    DeviceArray<int> in{kCount}, left{kCount}, right{kCount}, sum{kCount};
    int *host_in, *host_out;
    int calls = 0;
    cudaStream_t stream, side;
    cudaEvent_t fork, join;

    Work() {
        CHECK(cudaMallocHost(&host_in, kBytes));
        CHECK(cudaMallocHost(&host_out, kBytes));
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
        CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    }

    ~Work() {
        cudaFreeHost(host_in);
        cudaFreeHost(host_out);
        cudaStreamDestroy(stream);
        cudaStreamDestroy(side);
        cudaEventDestroy(fork);
        cudaEventDestroy(join);
    }

    // Five kernels, two copies, a fill and a host function, on two streams.
    cudaGraph_t capture(int factor, cudaStreamCaptureMode mode) {
        CHECK(cudaStreamBeginCapture(stream, mode));
        CHECK(cudaMemcpyAsync(in.get(), host_in, kBytes, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemsetAsync(sum.get(), 0, kBytes, stream));
        CHECK(cudaEventRecord(fork, stream));
        CHECK(cudaStreamWaitEvent(side, fork, 0));
        scale_add<<<kGrid, kBlock, 0, stream>>>(in.get(), left.get(), factor, 1, kCount);
        scale_add<<<kGrid, kBlock, 0, side>>>(in.get(), right.get(), factor + 1, 2, kCount);
        scale_add<<<kGrid, kBlock, 0, side>>>(right.get(), right.get(), 2, 0, kCount);
        CHECK(cudaEventRecord(join, side));
        cudaStreamCaptureStatus status;
        CHECK(cudaStreamIsCapturing(side, &status));
        REQUIRE(status == cudaStreamCaptureStatusActive);
        CHECK(cudaStreamWaitEvent(stream, join, 0));
        accumulate<<<kGrid, kBlock, 0, stream>>>(left.get(), sum.get(), kCount);
        accumulate<<<kGrid, kBlock, 0, stream>>>(right.get(), sum.get(), kCount);
        CHECK(cudaMemcpyAsync(host_out, sum.get(), kBytes, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaLaunchHostFunc(stream, count_call, &calls));
        cudaGraph_t graph;
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaStreamIsCapturing(stream, &status));
        REQUIRE(status == cudaStreamCaptureStatusNone);
        return graph;
    }

    void launch(cudaGraphExec_t executable, int factor, int round, Checksum &checksum) {
        std::vector<int> expected(kCount);
        for (int i = 0; i < kCount; ++i) {
            host_in[i] = i % 1000 + round;
            host_out[i] = -1;
            expected[i] = (host_in[i] * factor + 1) + 2 * (host_in[i] * (factor + 1) + 2);
        }
        int before = calls;
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaStreamSynchronize(stream));
        REQUIRE(calls == before + 1);
        std::vector<int> got(host_out, host_out + kCount);
        require_equal(got, expected, "captured work");
        checksum.add(got);
    }
};

static void launched_and_updated(Checksum &checksum) {
    Work work;
    cudaGraph_t graph = work.capture(3, cudaStreamCaptureModeGlobal);
    REQUIRE(work.calls == 0);
    size_t count = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &count));
    REQUIRE(count == 9);
    CHECK(cudaGraphGetRootNodes(graph, nullptr, &count));
    REQUIRE(count == 1);
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    for (int round = 0; round < 5; ++round) {
        work.launch(executable, 3, round, checksum);
    }
    graph = work.capture(7, cudaStreamCaptureModeRelaxed);
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(executable, graph, &info));
    REQUIRE(info.result == cudaGraphExecUpdateSuccess);
    CHECK(cudaGraphDestroy(graph));
    for (int round = 0; round < 3; ++round) {
        work.launch(executable, 7, round, checksum);
    }
    CHECK(cudaGraphExecDestroy(executable));
}

// What waits for captured work is refused, and ends the capture.
static void refused() {
    Work work;
    cudaGraph_t graph;
    auto begin = [&](cudaStreamCaptureMode mode) { CHECK(cudaStreamBeginCapture(work.stream, mode)); };
    auto end = [&](cudaError_t expected) {
        EXPECT(expected, cudaStreamEndCapture(work.stream, &graph));
        if (expected == cudaSuccess) {
            CHECK(cudaGraphDestroy(graph));
        }
        (void)cudaGetLastError();
    };
    begin(cudaStreamCaptureModeRelaxed);
    EXPECT(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(work.stream));
    end(cudaErrorStreamCaptureInvalidated);
    begin(cudaStreamCaptureModeGlobal);
    void *address = nullptr;
    EXPECT(cudaErrorStreamCaptureUnsupported, cudaMalloc(&address, 64));
    end(cudaErrorStreamCaptureInvalidated);
    // A stream that has joined must come back.
    begin(cudaStreamCaptureModeGlobal);
    CHECK(cudaEventRecord(work.fork, work.stream));
    CHECK(cudaStreamWaitEvent(work.side, work.fork, 0));
    scale_add<<<kGrid, kBlock, 0, work.side>>>(work.in.get(), work.left.get(), 1, 1, kCount);
    end(cudaErrorStreamCaptureUnjoined);
    begin(cudaStreamCaptureModeGlobal);
    CHECK(cudaEventRecord(work.fork, work.stream));
    EXPECT(cudaErrorCapturedEvent, cudaEventQuery(work.fork));
    end(cudaErrorStreamCaptureInvalidated);
    // The legacy stream waits for blocking streams, so it cannot be used beside a captured one.
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking));
    CHECK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    EXPECT(cudaErrorStreamCaptureImplicit, cudaMemsetAsync(work.in.get(), 0, 4, cudaStreamLegacy));
    EXPECT(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(blocking, &graph));
    CHECK(cudaStreamDestroy(blocking));
    (void)cudaGetLastError();
    CHECK(cudaStreamSynchronize(work.stream));
}

// One thread captures in thread-local mode, another allocates and computes meanwhile; so does the capturing one when it
// says that it knows what it does.
static void beside_another_thread(Checksum &checksum) {
    Work work;
    CHECK(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
    scale_add<<<kGrid, kBlock, 0, work.stream>>>(work.in.get(), work.left.get(), 5, 6, kCount);
    std::thread other([&] {
        cudaStream_t stream;
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        DeviceArray<int> scratch(kCount);
        CHECK(cudaMemsetAsync(scratch.get(), 1, kBytes, stream));
        scale_add<<<kGrid, kBlock, 0, stream>>>(scratch.get(), scratch.get(), 1, 1, kCount);
        CHECK(cudaStreamSynchronize(stream));
        CHECK(cudaStreamDestroy(stream));
    });
    other.join();
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    DeviceArray<int> result(kCount);
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    REQUIRE(mode == cudaStreamCaptureModeRelaxed);
    scale_add<<<kGrid, kBlock, 0, work.stream>>>(work.left.get(), result.get(), 2, 0, kCount);
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(work.stream, &graph));
    CHECK(cudaMemset(work.in.get(), 0, kBytes));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 20; ++round) {
        CHECK(cudaGraphLaunch(executable, work.stream));
    }
    CHECK(cudaStreamSynchronize(work.stream));
    auto got = result.to_host();
    require_equal(got, std::vector<int>(kCount, 12), "thread-local capture");
    checksum.add(got);
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

// Memory allocated in a captured stream belongs to the graph; pageable memory is read again at each launch.
static void allocated_in_stream_order(Checksum &checksum) {
    Work work;
    std::vector<int> pageable(kCount), result(kCount);
    int *temporary;
    CHECK(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&temporary, kBytes, work.stream));
    CHECK(cudaMemcpyAsync(temporary, pageable.data(), kBytes, cudaMemcpyHostToDevice, work.stream));
    scale_add<<<kGrid, kBlock, 0, work.stream>>>(temporary, work.left.get(), 10, 1, kCount);
    CHECK(cudaFreeAsync(temporary, work.stream));
    CHECK(cudaMemcpyAsync(result.data(), work.left.get(), kBytes, cudaMemcpyDeviceToHost, work.stream));
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(work.stream, &graph));
    cudaGraphExec_t executable;
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 3; ++round) {
        std::vector<int> expected(kCount);
        for (int i = 0; i < kCount; ++i) {
            pageable[i] = i - round;
            expected[i] = pageable[i] * 10 + 1;
        }
        CHECK(cudaGraphLaunch(executable, work.stream));
        CHECK(cudaStreamSynchronize(work.stream));
        require_equal(result, expected, "pageable memory");
        checksum.add(result);
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
}

int main() {
    Checksum checksum;
    launched_and_updated(checksum);
    refused();
    beside_another_thread(checksum);
    allocated_in_stream_order(checksum);
    return report_ok("stream_capture", checksum);
}
