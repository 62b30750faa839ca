/* A client that keeps the device busy, or asks for little and often, and says when its kernels ran by the device's own clock.
 *
 *   contenders busy ITERATIONS BLOCKS SHARED_BYTES STREAMS DEPTH for MS     kernels back to back for MS of the device's time
 *   contenders busy ITERATIONS BLOCKS SHARED_BYTES STREAMS DEPTH until PATH the same until a file of that name is there
 *   contenders busy ITERATIONS BLOCKS SHARED_BYTES STREAMS DEPTH count N    so many
 *   contenders ask  ITERATIONS BLOCKS SHARED_BYTES REQUESTS                 a kernel and a wait for it, again and again
 *   contenders ... after PATH                                               one kernel, and the rest when a file of that name is there
 *
 * A kernel counts ITERATIONS in each of BLOCKS blocks of one warp, SHARED_BYTES of which fill an SM; DEPTH of them are queued at most. Each prints a line:
 * the nanoseconds at which its first block began and its last one ended; `ask` puts the end of a kernel before them that it had just waited for. Without
 * arguments it checks itself. */
#include "check.h"

#include <unistd.h>

#define THREADS 32
#define MOST_KERNELS (1 << 20)
#define MOST_STREAMS 8
#define MOST_DEPTH 1024
#define LOOK_US 1000

/* work(log, iterations): log[0] = the least time at which a thread began, log[1] = the greatest at which one ended. What the loop computes decides whether
 * something harmless is done, as an assembler would leave out a loop whose result nobody needs. */
static const char code[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry work(.param .u64 log, .param .u32 iterations)\n"
    "{\n"
    "    .reg .pred %p<3>;\n"
    "    .reg .b32 %r<4>;\n"
    "    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd0, [log];\n"
    "    ld.param.u32 %r0, [iterations];\n"
    "    cvta.to.global.u64 %rd0, %rd0;\n"
    "    mov.u32 %r1, %tid.x;\n"
    "    setp.ne.u32 %p0, %r1, 0;\n"
    "    mov.u64 %rd1, %globaltimer;\n"
    "    @!%p0 red.global.min.u64 [%rd0], %rd1;\n"
    "    mov.u32 %r2, 0;\n"
    "    mov.u32 %r3, %r1;\n"
    "    setp.eq.u32 %p1, %r0, 0;\n"
    "    @%p1 bra done;\n"
    "loop:\n"
    "    mad.lo.u32 %r3, %r3, 1664525, 1013904223;\n"
    "    add.u32 %r2, %r2, 1;\n"
    "    setp.lt.u32 %p1, %r2, %r0;\n"
    "    @%p1 bra loop;\n"
    "done:\n"
    "    mov.u64 %rd2, %globaltimer;\n"
    "    setp.eq.u32 %p2, %r3, 305419896;\n"
    "    @%p2 red.global.max.u64 [%rd0+8], %rd2;\n"
    "    @!%p0 red.global.max.u64 [%rd0+8], %rd2;\n"
    "    ret;\n"
    "}\n";

static CUfunction work;
static CUdeviceptr log_of_all;
static unsigned iterations = 1000, blocks = 4, shared_bytes;

static void prepare(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &work, module, "work");
    size_t bytes = (size_t)MOST_KERNELS * 16;
    CALL(cuMemAlloc, &log_of_all, bytes);
    uint64_t *fresh = malloc(bytes);
    REQUIRE(fresh);
    for (size_t kernel = 0; kernel < MOST_KERNELS; ++kernel) {
        fresh[2 * kernel] = UINT64_MAX;
        fresh[2 * kernel + 1] = 0;
    }
    CALL(cuMemcpyHtoD, log_of_all, fresh, bytes);
    free(fresh);
}

static void launch(unsigned kernel, unsigned count, CUstream stream) {
    CUdeviceptr place = log_of_all + (CUdeviceptr)kernel * 16;
    void *parameters[] = {&place, &count};
    CALL(cuLaunchKernel, work, blocks, 1, 1, THREADS, 1, 1, shared_bytes, stream, parameters, NULL);
}

/* When kernels began and ended. */
static void times(unsigned first, unsigned count, uint64_t *into) {
    CALL(cuMemcpyDtoH, into, log_of_all + (CUdeviceptr)first * 16, (size_t)count * 16);
}

