// Programs that run beside another's long kernel, and that kernel's own. All times are of CLOCK_MONOTONIC, in seconds.
//
//   beside hog one|half|all|full SECONDS   a kernel on one SM, on half of them, on all, or on all with no room left on any. Says `running TIME` once it
//                                          has begun, and `ended TIME`. A line on standard input ends it early
//   beside start IMAGE                     a program that starts: `main TIME`, `context TIME`, and when it has the result of a kernel of its own,
//                                          `first TIME`, and of one of the IMAGE that it loads, `module TIME`
//   beside worker IMAGE                    a client at work: `ready`; then each line of standard input is a call that it makes with nothing in flight,
//                                          `known`, `new` (a kernel of its own that it has not called yet) or `module`: `NAME BEGIN END`
//   beside infer FILE                      20 kernels of 16 blocks that spin 8,500 cycles, then a wait, over and over, until standard input ends. Says
//                                          `ready`. Then FILE has two doubles for each iteration: begin, end
#include <cuda_runtime.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#define MUST(call)                                                                                              \
    do {                                                                                                        \
        cudaError_t result_ = (call);                                                                           \
        if (result_ != cudaSuccess) {                                                                           \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(result_));      \
            std::exit(1);                                                                                       \
        }                                                                                                       \
    } while (0)

static const unsigned POLL_NS = 5000000;
static const double BEGIN_LIMIT_S = 60;
static const size_t MOST_ITERATIONS = 1 << 20;

static double now_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

template <typename... Values>
static void say(const char *format, Values... values) {
    std::printf(format, values...);
    std::printf("\n");
    std::fflush(stdout);
}

static bool has_input(int wait_ms) {
    pollfd input = {0, POLLIN, 0};
    return poll(&input, 1, wait_ms) > 0;
}

__device__ unsigned long long global_ns() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// words: 0 is written when the kernel has begun, 1 ends it.
__global__ void __launch_bounds__(1024) occupy(volatile unsigned *words, unsigned long long ns) {
    const unsigned long long begin = global_ns();
    unsigned long long polled = begin;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        words[0] = 1;
        __threadfence_system();
    }
    for (unsigned long long now = begin; now - begin < ns; now = global_ns()) {
        if (now - polled > POLL_NS) {
            polled = now;
            if (words[1] != 0) {
                return;
            }
        }
        __nanosleep(2000);
    }
}

__global__ void spin(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

// Each is loaded when it is first called.
template <int NUMBER>
__global__ void answer(unsigned *out, unsigned question) {
    *out = question * 2654435761u + NUMBER;
}

static unsigned *device_word() {
    static unsigned *word = nullptr;
    if (word == nullptr) {
        MUST(cudaMalloc(&word, sizeof *word));
    }
    return word;
}

static void expect(unsigned expected) {
    unsigned found = 0;
    MUST(cudaMemcpy(&found, device_word(), sizeof found, cudaMemcpyDeviceToHost));
    if (found != expected) {
        std::fprintf(stderr, "a kernel's result is %u, not %u\n", found, expected);
        std::exit(1);
    }
}

template <int NUMBER>
static void call() {
    static unsigned question = 40;
    answer<NUMBER><<<1, 1>>>(device_word(), ++question);
    MUST(cudaGetLastError());
    expect(question * 2654435761u + NUMBER);
}

static void call_of_module(const char *path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    cudaLibrary_t library;
    cudaKernel_t kernel;
    MUST(cudaLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    MUST(cudaLibraryGetKernel(&kernel, library, "of_module"));
    unsigned *out = device_word(), question = 77;
    void *arguments[] = {&out, &question};
    MUST(cudaLaunchKernel(reinterpret_cast<const void *>(kernel), dim3(1), dim3(1), arguments, 0, nullptr));
    expect(question ^ 0x5a5a5a5au);
}

static int hog(const std::string &shape, double seconds) {
    int multiprocessors = 0;
    MUST(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    const bool is_full = shape == "full";
    const int blocks = shape == "one" ? 1 : shape == "half" ? multiprocessors / 2 : is_full ? 2 * multiprocessors : multiprocessors;
    volatile unsigned *words = nullptr;
    MUST(cudaHostAlloc((void **)&words, 2 * sizeof *words, cudaHostAllocMapped));
    words[0] = words[1] = 0;
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    occupy<<<1, 32, 0, stream>>>(words, 1000);
    MUST(cudaStreamSynchronize(stream));
    words[0] = 0;
    const double asked = now_s();
    occupy<<<blocks, is_full ? 1024 : 32, 0, stream>>>(words, (unsigned long long)(seconds * 1e9));
    MUST(cudaGetLastError());
    while (words[0] == 0) {
        if (now_s() - asked > BEGIN_LIMIT_S) {
            std::fprintf(stderr, "the kernel did not begin\n");
            return 1;
        }
        usleep(1000);
    }
    say("running %.6f", now_s());
    bool is_told = false;
    cudaError_t state;
    while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        if (is_told) {
            usleep(2000);
        } else if (has_input(2)) {
            is_told = true;
            words[1] = 1;
        }
    }
    MUST(state);
    say("ended %.6f", now_s());
    return 0;
}

static int start(const char *image) {
    say("main %.6f", now_s());
    MUST(cudaFree(nullptr));
    say("context %.6f", now_s());
    call<0>();
    say("first %.6f", now_s());
    call_of_module(image);
    say("module %.6f", now_s());
    return 0;
}

static int work(const char *image) {
    void (*const fresh[])() = {call<1>, call<2>, call<3>, call<4>};
    size_t next = 0;
    call<0>();
    call<0>();
    say("ready");
    char line[64];
    while (std::fgets(line, sizeof line, stdin)) {
        line[std::strcspn(line, "\n")] = 0;
        const double begin = now_s();
        if (std::strcmp(line, "known") == 0) {
            call<0>();
        } else if (std::strcmp(line, "module") == 0) {
            call_of_module(image);
        } else if (next < sizeof fresh / sizeof *fresh) {
            fresh[next++]();
        }
        say("%s %.6f %.6f", line, begin, now_s());
    }
    return 0;
}

static int infer(const char *path) {
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<double> times;
    times.reserve(2 * MOST_ITERATIONS);
    for (bool is_warm = false; times.size() < 2 * MOST_ITERATIONS; is_warm = true) {
        const double begin = now_s();
        for (int i = 0; i < 20; ++i) {
            spin<<<16, 128, 0, stream>>>(8500);
        }
        MUST(cudaStreamSynchronize(stream));
        if (!is_warm) {
            say("ready");
            continue;
        }
        times.push_back(begin);
        times.push_back(now_s());
        if (has_input(0)) {
            break;
        }
    }
    MUST(cudaGetLastError());
    FILE *file = std::fopen(path, "wb");
    const bool is_written = file && std::fwrite(times.data(), sizeof(double), times.size(), file) == times.size();
    return is_written && std::fclose(file) == 0 ? 0 : 1;
}

int main(int count, char **arguments) {
    const std::string mode = count > 2 ? arguments[1] : "";
    if (mode == "hog" && count == 4) {
        return hog(arguments[2], std::atof(arguments[3]));
    }
    if (mode == "start") {
        return start(arguments[2]);
    }
    if (mode == "worker") {
        return work(arguments[2]);
    }
    if (mode == "infer") {
        return infer(arguments[2]);
    }
    std::fprintf(stderr, "usage: %s hog one|half|all|full SECONDS | start IMAGE | worker IMAGE | infer FILE\n", arguments[0]);
    return 2;
}
