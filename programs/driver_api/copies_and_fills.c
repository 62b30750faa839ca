/* Copies and fills by the functions that programs of the runtime library do not reach: every width of fill, arrays on each side, peers,
 * unified addresses, each in the legacy stream's order and in the per-thread one's. */
#include "check.h"

enum { WORDS = 256, BYTES = 4 * WORDS, WIDTH = 64, HEIGHT = 16, PITCH = 512 };

static uint64_t sum(CUdeviceptr address, size_t size_bytes) {
    static uint8_t host[PITCH * HEIGHT];
    REQUIRE(size_bytes <= sizeof host);
    CALL(cuMemcpyDtoH, host, address, size_bytes);
    uint64_t checksum = 0;
    for (size_t i = 0; i < size_bytes; ++i) {
        checksum = mix(checksum, host[i]);
    }
    return checksum;
}

/* The same fills by the CPU. */
static uint64_t expected(int width_bytes, uint32_t value, int is_2d) {
    static uint8_t host[PITCH * HEIGHT];
    memset(host, 0xee, sizeof host);
    for (int row = 0; row < (is_2d ? HEIGHT : 1); ++row) {
        for (int i = 0; i < (is_2d ? WIDTH : WORDS); ++i) {
            memcpy(host + row * PITCH + i * width_bytes, &value, width_bytes);
        }
    }
    uint64_t checksum = 0;
    for (size_t i = 0; i < sizeof host; ++i) {
        checksum = mix(checksum, host[i]);
    }
    return checksum;
}

/* Starts from the same bytes, fills by a call, and compares. */
#define FILL(width_bytes, value, is_2d, call)                                                                                  \
    do {                                                                                                                       \
        CALL(cuMemsetD8, area, 0xee, PITCH *HEIGHT);                                                                           \
        call;                                                                                                                  \
        CALL(cuCtxSynchronize);                                                                                                \
        REQUIRE(sum(area, PITCH *HEIGHT) == expected(width_bytes, value, is_2d));                                              \
        checksum = mix(checksum, sum(area, PITCH *HEIGHT));                                                                    \
    } while (0)

static uint64_t fills(CUstream stream) {
    CUdeviceptr area;
    uint64_t checksum = 0;
    CALL(cuMemAlloc, &area, PITCH * HEIGHT);
    FILL(1, 0x5a, 0, CALL_PTDS(cuMemsetD8_v2, area, 0x5a, WORDS));
    FILL(2, 0x1234, 0, CALL(cuMemsetD16, area, 0x1234, WORDS));
    FILL(2, 0x1235, 0, CALL_PTDS(cuMemsetD16_v2, area, 0x1235, WORDS));
    FILL(4, 0x12345678, 0, CALL_PTDS(cuMemsetD32_v2, area, 0x12345678, WORDS));
    FILL(1, 0x11, 0, CALL(cuMemsetD8Async, area, 0x11, WORDS, stream));
    FILL(2, 0x2122, 0, CALL(cuMemsetD16Async, area, 0x2122, WORDS, stream));
    FILL(4, 0x31323334, 0, CALL(cuMemsetD32Async, area, 0x31323334, WORDS, stream));
    FILL(1, 0x41, 0, CALL_PTSZ(cuMemsetD8Async, area, 0x41, WORDS, NULL));
    FILL(2, 0x5152, 0, CALL_PTSZ(cuMemsetD16Async, area, 0x5152, WORDS, NULL));
    FILL(4, 0x61626364, 0, CALL_PTSZ(cuMemsetD32Async, area, 0x61626364, WORDS, NULL));
    FILL(1, 0x71, 1, CALL(cuMemsetD2D8, area, PITCH, 0x71, WIDTH, HEIGHT));
    FILL(2, 0x8182, 1, CALL(cuMemsetD2D16, area, PITCH, 0x8182, WIDTH, HEIGHT));
    FILL(4, 0x91929394, 1, CALL(cuMemsetD2D32, area, PITCH, 0x91929394, WIDTH, HEIGHT));
    FILL(1, 0x72, 1, CALL_PTDS(cuMemsetD2D8_v2, area, PITCH, 0x72, WIDTH, HEIGHT));
    FILL(2, 0x8283, 1, CALL_PTDS(cuMemsetD2D16_v2, area, PITCH, 0x8283, WIDTH, HEIGHT));
    FILL(4, 0x92939495, 1, CALL_PTDS(cuMemsetD2D32_v2, area, PITCH, 0x92939495, WIDTH, HEIGHT));
    FILL(1, 0xa1, 1, CALL(cuMemsetD2D8Async, area, PITCH, 0xa1, WIDTH, HEIGHT, stream));
    FILL(2, 0xb1b2, 1, CALL(cuMemsetD2D16Async, area, PITCH, 0xb1b2, WIDTH, HEIGHT, stream));
    FILL(4, 0xc1c2c3c4, 1, CALL(cuMemsetD2D32Async, area, PITCH, 0xc1c2c3c4, WIDTH, HEIGHT, stream));
    FILL(1, 0xa2, 1, CALL_PTSZ(cuMemsetD2D8Async, area, PITCH, 0xa2, WIDTH, HEIGHT, NULL));
    FILL(2, 0xb2b3, 1, CALL_PTSZ(cuMemsetD2D16Async, area, PITCH, 0xb2b3, WIDTH, HEIGHT, NULL));
    FILL(4, 0xc2c3c4c5, 1, CALL_PTSZ(cuMemsetD2D32Async, area, PITCH, 0xc2c3c4c5, WIDTH, HEIGHT, NULL));
    CALL(cuMemFree, area);
    return checksum;
}