/* Whatever comes with a first launch has come, and what such a kernel takes is known; then waits for the file. */
static void wait_for(const char *path) {
    launch(MOST_KERNELS - 1, iterations, NULL);
    CALL(cuCtxSynchronize);
    while (access(path, F_OK) != 0)
        usleep(LOOK_US);
}

/* Ends after `most` kernels, after so much of the device's time, or when the file is there: whichever is given. */
static void busy(unsigned streams, unsigned depth, unsigned most, uint64_t duration_ns, const char *path) {
    CUstream stream[MOST_STREAMS];
    CUevent ended[MOST_DEPTH];
    REQUIRE(streams >= 1 && streams <= MOST_STREAMS && depth >= 1 && depth <= MOST_DEPTH);
    for (unsigned i = 0; i < streams; ++i)
        CALL(cuStreamCreate, &stream[i], CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < depth; ++i)
        CALL(cuEventCreate, &ended[i], CU_EVENT_DISABLE_TIMING);
    unsigned kernels = 0;
    uint64_t first[2] = {0}, last[2];
    for (int goes_on = 1; goes_on && kernels < most; ++kernels) {
        if (kernels >= depth) {
            CALL(cuEventSynchronize, ended[kernels % depth]);
            if (path)
                goes_on = access(path, F_OK) != 0;
            /* Looked at now and then: a copy waits until all that is queued has been taken. */
            if (duration_ns && kernels % depth == 0) {
                times(0, 1, first);
                times(kernels - depth, 1, last);
                goes_on = last[1] < first[0] + duration_ns;
            }
        }
        launch(kernels, iterations, stream[kernels % streams]);
        CALL(cuEventRecord, ended[kernels % depth], stream[kernels % streams]);
    }
    CALL(cuCtxSynchronize);
    uint64_t *all = malloc((size_t)kernels * 16);
    REQUIRE(all);
    times(0, kernels, all);
    for (unsigned kernel = 0; kernel < kernels; ++kernel)
        printf("%llu %llu\n", (unsigned long long)all[2 * kernel], (unsigned long long)all[2 * kernel + 1]);
    free(all);
}

static void ask(unsigned requests) {
    REQUIRE(requests < MOST_KERNELS / 2);
    for (unsigned request = 0; request < requests; ++request) {
        uint64_t both[4];
        launch(2 * request, 0, NULL);
        CALL(cuCtxSynchronize);
        launch(2 * request + 1, iterations, NULL);
        CALL(cuCtxSynchronize);
        times(2 * request, 2, both);
        printf("%llu %llu %llu\n", (unsigned long long)both[1], (unsigned long long)both[2], (unsigned long long)both[3]);
        fflush(stdout);
    }
}

/* Kernels on one stream do not overlap, and the last one ends last. */
static void check(void) {
    uint64_t both[4];
    launch(0, 1000, NULL);
    launch(1, 1000, NULL);
    CALL(cuCtxSynchronize);
    times(0, 2, both);
    REQUIRE(both[0] <= both[1] && both[1] <= both[2] && both[2] <= both[3]);
    printf("contenders: ok checksum=2\n");
}

int main(int count, char **arguments) {
    unsigned number[5] = {0};
    prepare();
    for (int i = 0; i < 5 && i + 2 < count; ++i)
        number[i] = (unsigned)strtoul(arguments[i + 2], NULL, 10);
    if (count > 1) {
        iterations = number[0];
        blocks = number[1];
        shared_bytes = number[2];
    }
    if (count > 3 && !strcmp(arguments[count - 2], "after")) {
        wait_for(arguments[count - 1]);
        count -= 2;
    }
    if (count == 1)
        check();
    else if (count == 9 && !strcmp(arguments[1], "busy") && !strcmp(arguments[7], "for"))
        busy(number[3], number[4], MOST_KERNELS - 1, strtoull(arguments[8], NULL, 10) * 1000000, NULL);
    else if (count == 9 && !strcmp(arguments[1], "busy") && !strcmp(arguments[7], "until"))
        busy(number[3], number[4], MOST_KERNELS - 1, 0, arguments[8]);
    else if (count == 9 && !strcmp(arguments[1], "busy") && !strcmp(arguments[7], "count")) {
        unsigned most = (unsigned)strtoul(arguments[8], NULL, 10);
        REQUIRE(most < MOST_KERNELS);
        busy(number[3], number[4], most, 0, NULL);
    } else if (count == 6 && !strcmp(arguments[1], "ask"))
        ask(number[3]);
    else {
        fprintf(stderr, "see the head of programs/driver_api/contenders.c\n");
        return 2;
    }
    return 0;
}
