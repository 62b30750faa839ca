/* One process on two devices: copies between them by every name, in stream order and across it, and memory of one device in kernels of the other. On a machine with
 * one device there is nothing to do. Prints what it did, the same with one driver as with another. With the argument `trespass` a kernel writes where it
 * may not; with `failure` one device fails while the other waits for it. */
#include "../driver_api/check.h"

enum { WORDS = 1 << 16, LARGE_WORDS = 10 << 20, ROUNDS = 50 };

static const char *const CODE = ".version 6.0\n.target sm_50\n.address_size 64\n"
                                ".visible .entry add(.param .u64 to, .param .u64 from, .param .u32 count, .param .u32 more)\n{\n"
                                ".reg .pred %p; .reg .b32 %r<8>; .reg .b64 %rd<8>;\n"
                                "ld.param.u64 %rd0, [to]; ld.param.u64 %rd1, [from]; ld.param.u32 %r0, [count]; ld.param.u32 %r1, [more];\n"
                                "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;\n"
                                "setp.ge.u32 %p, %r5, %r0; @%p bra DONE;\n"
                                "mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;\n"
                                "ld.global.u32 %r6, [%rd4]; add.u32 %r7, %r6, %r1; st.global.u32 [%rd3], %r7;\n"
                                "DONE: ret;\n}\n";

/* What there is on one device. */
static struct Side {
    CUdevice device;
    CUcontext context;
    CUfunction add;
    CUstream stream;
    CUdeviceptr memory;
} sides[2];

static uint32_t *host;

static void enter(int side) { CALL(cuCtxSetCurrent, sides[side].context); }

static void fill(CUdeviceptr at, uint32_t first, int words) {
    for (int i = 0; i < words; ++i) {
        host[i] = first + (uint32_t)i * 7;
    }
    CALL(cuMemcpyHtoD, at, host, words * sizeof *host);
    // From pageable memory it may still be under way, and the streams here do not wait for the default one.
    CALL(cuCtxSynchronize);
}

static void expect(CUdeviceptr at, uint32_t first, int words, int line) {
    memset(host, 0xee, words * sizeof *host);
    CALL(cuMemcpyDtoH, host, at, words * sizeof *host);
    for (int i = 0; i < words; ++i) {
        if (host[i] != first + (uint32_t)i * 7) {
            fprintf(stderr, "line %d: word %d is %u, expected %u\n", line, i, host[i], first + (uint32_t)i * 7);
            exit(1);
        }
    }
}
#define EXPECT(at, first, words) expect(at, first, words, __LINE__)

static void add(int side, CUdeviceptr to, CUdeviceptr from, unsigned words, unsigned more) {
    void *parameters[] = {&to, &from, &words, &more};
    CALL(cuLaunchKernel, sides[side].add, (words + 127) / 128, 1, 1, 128, 1, 1, 0, sides[side].stream, parameters, NULL);
}

static void open_side(int side) {
    struct Side *of = &sides[side];
    CUmodule module;
    CALL(cuDeviceGet, &of->device, side);
    CALL(cuDevicePrimaryCtxRetain, &of->context, of->device);
    enter(side);
    CALL(cuModuleLoadData, &module, CODE);
    CALL(cuModuleGetFunction, &of->add, module, "add");
    CALL(cuStreamCreate, &of->stream, CU_STREAM_NON_BLOCKING);
    CALL(cuMemAlloc, &of->memory, WORDS * sizeof(uint32_t));
}

