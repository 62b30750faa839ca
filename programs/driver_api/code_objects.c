/* Modules, libraries, kernels and functions: loaded from memory, files and fat binaries, listed, named, asked and set; occupancy. */
#define CUDA_ENABLE_DEPRECATED
#include "check.h"

#include <stddef.h>
#include <unistd.h>

/* words[i] = 3 i + addend, and a second kernel of another shape. */
static const char code[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                           ".visible .global .align 4 .u32 counter = 41;\n"
                           ".visible .entry fill(.param .u64 words, .param .u32 addend)\n"
                           "{\n"
                           "    .reg .b32 %r<4>;\n"
                           "    .reg .b64 %rd<3>;\n"
                           "    ld.param.u64 %rd0, [words];\n"
                           "    ld.param.u32 %r0, [addend];\n"
                           "    cvta.to.global.u64 %rd0, %rd0;\n"
                           "    mov.u32 %r1, %tid.x;\n"
                           "    mul.wide.u32 %rd1, %r1, 4;\n"
                           "    add.u64 %rd2, %rd0, %rd1;\n"
                           "    mad.lo.u32 %r2, %r1, 3, %r0;\n"
                           "    st.global.u32 [%rd2], %r2;\n"
                           "    ret;\n"
                           "}\n"
                           ".visible .entry nothing(.param .align 8 .b8 block[24], .param .u16 small)\n"
                           "{\n"
                           "    ret;\n"
                           "}\n";

/* A fat binary with that text as its one entry. (Drivers take the wrapper that the runtime puts around it for a library only.) */
struct fat_binary {
    struct {
        uint32_t magic;
        uint16_t version, header_bytes;
        uint64_t size_bytes;
    } header;
    struct {
        uint16_t kind, version;
        uint32_t header_bytes;
        uint64_t size_bytes;
        uint32_t compressed_bytes, options_place;
        uint16_t minor, major;
        uint32_t architecture, name_offset, name_bytes;
        uint64_t flags, reserved_too, uncompressed_bytes;
        uint64_t options_offset, options;
    } entry;
    char text[(sizeof code + 7) / 8 * 8];
};

static const char managed_code[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                   ".visible .global .attribute(.managed) .align 8 .u64 shared = 20;\n"
                                   ".visible .global .align 4 .u32 plain = 1;\n"
                                   ".visible .entry increase()\n"
                                   "{\n"
                                   "    .reg .b64 %rd<2>;\n"
                                   "    ld.global.u64 %rd0, [shared];\n"
                                   "    add.u64 %rd1, %rd0, 3;\n"
                                   "    st.global.u64 [shared], %rd1;\n"
                                   "    ret;\n"
                                   "}\n";

/* A managed variable of a library: host and device see each other's values. */
static uint64_t managed_variable(void) {
    CUlibrary library;
    CUkernel increase;
    CUdeviceptr address = 0;
    size_t size_bytes = 0;
    CALL(cuLibraryLoadData, &library, managed_code, NULL, NULL, 0, NULL, NULL, 0);
    CALL(cuLibraryGetKernel, &increase, library, "increase");
    CALL(cuLibraryGetManaged, &address, &size_bytes, library, "shared");
    REQUIRE(size_bytes == 8);
    REFUSED(CUDA_ERROR_NOT_FOUND, FUNCTION(cuLibraryGetManaged, "")(&address, &size_bytes, library, "absent"));
    volatile uint64_t *here = (volatile uint64_t *)(uintptr_t)address;
    REQUIRE(*here == 20);
    *here = 30;
    CALL(cuLaunchKernel, (CUfunction)increase, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    CALL(cuCtxSynchronize);
    REQUIRE(*here == 33);
    CALL(cuLibraryUnload, library);
    return 33;
}

static uint64_t run(CUfunction fill, uint32_t addend) {
    CUdeviceptr words;
    uint32_t host[64];
    CALL(cuMemAlloc, &words, sizeof host);
    void *parameters[] = {&words, &addend};
    CALL(cuLaunchKernel, fill, 1, 1, 1, 64, 1, 1, 0, NULL, parameters, NULL);
    CALL(cuMemcpyDtoH, host, words, sizeof host);
    uint64_t checksum = 0;
    for (uint32_t i = 0; i < 64; ++i) {
        REQUIRE(host[i] == 3 * i + addend);
        checksum = mix(checksum, host[i]);
    }
    CALL(cuMemFree, words);
    return checksum;
}

static void write_file(char *path, size_t size) {
    snprintf(path, size, "/tmp/code-objects-%d.ptx", (int)getpid());
    FILE *file = fopen(path, "w");
    REQUIRE(file && fwrite(code, sizeof code - 1, 1, file) == 1 && fclose(file) == 0);
}

static uint64_t modules(const char *path) {
    CUmodule module;
    CUfunction fill, functions[2];
    uint64_t checksum = 0;
    char log[256] = "";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CALL(cuModuleLoadDataEx, &module, code, 2, options, values);
    CALL(cuModuleGetFunction, &fill, module, "fill");
    checksum = mix(checksum, run(fill, 5));

    unsigned count = 0;
    CALL(cuModuleGetFunctionCount, &count, module);
    REQUIRE(count == 2);
    CALL(cuModuleEnumerateFunctions, functions, 2, module);
    int seen = 0;
    for (int i = 0; i < 2; ++i) {
        const char *name = NULL;
        CUmodule of = NULL;
        CALL(cuFuncGetName, &name, functions[i]);
        CALL(cuFuncGetModule, &of, functions[i]);
        REQUIRE(of == module);
        seen |= strcmp(name, "fill") == 0 ? 1 : strcmp(name, "nothing") == 0 ? 2 : 4;
    }
    REQUIRE(seen == 3);
    CUfunctionLoadingState state = CU_FUNCTION_LOADING_STATE_UNLOADED;
    CALL(cuFuncLoad, fill);
    CALL(cuFuncIsLoaded, &state, fill);
    REQUIRE(state == CU_FUNCTION_LOADING_STATE_LOADED);
    CALL(cuFuncSetCacheConfig, fill, CU_FUNC_CACHE_PREFER_L1);
    CALL(cuFuncSetSharedMemConfig, fill, CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE);
    CUfunction nothing;
    size_t offset = 77, size = 77;
    CALL(cuModuleGetFunction, &nothing, module, "nothing");
    CALL(cuFuncGetParamInfo, nothing, 1, &offset, &size);
    REQUIRE(offset == 24 && size == 2);
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuFuncGetParamInfo, "")(nothing, 2, &offset, &size));
    CALL(cuModuleUnload, module);

    CALL(cuModuleLoad, &module, path);
    CALL(cuModuleGetFunction, &fill, module, "fill");
    checksum = mix(checksum, run(fill, 7));
    CALL(cuModuleUnload, module);

    static struct fat_binary binary;
    memset(&binary, 0, sizeof binary);
    binary.header.magic = 0xba55ed50;
    binary.header.version = 1;
    binary.header.header_bytes = sizeof binary.header;
    binary.header.size_bytes = sizeof binary.entry + sizeof binary.text;
    binary.entry.kind = 1;
    binary.entry.version = 0x101;
    binary.entry.header_bytes = sizeof binary.entry;
    binary.entry.size_bytes = sizeof binary.text;
    binary.entry.options_place = offsetof(struct fat_binary, entry.options_offset) - sizeof binary.header;
    binary.entry.options_offset = binary.entry.options_place + 8;
    binary.entry.major = 6;
    binary.entry.architecture = 50;
    binary.entry.flags = 0x11;
    memcpy(binary.text, code, sizeof code);
    CALL(cuModuleLoadFatBinary, &module, &binary);
    CALL(cuModuleGetFunction, &fill, module, "fill");
    checksum = mix(checksum, run(fill, 9));
    CALL(cuModuleUnload, module);
    return checksum;
}

static uint64_t libraries(const char *path) {
    CUlibrary library, of = NULL;
    CUkernel kernels[2], nothing;
    CUfunction fill;
    unsigned count = 0;
    CALL(cuLibraryLoadFromFile, &library, path, NULL, NULL, 0, NULL, NULL, 0);
    CALL(cuLibraryGetKernelCount, &count, library);
    REQUIRE(count == 2);
    CALL(cuLibraryEnumerateKernels, kernels, 2, library);
    int seen = 0;
    for (int i = 0; i < 2; ++i) {
        const char *name = NULL;
        CALL(cuKernelGetName, &name, kernels[i]);
        CALL(cuKernelGetLibrary, &of, kernels[i]);
        REQUIRE(of == library);
        seen |= strcmp(name, "fill") == 0 ? 1 : strcmp(name, "nothing") == 0 ? 2 : 4;
    }
    REQUIRE(seen == 3);
    size_t offset = 77, size = 77;
    CALL(cuLibraryGetKernel, &nothing, library, "nothing");
    CALL(cuKernelGetParamInfo, nothing, 0, &offset, &size);
    REQUIRE(offset == 0 && size == 24);
    CALL(cuKernelSetCacheConfig, nothing, CU_FUNC_CACHE_PREFER_SHARED, 0);
    CALL(cuLibraryGetKernel, &kernels[0], library, "fill");
    CALL(cuKernelGetFunction, &fill, kernels[0]);
    uint64_t checksum = run(fill, 11);
    CALL(cuLibraryUnload, library);
    return checksum;
}

/* A linked image of a file's text. */
static uint64_t linked(const char *path) {
    CUlinkState state;
    void *image;
    size_t size;
    CUmodule module;
    CUfunction fill;
    CALL(cuLinkCreate, 0, NULL, NULL, &state);
    CALL(cuLinkAddFile, state, CU_JIT_INPUT_PTX, path, 0, NULL, NULL);
    CALL(cuLinkComplete, state, &image, &size);
    CALL(cuModuleLoadData, &module, image);
    CALL(cuLinkDestroy, state);
    CALL(cuModuleGetFunction, &fill, module, "fill");
    uint64_t checksum = run(fill, 13);
    int blocks = 0, more = 0, grid = 0, threads = 0;
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, fill, 1024, 0);
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &more, fill, 128, 0);
    REQUIRE(blocks >= 1 && more > blocks);
    CALL(cuOccupancyMaxPotentialBlockSize, &grid, &threads, fill, NULL, 0, 0);
    REQUIRE(grid >= 1 && threads >= 32 && threads <= 1024);
    CALL(cuOccupancyMaxPotentialBlockSizeWithFlags, &grid, &threads, fill, NULL, 0, 256, 0);
    REQUIRE(grid >= 1 && threads <= 256);
    CALL(cuModuleUnload, module);
    return checksum;
}

int main(void) {
    CUdevice device;
    CUcontext context;
    char path[64];
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    write_file(path, sizeof path);
    uint64_t checksum = managed_variable();
    checksum = mix(checksum, modules(path));
    checksum = mix(checksum, libraries(path));
    checksum = mix(checksum, linked(path));
    unlink(path);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("code_objects: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
