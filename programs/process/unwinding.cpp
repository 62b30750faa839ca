/* What unwinds the stack beside the library, and in it: exceptions of C++, threads that end by pthread_exit or are cancelled, and a
 * panic of the library's own, which becomes an error of the call. A library that brings an unwinder of its own must not stand in
 * for the program's. */
#include "../driver_api/check.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ctime>
#include <unistd.h>

static std::atomic<bool> is_clock_broken;

/* The process's own in place of the C library's: the library takes a clock that fails for a bug, and panics. */
extern "C" int clock_gettime(clockid_t clock, timespec *now) noexcept {
    if (is_clock_broken) {
        errno = EINVAL;
        return -1;
    }
    return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
}

static void *library;
static std::atomic<int> destroyed;

struct Counted {
    ~Counted() { ++destroyed; }
};

/* Which call panics depends on who answers: attaching looks at the clock, and so does the end of the software GPU's context. */
static int panicking_child() {
    LOAD(cuInit);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuDevicePrimaryCtxReset);
    is_clock_broken = true;
    CUresult result = cuInit_(0);
    if (result == CUDA_SUCCESS) {
        is_clock_broken = false;
        CUcontext context;
        CHECK(cuDevicePrimaryCtxRetain_(&context, 0));
        is_clock_broken = true;
        result = cuDevicePrimaryCtxReset_(0);
    }
    is_clock_broken = false;
    return result == CUDA_ERROR_UNKNOWN ? 0 : 1;
}

static void panics() {
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        _exit(panicking_child());
    }
    int ended = 0;
    REQUIRE(waitpid(child, &ended, 0) == child);
    REQUIRE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

/* The library has state of this thread, whose end it notices. */
static void use(CUcontext context) {
    LOAD(cuCtxSetCurrent);
    LOAD(cuMemAlloc);
    LOAD(cuMemsetD32);
    LOAD(cuMemcpyDtoH);
    LOAD(cuMemFree);
    CUdeviceptr memory;
    unsigned value = 0;
    CHECK(cuCtxSetCurrent_(context));
    CHECK(cuMemAlloc_(&memory, sizeof value));
    CHECK(cuMemsetD32_(memory, 42, 1));
    CHECK(cuMemcpyDtoH_(&value, memory, sizeof value));
    CHECK(cuMemFree_(memory));
    REQUIRE(value == 42);
}

static void *throws(void *context) {
    for (int turn = 0; turn < 100; ++turn) {
        try {
            Counted counted;
            use(static_cast<CUcontext>(context));
            throw std::runtime_error(std::to_string(turn));
        } catch (const std::exception &error) {
            REQUIRE(error.what() == std::to_string(turn));
        }
    }
    return context;
}

static void *exits(void *context) {
    Counted counted;
    use(static_cast<CUcontext>(context));
    pthread_exit(context);
}

static std::atomic<bool> may_be_cancelled;

static void *is_cancelled(void *context) {
    Counted counted;
    use(static_cast<CUcontext>(context));
    may_be_cancelled = true;
    for (;;) {
        pause();
    }
}

static void *joined(void *(*body)(void *), CUcontext context, bool cancel = false) {
    pthread_t thread;
    void *result = nullptr;
    REQUIRE(pthread_create(&thread, nullptr, body, context) == 0);
    while (cancel && !may_be_cancelled) {
        usleep(1000);
    }
    REQUIRE(!cancel || pthread_cancel(thread) == 0);
    REQUIRE(pthread_join(thread, &result) == 0);
    return result;
}

int main() {
    library = driver();
    panics();
    LOAD(cuInit);
    LOAD(cuDevicePrimaryCtxRetain);
    CUcontext context;
    CHECK(cuInit_(0));
    CHECK(cuDevicePrimaryCtxRetain_(&context, 0));
    REQUIRE(joined(throws, context) == context);
    REQUIRE(destroyed == 100);
    REQUIRE(joined(exits, context) == context);
    REQUIRE(destroyed == 101);
    use(context);
    REQUIRE(joined(is_cancelled, context, true) == PTHREAD_CANCELED);
    use(context);
    printf("ran %d 0\n", static_cast<int>(getpid()));
    return 0;
}
