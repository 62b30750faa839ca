// Three ways to give clients of a shared context managed memory, and what each does: the driver's own (`managed`), pieces of one reservation that are
// device or host memory (`pieces`), and pinned memory with copies (`copies`). Each argument is a probe that prints rows `row|VARIANT|QUESTION|ANSWER`;
// managed_memory.py beside this builds and runs them all, each in a process of its own with a limit, and prints the table.
//
//   nvcc -O2 -std=c++17 -arch=native managed_memory.cu -o managed_memory -lcuda
//
// No probe takes more managed memory than 512 MiB, nor more than the device has free, except `oversubscribe`. That one fills the device and may hang it on
// some systems, for other programs too: only for a machine of one's own.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#define CK(x)                                                  \
    do {                                                       \
        CUresult r_ = (CUresult)(x);                           \
        if (r_) {                                              \
            printf("%d %s -> %s\n", __LINE__, #x, name(r_));   \
            fflush(stdout);                                    \
            _exit(1);                                          \
        }                                                      \
    } while (0)
using clk = std::chrono::steady_clock;
using Word = unsigned long long;
static const size_t MIB = 1 << 20, PIECE = 2 * MIB;
static const Word LONG_NS = 1500000000;
static const int ROUNDS = 20;

static const char* name(CUresult r) {
    const char* n = "?";
    cuGetErrorName(r, &n);
    return n;
}
static double us(clk::time_point since) { return std::chrono::duration<double, std::micro>(clk::now() - since).count(); }
static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v.empty() ? 0 : v[v.size() / 2];
}
static std::string text(const char* format, ...) {
    char b[600];
    va_list list;
    va_start(list, format);
    vsnprintf(b, sizeof b, format, list);
    va_end(list);
    return b;
}
static const char* variant = "";
static void row(const std::string& question, const std::string& answer) {
    printf("row|%s|%s|%s\n", variant, question.c_str(), answer.c_str());
    fflush(stdout);
}

__device__ Word global_ns() {
    Word ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
__global__ void spin(Word ns) {
    for (Word begin = global_ns(); global_ns() - begin < ns;) __nanosleep(1000);
}
__global__ void tick(Word* p) { ++*p; }
// Waits for a word of the host's; says how long it took, and counts so that the host can see it.
__global__ void poll(volatile Word* asked, volatile Word* told, Word ns) {
    const Word begin = global_ns();
    Word turns = 0;
    while (*asked == 0 && global_ns() - begin < ns) told[1] = ++turns;
    told[0] = global_ns() - begin;
    told[2] = *asked;
}
__global__ void add_system(unsigned* word, int times) {
    for (int i = 0; i < times; ++i) atomicAdd_system(word, 1u);
}
__global__ void add(float* a, const float* b, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) a[i] += b[i];
}
__global__ void increment(unsigned* p, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) ++p[i];
}
// Adds to a neighbour's words for so long.
__global__ void busy_with(volatile unsigned* p, Word ns) {
    for (Word begin = global_ns(); global_ns() - begin < ns;) {
        p[threadIdx.x] = p[threadIdx.x] + 1;
        __nanosleep(1000);
    }
}
__global__ void bad(int* p) { *p = 1; }

static CUdevice device;
static cudaStream_t work, other;

static void begin() {
    CK(cuInit(0));
    CK(cuDeviceGet(&device, 0));
    CK(cudaFree(nullptr));
    CK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    CK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    // All code is loaded before anything is timed.
    Word* words;
    CK(cudaMalloc(&words, 4096));
    CK(cudaMemset(words, 1, 4096));
    spin<<<1, 1, 0, work>>>(1000);
    tick<<<1, 1, 0, work>>>(words);
    poll<<<1, 1, 0, work>>>(words, words + 8, 1000);
    add_system<<<1, 1, 0, work>>>((unsigned*)words, 1);
    add<<<1, 1, 0, work>>>((float*)words, (float*)words, 1);
    increment<<<1, 1, 0, work>>>((unsigned*)words, 1);
    busy_with<<<1, 1, 0, work>>>((unsigned*)words, 1000);
    cudaFuncAttributes attributes;
    CK(cudaFuncGetAttributes(&attributes, bad));
    CK(cudaDeviceSynchronize());
    CK(cudaFree(words));
}

