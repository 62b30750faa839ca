/* What is asked of memory and told about it, in all versions: sizes, kinds, host memory of each sort, hints for managed memory, the
 * driver's log, memory of another process. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };

/* The child makes memory and shows it; the parent reads it by the oldest function. The driver lives after the fork only. */
static uint64_t other_process(void) {
    int to_parent[2], to_child[2];
    REQUIRE(pipe(to_parent) == 0 && pipe(to_child) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    CUcontext context;
    CUdeviceptr words;
    CUipcMemHandle handle;
    char done = 0;
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    if (child == 0) {
        CALL(cuMemAlloc_v2, &words, BYTES);
        CALL(cuMemsetD32_v2, words, 0x600df00d, BYTES / 4);
        CALL(cuCtxSynchronize);
        CALL(cuIpcGetMemHandle, &handle, words);
        REQUIRE(write(to_parent[1], &handle, sizeof handle) == sizeof handle);
        REQUIRE(read(to_child[0], &done, 1) == 1);
        _exit(0);
    }
    uint32_t host[2];
    REQUIRE(read(to_parent[0], &handle, sizeof handle) == sizeof handle);
    CALL(cuIpcOpenMemHandle, &words, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    CALL(cuMemcpyDtoH_v2, host, words + BYTES / 2, sizeof host);
    REQUIRE(host[0] == 0x600df00d && host[1] == host[0]);
    CALL(cuIpcCloseMemHandle, words);
    int status = -1;
    REQUIRE(write(to_child[1], &done, 1) == 1);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    return host[0];
}

static void device_memory(void) {
    size_t free_before = 0, free_after = 0, total = 0, size = 0;
    CUdeviceptr memory, base = 0;
    CALL(cuMemGetInfo_v2, &free_before, &total);
    REQUIRE(free_before > 0 && free_before <= total);
    CALL(cuMemAlloc_v2, &memory, 64 * BYTES);
    CALL(cuMemGetInfo_v2, &free_after, &total);
    REQUIRE(free_after < free_before);
    CALL(cuMemGetAddressRange_v2, &base, &size, memory + BYTES);
    REQUIRE(base == memory && size == 64 * BYTES);
    unsigned on = 1, told = 0;
    CALL(cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory);
    CALL(cuPointerGetAttribute, &told, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory);
    REQUIRE(told == CU_MEMORYTYPE_DEVICE);
    CALL(cuMemFree_v2, memory);
}

static void host_memory(void) {
    void *pinned = NULL, *mapped = NULL, *own = NULL;
    CUdeviceptr address = 0, copy;
    unsigned flags = 0;
    uint32_t got = 0;
    CALL(cuMemAllocHost_v2, &pinned, BYTES);
    CALL(cuMemHostAlloc, &mapped, BYTES, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    CALL(cuMemHostGetDevicePointer_v2, &address, mapped, 0);
    CALL(cuMemHostGetFlags, &flags, mapped);
    REQUIRE(flags & CU_MEMHOSTALLOC_DEVICEMAP);
    CALL(cuMemsetD32_v2, address, 0xfeedbeef, BYTES / 4);
    CALL(cuCtxSynchronize);
    REQUIRE(((volatile uint32_t *)mapped)[BYTES / 8] == 0xfeedbeef);

    REQUIRE(posix_memalign(&own, 4096, BYTES) == 0);
    memset(own, 0x2f, BYTES);
    CALL(cuMemAlloc_v2, &copy, BYTES);
    CALL(cuMemHostRegister_v2, own, BYTES, CU_MEMHOSTREGISTER_PORTABLE);
    CALL(cuMemcpyHtoD_v2, copy, own, BYTES);
    CALL(cuMemcpyDtoH_v2, &got, copy + BYTES / 2, sizeof got);
    REQUIRE(got == 0x2f2f2f2f);
    CALL(cuMemHostUnregister, own);
    CALL(cuMemHostRegister, own, BYTES, 0);
    CALL(cuMemHostUnregister, own);
    REFUSED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, FUNCTION(cuMemHostUnregister, "")(own));
    free(own);
    CALL(cuMemFree_v2, copy);
    CALL(cuMemFreeHost, pinned);
    CALL(cuMemFreeHost, mapped);
}

/* Of sizes that go different ways, again and again, more than one of them at a time. */
static void host_memory_again(void) {
    static const size_t sizes[] = {4096, 200 << 10, 1 << 20, 9 << 20, 40 << 20};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    void *held[SIZES];
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < SIZES; ++i) {
            CALL(cuMemAllocHost_v2, &held[i], sizes[i]);
            CALL(cuMemsetD32_v2, (CUdeviceptr)(uintptr_t)held[i], i + 7 * round, sizes[i] / 4);
        }
        CALL(cuCtxSynchronize);
        for (int i = 0; i < SIZES; ++i) {
            volatile uint32_t *words = held[i];
            REQUIRE(words[0] == (uint32_t)(i + 7 * round) && words[sizes[i] / 4 - 1] == words[0]);
            CALL(cuMemFreeHost, held[i]);
            REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuMemFreeHost, "")(held[i]));
        }
    }
}

