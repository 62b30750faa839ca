// What the probes beside this have in common: checked calls, a clock, green contexts of all SMs.
#pragma once
#include <cuda.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <vector>

// For calls of the driver and of the runtime, whose errors have the same numbers.
#define CK(x)                                                                            \
    do {                                                                                 \
        int r_ = (int)(x);                                                               \
        if (r_) {                                                                        \
            const char* n_ = "?";                                                        \
            cuGetErrorName((CUresult)r_, &n_);                                           \
            printf("| %s:%d | %s | %s (%d) |\n", __FILE__, __LINE__, #x, n_, r_);        \
            fflush(stdout);                                                              \
            _exit(1);                                                                    \
        }                                                                                \
    } while (0)

using clk = std::chrono::steady_clock;
static inline double ms(clk::time_point since) {
    return std::chrono::duration<double>(clk::now() - since).count() * 1e3;
}

static inline CUgreenCtx green_context(CUdevice device, std::vector<CUdevResource> resources) {
    CUdevResourceDesc description;
    CUgreenCtx made;
    CK(cuDevResourceGenerateDesc(&description, resources.data(), resources.size()));
    CK(cuGreenCtxCreate(&made, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    return made;
}

static inline CUdevResource all_sms(CUdevice device) {
    CUdevResource whole;
    CK(cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM));
    return whole;
}