static uint32_t source[WORDS], got[WORDS];

/* What has gone through a chain of copies is what it was. */
static void arrived(void) {
    REQUIRE(memcmp(source, got, BYTES) == 0);
    memset(got, 0, sizeof got);
    for (int i = 0; i < WORDS; ++i) {
        source[i] = source[i] * 1664525 + 1013904223;
    }
}

static void linear(CUcontext context, CUstream stream) {
    CUdeviceptr a, b;
    CALL(cuMemAlloc, &a, BYTES);
    CALL(cuMemAlloc, &b, BYTES);
    CALL_PTDS(cuMemcpyHtoD_v2, a, source, BYTES);
    CALL_PTDS(cuMemcpyDtoD_v2, b, a, BYTES);
    CALL_PTDS(cuMemcpyDtoH_v2, got, b, BYTES);
    arrived();
    /* Unified addresses: the kinds of memory are found out. */
    CALL(cuMemcpy, a, (CUdeviceptr)(uintptr_t)source, BYTES);
    CALL(cuMemcpyAsync, b, a, BYTES, stream);
    CALL(cuStreamSynchronize, stream);
    CALL_PTDS(cuMemcpy, (CUdeviceptr)(uintptr_t)got, b, BYTES);
    arrived();
    CALL(cuMemcpyHtoDAsync, a, source, BYTES, stream);
    CALL(cuMemcpyDtoDAsync, b, a, BYTES, stream);
    CALL(cuMemcpyDtoHAsync, got, b, BYTES, stream);
    CALL(cuStreamSynchronize, stream);
    arrived();
    CALL_PTSZ(cuMemcpyHtoDAsync_v2, a, source, BYTES, NULL);
    CALL_PTSZ(cuMemcpyDtoDAsync_v2, b, a, BYTES, NULL);
    CALL_PTSZ(cuMemcpyDtoHAsync_v2, got, b, BYTES, NULL);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    arrived();
    CALL(cuMemcpyHtoD, a, source, BYTES);
    CALL(cuMemcpyPeer, b, context, a, context, BYTES / 2);
    CALL_PTDS(cuMemcpyPeer, b + BYTES / 2, context, a + BYTES / 2, context, BYTES / 2);
    CALL(cuMemcpyDtoH, got, b, BYTES);
    arrived();
    CALL(cuMemcpyHtoD, a, source, BYTES);
    CALL(cuMemcpyPeerAsync, b, context, a, context, BYTES / 2, stream);
    CALL(cuStreamSynchronize, stream);
    CALL_PTSZ(cuMemcpyPeerAsync, b + BYTES / 2, context, a + BYTES / 2, context, BYTES / 2, NULL);
    CALL_PTSZ(cuMemcpyAsync, (CUdeviceptr)(uintptr_t)got, b, BYTES, NULL);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    arrived();
    CALL(cuMemFree, a);
    CALL(cuMemFree, b);
}