// Launches of somebody else, all the time: how long the longest call took, and the longest launch with its wait.
class Watcher {
    std::atomic<bool> over{false};
    std::atomic<double> call{0}, round{0};
    std::thread thread;

   public:
    Watcher() : thread([this] {
        CUcontext c;
        CK(cuDevicePrimaryCtxRetain(&c, device));
        CK(cuCtxSetCurrent(c));
        cudaStream_t s;
        Word* p;
        CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        CK(cudaMalloc(&p, 8));
        while (!over) {
            auto t = clk::now();
            tick<<<1, 1, 0, s>>>(p);
            call = std::max(call.load(), us(t));
            CK(cudaStreamSynchronize(s));
            round = std::max(round.load(), us(t));
            usleep(100);
        }
    }) {
        usleep(20000);
        call = round = 0;
    }
    std::string stop() {
        over = true;
        thread.join();
        return text("others' launches took at most %.2f ms, with the wait %.2f ms", call / 1e3, round / 1e3);
    }
};

// Steps, over and over, alone and beside a kernel of another stream that runs all the while, and uses the neighbour's memory if there is one: medians.
static unsigned* neighbour = nullptr;
static void timed(const std::string& what, const std::vector<std::pair<const char*, std::function<void(int)>>>& steps) {
    for (bool is_beside : {false, true}) {
        Watcher watcher;
        if (is_beside) {
            if (neighbour) busy_with<<<1, 32, 0, other>>>(neighbour, LONG_NS);
            else spin<<<8, 32, 0, other>>>(LONG_NS);
            usleep(20000);
        }
        auto t0 = clk::now();
        std::map<int, std::vector<double>> took;
        int rounds = 0;
        for (; rounds < ROUNDS && us(t0) < (is_beside ? 1.2 : 3) * LONG_NS / 1e3; ++rounds)
            for (size_t i = 0; i < steps.size(); ++i) {
                auto t = clk::now();
                steps[i].second(rounds);
                took[i].push_back(us(t));
            }
        const bool is_still = is_beside && cudaStreamQuery(other) == cudaErrorNotReady;
        std::string said, launches = watcher.stop();
        for (size_t i = 0; i < steps.size(); ++i)
            said += text("%s%s %.0f us (at most %.0f)", i ? ", " : "", steps[i].first, median(took[i]), *std::max_element(took[i].begin(), took[i].end()));
        CK(cudaStreamSynchronize(other));
        row(what + (is_beside ? ", beside a kernel of 1.5 s" : ", alone"),
            said + "; " + launches + (is_beside && !is_still ? text("; WAITED FOR THE KERNEL (%d rounds)", rounds) : ""));
    }
}

static double gb_per_s(double bytes, double microseconds) { return bytes / microseconds / 1e3; }

// ---- The driver's managed memory ----

static void* managed(size_t bytes) {
    size_t available, total;
    CK(cuMemGetInfo(&available, &total));
    if (bytes > available / 2) {
        printf("too little free memory on the device\n");
        _exit(1);
    }
    CUdeviceptr p;
    CK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    return (void*)p;
}
static CUmemLocation where(bool is_device) {
    CUmemLocation l = {};
    l.type = is_device ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
    l.id = 0;
    return l;
}
static void prefetch(void* p, size_t n, bool to_device, cudaStream_t s) {
#if CUDA_VERSION >= 13000
    CK(cuMemPrefetchAsync((CUdeviceptr)p, n, where(to_device), 0, s));
#else
    CK(cuMemPrefetchAsync_v2((CUdeviceptr)p, n, where(to_device), 0, s));
#endif
}
static CUresult advise(void* p, size_t n, CUmem_advise what, bool is_device) {
#if CUDA_VERSION >= 13000
    return cuMemAdvise((CUdeviceptr)p, n, what, where(is_device));
#else
    return cuMemAdvise_v2((CUdeviceptr)p, n, what, where(is_device));
#endif
}

