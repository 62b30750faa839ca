/* Processes that fork. `fork CASE`:
 *   before       children of a process that has not touched the driver, and the process itself, all use it
 *   library      the same where the library was opened and its functions looked up before
 *   version      the same where `cuDriverGetVersion` was called before, which initialises nothing
 *   after        a child of a process that has initialised the driver is told so by every call, and its parent goes on
 *   threads      the same while other threads of the parent are in calls
 *   exec         a child of such a process that executes a program: that one starts afresh (this program, with `before`)
 *   orphan       the parent prints `ready PID`, is killed, and its idle child, which prints `child PID`, lives on until its input ends */
#include "process.h"

#include <pthread.h>

enum { CHILDREN = 3 };

static pid_t fork_flushed(void) {
    fflush(stdout);
    pid_t child = fork();
    REQUIRE(child >= 0);
    return child;
}

static void work_and_report(void *library, unsigned kernels) {
    struct Cuda cuda = open_cuda(library ? library : open_library());
    work(&cuda, kernels);
    report(&cuda);
}

static int before(void *library) {
    pid_t children[CHILDREN];
    for (unsigned i = 0; i < CHILDREN; ++i) {
        children[i] = fork_flushed();
        if (children[i] == 0) {
            work_and_report(library, 2 + i);
            exit(0);
        }
    }
    work_and_report(library, 7);
    for (unsigned i = 0; i < CHILDREN; ++i) {
        reap(children[i], 0);
    }
    return 0;
}

/* What the child of an initialised process is told. */
static void expect_refusals(const struct Cuda *cuda) {
    void *library = cuda->library;
    LOAD(cuInit);
    LOAD(cuCtxGetCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuDeviceGetCount);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuLaunchKernel);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemcpyDtoH);
    CUcontext context;
    CUdeviceptr address;
    uint32_t word;
    int count;
    void *parameters[] = {(void *)&cuda->values};
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuInit_(0));
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount_(&count));
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent_(&context));
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuDevicePrimaryCtxRetain_(&context, 0));
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_(&address, 4096));
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuMemcpyDtoH_(&word, cuda->values, sizeof word));
    REFUSED(CUDA_ERROR_NOT_INITIALIZED,
            cuLaunchKernel_(cuda->step, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize_());
    REFUSED(CUDA_ERROR_NOT_INITIALIZED, cuMemFree_(cuda->values));
}

static int after(void) {
    struct Cuda cuda = open_cuda(open_library());
    work(&cuda, 3);
    for (unsigned i = 0; i < CHILDREN; ++i) {
        // With work of the parent in flight, and once with exit handlers, once without.
        launch(&cuda, 20);
        pid_t child = fork_flushed();
        if (child == 0) {
            expect_refusals(&cuda);
            if (i % 2) {
                _exit(7);
            }
            exit(7);
        }
        work(&cuda, 3);
        reap(child, 7);
        work(&cuda, 3);
    }
    report(&cuda);
    return 0;
}

static volatile int stopping;

static void *call_without_end(void *argument) {
    struct Cuda *cuda = argument;
    void *library = cuda->library;
    LOAD(cuCtxSetCurrent);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemsetD8);
    LOAD(cuCtxSynchronize);
    CHECK(cuCtxSetCurrent_(cuda->context));
    while (!stopping) {
        CUdeviceptr memory;
        CHECK(cuMemAlloc_(&memory, 1 << 16));
        CHECK(cuMemsetD8_(memory, 1, 1 << 16));
        CHECK(cuCtxSynchronize_());
        CHECK(cuMemFree_(memory));
    }
    return NULL;
}

static int with_threads(void) {
    enum { THREADS = 4, FORKS = 25 };
    struct Cuda cuda = open_cuda(open_library());
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        REQUIRE(pthread_create(&threads[i], NULL, call_without_end, &cuda) == 0);
    }
    for (int i = 0; i < FORKS; ++i) {
        pid_t child = fork_flushed();
        if (child == 0) {
            expect_refusals(&cuda);
            exit(0);
        }
        reap(child, 0);
    }
    work(&cuda, 5);
    stopping = 1;
    for (int i = 0; i < THREADS; ++i) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
    report(&cuda);
    return 0;
}

static int then_exec(void) {
    struct Cuda cuda = open_cuda(open_library());
    work(&cuda, 4);
    pid_t child = fork_flushed();
    if (child == 0) {
        execl("/proc/self/exe", "fork", "before", (char *)NULL);
        _exit(1);
    }
    work(&cuda, 4);
    reap(child, 0);
    work(&cuda, 4);
    report(&cuda);
    return 0;
}

static _Noreturn void orphan(void) {
    struct Cuda cuda = open_cuda(open_library());
    work(&cuda, 2);
    pid_t child = fork_flushed();
    if (child == 0) {
        char end;
        printf("child %d\n", (int)getpid());
        fflush(stdout);
        while (read(STDIN_FILENO, &end, 1) > 0) {
        }
        exit(0);
    }
    report(&cuda);
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    for (;;) {
        pause();
    }
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    if (strcmp(name, "before") == 0) {
        return before(NULL);
    }
    if (strcmp(name, "library") == 0) {
        void *library = open_library();
        LOAD(cuGetProcAddress);
        void *found;
        CUdriverProcAddressQueryResult status;
        CHECK(cuGetProcAddress_("cuInit", &found, 12000, 0, &status));
        REQUIRE(found != NULL);
        return before(library);
    }
    if (strcmp(name, "version") == 0) {
        void *library = open_library();
        LOAD(cuDriverGetVersion);
        int version;
        CHECK(cuDriverGetVersion_(&version));
        REQUIRE(version >= 12000);
        return before(library);
    }
    if (strcmp(name, "after") == 0) {
        return after();
    }
    if (strcmp(name, "threads") == 0) {
        return with_threads();
    }
    if (strcmp(name, "exec") == 0) {
        return then_exec();
    }
    if (strcmp(name, "orphan") == 0) {
        orphan();
    }
    fprintf(stderr, "no such case: %s\n", name);
    return 2;
}
