/* Virtual memory management: memory of two pieces at addresses that follow each other is one range for kernels and copies; a descriptor gives the
 * same memory a second address; what is wrong is refused. */
#include "check.h"

#include <unistd.h>

/* words[i] = 3 i + seed, for i < count */
static const char code[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                           ".visible .entry fill(.param .u64 words, .param .u32 count, .param .u32 seed)\n"
                           "{\n"
                           "    .reg .pred %p;\n"
                           "    .reg .b32 %r<8>;\n"
                           "    .reg .b64 %rd<4>;\n"
                           "    ld.param.u64 %rd0, [words];\n"
                           "    ld.param.u32 %r0, [count];\n"
                           "    ld.param.u32 %r1, [seed];\n"
                           "    cvta.to.global.u64 %rd0, %rd0;\n"
                           "    mov.u32 %r2, %ctaid.x;\n"
                           "    mov.u32 %r3, %ntid.x;\n"
                           "    mov.u32 %r4, %tid.x;\n"
                           "    mad.lo.u32 %r5, %r2, %r3, %r4;\n"
                           "    setp.ge.u32 %p, %r5, %r0;\n"
                           "    @%p ret;\n"
                           "    mad.lo.u32 %r6, %r5, 3, %r1;\n"
                           "    mul.wide.u32 %rd1, %r5, 4;\n"
                           "    add.u64 %rd2, %rd0, %rd1;\n"
                           "    st.global.u32 [%rd2], %r6;\n"
                           "    ret;\n"
                           "}\n";

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuDeviceGetAttribute);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemGetHandleForAddressRange);
    LOAD(cuMulticastCreate);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuDevicePrimaryCtxRelease);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuMemcpyDtoH);
    LOAD(cuMemcpyHtoD);
    LOAD(cuMemcpyDtoD);
    LOAD(cuMemsetD32);
    LOAD(cuLaunchKernel);
    LOAD(cuMemGetAllocationGranularity);
    LOAD(cuMemCreate);
    LOAD(cuMemRelease);
    LOAD(cuMemAddressReserve);
    LOAD(cuMemAddressFree);
    LOAD(cuMemMap);
    LOAD(cuMemUnmap);
    LOAD(cuMemSetAccess);
    LOAD(cuMemGetAccess);
    LOAD(cuMemExportToShareableHandle);
    LOAD(cuMemImportFromShareableHandle);
    LOAD(cuMemRetainAllocationHandle);
    LOAD(cuMemGetAllocationPropertiesFromHandle);
    LOAD(cuPointerGetAttribute);

    CUdevice device;
    CUcontext context;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&context, device));
    CHECK(cuCtxSetCurrent_(context));
    int supported = 0;
    CHECK(cuDeviceGetAttribute_(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device));
    if (!supported) {
        fprintf(stderr, "the device has no virtual memory management\n");
        return 1;
    }
    CUmodule module;
    CUfunction fill;
    CHECK(cuModuleLoadData_(&module, code));
    CHECK(cuModuleGetFunction_(&fill, module, "fill"));

    CUmemAllocationProp wanted;
    memset(&wanted, 0, sizeof wanted);
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device;
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t granule = 0;
    CHECK(cuMemGetAllocationGranularity_(&granule, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));

    /* Two pieces, of one and of two granules, at addresses that follow each other in a range of four. */
    CUdeviceptr range = 0, other = 0;
    CUmemGenericAllocationHandle pieces[2];
    CHECK(cuMemAddressReserve_(&range, 4 * granule, 0, 0, 0));
    CHECK(cuMemCreate_(&pieces[0], granule, &wanted, 0));
    CHECK(cuMemCreate_(&pieces[1], 2 * granule, &wanted, 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemCreate_(&pieces[1], granule + 1, &wanted, 0));
    CHECK(cuMemMap_(range, granule, 0, pieces[0], 0));
    CHECK(cuMemMap_(range + granule, 2 * granule, 0, pieces[1], 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap_(range + granule, granule, 0, pieces[0], 0));
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemMap_(range + 4 * granule, granule, 0, pieces[0], 0));
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location = wanted.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    unsigned long long flags = 77;
    CHECK(cuMemGetAccess_(&flags, &access.location, range));
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        fprintf(stderr, "a new mapping has access %llu\n", flags);
        return 1;
    }
    CHECK(cuMemSetAccess_(range, 3 * granule, &access, 1));
    CHECK(cuMemGetAccess_(&flags, &access.location, range + 2 * granule));
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        fprintf(stderr, "an accessible mapping has access %llu\n", flags);
        return 1;
    }
    /* The mappings keep the memory. */
    CHECK(cuMemRelease_(pieces[0]));

    /* A kernel writes across the border of the pieces, and so do a fill and copies. */
    uint32_t count = (uint32_t)(3 * granule / 4), seed = 17;
    void *parameters[] = {&range, &count, &seed};
    CHECK(cuLaunchKernel_(fill, (count + 255) / 256, 1, 1, 256, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuMemsetD32_(range + granule - 16, 0xabcdef01u, 8));
    uint32_t *host = malloc(3 * granule);
    CHECK(cuMemcpyDtoH_(host, range, 3 * granule));
    uint64_t checksum = 0;
    for (uint32_t i = 0; i < count; ++i) {
        uint32_t border = (uint32_t)(granule / 4);
        uint32_t expected = i >= border - 4 && i < border + 4 ? 0xabcdef01u : 3 * i + seed;
        if (host[i] != expected) {
            fprintf(stderr, "word %u is %u, expected %u\n", i, host[i], expected);
            return 1;
        }
        checksum = checksum * 31 + host[i];
    }
    for (uint32_t i = 0; i < count; ++i) {
        host[i] = ~host[i];
    }
    CHECK(cuMemcpyHtoD_(range, host, 3 * granule));
    CHECK(cuMemcpyDtoD_(range, range + granule + granule / 2, granule));

    /* The second piece again, by descriptor, at another address: offset and all. */
    int descriptor = -1;
    CUmemGenericAllocationHandle imported;
    CHECK(cuMemExportToShareableHandle_(&descriptor, pieces[1], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cuMemImportFromShareableHandle_(&imported, (void *)(uintptr_t)descriptor,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    CHECK(cuMemAddressReserve_(&other, 2 * granule, 0, 0, 0));
    CHECK(cuMemMap_(other, 2 * granule, 0, imported, 0));
    CHECK(cuMemSetAccess_(other, 2 * granule, &access, 1));
    CHECK(cuMemsetD32_(range + granule, 5, 1));
    CHECK(cuMemcpyDtoH_(host, other, 2 * granule));
    if (host[0] != 5) {
        fprintf(stderr, "the second address shows %u\n", host[0]);
        return 1;
    }
    for (uint32_t i = 0; i < 2 * granule / 4; ++i) {
        checksum = checksum * 31 + host[i];
    }

    CUmemGenericAllocationHandle again;
    CUmemAllocationProp told;
    CHECK(cuMemRetainAllocationHandle_(&again, (void *)(uintptr_t)(range + granule + 4)));
    CHECK(cuMemGetAllocationPropertiesFromHandle_(&told, again));
    if (again != pieces[1] || told.location.id != device || told.type != wanted.type ||
        told.requestedHandleTypes != wanted.requestedHandleTypes) {
        fprintf(stderr, "the handle or its properties are not those of the memory\n");
        return 1;
    }
    CHECK(cuMemRelease_(again));
    unsigned memory_type = 0;
    CHECK(cuPointerGetAttribute_(&memory_type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range + granule + 8));
    if (memory_type != CU_MEMORYTYPE_DEVICE) {
        fprintf(stderr, "mapped memory is of type %u\n", memory_type);
        return 1;
    }

    /* What the device says that it cannot is refused: memory as a DMA-BUF, and objects of several devices. */
    CUdeviceptr plain;
    int buffers = 77, multicast = 77, file = -1;
    CHECK(cuDeviceGetAttribute_(&buffers, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device));
    CHECK(cuDeviceGetAttribute_(&multicast, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device));
    CHECK(cuMemAlloc_(&plain, 2 << 20));
    CUresult exported = cuMemGetHandleForAddressRange_(&file, plain, 2 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    REQUIRE(buffers ? exported == CUDA_SUCCESS : exported == CUDA_ERROR_NOT_SUPPORTED);
    if (exported == CUDA_SUCCESS)
        REQUIRE(close(file) == 0);
    CHECK(cuMemFree_(plain));
    if (!multicast) {
        CUmemGenericAllocationHandle object;
        CUmulticastObjectProp several = {.numDevices = 2, .size = 2 << 20, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
        REQUIRE(cuMulticastCreate_(&object, &several) != CUDA_SUCCESS);
    }

    CHECK(cuCtxSynchronize_());
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree_(range, 4 * granule));
    CHECK(cuMemUnmap_(range, 3 * granule));
    CHECK(cuMemUnmap_(other, 2 * granule));
    CHECK(cuMemRelease_(pieces[1]));
    CHECK(cuMemRelease_(imported));
    CHECK(cuMemAddressFree_(range, 4 * granule));
    CHECK(cuMemAddressFree_(other, 2 * granule));
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("virtual_memory: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