static void attributes() {
    variant = "machine";
    const std::pair<const char*, CUdevice_attribute> all[] = {
        {"managed memory", CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
        {"host and device may use it at once", CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
        {"pageable memory (HMM)", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
        {"by the host's page tables", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES},
        {"host reaches device memory", CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST},
        {"native atomics to the host", CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED},
        {"cuMemCreate of host memory (NUMA)", CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
        {"host NUMA node", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
    };
    std::string said;
    for (auto& one : all) {
        int value = -1;
        cuDeviceGetAttribute(&value, one.second, device);
        said += text("%s%s %d", said.empty() ? "" : ", ", one.first, value);
    }
    row("attributes", said);
}

static void host_writes_while_a_kernel_polls() {
    variant = "managed";
    auto* words = (Word*)managed(PIECE);
    auto* counted = (unsigned*)managed(PIECE);
    memset(words, 0, PIECE);
    for (bool is_apart : {false, true}) {
        Word *asked = words, *told = words + (is_apart ? 4096 : 8);
        memset(words, 0, PIECE);
        Watcher watcher;
        poll<<<1, 1, 0, work>>>(asked, told, LONG_NS);
        usleep(200000);
        auto t = clk::now();
        Word seen = *(volatile Word*)(told + 1);
        double read = us(t);
        t = clk::now();
        *(volatile Word*)asked = 7;
        double wrote = us(t);
        CK(cudaStreamSynchronize(work));
        double after = us(t);
        std::string launches = watcher.stop();
        row(text("a kernel polls a word, and writes into %s page; the host reads, then writes the word", is_apart ? "another" : "the same"),
            text("read %.0f us (turn %llu), write %.0f us, the kernel ended %.0f us after it and had seen %llu; %s", read, seen, wrote, after, told[2],
                 launches.c_str()));
    }
    *counted = 0;
    const int by_device = 2000, by_host = 100000;
    auto t = clk::now();
    add_system<<<1, 32, 0, work>>>(counted, by_device);
    for (int i = 0; i < by_host; ++i) __atomic_fetch_add(counted, 1u, __ATOMIC_RELAXED);
    CK(cudaStreamSynchronize(work));
    row("system-wide atomics of host and device on one word", text("%u of %d, in %.1f ms", *counted, 32 * by_device + by_host, us(t) / 1e3));
}

static void switch_managed() {
    variant = "managed";
    auto* p = (char*)managed(ROUNDS * PIECE);
    auto* q = (char*)managed(ROUNDS * PIECE);
    memset(p, 1, ROUNDS * PIECE);
    memset(q, 1, ROUNDS * PIECE);
    timed("2 MiB by prefetch", {{"to the device", [&](int i) { prefetch(p + i * PIECE, PIECE, true, work); CK(cudaStreamSynchronize(work)); }},
                                {"to the host", [&](int i) { prefetch(p + i * PIECE, PIECE, false, work); CK(cudaStreamSynchronize(work)); }}});
    timed("2 MiB by touch", {{"by a kernel", [&](int i) { increment<<<64, 256, 0, work>>>((unsigned*)(q + i * PIECE), PIECE / 4); CK(cudaStreamSynchronize(work)); }},
                             {"by the host, each page", [&](int i) { for (size_t at = 0; at < PIECE; at += 4096) ++*(volatile char*)(q + i * PIECE + at); }}});
}

static void budget() {
    variant = "managed";
    const size_t bytes = 512 * MIB, piece = 64 * MIB, words = bytes / 4;
    auto* p = (char*)managed(bytes);
    memset(p, 0, bytes);
    unsigned passes = 0;
    auto over = [&](char* from, size_t n) { increment<<<1056, 256, 0, work>>>((unsigned*)from, n / 4); };
    auto whole = [&] {
        auto t = clk::now();
        over(p, bytes);
        CK(cudaStreamSynchronize(work));
        ++passes;
        return gb_per_s(2.0 * bytes, us(t));
    };
    double faulting = whole(), resident = whole();
    resident = std::max(resident, whole());
    row("a kernel over 512 MiB: pages at the host; then at the device", text("%.1f, %.0f GB/s (read and written)", faulting, resident));
    auto t = clk::now();
    for (size_t at = 0; at < bytes; at += 4096) ++*(volatile char*)(p + at + 4095);
    for (size_t at = 0; at < bytes; at += 4096) --*(volatile char*)(p + at + 4095);
    row("the host touches each page of them afterwards", text("%.2f GB/s", gb_per_s(bytes, us(t))));
    // No more than half of it is on the device at a time: what a limit would do.
    t = clk::now();
    for (size_t at = 0; at < bytes; at += piece) {
        prefetch(p + at, piece, true, work);
        over(p + at, piece);
        if (at >= bytes / 2 - piece) prefetch(p + at - (bytes / 2 - piece), piece, false, work);
    }
    CK(cudaStreamSynchronize(work));
    ++passes;
    row("the same in pieces of 64 MiB, half of it on the device at most (our own prefetches both ways)", text("%.1f GB/s", gb_per_s(2.0 * bytes, us(t))));
    prefetch(p, bytes, false, work);
    CK(cudaStreamSynchronize(work));
    CUresult a = advise(p, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false), b = advise(p, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, true);
    double mapped = whole();
    mapped = std::max(mapped, whole());
    row("advised to stay at the host, mapped", text("%.1f GB/s (%s, %s)", mapped, name(a), name(b)));
    size_t wrong = 0;
    for (size_t i = 0; i < words; i += 997) wrong += ((unsigned*)p)[i] != passes;
    row("words that are wrong afterwards", text("%zu", wrong));
}

static void oversubscribe() {
    variant = "managed";
    const size_t left = 1024 * MIB;
    size_t available = 0, total;
    for (;;) {
        CK(cuMemGetInfo(&available, &total));
        void* held;
        if (available < left + 64 * MIB || cudaMalloc(&held, std::min(available - left, 8192 * MIB)) != cudaSuccess) break;
    }
    const size_t bytes = 2 * left;
    CUdeviceptr p;
    CK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    memset((void*)p, 0, bytes);
    std::string said;
    for (int pass = 0; pass < 3; ++pass) {
        Watcher watcher;
        auto t = clk::now();
        increment<<<1056, 256, 0, work>>>((unsigned*)p, bytes / 4);
        CK(cudaStreamSynchronize(work));
        said += text("%.1f GB/s (%s); ", gb_per_s(2.0 * bytes, us(t)), watcher.stop().c_str());
    }
    size_t wrong = 0;
    for (size_t i = 0; i < bytes / 4; i += 997) wrong += ((unsigned*)p)[i] != 3;
    row(text("a kernel over %zu MiB where %zu MiB are free, three passes", bytes / MIB, available / MIB), said + text("%zu words wrong", wrong));
}

static void on_signal(int number) {
    char said[] = "row|managed|the host's access after that|signal 00\n";
    said[sizeof said - 4] = '0' + number / 10;
    said[sizeof said - 3] = '0' + number % 10;
    (void)!write(1, said, sizeof said - 1);
    _exit(0);
}

// What a process without a context can do with another's managed pages, while a kernel runs.
static void seen_by_others() {
    variant = "managed";
    const size_t bytes = 64 * MIB;
    auto* p = (unsigned*)managed(bytes);
    memset(p, 0, bytes);
    increment<<<1056, 256, 0, work>>>(p, bytes / 4);
    CK(cudaStreamSynchronize(work));
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    for (bool is_beside : {false, true}) {
        if (is_beside) {
            increment<<<1056, 256, 0, work>>>(p, bytes / 4);
            CK(cudaStreamSynchronize(work));
            spin<<<8, 32, 0, other>>>(LONG_NS);
            usleep(20000);
        }
        fflush(stdout);
        pid_t owner = getpid(), child = fork();
        if (child == 0) {
            std::vector<unsigned> copy(bytes / 4, 99);
            iovec to = {copy.data(), bytes}, from = {p, bytes};
            auto t = clk::now();
            ssize_t got = process_vm_readv(owner, &to, 1, &from, 1, 0);
            int error = errno;
            row(text("another process reads 64 MiB that are on the device (process_vm_readv)%s", is_beside ? ", beside a kernel of 1.5 s" : ""),
                got == (ssize_t)bytes ? text("%.2f GB/s, last word %u", gb_per_s(bytes, us(t)), copy.back()) : text("%zd, %s", got, strerror(error)));
            _exit(0);
        }
        waitpid(child, nullptr, 0);
        const bool is_still = is_beside && cudaStreamQuery(other) == cudaErrorNotReady;
        CK(cudaStreamSynchronize(other));
        if (is_beside) row("did that wait for the kernel", is_still ? "no" : "yes");
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsigned word = *(volatile unsigned*)p;
        _exit(word == 2 ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    row("a forked child reads it", WIFSIGNALED(status) ? text("signal %d", WTERMSIG(status)) : WEXITSTATUS(status) ? "another value" : "the value");
    int fds[2];
    CK(pipe(fds));
    increment<<<1056, 256, 0, work>>>(p, bytes / 4);
    CK(cudaStreamSynchronize(work));
    ssize_t wrote = write(fds[1], p, 4096);
    row("write() of a page that is on the device", wrote == 4096 ? "as usual" : strerror(errno));
}

static void after_a_fault() {
    variant = "managed";
    const size_t bytes = 16 * MIB;
    auto* p = (unsigned*)managed(bytes);
    memset(p, 0, bytes);
    increment<<<256, 256, 0, work>>>(p, bytes / 4);
    CK(cudaStreamSynchronize(work));
    for (int number : {SIGSEGV, SIGBUS}) signal(number, on_signal);
    bad<<<1, 1, 0, work>>>((int*)0x10);
    cudaError_t r = cudaStreamSynchronize(work);
    size_t wrong = 0;
    auto t = clk::now();
    for (size_t i = 0; i < bytes / 4; ++i) wrong += ((volatile unsigned*)p)[i] != 1;
    row("the context has faulted: the host reads what the device had written last", text("%s, then %zu of %zu words wrong, %.1f ms", cudaGetErrorName(r), wrong, bytes / 4, us(t) / 1e3));
}

// Whether an address of a process that has ended can be had by the next.
static void address(const char* wanted_text) {
    variant = "managed";
    const size_t bytes = 64 * MIB;
    const CUdeviceptr wanted = strtoull(wanted_text, nullptr, 16);
    CUdeviceptr p, r;
    CK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    if (wanted == 0) {
        memset((void*)p, 5, bytes);
        increment<<<256, 256, 0, work>>>((unsigned*)p, bytes / 4);
        CK(cudaStreamSynchronize(work));
        printf("address %llx\n", (unsigned long long)p);
        fflush(stdout);
        raise(SIGKILL);
    }
    std::string said = text("the first of the same size is at %llx (%s), first word %x", (unsigned long long)p, p == wanted ? "the same" : "another", *(unsigned*)p);
    CK(cuMemFree(p));
    CUresult reserved = cuMemAddressReserve(&r, bytes, 0, wanted, 0);
    said += text("; reserved with it as a hint: %s, %llx", name(reserved), reserved ? 0ull : (unsigned long long)r);
    if (!reserved) CK(cuMemAddressFree(r, bytes));
    CK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    said += text("; allocated after that: %llx", (unsigned long long)p);
    CK(cuMemFree(p));
    // Whether the driver takes what the kernel would give next: everything but the wanted range is taken.
    void* held = mmap((void*)wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    said += text("; mmap there: %s", held == (void*)wanted ? "is free" : strerror(errno));
    if (held == (void*)wanted) munmap(held, bytes);
    row("where managed memory of the next process lies", said);
    CUmemAllocationProp pr = {};
    pr.type = (CUmemAllocationType)2;  // CU_MEM_ALLOCATION_TYPE_MANAGED, of CUDA 13
    pr.location = where(true);
    CUmemGenericAllocationHandle h;
    row("cuMemCreate of managed memory", name(cuMemCreate(&h, bytes, &pr, 0)));
}

// Memory of the system that the device reaches by itself, at addresses of our choice and of files that others map.
static void pageable() {
    variant = "pageable";
    int has = 0;
    CK(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device));
    if (!has) {
        row("plain memory of the system in kernels", "not on this machine");
        return;
    }
    const size_t bytes = 256 * MIB;
    for (bool is_file : {false, true}) {
        int fd = is_file ? memfd_create("pageable", 0) : -1;
        if (is_file) CK(ftruncate(fd, bytes));
        auto* wanted = (void*)0x600000000000;
        void* p = mmap(wanted, bytes, PROT_READ | PROT_WRITE, is_file ? MAP_SHARED | MAP_FIXED_NOREPLACE : MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, fd, 0);
        if (p != wanted) {
            row("mmap at an address of our choice", strerror(errno));
            return;
        }
        memset(p, 0, bytes);
        std::string said;
        cudaError_t result = cudaSuccess;
        for (int pass = 0; pass < 3 && !result; ++pass) {
            auto t = clk::now();
            increment<<<1056, 256, 0, work>>>((unsigned*)p, bytes / 4);
            result = cudaStreamSynchronize(work);
            said += text("%.1f ", gb_per_s(2.0 * bytes, us(t)));
        }
        row(text("a kernel over 256 MiB of %s, three passes", is_file ? "a memfd (shared)" : "mmap"), said + text("GB/s, %s, first word %u", cudaGetErrorName(result), *(unsigned*)p));
        if (result) return;
        munmap(p, bytes);
    }
}

// ---- Pieces of one reservation ----

static CUmemAllocationProp of(CUmemLocationType type, int id) {
    CUmemAllocationProp pr = {};
    pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    pr.location.type = type;
    pr.location.id = id;
    pr.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return pr;
}
static CUresult allow(CUdeviceptr at, size_t n, bool to_host, CUmemAllocationProp& pr) {
    CUmemAccessDesc a[2] = {};
    a[0].location = where(true);
    a[1].location = pr.location;
    a[0].flags = a[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuMemSetAccess(at, n, a, to_host ? 2 : 1);
}

// The first way to make host memory that the driver takes; nothing if there is none.
static bool host_memory(CUmemAllocationProp& pr, CUmemGenericAllocationHandle& h, std::string& said) {
    int node = 0;
    cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device);
    const std::pair<const char*, CUmemAllocationProp> ways[] = {{"HOST_NUMA", of(CU_MEM_LOCATION_TYPE_HOST_NUMA, std::max(node, 0))},
                                                                {"HOST", of(CU_MEM_LOCATION_TYPE_HOST, 0)},
                                                                {"HOST_NUMA_CURRENT", of(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0)}};
    bool is_found = false;
    for (auto& way : ways) {
        CUmemGenericAllocationHandle made;
        size_t granularity = 0;
        CUresult r = cuMemCreate(&made, PIECE, &way.second, 0);
        cuMemGetAllocationGranularity(&granularity, &way.second, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
        said += text("%s%s %s (granularity %zu KiB)", said.empty() ? "" : ", ", way.first, name(r), granularity >> 10);
        if (r) continue;
        if (is_found) CK(cuMemRelease(made));
        else pr = way.second, h = made, is_found = true;
    }
    return is_found;
}

static void pieces() {
    variant = "pieces";
    CUdeviceptr r;
    CK(cuMemAddressReserve(&r, 64 * MIB, 0, 0, 0));
    CUmemAllocationProp on_device = of(CU_MEM_LOCATION_TYPE_DEVICE, 0), on_host;
    CUmemGenericAllocationHandle d, h;
    CK(cuMemCreate(&d, PIECE, &on_device, 0));
    std::string said;
    const bool has_host = host_memory(on_host, h, said);
    row("cuMemCreate of host memory with a descriptor", said);
    CK(cuMemMap(r, PIECE, 0, d, 0));
    CK(allow(r, PIECE, false, on_device));
    timed("2 MiB of the device", {{"unmap", [&](int) { CK(cuMemUnmap(r, PIECE)); }}, {"map", [&](int) { CK(cuMemMap(r, PIECE, 0, d, 0)); }},
                                  {"access", [&](int) { CK(allow(r, PIECE, false, on_device)); }}});
    if (!has_host) return;
    CUresult mapped = cuMemMap(r + PIECE, PIECE, 0, h, 0), allowed = mapped ? mapped : allow(r + PIECE, PIECE, true, on_host);
    row("a piece of host memory beside one of the device", text("map %s, access of device and host %s", name(mapped), name(allowed)));
    if (mapped || allowed) return;
    auto* both = (unsigned*)r;
    auto* at_host = (volatile unsigned*)(r + PIECE);
    CK(cudaMemset(both, 0, PIECE));
    for (size_t i = 0; i < PIECE / 4; ++i) at_host[i] = 0;
    increment<<<64, 256, 0, work>>>(both, 2 * PIECE / 4);
    CK(cudaStreamSynchronize(work));
    row("a kernel over both; the host reads its piece at the same address", text("%u %u", at_host[0], at_host[PIECE / 4 - 1]));
    int fd = -1;
    CUresult exported = cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (!exported) {
        char link[200] = {}, path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        (void)!readlink(path, link, sizeof link - 1);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            void* p = mmap(nullptr, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            row("a process without a context maps the descriptor", p == MAP_FAILED ? text("%s (%s)", strerror(errno), link) : text("mapped, first word %u (%s)", *(volatile unsigned*)p, link));
            if (p != MAP_FAILED) *(volatile unsigned*)p = 77;
            _exit(0);
        }
        waitpid(child, nullptr, 0);
        row("what it wrote there, seen here", text("%u", at_host[0]));
        fflush(stdout);
    } else {
        row("export of host memory", name(exported));
    }
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    fflush(stdout);
    pid_t owner = getpid(), child = fork();
    if (child == 0) {
        unsigned word = 0;
        iovec to = {&word, 4}, from = {(void*)at_host, 4};
        ssize_t got = process_vm_readv(owner, &to, 1, &from, 1, 0);
        row("another process reads the host piece (process_vm_readv)", got == 4 ? text("word %u", word) : strerror(errno));
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    // A neighbour in the same reservation is at work all the while.
    CUmemGenericAllocationHandle d2;
    CK(cuMemCreate(&d2, PIECE, &on_device, 0));
    CK(cuMemMap(r + 2 * PIECE, PIECE, 0, d2, 0));
    CK(allow(r + 2 * PIECE, PIECE, false, on_device));
    // What is not mapped there at present has an address of its own, for the copy.
    CUdeviceptr apart;
    CK(cuMemAddressReserve(&apart, 64 * MIB, 0, 0, 0));
    CK(cuMemMap(apart, PIECE, 0, h, 0));
    CK(allow(apart, PIECE, true, on_host));
    CK(cuMemMap(apart + PIECE, PIECE, 0, d, 0));
    CK(allow(apart + PIECE, PIECE, false, on_device));
    auto swap = [&](CUmemGenericAllocationHandle to, bool is_host, CUmemAllocationProp& pr, CUdeviceptr from_at, CUdeviceptr to_at) {
        CK(cuMemcpyDtoDAsync(to_at, from_at, PIECE, work));
        CK(cudaStreamSynchronize(work));
        CK(cuMemUnmap(r, PIECE));
        CK(cuMemMap(r, PIECE, 0, to, 0));
        CK(allow(r, PIECE, is_host, pr));
    };
    neighbour = (unsigned*)(r + 2 * PIECE);
    timed("a piece of 2 MiB switched (copy, unmap, map, access)",
          {{"to the host", [&](int) { swap(h, true, on_host, apart + PIECE, apart); }}, {"to the device", [&](int) { swap(d, false, on_device, apart, apart + PIECE); }}});
    unsigned word = 0;
    CK(cudaMemcpy(&word, (void*)(r + 2 * PIECE), 4, cudaMemcpyDeviceToHost));
    row("the neighbour in the same reservation", text("well, %u turns", word));
}

// The host's pages are those of a memfd, which a client can map as well.
static void registered_pieces() {
    variant = "pieces";
    CUdeviceptr r;
    CK(cuMemAddressReserve(&r, 64 * MIB, 0, 0, 0));
    int fd = memfd_create("piece", 0);
    CK(ftruncate(fd, PIECE));
    void* p = mmap((void*)r, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (p != (void*)r) {
        row("a memfd mapped into the reservation", strerror(errno));
        return;
    }
    memset(p, 0, PIECE);
    CUresult registered = cuMemHostRegister(p, PIECE, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
    CUdeviceptr at = 0;
    CUresult found = registered ? registered : cuMemHostGetDevicePointer(&at, p, 0);
    std::string said = text("registered %s, device's address %s%s", name(registered), name(found), found ? "" : at == r ? ", the same" : ", another");
    if (!found) {
        increment<<<64, 256, 0, work>>>((unsigned*)at, PIECE / 4);
        cudaError_t ran = cudaStreamSynchronize(work);
        said += text(", a kernel there %s, first word %u", cudaGetErrorName(ran), *(volatile unsigned*)p);
    }
    row("a memfd mapped into the reservation", said);
    if (registered) return;
    CUmemAllocationProp on_device = of(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    CUmemGenericAllocationHandle d;
    CK(cuMemCreate(&d, PIECE, &on_device, 0));
    CUresult beside = cuMemMap(r + PIECE, PIECE, 0, d, 0);
    if (!beside) beside = allow(r + PIECE, PIECE, false, on_device);
    CK(cuMemHostUnregister(p));
    // Back to what the driver had reserved.
    void* back = mmap((void*)r, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    CUmemGenericAllocationHandle d2;
    CK(cuMemCreate(&d2, PIECE, &on_device, 0));
    CUresult again = back == (void*)r ? cuMemMap(r, PIECE, 0, d2, 0) : CUDA_ERROR_UNKNOWN;
    if (!again) again = allow(r, PIECE, false, on_device);
    row("device memory beside it; in its place, once it is unregistered", text("%s; %s", name(beside), name(again)));
    if (again) return;
    CK(cuMemUnmap(r, PIECE));
    timed("a piece of 2 MiB to the host and back",
          {{"map the memfd and register", [&](int) {
                p = mmap((void*)r, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
                CK(cuMemHostRegister(p, PIECE, CU_MEMHOSTREGISTER_DEVICEMAP));
            }},
           {"unregister", [&](int) { CK(cuMemHostUnregister((void*)r)); }},
           {"map and unmap device memory", [&](int) {
                mmap((void*)r, PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
                CK(cuMemMap(r, PIECE, 0, d2, 0));
                CK(allow(r, PIECE, false, on_device));
                CK(cuMemUnmap(r, PIECE));
            }}});
}

// ---- Pinned memory with copies around kernels ----

static void copies() {
    variant = "copies";
    const size_t bytes = 256 * MIB;
    float *a, *b, *da, *db;
    for (float** p : {&a, &b}) {
        CK(cudaHostAlloc((void**)p, bytes, cudaHostAllocMapped));
        memset(*p, 0, bytes);
    }
    CK(cudaMalloc(&da, bytes));
    CK(cudaMalloc(&db, bytes));
    const size_t n = bytes / 4;
    auto rate = [&](double moved, const std::function<void()>& step) {
        std::vector<double> took;
        for (int i = 0; i < 5; ++i) {
            auto t = clk::now();
            step();
            CK(cudaStreamSynchronize(work));
            took.push_back(us(t));
        }
        return gb_per_s(moved, median(took));
    };
    auto in = [&] { CK(cudaMemcpyAsync(da, a, bytes, cudaMemcpyHostToDevice, work)); CK(cudaMemcpyAsync(db, b, bytes, cudaMemcpyHostToDevice, work)); };
    auto kernel = [&] { add<<<1056, 256, 0, work>>>(da, db, n); };
    auto out = [&] { CK(cudaMemcpyAsync(a, da, bytes, cudaMemcpyDeviceToHost, work)); };
    row("a += b of 256 MiB each, the kernel on the host's memory", text("%.1f GB/s", rate(3.0 * bytes, [&] { add<<<1056, 256, 0, work>>>(a, b, n); })));
    row("the same on the device's memory", text("%.0f GB/s", rate(3.0 * bytes, kernel)));
    row("to the device; to the host", text("%.1f; %.1f GB/s", rate(2.0 * bytes, in), rate(bytes, out)));
    row("both copied in, the kernel, one copied out", text("%.1f GB/s of the kernel's traffic", rate(3.0 * bytes, [&] { in(); kernel(); out(); })));
    row("ten kernels between the copies", text("%.1f GB/s of the kernels' traffic", rate(30.0 * bytes, [&] { in(); for (int i = 0; i < 10; ++i) kernel(); out(); })));
    timed("2 MiB", {{"to the device", [&](int) { CK(cudaMemcpyAsync(da, a, PIECE, cudaMemcpyHostToDevice, work)); CK(cudaStreamSynchronize(work)); }},
                    {"to the host", [&](int) { CK(cudaMemcpyAsync(a, da, PIECE, cudaMemcpyDeviceToHost, work)); CK(cudaStreamSynchronize(work)); }}});
}

int main(int count, char** arguments) {
    const std::map<std::string, std::function<void()>> probes = {
        {"attributes", attributes}, {"poll", host_writes_while_a_kernel_polls}, {"switch", switch_managed}, {"budget", budget},
        {"others", seen_by_others}, {"fault", after_a_fault}, {"address", [&] { address(count > 2 ? arguments[2] : "0"); }}, {"pageable", pageable},
        {"pieces", pieces}, {"registered", registered_pieces}, {"copies", copies}, {"oversubscribe", oversubscribe}};
    const auto probe = probes.find(count > 1 ? arguments[1] : "");
    if (probe == probes.end()) {
        for (auto& one : probes) fprintf(stderr, "%s\n", one.first.c_str());
        return 2;
    }
    begin();
    probe->second();
    return 0;
}
