/* Attributes of functions that programs set before their launches: what is set is what is told afterwards and what launches get, again and
 * again; what a driver refuses changes nothing; code that is loaded anew has the driver's values. */
#include "check.h"

enum { OWN_BYTES = 256 };

/* size(words): words[0] = bytes of dynamic shared memory. */
static const char code[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .shared .align 16 .b8 dynamic[];\n"
    ".visible .entry size(.param .u64 words)\n"
    "{\n"
    "    .reg .b32 %r<3>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    .shared .align 4 .b8 own[256];\n"
    "    ld.param.u64 %rd0, [words];\n"
    "    cvta.to.global.u64 %rd1, %rd0;\n"
    "    mov.u32 %r0, %dynamic_smem_size;\n"
    "    st.volatile.shared.u32 [own], %r0;\n"
    "    ld.volatile.shared.u32 %r1, [own];\n"
    "    st.global.u32 [%rd1], %r1;\n"
    "    ret;\n"
    "}\n";

static const CUfunction_attribute shared = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
static const CUfunction_attribute carveout = CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
static const CUfunction_attribute nonportable = CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
static CUdeviceptr words;

static int get(CUfunction function, CUfunction_attribute attribute) {
    int value = 0;
    CALL(cuFuncGetAttribute, &value, attribute, function);
    return value;
}

/* Sets a value, as often as frameworks do it, and sees that it is there. */
static uint64_t set(CUfunction function, CUfunction_attribute attribute, int value) {
    for (int i = 0; i < 3; ++i) {
        CALL(cuFuncSetAttribute, function, attribute, value);
        REQUIRE(get(function, attribute) == value);
    }
    return (uint64_t)(value + 2);
}

static void refused(CUfunction function, CUfunction_attribute attribute, int value) {
    int before = get(function, attribute);
    for (int i = 0; i < 2; ++i) {
        REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuFuncSetAttribute, "")(function, attribute, value));
        REQUIRE(get(function, attribute) == before);
    }
}

/* A launch with so much dynamic shared memory. */
static uint64_t launch(CUfunction function, int bytes) {
    void *parameters[] = {&words};
    uint32_t got = 0xeeeeeeee;
    CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, (unsigned)bytes, NULL, parameters, NULL);
    CALL(cuMemcpyDtoH, &got, words, sizeof got);
    REQUIRE(got == (uint32_t)bytes);
    return got;
}

static uint64_t shared_memory(CUfunction function, int most) {
    int values[] = {4096, most, 0, most, most - 16, get(function, shared)};
    uint64_t checksum = 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
        checksum = mix(checksum, set(function, shared, values[i]));
        checksum = mix(checksum, launch(function, values[i]));
    }
    set(function, shared, most - 32);
    refused(function, shared, most + 1);
    refused(function, shared, -1);
    void *parameters[] = {&words};
    /* It could have had that much before. */
    REFUSED(CUDA_ERROR_INVALID_VALUE,
            FUNCTION(cuLaunchKernel, "")(function, 1, 1, 1, 1, 1, 1, (unsigned)most, NULL, parameters, NULL));
    return mix(checksum, launch(function, most - 32));
}

static uint64_t preferences(CUfunction function, int major) {
    int shares[] = {-1, 0, 50, 100, 50};
    uint64_t checksum = 0;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; ++i)
        checksum = mix(checksum, set(function, carveout, shares[i]));
    refused(function, carveout, 101);
    refused(function, carveout, -2);
    for (int i = 0; i < 3; ++i)
        CALL(cuFuncSetCacheConfig, function, CU_FUNC_CACHE_PREFER_SHARED);
    if (major >= 9) {
        checksum = mix(checksum, set(function, nonportable, 1));
        checksum = mix(checksum, set(function, nonportable, 0));
    }
    return checksum;
}

/* The same by a library's kernel, launched as it is. */
static uint64_t kernel_of_library(CUdevice device, int most) {
    CUlibrary library;
    CUkernel kernel;
    uint64_t checksum = 0;
    CALL(cuLibraryLoadData, &library, code, NULL, NULL, 0, NULL, NULL, 0);
    CALL(cuLibraryGetKernel, &kernel, library, "size");
    int values[] = {8192, most, most, 8192, most};
    for (size_t i = 0; i < sizeof values / sizeof *values; ++i) {
        int value = 0;
        CALL(cuKernelSetAttribute, shared, values[i], kernel, device);
        CALL(cuKernelGetAttribute, &value, shared, kernel, device);
        REQUIRE(value == values[i]);
        checksum = mix(checksum, launch((CUfunction)kernel, value));
    }
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuKernelSetAttribute, "")(shared, most + 1, kernel, device));
    checksum = mix(checksum, launch((CUfunction)kernel, most));
    CALL(cuLibraryUnload, library);
    return checksum;
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    int major = 0, all = 0;
    uint64_t checksum = 0;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    CALL(cuDeviceGetAttribute, &all, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc, &words, 64);
    int initial = 0;
    for (int round = 0; round < 2; ++round) {
        CALL(cuModuleLoadData, &module, code);
        CALL(cuModuleGetFunction, &function, module, "size");
        int own = get(function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
        REQUIRE(own >= OWN_BYTES && own < all);
        REQUIRE(round == 0 || get(function, shared) == initial);
        initial = get(function, shared);
        checksum = mix(checksum, shared_memory(function, all - own));
        checksum = mix(checksum, preferences(function, major));
        checksum = mix(checksum, kernel_of_library(device, all - own));
        CALL(cuModuleUnload, module);
    }
    CALL(cuMemFree, words);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("function_settings: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