static uint64_t managed_memory(CUstream stream) {
    CUdeviceptr memory;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
    CALL(cuMemAllocManaged, &memory, BYTES, CU_MEM_ATTACH_GLOBAL);
    volatile uint32_t *words = (volatile uint32_t *)(uintptr_t)memory;
    words[0] = 11;
    words[BYTES / 4 - 1] = 12;
    CALL(cuMemAdvise, memory, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, 0);
    CALL(cuMemAdvise_v2, memory, BYTES, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device);
    CALL(cuMemAdvise_v2, memory, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host);
    CALL(cuMemPrefetchAsync, memory, BYTES, 0, stream);
    CALL(cuMemPrefetchAsync_v2, memory, BYTES, host, 0, stream);
    int is_read_mostly = -9, preferred = -9;
    CUmem_range_attribute asked[2] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
    CALL(cuMemRangeGetAttribute, &preferred, sizeof preferred, asked[1], memory, BYTES);
    REQUIRE(preferred == CU_DEVICE_CPU);
    CALL(cuMemRangeGetAttributes, (void *[]){&is_read_mostly, &preferred}, (size_t[]){4, 4}, asked, 2, memory, BYTES);
    REQUIRE(is_read_mostly == 0 && preferred == CU_DEVICE_CPU);
    CALL(cuStreamAttachMemAsync, stream, memory, 0, CU_MEM_ATTACH_SINGLE);
    CALL(cuStreamSynchronize, stream);
    REQUIRE(words[0] == 11 && words[BYTES / 4 - 1] == 12);
    CALL(cuMemsetD32Async, memory, 13, BYTES / 8, stream);
    CALL(cuStreamSynchronize, stream);
    REQUIRE(words[0] == 13 && words[BYTES / 4 - 1] == 12);
    uint64_t checksum = mix(words[1], words[BYTES / 4 - 1]);
    CALL(cuMemFree_v2, memory);
    return checksum;
}

/* A list of copies by its first version, which reports the one that failed. */
static uint64_t batch(CUstream stream) {
    static uint32_t words[64], got[64];
    CUdeviceptr memory;
    CALL(cuMemAlloc_v2, &memory, sizeof words);
    for (uint32_t i = 0; i < 64; ++i) {
        words[i] = 7 * i;
    }
    CUdeviceptr to[] = {memory, memory + 128}, from[] = {(uintptr_t)words, (uintptr_t)(words + 32)};
    size_t sizes[] = {128, 128}, attribute_index = 0, failed = 77;
    CUmemcpyAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CALL(cuMemcpyBatchAsync, to, from, sizes, 2, &attributes, &attribute_index, 1, &failed, stream);
    CALL(cuStreamSynchronize, stream);
    CALL(cuMemcpyDtoH_v2, got, memory, sizeof got);
    REQUIRE(memcmp(words, got, sizeof got) == 0);
    CALL(cuMemFree_v2, memory);
    return got[63];
}

/* Finalizers of other languages free on threads that have no context. */
static void without_context(void) {
    CUdeviceptr memory, shared;
    CUcontext context;
    CALL(cuMemAlloc_v2, &memory, BYTES);
    CALL(cuMemAllocManaged, &shared, BYTES, CU_MEM_ATTACH_GLOBAL);
    CALL(cuCtxGetCurrent, &context);
    CALL(cuCtxSetCurrent, NULL);
    CALL(cuMemFree_v2, memory);
    CALL(cuMemFree_v2, shared);
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuMemFree_v2, "")(memory));
    CALL(cuCtxSetCurrent, context);
}

int main(void) {
    CUstream stream;
    uint64_t checksum = other_process();
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    device_memory();
    host_memory();
    host_memory_again();
    without_context();
    checksum = mix(checksum, managed_memory(stream));
    checksum = mix(checksum, batch(stream));
    CALL(cuStreamDestroy_v2, stream);
    CALL(cuDevicePrimaryCtxRelease_v2, 0);
    printf("memory_calls: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