/* Every function that copies, from one device to the other. */
static void copies(int from, int to) {
    const size_t bytes = WORDS * sizeof(uint32_t);
    CUdeviceptr source = sides[from].memory, destination = sides[to].memory;
    uint32_t first = 1000;
    for (int current = 0; current < 2; ++current) {
        enter(current);
        fill(source, ++first, WORDS);
        CALL(cuMemcpyPeer, destination, sides[to].context, source, sides[from].context, bytes);
        EXPECT(destination, first, WORDS);
        fill(source, ++first, WORDS);
        CALL(cuMemcpy, destination, source, bytes);
        EXPECT(destination, first, WORDS);
        fill(source, ++first, WORDS);
        CALL(cuMemcpyDtoD, destination, source, bytes);
        CALL(cuCtxSynchronize);
        EXPECT(destination, first, WORDS);
        CUstream stream = sides[current].stream;
        fill(source, ++first, WORDS);
        CALL(cuMemcpyPeerAsync, destination, sides[to].context, source, sides[from].context, bytes, stream);
        CALL(cuStreamSynchronize, stream);
        EXPECT(destination, first, WORDS);
        fill(source, ++first, WORDS);
        CALL(cuMemcpyAsync, destination, source, bytes, stream);
        CALL(cuStreamSynchronize, stream);
        EXPECT(destination, first, WORDS);
        // Rows of 100 words at another distance: the words between stay.
        fill(source, ++first, WORDS);
        fill(destination, 5, WORDS);
        CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = source, .srcPitch = 512,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = destination, .dstPitch = 1024,
                              .WidthInBytes = 400, .Height = 60};
        CALL(cuMemcpy2D, &rows);
        CALL(cuCtxSynchronize);
        CALL(cuMemcpyDtoH, host, destination, bytes);
        for (uint32_t row = 0; row < 60; ++row) {
            REQUIRE(host[row * 256 + 99] == first + (row * 128 + 99) * 7 && host[row * 256 + 100] == 5 + (row * 256 + 100) * 7);
        }
        CUDA_MEMCPY3D_PEER box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = source, .srcContext = sides[from].context,
                                  .srcPitch = 512, .srcHeight = 8, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = destination,
                                  .dstContext = sides[to].context, .dstPitch = 256, .dstHeight = 4, .WidthInBytes = 256, .Height = 4, .Depth = 3};
        CALL(cuMemcpy3DPeer, &box);
        CALL(cuCtxSynchronize);
        CALL(cuMemcpyDtoH, host, destination, bytes);
        for (uint32_t slice = 0; slice < 3; ++slice) {
            REQUIRE(host[slice * 256 + 3 * 64 + 63] == first + (slice * 1024 + 3 * 128 + 63) * 7);
        }
        // Part of it, at an odd address.
        fill(source, ++first, WORDS);
        CALL(cuMemcpyPeer, destination + 3, sides[to].context, source + 4, sides[from].context, 4097);
        unsigned char part[4097];
        CALL(cuMemcpyDtoH, part, destination + 3, sizeof part);
        for (uint32_t i = 0; i < sizeof part; ++i) {
            REQUIRE(part[i] == (unsigned char)((first + (i / 4 + 1) * 7) >> i % 4 * 8));
        }
    }
    // Host memory of the one in a copy of the other's stream.
    enter(from);
    void *pinned;
    CALL(cuMemHostAlloc, &pinned, bytes, CU_MEMHOSTALLOC_PORTABLE);
    fill(destination, 77, WORDS);
    CALL(cuMemcpyDtoHAsync, pinned, destination, bytes, sides[from].stream);
    CALL(cuStreamSynchronize, sides[from].stream);
    REQUIRE(((uint32_t *)pinned)[WORDS - 1] == 77 + (WORDS - 1) * 7);
    CALL(cuMemFreeHost, pinned);
}

static void large_copy(void) {
    CUdeviceptr ends[2];
    for (int side = 0; side < 2; ++side) {
        enter(side);
        CALL(cuMemAlloc, &ends[side], LARGE_WORDS * sizeof(uint32_t));
    }
    fill(ends[0], 3, LARGE_WORDS);
    CALL(cuMemcpyPeer, ends[1], sides[1].context, ends[0], sides[0].context, LARGE_WORDS * sizeof(uint32_t));
    EXPECT(ends[1], 3, LARGE_WORDS);
    for (int side = 0; side < 2; ++side) {
        CALL(cuMemFree, ends[side]);
    }
}

/* A chain of kernels and copies to and fro, which events of one device order on the other. */
static void chain(void) {
    const size_t bytes = WORDS * sizeof(uint32_t);
    CUevent done[2];
    for (int side = 0; side < 2; ++side) {
        enter(side);
        CALL(cuEventCreate, &done[side], CU_EVENT_DISABLE_TIMING);
    }
    fill(sides[0].memory, 0, WORDS);
    for (int round = 0; round < ROUNDS; ++round) {
        int here = round % 2, there = 1 - here;
        enter(here);
        CUdeviceptr memory = sides[here].memory;
        for (int i = 0; i < 3; ++i) {
            add(here, memory, memory, WORDS, 1);
        }
        CALL(cuMemcpyPeerAsync, sides[there].memory, sides[there].context, memory, sides[here].context, bytes, sides[here].stream);
        CALL(cuEventRecord, done[here], sides[here].stream);
        enter(there);
        CALL(cuStreamWaitEvent, sides[there].stream, done[here], 0);
    }
    CALL(cuStreamSynchronize, sides[ROUNDS % 2].stream);
    EXPECT(sides[ROUNDS % 2].memory, 3 * ROUNDS, WORDS);
    CALL(cuEventDestroy, done[0]);
    CALL(cuEventDestroy, done[1]);
}

