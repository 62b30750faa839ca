/* What a memory pool says of its memory, as programs count on it that manage their pools themselves (CuPy). */
#include "check.h"

#define UNIT ((size_t)1 << 20)

static CUmemoryPool pool;

static cuuint64_t get(CUmemPool_attribute attribute) {
    cuuint64_t value = 77;
    CALL(cuMemPoolGetAttribute, pool, attribute, &value);
    return value;
}

static CUresult set(CUmemPool_attribute attribute, cuuint64_t value) {
    return FUNCTION(cuMemPoolSetAttribute, "")(pool, attribute, &value);
}

static CUdeviceptr take(size_t size, CUstream stream) {
    CUdeviceptr memory;
    CALL(cuMemAllocFromPoolAsync, &memory, size, pool, stream);
    return memory;
}

int main(void) {
    CUcontext context;
    CUdevice device;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CUmemPoolProps wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device;
    CALL(cuMemPoolCreate, &pool, &wanted);
    CALL(cuDeviceSetMemPool, device, pool);
    CUstream stream;
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0 && get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);

    /* What is reserved does not change with what is allocated and freed inside it. */
    CUdeviceptr one = take(UNIT, stream);
    cuuint64_t reserved = get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == UNIT && reserved >= 4 * UNIT);
    CUdeviceptr two = take(2 * UNIT, stream);
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 3 * UNIT);
    REQUIRE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == reserved);
    CALL(cuMemsetD8Async, two, 1, 2 * UNIT, stream);
    CALL(cuMemFreeAsync, two, stream);
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == UNIT);
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 3 * UNIT);
    REQUIRE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == reserved);
    REQUIRE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == reserved);

    /* What is told to stay does so, until it is told to go. */
    REQUIRE(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX) == CUDA_SUCCESS);
    CALL(cuMemFreeAsync, one, stream);
    CALL(cuStreamSynchronize, stream);
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
    REQUIRE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == reserved);
    CALL(cuMemPoolTrimTo, pool, 0);
    REQUIRE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);

    /* High-water marks can be set to 0, and are then what there is. */
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 3 * UNIT);
    REQUIRE(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == reserved);
    REQUIRE(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0) == CUDA_SUCCESS);
    REQUIRE(set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0) == CUDA_SUCCESS);
    REQUIRE(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0 && get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);
    REQUIRE(set(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0) == CUDA_ERROR_INVALID_VALUE);

    CALL(cuMemPoolDestroy, pool);
    CALL(cuStreamDestroy, stream);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("pools: ok checksum=%016llx\n", (unsigned long long)mix(0, UNIT));
    return 0;
}
