/* What is asked of a device, in different ways: the answers must be the same. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"

/* Of a header that the tests' tool chain does not have. */
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);

static int attribute(CUdevice device, CUdevice_attribute which) {
    int value = -1;
    CALL(cuDeviceGetAttribute, &value, which, device);
    return value;
}

static void properties(CUdevice device) {
    CUdevprop told;
    CALL(cuDeviceGetProperties, &told, device);
    REQUIRE(told.maxThreadsPerBlock == attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    REQUIRE(told.maxThreadsDim[2] == attribute(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z));
    REQUIRE(told.maxGridSize[0] == attribute(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X));
    REQUIRE(told.SIMDWidth == attribute(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE));
    REQUIRE(told.clockRate == attribute(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE));
    int major = 0, minor = 0;
    CALL(cuDeviceComputeCapability, &major, &minor, device);
    REQUIRE(major == attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    REQUIRE(minor == attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    char name[100] = "";
    CALL(cuDeviceGetName, name, sizeof name, device);
    REQUIRE(strlen(name) > 3);

    unsigned narrow = 0;
    size_t wide = 0;
    CALL(cuDeviceTotalMem_v2, &wide, device);
    CALL(cuDeviceTotalMem, &narrow, device);
    REQUIRE(narrow == (wide > UINT32_MAX ? UINT32_MAX : wide) || narrow == (unsigned)wide);
}

static void identity(CUdevice device) {
    CUuuid first, second;
    CALL(cuDeviceGetUuid, &first, device);
    CALL(cuDeviceGetUuid_v2, &second, device);
    REQUIRE(memcmp(&first, &second, sizeof first) == 0);
    char bus[32] = "";
    CUdevice found = -1;
    CALL(cuDeviceGetPCIBusId, bus, sizeof bus, device);
    CALL(cuDeviceGetByPCIBusId, &found, bus);
    REQUIRE(found == device);
    unsigned domain, number, slot;
    REQUIRE(sscanf(bus, "%x:%x:%x", &domain, &number, &slot) == 3);
    REQUIRE((int)domain == attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
    REQUIRE((int)number == attribute(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
    int can = 77, supported = 77;
    CALL(cuDeviceCanAccessPeer, &can, device, device);
    REQUIRE(can == 0);
    REFUSED(CUDA_ERROR_INVALID_DEVICE,
            FUNCTION(cuDeviceGetP2PAttribute, "")(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, device));
    CALL(cuDeviceGetExecAffinitySupport, &supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device);
    REQUIRE(supported == 0 || supported == 1);
}

/* A pool of one's own takes the default one's place and gives it back. */
static void pools(CUdevice device) {
    CUmemoryPool usual, current, own;
    CUmemLocation place = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemPoolProps wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = place;
    CALL(cuMemPoolCreate, &own, &wanted);
    CALL(cuDeviceGetDefaultMemPool, &usual, device);
    CALL(cuDeviceGetMemPool, &current, device);
    REQUIRE(current == usual && own != usual);
    CALL(cuDeviceSetMemPool, device, own);
    CALL(cuMemGetMemPool, &current, &place, CU_MEM_ALLOCATION_TYPE_PINNED);
    REQUIRE(current == own);
    CALL(cuMemSetMemPool, &place, CU_MEM_ALLOCATION_TYPE_PINNED, usual);
    CALL(cuDeviceGetMemPool, &current, device);
    REQUIRE(current == usual);
    CALL(cuMemGetDefaultMemPool, &current, &place, CU_MEM_ALLOCATION_TYPE_PINNED);
    REQUIRE(current == usual);

    cuuint64_t threshold = 123456;
    CALL(cuMemPoolSetAttribute, own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    threshold = 0;
    CALL(cuMemPoolGetAttribute, own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    REQUIRE(threshold == 123456);
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CALL(cuMemPoolGetAccess, &flags, own, &place);
    REQUIRE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUmemAccessDesc access = {.location = place, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CALL(cuMemPoolSetAccess, own, &access, 1);
    CALL(cuMemPoolTrimTo, own, 0);
    CALL(cuMemPoolDestroy, own);

    cuuint64_t used = 77;
    CALL(cuDeviceGetGraphMemAttribute, device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used);
    REQUIRE(used == 0);
    CALL(cuDeviceSetGraphMemAttribute, device, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &used);
    CALL(cuDeviceGraphMemTrim, device);
}

static void CUDA_CB hear(void *place, CUlogLevel level, char *message, size_t length) {
    (void)level, (void)message, (void)length;
    ++*(int *)place;
}

/* What a driver logs of the call that was refused above is its own affair. */
static void logs(void) {
    CUlogsCallbackHandle handle;
    CUlogIterator here;
    int heard = 0;
    char text[4096] = "";
    size_t size = sizeof text;
    CALL(cuLogsRegisterCallback, hear, &heard, &handle);
    CALL(cuLogsCurrent, &here, 0);
    CALL(cuLogsDumpToMemory, NULL, text, &size, 0);
    REQUIRE(size <= sizeof text);
    CALL(cuLogsUnregisterCallback, handle);
}

static void names_and_symbols(void) {
    const char *name = NULL, *text = NULL;
    CALL(cuGetErrorName, CUDA_ERROR_ILLEGAL_ADDRESS, &name);
    CALL(cuGetErrorString, CUDA_ERROR_ILLEGAL_ADDRESS, &text);
    REQUIRE(strcmp(name, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0 && text && *text);
    int version = 0;
    CALL(cuDriverGetVersion, &version);
    REQUIRE(version >= 13000);
    void *first = NULL, *second = NULL, *exported = dlsym(driver(), "cuMemAlloc_v2");
    CUdriverProcAddressQueryResult status;
    CALL(cuGetProcAddress, "cuMemAlloc", &first, 3020, CU_GET_PROC_ADDRESS_DEFAULT);
    CALL(cuGetProcAddress_v2, "cuMemAlloc", &second, 3020, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    REQUIRE(first == second && second && exported && status == CU_GET_PROC_ADDRESS_SUCCESS);
}

int main(void) {
    CUdevice device;
    CUcontext context;
    int count = 0;
    CALL(cuInit, 0);
    CALL(cuDeviceGetCount, &count);
    REQUIRE(count >= 1);
    CALL(cuDeviceGet, &device, 0);
    properties(device);
    identity(device);
    names_and_symbols();
    logs();
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    /* Something for the device to do. */
    CUdeviceptr memory;
    CALL(cuMemAlloc_v2, &memory, 256);
    CALL(cuMemsetD8_v2, memory, 1, 256);
    CALL(cuCtxSynchronize);
    CALL(cuMemFree_v2, memory);
    pools(device);
    CALL(cuProfilerStart);
    CALL(cuProfilerStop);
    CALL(cuDevicePrimaryCtxRelease_v2, device);
    printf("device_facts: ok checksum=%016llx\n", (unsigned long long)mix(0, sizeof(CUdevprop)));
    return 0;
}