/* Kernels of `here` read and write memory of `there`. */
static void kernels(int here, CUdeviceptr of_here, CUdeviceptr of_there) {
    enter(here);
    fill(of_there, 10, WORDS);
    add(here, of_here, of_there, WORDS, 5);
    CALL(cuStreamSynchronize, sides[here].stream);
    EXPECT(of_here, 15, WORDS);
    add(here, of_there, of_here, WORDS, 6);
    CALL(cuStreamSynchronize, sides[here].stream);
    enter(1 - here);
    add(1 - here, of_there, of_there, WORDS, 7);
    CALL(cuStreamSynchronize, sides[1 - here].stream);
    EXPECT(of_there, 28, WORDS);
}

/* A wait for the other device's event holds the stream, and not the thread: what ends it comes later from here. */
static void wait_across(int here, int there) {
    CUevent recorded, unused;
    CUstream held;
    uint32_t *gate;
    CUdeviceptr of_gate;
    enter(here);
    CALL(cuEventCreate, &recorded, CU_EVENT_DISABLE_TIMING);
    CALL(cuEventCreate, &unused, CU_EVENT_DISABLE_TIMING);
    CALL(cuMemHostAlloc, (void **)&gate, sizeof *gate, CU_MEMHOSTALLOC_DEVICEMAP);
    *gate = 0;
    CALL(cuMemHostGetDevicePointer, &of_gate, gate, 0);
    CALL(cuStreamCreate, &held, CU_STREAM_NON_BLOCKING);
    fill(sides[here].memory, 11, WORDS);
    enter(there);
    fill(sides[there].memory, 5, WORDS);
    enter(here);
    CALL(cuStreamWaitValue32, held, of_gate, 1, CU_STREAM_WAIT_VALUE_EQ);
    CALL(cuMemcpyPeerAsync, sides[there].memory, sides[there].context, sides[here].memory, sides[here].context, WORDS * sizeof *host, held);
    CALL(cuEventRecord, recorded, held);
    enter(there);
    /* An event that nobody has recorded is none. */
    CALL(cuStreamWaitEvent, sides[there].stream, unused, 0);
    CALL(cuStreamWaitEvent, sides[there].stream, recorded, 0);
    add(there, sides[there].memory, sides[there].memory, WORDS, 100);
    REQUIRE(FUNCTION(cuStreamQuery, "")(sides[there].stream) == CUDA_ERROR_NOT_READY);
    /* What the stream is behind of may go before it is done. */
    enter(here);
    CALL(cuEventDestroy, recorded);
    __atomic_store_n(gate, 1, __ATOMIC_RELEASE);
    enter(there);
    CALL(cuStreamSynchronize, sides[there].stream);
    EXPECT(sides[there].memory, 111, WORDS);
    enter(here);
    CALL(cuStreamDestroy, held);
    CALL(cuEventDestroy, unused);
    CALL(cuMemFreeHost, gate);
}

/* A device that fails reaches no event: a stream of another one that waits for it does not wait for ever. */
static void wait_for_failure(void) {
    CUevent recorded;
    enter(0);
    CALL(cuEventCreate, &recorded, CU_EVENT_DISABLE_TIMING);
    add(0, 16, 16, WORDS, 1);
    CALL(cuEventRecord, recorded, sides[0].stream);
    enter(1);
    CUresult waits = FUNCTION(cuStreamWaitEvent, "")(sides[1].stream, recorded, 0);
    CUresult ends = FUNCTION(cuStreamSynchronize, "")(sides[1].stream);
    enter(0);
    CUresult failed = FUNCTION(cuCtxSynchronize, "")();
    if (failed == CUDA_SUCCESS) {
        fprintf(stderr, "wait %d, its end %d, and no failure\n", waits, ends);
        exit(1);
    }
    printf("ended\n");
}

static void peer_access(int here) {
    int there = 1 - here;
    enter(here);
    REFUSED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, FUNCTION(cuCtxDisablePeerAccess, "")(sides[there].context));
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuCtxEnablePeerAccess, "")(sides[there].context, 1));
    CALL(cuCtxEnablePeerAccess, sides[there].context, 0);
    REFUSED(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, FUNCTION(cuCtxEnablePeerAccess, "")(sides[there].context, 0));
    kernels(here, sides[here].memory, sides[there].memory);
    // What is allocated later is reached, too; and what is freed can be allocated again.
    for (int round = 0; round < ROUNDS; ++round) {
        CUdeviceptr later;
        enter(there);
        CALL(cuMemAlloc, &later, (size_t)(1 + round % 3 * 8) << 20);
        kernels(here, sides[here].memory, later);
        CALL(cuMemFree, later);
    }
    enter(here);
    CALL(cuMemsetD32, sides[there].memory, 9, WORDS);
    CALL(cuCtxSynchronize);
    CALL(cuMemcpyDtoH, host, sides[there].memory, WORDS * sizeof *host);
    REQUIRE(host[0] == 9 && host[WORDS - 1] == 9);
    CALL(cuCtxDisablePeerAccess, sides[there].context);
    REFUSED(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, FUNCTION(cuCtxDisablePeerAccess, "")(sides[there].context));
}