/* One-dimensional arrays on each side. */
static void arrays(CUstream stream) {
    CUarray one, two;
    CUDA_ARRAY_DESCRIPTOR wanted = {.Width = WORDS, .Height = 0, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    CUdeviceptr a;
    CALL(cuArrayCreate, &one, &wanted);
    CALL(cuArrayCreate, &two, &wanted);
    CALL(cuArrayGetDescriptor, &wanted, one);
    REQUIRE(wanted.Width == WORDS && wanted.Height == 0 && wanted.NumChannels == 1);
    CALL(cuMemAlloc, &a, BYTES);
    CALL(cuMemcpyHtoA, one, 0, source, BYTES);
    CALL(cuMemcpyAtoA, two, 0, one, 0, BYTES / 2);
    CALL_PTDS(cuMemcpyAtoA_v2, two, BYTES / 2, one, BYTES / 2, BYTES / 2);
    CALL(cuMemcpyAtoD, a, two, 0, BYTES / 2);
    CALL_PTDS(cuMemcpyAtoD_v2, a + BYTES / 2, two, BYTES / 2, BYTES / 2);
    CALL(cuMemcpyDtoA, one, BYTES / 2, a, BYTES / 2);
    CALL_PTDS(cuMemcpyDtoA_v2, one, 0, a + BYTES / 2, BYTES / 2);
    /* The halves have changed places. */
    CALL(cuMemcpyAtoH, got, one, BYTES / 2, BYTES / 2);
    CALL_PTDS(cuMemcpyAtoH_v2, (char *)got + BYTES / 2, one, 0, BYTES / 2);
    arrived();
    CALL_PTDS(cuMemcpyHtoA_v2, one, 0, source, BYTES);
    CALL(cuMemcpyAtoHAsync, got, one, 0, BYTES, stream);
    CALL(cuStreamSynchronize, stream);
    arrived();
    CALL(cuMemcpyHtoAAsync, one, 0, source, BYTES, stream);
    CALL(cuStreamSynchronize, stream);
    CALL_PTSZ(cuMemcpyAtoHAsync_v2, got, one, 0, BYTES, NULL);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    arrived();
    CALL_PTSZ(cuMemcpyHtoAAsync_v2, two, 0, source, BYTES, NULL);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    CALL(cuMemcpyAtoH, got, two, 0, BYTES);
    arrived();
    CALL(cuMemFree, a);
    CALL(cuArrayDestroy, one);
    CALL(cuArrayDestroy, two);
}

/* Rectangles of 16 rows of 64 bytes, between pitches of 64 and of 512, and boxes of four such slices of four rows. */
static CUDA_MEMCPY2D rectangle(const void *host, CUdeviceptr device, int to_device) {
    CUDA_MEMCPY2D copy;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcHost = host;
    copy.dstHost = (void *)host;
    copy.srcDevice = copy.dstDevice = device;
    copy.srcPitch = to_device ? WIDTH : PITCH;
    copy.dstPitch = to_device ? PITCH : WIDTH;
    copy.WidthInBytes = WIDTH;
    copy.Height = HEIGHT;
    return copy;
}

static CUDA_MEMCPY3D box(const void *host, CUdeviceptr device, int to_device) {
    CUDA_MEMCPY2D flat = rectangle(host, device, to_device);
    CUDA_MEMCPY3D copy;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = flat.srcMemoryType;
    copy.dstMemoryType = flat.dstMemoryType;
    copy.srcHost = flat.srcHost;
    copy.dstHost = flat.dstHost;
    copy.srcDevice = copy.dstDevice = device;
    copy.srcPitch = flat.srcPitch;
    copy.dstPitch = flat.dstPitch;
    copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 4;
    copy.WidthInBytes = WIDTH;
    return copy;
}

static CUDA_MEMCPY3D_PEER peers(CUcontext context, CUdeviceptr from, CUdeviceptr to) {
    CUDA_MEMCPY3D_PEER copy;
    memset(&copy, 0, sizeof copy);
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcContext = copy.dstContext = context;
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.srcPitch = copy.dstPitch = PITCH;
    copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 4;
    copy.WidthInBytes = WIDTH;
    return copy;
}

static void shapes(CUcontext context, CUstream stream) {
    CUdeviceptr area, other;
    CALL(cuMemAlloc, &area, PITCH * HEIGHT);
    CALL(cuMemAlloc, &other, PITCH * HEIGHT);
    CUDA_MEMCPY2D to = rectangle(source, area, 1), from = rectangle(got, area, 0);
    CALL(cuMemcpy2D, &to);
    CALL(cuMemcpy2DUnaligned, &from);
    arrived();
    CALL_PTDS(cuMemcpy2D_v2, &to);
    CALL_PTDS(cuMemcpy2DUnaligned_v2, &from);
    arrived();
    CALL(cuMemcpy2DAsync, &to, stream);
    CALL(cuMemcpy2DAsync, &from, stream);
    CALL(cuStreamSynchronize, stream);
    arrived();
    CALL_PTSZ(cuMemcpy2DAsync_v2, &to, NULL);
    CALL_PTSZ(cuMemcpy2DAsync_v2, &from, NULL);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    arrived();
    CUDA_MEMCPY3D box_to = box(source, area, 1), box_from = box(got, other, 0);
    CUDA_MEMCPY3D_PEER across = peers(context, area, other);
    CALL(cuMemcpy3D, &box_to);
    CALL(cuMemcpy3DPeer, &across);
    CALL_PTDS(cuMemcpy3D_v2, &box_from);
    arrived();
    CALL_PTDS(cuMemcpy3D_v2, &box_to);
    CALL_PTDS(cuMemcpy3DPeer, &across);
    CALL(cuMemcpy3D, &box_from);
    arrived();
    CALL(cuMemcpy3DAsync, &box_to, stream);
    CALL(cuMemcpy3DPeerAsync, &across, stream);
    CALL(cuMemcpy3DAsync, &box_from, stream);
    CALL(cuStreamSynchronize, stream);
    arrived();
    CALL_PTSZ(cuMemcpy3DAsync_v2, &box_to, NULL);
    CALL_PTSZ(cuMemcpy3DPeerAsync, &across, NULL);
    CALL_PTSZ(cuMemcpy3DAsync_v2, &box_from, NULL);
    CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    arrived();
    CALL(cuMemFree, area);
    CALL(cuMemFree, other);
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &stream, CU_STREAM_DEFAULT);
    for (int i = 0; i < WORDS; ++i) {
        source[i] = 2654435761u * (uint32_t)i;
    }
    uint64_t checksum = fills(stream);
    linear(context, stream);
    arrays(stream);
    shapes(context, stream);
    checksum = mix(checksum, source[7]);
    CALL(cuStreamDestroy, stream);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("copies_and_fills: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
