// Calls that must succeed, and the time.
#pragma once

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MUST(call)                                                                \
    do {                                                                          \
        CUresult result_ = (call);                                                \
        if (result_ != CUDA_SUCCESS) {                                            \
            const char *name_ = "?";                                              \
            cuGetErrorName(result_, &name_);                                      \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name_); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
