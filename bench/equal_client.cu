// One of several clients that do the same. usage: equal_client infer|lat
//
// infer: 20 kernels of 16 blocks that spin 8,500 cycles, then a wait, over and over; lat: an empty kernel and a wait. Says `ready`, reads `BEGIN END` (CLOCK_MONOTONIC,
// seconds), works from then on until END, and writes as JSON what ended between the two: iterations by tenths of a second, kernels of an iteration, the longest time in which none ended, the processor
// time that the process took, and the half and the hundredth of the iterations that took longest.
#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define MUST(call)                                                                                         \
    do {                                                                                                   \
        cudaError_t result_ = (call);                                                                      \
        if (result_ != cudaSuccess) {                                                                      \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(result_)); \
            std::exit(1);                                                                                  \
        }                                                                                                  \
    } while (0)

static const double SLOT_S = 0.1;

static double seconds_of(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

__global__ void empty() {}

__global__ void spin(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

int main(int count, char **arguments) {
    const bool is_infer = count == 2 && std::strcmp(arguments[1], "infer") == 0;
    if (!is_infer && (count != 2 || std::strcmp(arguments[1], "lat") != 0)) {
        std::fprintf(stderr, "usage: %s infer|lat\n", arguments[0]);
        return 2;
    }
    const int kernels = is_infer ? 20 : 1;
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto work = [&] {
        for (int i = 0; i < kernels; ++i) {
            if (is_infer) {
                spin<<<16, 128, 0, stream>>>(8500);
            } else {
                empty<<<1, 32, 0, stream>>>();
            }
        }
        MUST(cudaStreamSynchronize(stream));
    };
    for (int i = 0; i < 50; ++i) {
        work();
    }
    std::printf("ready\n");
    std::fflush(stdout);
    double begin, end;
    if (std::scanf("%lf %lf", &begin, &end) != 2) {
        return 1;
    }
    std::vector<int> slots(std::max(1, int((end - begin) / SLOT_S + 0.5)));
    std::vector<float> took;
    double last = begin, gap = 0, processor = -1;
    for (double started = seconds_of(CLOCK_MONOTONIC); started < end;) {
        work();
        const double now = seconds_of(CLOCK_MONOTONIC);
        if (now >= begin && now < end) {
            processor = processor < 0 ? seconds_of(CLOCK_PROCESS_CPUTIME_ID) : processor;
            ++slots[std::min(slots.size() - 1, size_t((now - begin) / SLOT_S))];
            gap = std::max(gap, now - last);
            last = now;
            took.push_back(float(now - started));
        }
        started = now;
    }
    MUST(cudaGetLastError());
    processor = processor < 0 ? 0 : seconds_of(CLOCK_PROCESS_CPUTIME_ID) - processor;
    gap = std::max(gap, end - last);
    std::sort(took.begin(), took.end());
    auto part = [&](double of) { return took.empty() ? 0.0 : double(took[std::min(took.size() - 1, size_t(took.size() * of))]); };
    std::printf("{\"kernels_per_iteration\": %d, \"longest_gap_s\": %.6f, \"processor_s\": %.6f, \"p50_s\": %.9f, \"p99_s\": %.9f, \"slots\": [", kernels, gap, processor,
                part(0.5), part(0.99));
    for (size_t i = 0; i < slots.size(); ++i) {
        std::printf("%s%d", i ? ", " : "", slots[i]);
    }
    std::printf("]}\n");
    return 0;
}
