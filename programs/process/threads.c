/* Threads that die with a context current: their own, the primary one, one that another thread destroys, and with work in their own default
 * stream. Afterwards everything works, and a destroyed context is known as such where it is still current. */
#include "process.h"

#include <pthread.h>

enum { THREADS = 8, TURNS = 8 };

/* As before CUDA 13, whose header has a longer form only. */
typedef CUresult Create(CUcontext *, unsigned, CUdevice);

/* The variant of the launch that `--default-stream per-thread` makes of it. */
typedef CUresult Launch(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
                        void **);

static struct Cuda cuda;
static CUcontext left_behind[THREADS];

static void *dies_with_its_own(void *place) {
    void *library = cuda.library;
    Create *create = (Create *)symbol(library, "cuCtxCreate_v2");
    LOAD(cuMemAlloc);
    LOAD(cuMemsetD8Async);
    CUdeviceptr memory;
    CHECK(create((CUcontext *)place, 0, cuda.device));
    CHECK(cuMemAlloc_(&memory, 1 << 16));
    CHECK(cuMemsetD8Async_(memory, 7, 1 << 16, NULL));
    return NULL;
}

static void *dies_with_work(void *argument) {
    void *library = cuda.library;
    LOAD(cuCtxSetCurrent);
    Launch *launch_here = (Launch *)symbol(library, "cuLaunchKernel_ptsz");
    void *parameters[] = {&cuda.values};
    CHECK(cuCtxSetCurrent_(cuda.context));
    for (int i = 0; i < 5; ++i) {
        CHECK(launch_here(cuda.step, ELEMENTS / BLOCK_THREADS, 1, 1, BLOCK_THREADS, 1, 1, 0, NULL, parameters, NULL));
    }
    // Not by returning, for once.
    pthread_exit(argument);
}

static CUcontext shared_context;
static pthread_barrier_t made, destroyed;

static void *sees_it_destroyed(void *argument) {
    void *library = cuda.library;
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuCtxGetCurrent);
    CUcontext current;
    CHECK(cuCtxSetCurrent_(shared_context));
    CHECK(cuCtxSynchronize_());
    pthread_barrier_wait(&made);
    pthread_barrier_wait(&destroyed);
    REFUSED(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize_());
    CHECK(cuCtxGetCurrent_(&current));
    REQUIRE(current == shared_context);
    return argument;
}

static void run_all(void *(*body)(void *), void *arguments) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; ++i) {
        REQUIRE(pthread_create(&threads[i], NULL, body, (CUcontext *)arguments + i) == 0);
    }
    for (int i = 0; i < THREADS; ++i) {
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    }
}

int main(void) {
    cuda = open_cuda(open_library());
    void *library = cuda.library;
    Create *create = (Create *)symbol(library, "cuCtxCreate_v2");
    LOAD(cuCtxDestroy);
    LOAD(cuCtxPopCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuMemGetInfo);
    size_t free_before, free_after, total;
    CHECK(cuMemGetInfo_(&free_before, &total));
    for (int turn = 0; turn < TURNS; ++turn) {
        run_all(dies_with_its_own, left_behind);
        for (int i = 0; i < THREADS; ++i) {
            CHECK(cuCtxDestroy_(left_behind[i]));
        }
        run_all(dies_with_work, left_behind);
        cuda.kernels += THREADS * 5;
    }
    CHECK(cuCtxSynchronize_());

    CHECK(create(&shared_context, 0, cuda.device));
    CUcontext popped;
    CHECK(cuCtxPopCurrent_(&popped));
    REQUIRE(pthread_barrier_init(&made, NULL, 2) == 0 && pthread_barrier_init(&destroyed, NULL, 2) == 0);
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, sees_it_destroyed, NULL) == 0);
    pthread_barrier_wait(&made);
    CHECK(cuCtxDestroy_(shared_context));
    pthread_barrier_wait(&destroyed);
    REQUIRE(pthread_join(thread, NULL) == 0);

    CHECK(cuMemGetInfo_(&free_after, &total));
    // Memory comes in ranges, of which one more may be kept for reuse.
    REQUIRE(free_before <= free_after + (64u << 20));
    work(&cuda, 3);
    report(&cuda);
    return 0;
}
