/* Several copies in one call, and copies between contexts, on as many devices as there are: what each end is does not matter. */
#include "check.h"

enum { BYTES = 3 << 20 };

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    LOAD(cuInit);
    LOAD(cuDeviceGetCount);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuDevicePrimaryCtxRelease);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemHostAlloc);
    LOAD(cuMemFreeHost);
    LOAD(cuMemcpyDtoH);
    LOAD(cuMemcpyBatchAsync);
    LOAD(cuMemcpyPeer);
    LOAD(cuMemcpyPeerAsync);
    LOAD(cuMemcpy3DPeer);
    LOAD(cuMemsetD8);
    LOAD(cuStreamCreate);
    LOAD(cuStreamSynchronize);
    LOAD(cuStreamDestroy);

    int count = 0;
    CUcontext contexts[2];
    CUdeviceptr memory[2];
    CHECK(cuInit_(0));
    CHECK(cuDeviceGetCount_(&count));
    int other = count > 1;
    for (int device = 0; device <= other; ++device) {
        CHECK(cuDevicePrimaryCtxRetain_(&contexts[device], device));
        CHECK(cuCtxSetCurrent_(contexts[device]));
        CHECK(cuMemAlloc_(&memory[device], 2 * BYTES));
        CHECK(cuMemsetD8_(memory[device], 0, 2 * BYTES));
        CHECK(cuCtxSynchronize_());
    }
    CHECK(cuCtxSetCurrent_(contexts[0]));
    unsigned char *host = malloc(BYTES), *back = malloc(BYTES), *pinned;
    CHECK(cuMemHostAlloc_((void **)&pinned, BYTES, 0));
    uint64_t checksum = 0;
    for (int i = 0; i < BYTES; ++i) {
        host[i] = (unsigned char)(i * 7 + i / 1000);
    }
    CUstream stream;
    CHECK(cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING));

    /* Host to device, and pinned memory from device, in one batch. */
    memcpy(pinned, host, BYTES);
    CUdeviceptr to[] = {memory[0], memory[0] + BYTES};
    CUdeviceptr from[] = {(CUdeviceptr)(uintptr_t)pinned, (CUdeviceptr)(uintptr_t)host};
    size_t sizes[] = {BYTES, BYTES / 2}, first = 0;
    CUmemcpyAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    CHECK(cuMemcpyBatchAsync_(to, from, sizes, 2, &attributes, &first, 1, stream));
    CHECK(cuStreamSynchronize_(stream));
    first = 1;
    REFUSED(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync_(to, from, sizes, 2, &attributes, &first, 1, stream));

    /* To the other context and back. */
    CUdeviceptr there = memory[other] + (other ? 0 : BYTES);
    CHECK(cuMemcpyPeer_(there, contexts[other], memory[0], contexts[0], BYTES));
    CHECK(cuMemsetD8_(memory[0], 9, BYTES));
    /* The stream does not wait for the default one. */
    CHECK(cuCtxSynchronize_());
    CHECK(cuMemcpyPeerAsync_(memory[0], contexts[0], there, contexts[other], BYTES - 1000, stream));
    CHECK(cuStreamSynchronize_(stream));
    CHECK(cuMemcpyDtoH_(back, memory[0], BYTES));
    for (int i = 0; i < BYTES; ++i) {
        if (back[i] != (i < BYTES - 1000 ? host[i] : 9)) {
            fprintf(stderr, "byte %d is %u\n", i, back[i]);
            return 1;
        }
        checksum = checksum * 31 + back[i];
    }

    /* A box, from the other context, out of its middle. */
    CUDA_MEMCPY3D_PEER box;
    memset(&box, 0, sizeof box);
    box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcContext = contexts[other];
    box.dstContext = contexts[0];
    box.srcDevice = there;
    box.dstDevice = memory[0];
    box.srcPitch = box.dstPitch = 1024;
    box.srcHeight = box.dstHeight = 64;
    box.srcXInBytes = 100;
    box.srcY = 3;
    box.WidthInBytes = 200;
    box.Height = 10;
    box.Depth = 4;
    CHECK(cuMemsetD8_(memory[0], 1, BYTES));
    CHECK(cuMemcpy3DPeer_(&box));
    CHECK(cuMemcpyDtoH_(back, memory[0], BYTES));
    for (int z = 0; z < 4; ++z) {
        for (int y = 0; y < 10; ++y) {
            for (int x = 0; x < 200; ++x) {
                if (back[(z * 64 + y) * 1024 + x] != host[(z * 64 + y + 3) * 1024 + x + 100]) {
                    fprintf(stderr, "the box differs at %d, %d, %d\n", x, y, z);
                    return 1;
                }
            }
        }
    }
    for (int i = 0; i < BYTES; ++i) {
        checksum = checksum * 31 + back[i];
    }
    CHECK(cuMemFreeHost_(pinned));
    CHECK(cuStreamDestroy_(stream));
    for (int device = 0; device <= other; ++device) {
        CHECK(cuCtxSetCurrent_(contexts[device]));
        CHECK(cuMemFree_(memory[device]));
        CHECK(cuDevicePrimaryCtxRelease_(device));
    }
    printf("batch_copies: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
