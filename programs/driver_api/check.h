/* What the driver-API programs need: the driver's functions by name, and calls that must succeed. The library is opened, not
 * linked, as a program without a CUDA toolkit does it. */
#pragma once

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#define STRING(x) #x
#define SYMBOL(name) STRING(name)

/* Declares NAME_, the function NAME of a library, in the version that cuda.h gives it. */
#define LOAD(name) __typeof__(name) *name##_ = (__typeof__(name) *)symbol(library, SYMBOL(name))

/* Ends the program when a call does not return what is expected. */
#define CHECK(call) require((call), CUDA_SUCCESS, #call, __LINE__)
#define REFUSED(error, call) require((call), (error), #call, __LINE__)
#define REQUIRE(condition) require((condition) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, #condition, __LINE__)

static inline void require(CUresult got, CUresult expected, const char *call, int line) {
    if (got != expected) {
        fprintf(stderr, "line %d: %s returned %d, expected %d\n", line, call, (int)got, (int)expected);
        exit(1);
    }
}

static inline void *symbol(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (!address) {
        fprintf(stderr, "libcuda.so.1 has no %s\n", name);
        exit(1);
    }
    return address;
}

/* The driver, opened by the first call. */
static inline void *driver(void) {
    static void *handle;
    if (!handle && !(handle = dlopen("libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return handle;
}

/* The driver's function NAME, in the version that cuda.h gives it, or its variant with SUFFIX, "_ptsz". */
#define FUNCTION(name, suffix) (*(__typeof__(name) *)symbol(driver(), SYMBOL(name) suffix))

/* Calls it, and it must succeed. */
#define CALL(name, ...) CHECK(FUNCTION(name, "")(__VA_ARGS__))
#define CALL_PTSZ(name, ...) CHECK(FUNCTION(name, "_ptsz")(__VA_ARGS__))
#define CALL_PTDS(name, ...) CHECK(FUNCTION(name, "_ptds")(__VA_ARGS__))

/* Mixes a value into a checksum. */
static inline uint64_t mix(uint64_t checksum, uint64_t value) { return checksum * 31 + value; }