static void pool_access(void) {
    CUmemoryPool pool;
    CUdeviceptr before, after;
    CUmemAccess_flags flags;
    CUmemLocation other = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = sides[0].device};
    CUmemAccessDesc access = {.location = other, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    enter(1);
    CALL(cuDeviceGetDefaultMemPool, &pool, sides[1].device);
    CALL(cuMemAllocAsync, &before, WORDS * sizeof(uint32_t), sides[1].stream);
    CALL(cuMemPoolGetAccess, &flags, pool, &other);
    REQUIRE(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CALL(cuMemPoolSetAccess, pool, &access, 1);
    CALL(cuMemPoolGetAccess, &flags, pool, &other);
    REQUIRE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CALL(cuMemAllocAsync, &after, 3 << 20, sides[1].stream);
    CALL(cuStreamSynchronize, sides[1].stream);
    kernels(0, sides[0].memory, before);
    kernels(0, sides[0].memory, after);
    enter(1);
    CALL(cuMemFreeAsync, before, sides[1].stream);
    CALL(cuMemFreeAsync, after, sides[1].stream);
    CALL(cuStreamSynchronize, sides[1].stream);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CALL(cuMemPoolSetAccess, pool, &access, 1);
}

static void mapped_access(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = sides[1].device}};
    CUmemGenericAllocationHandle memory[2];
    CUdeviceptr range;
    size_t granule;
    unsigned long long flags;
    enter(1);
    CALL(cuMemGetAllocationGranularity, &granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    CALL(cuMemAddressReserve, &range, 4 * granule, 0, 0, 0);
    for (int i = 0; i < 2; ++i) {
        CALL(cuMemCreate, &memory[i], granule, &properties, 0);
        CALL(cuMemMap, range + i * granule, granule, 0, memory[i], 0);
    }
    CUmemAccessDesc both[2] = {
        {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = sides[0].device}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = sides[1].device}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CALL(cuMemSetAccess, range, 2 * granule, both, 2);
    CALL(cuMemGetAccess, &flags, &both[0].location, range + granule);
    REQUIRE(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    // Across the seam of the two.
    kernels(0, sides[0].memory, range + granule - WORDS * 2);
    CALL(cuMemcpyPeer, range, sides[1].context, sides[0].memory, sides[0].context, WORDS * sizeof(uint32_t));
    EXPECT(range, 15, WORDS);
    CALL(cuMemUnmap, range, 2 * granule);
    for (int i = 0; i < 2; ++i) {
        CALL(cuMemRelease, memory[i]);
    }
    CALL(cuMemAddressFree, range, 4 * granule);
}

/* A kernel that writes to the other device's memory without access to it. */
static void trespass(void) {
    enter(0);
    add(0, sides[1].memory, sides[0].memory, 1, 0);
    REFUSED(CUDA_ERROR_ILLEGAL_ADDRESS, FUNCTION(cuCtxSynchronize, "")());
    printf("refused\n");
}

int main(int argument_count, char **arguments) {
    int count, forth, back, supported;
    CALL(cuInit, 0);
    CALL(cuDeviceGetCount, &count);
    if (count < 2) {
        printf("one device: nothing to do\n");
        return 0;
    }
    host = malloc(LARGE_WORDS * sizeof *host);
    open_side(0);
    open_side(1);
    if (argument_count > 1 && strcmp(arguments[1], "trespass") == 0) {
        trespass();
        return 0;
    }
    if (argument_count > 1 && strcmp(arguments[1], "failure") == 0) {
        wait_for_failure();
        return 0;
    }
    CALL(cuDeviceCanAccessPeer, &forth, sides[0].device, sides[1].device);
    CALL(cuDeviceCanAccessPeer, &back, sides[1].device, sides[0].device);
    CALL(cuDeviceGetP2PAttribute, &supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, sides[0].device, sides[1].device);
    REQUIRE(forth == supported);
    printf("peer access: %s\n", forth && back ? "yes" : "no");
    copies(0, 1);
    copies(1, 0);
    large_copy();
    printf("copies: right\n");
    chain();
    printf("chain over both devices: right\n");
    if (forth && back) {
        peer_access(0);
        peer_access(1);
        printf("kernels on the other's memory: right\n");
        pool_access();
        printf("a pool's memory: right\n");
        mapped_access();
        printf("mapped memory: right\n");
        wait_across(0, 1);
        wait_across(1, 0);
        printf("waits for the other's events: right\n");
        copies(0, 1);
        printf("copies afterwards: right\n");
    }
    return 0;
}
