/* What the programs about the life of processes share: a driver that is opened when the program says so, and work whose result
 * the CPU knows. Every process that has worked prints `ran PID KERNELS`, from which a test learns what the server must have counted. */
#pragma once

#include "../driver_api/check.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ELEMENTS = 4096, BLOCK_THREADS = 128 };

/* values[i] = values[i] * 3 + i */
#define STEP_KERNEL                                                             \
    ".visible .entry step(.param .u64 values)\n"                                \
    "{\n"                                                                       \
    "    .reg .b32 %r<8>;\n"                                                    \
    "    .reg .b64 %rd<4>;\n"                                                   \
    "    ld.param.u64 %rd0, [values];\n"                                        \
    "    mov.u32 %r0, %ctaid.x;\n"                                              \
    "    mov.u32 %r1, %ntid.x;\n"                                               \
    "    mov.u32 %r2, %tid.x;\n"                                                \
    "    mad.lo.u32 %r3, %r0, %r1, %r2;\n"                                      \
    "    mul.wide.u32 %rd1, %r3, 4;\n"                                          \
    "    add.u64 %rd2, %rd0, %rd1;\n"                                           \
    "    ld.global.u32 %r4, [%rd2];\n"                                          \
    "    mad.lo.u32 %r5, %r4, 3, %r3;\n"                                        \
    "    st.global.u32 [%rd2], %r5;\n"                                          \
    "    ret;\n"                                                                \
    "}\n"

static const char step_ptx[] = ".version 6.0\n"
                               ".target sm_50\n"
                               ".address_size 64\n" STEP_KERNEL;

/* A process's driver, context and kernel. */
struct Cuda {
    void *library;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction step;
    CUdeviceptr values;
    unsigned kernels;
};

/* A line for a test that asks. */
static inline void answer(const char *text) {
    puts(text);
    fflush(stdout);
}

/* `ok`, or `error N`. */
static inline void answer_result(CUresult result) {
    char text[32];
    snprintf(text, sizeof text, "error %d", (int)result);
    answer(result == CUDA_SUCCESS ? "ok" : text);
}

static inline void *open_library(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

/* Initialises the driver and makes the primary context current, with the kernel loaded. */
static inline struct Cuda open_cuda(void *library) {
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuCtxSetCurrent);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuMemAlloc);
    struct Cuda cuda = {.library = library};
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&cuda.device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&cuda.context, cuda.device));
    CHECK(cuCtxSetCurrent_(cuda.context));
    CHECK(cuModuleLoadData_(&cuda.module, step_ptx));
    CHECK(cuModuleGetFunction_(&cuda.step, cuda.module, "step"));
    CHECK(cuMemAlloc_(&cuda.values, ELEMENTS * sizeof(uint32_t)));
    return cuda;
}

/* Starts kernels and does not wait for them. */
static inline void launch(struct Cuda *cuda, unsigned kernels) {
    void *library = cuda->library;
    LOAD(cuLaunchKernel);
    void *parameters[] = {&cuda->values};
    for (unsigned i = 0; i < kernels; ++i) {
        CHECK(cuLaunchKernel_(cuda->step, ELEMENTS / BLOCK_THREADS, 1, 1, BLOCK_THREADS, 1, 1, 0, NULL, parameters, NULL));
    }
    cuda->kernels += kernels;
}

/* Kernels over data that is copied in and out, compared with the CPU. */
static inline void work(struct Cuda *cuda, unsigned kernels) {
    void *library = cuda->library;
    LOAD(cuMemcpyHtoD);
    LOAD(cuMemcpyDtoH);
    LOAD(cuCtxSynchronize);
    static uint32_t before[ELEMENTS], after[ELEMENTS];
    for (uint32_t i = 0; i < ELEMENTS; ++i) {
        before[i] = i * 2654435761u;
    }
    CHECK(cuMemcpyHtoD_(cuda->values, before, sizeof before));
    launch(cuda, kernels);
    CHECK(cuCtxSynchronize_());
    CHECK(cuMemcpyDtoH_(after, cuda->values, sizeof after));
    for (uint32_t i = 0; i < ELEMENTS; ++i) {
        uint32_t expected = before[i];
        for (unsigned k = 0; k < kernels; ++k) {
            expected = expected * 3 + i;
        }
        REQUIRE(after[i] == expected);
    }
}

static inline void report(const struct Cuda *cuda) {
    printf("ran %d %u\n", (int)getpid(), cuda->kernels);
    fflush(stdout);
}

/* Waits for a child that must exit with that status. */
static inline void reap(pid_t child, int status) {
    int ended = 0;
    while (waitpid(child, &ended, 0) < 0) {
        REQUIRE(errno == EINTR);
    }
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status) {
        fprintf(stderr, "child %d ended with status %#x, expected exit code %d\n", (int)child, ended, status);
        exit(1);
    }
}
