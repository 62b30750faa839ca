/* What one device is to another: asked, allowed and taken back, and memory of both in one copy; with one device, what is refused. */
#include "check.h"

enum { BYTES = 4096 };

/* One device is no peer of itself. */
static void alone(CUcontext context) {
    int value = 77;
    REFUSED(CUDA_ERROR_INVALID_DEVICE, FUNCTION(cuDeviceGetP2PAttribute, "")(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
    REFUSED(CUDA_ERROR_INVALID_DEVICE, FUNCTION(cuDeviceGetP2PAttribute, "")(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 99));
    CALL(cuDeviceCanAccessPeer, &value, 0, 0);
    REQUIRE(value == 0);
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuCtxEnablePeerAccess, "")(context, 1));
    REFUSED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, FUNCTION(cuCtxDisablePeerAccess, "")(context));
}

/* Two devices: whether they reach each other's memory is the driver's business, and what it says must agree. */
static void together(CUcontext first, CUcontext second) {
    int can = 77, supported = 78, rank = 77;
    CALL(cuDeviceCanAccessPeer, &can, 0, 1);
    CALL(cuDeviceGetP2PAttribute, &supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1);
    CALL(cuDeviceGetP2PAttribute, &rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0, 1);
    REQUIRE(can == supported && rank >= 0);
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuDeviceGetP2PAttribute, "")(&rank, (CUdevice_P2PAttribute)77, 0, 1));
    CALL(cuCtxSetCurrent, first);
    REFUSED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, FUNCTION(cuCtxDisablePeerAccess, "")(second));
    if (can) {
        CALL(cuCtxEnablePeerAccess, second, 0);
        REFUSED(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, FUNCTION(cuCtxEnablePeerAccess, "")(second, 0));
        CALL(cuCtxDisablePeerAccess, second);
        REFUSED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, FUNCTION(cuCtxDisablePeerAccess, "")(second));
    } else {
        REFUSED(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, FUNCTION(cuCtxEnablePeerAccess, "")(second, 0));
    }
}

int main(void) {
    int count = 0;
    CUcontext contexts[2];
    CUdeviceptr memory[2];
    CALL(cuInit, 0);
    CALL(cuDeviceGetCount, &count);
    int last = count > 1;
    for (int device = last; device >= 0; --device) {
        CALL(cuDevicePrimaryCtxRetain, &contexts[device], device);
        CALL(cuCtxSetCurrent, contexts[device]);
        CALL(cuMemAlloc, &memory[device], BYTES);
        CALL(cuMemsetD8, memory[device], 0, BYTES);
        CALL(cuCtxSynchronize);
    }
    alone(contexts[0]);
    if (last)
        together(contexts[0], contexts[1]);
    unsigned char host[BYTES], back[BYTES];
    for (int i = 0; i < BYTES; ++i)
        host[i] = (unsigned char)(i * 11 + i / 256);
    CALL(cuCtxSetCurrent, contexts[0]);
    CALL(cuMemcpyHtoD, memory[0], host, BYTES);
    CALL(cuMemcpyPeer, memory[last], contexts[last], memory[0], contexts[0], BYTES);
    CALL(cuCtxSetCurrent, contexts[last]);
    CALL(cuMemcpyDtoH, back, memory[last], BYTES);
    REQUIRE(memcmp(host, back, BYTES) == 0);
    uint64_t checksum = 0;
    for (int i = 0; i < BYTES; ++i)
        checksum = mix(checksum, back[i]);
    for (int device = 0; device <= last; ++device) {
        CALL(cuCtxSetCurrent, contexts[device]);
        CALL(cuMemFree, memory[device]);
        CALL(cuDevicePrimaryCtxRelease, device);
    }
    printf("peers: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
