/* A client on two devices, each of which reaches the other's memory. It is told by lines on its standard input what to do, and answers each with a line:
 *   make    makes memory on both devices, and has both reach it: `ok`
 *   check   has a kernel on each device work with memory of both, copies between them, and compares every word: `ok`, or what is wrong
 *   unmake  takes access back, and gives memory back: `ok`
 */
#include "orders.h"

enum { WORDS = 4096, THREADS = 128 };

static const char add_ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry add(.param .u64 to, .param .u64 from, .param .u32 more)\n{\n"
                              ".reg .b32 %r<8>; .reg .b64 %rd<8>;\n"
                              "ld.param.u64 %rd0, [to]; ld.param.u64 %rd1, [from]; ld.param.u32 %r1, [more];\n"
                              "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;\n"
                              "mul.wide.u32 %rd2, %r5, 4; add.u64 %rd3, %rd0, %rd2; add.u64 %rd4, %rd1, %rd2;\n"
                              "ld.global.u32 %r6, [%rd4]; add.u32 %r7, %r6, %r1; st.global.u32 [%rd3], %r7;\n"
                              "ret;\n}\n";

static struct Side {
    CUcontext context;
    CUfunction add;
    CUdeviceptr memory, copied;
    uint32_t known[WORDS];
} sides[2];

static void enter(int side) { CALL(cuCtxSetCurrent, sides[side].context); }

static void open_sides(void) {
    for (int side = 0; side < 2; ++side) {
        CUdevice device;
        CUmodule module;
        CALL(cuDeviceGet, &device, side);
        CALL(cuDevicePrimaryCtxRetain, &sides[side].context, device);
        enter(side);
        CALL(cuModuleLoadData, &module, add_ptx);
        CALL(cuModuleGetFunction, &sides[side].add, module, "add");
    }
}

static void make(void) {
    for (int side = 0; side < 2; ++side) {
        struct Side *of = &sides[side];
        enter(side);
        CALL(cuMemAlloc, &of->memory, sizeof of->known);
        CALL(cuMemAlloc, &of->copied, sizeof of->known);
        for (uint32_t i = 0; i < WORDS; ++i) {
            of->known[i] = (i + 1) * 2654435761u + side;
        }
        CALL(cuMemcpyHtoD, of->memory, of->known, sizeof of->known);
        CALL(cuCtxSynchronize);
    }
    for (int side = 0; side < 2; ++side) {
        enter(side);
        CALL(cuCtxEnablePeerAccess, sides[1 - side].context, 0);
    }
}

/* Each side's kernel adds to the other side's memory, in place, and then copies it over. */
static const char *check(void) {
    static uint32_t seen[WORDS];
    for (int side = 0; side < 2; ++side) {
        struct Side *of = &sides[side], *other = &sides[1 - side];
        uint32_t more = 17 + side;
        void *parameters[] = {&other->memory, &other->memory, &more};
        enter(side);
        CALL(cuLaunchKernel, of->add, WORDS / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
        CALL(cuCtxSynchronize);
        for (int i = 0; i < WORDS; ++i) {
            other->known[i] += more;
        }
        CALL(cuMemcpyPeer, of->copied, of->context, other->memory, other->context, sizeof seen);
        CALL(cuCtxSynchronize);
        CALL(cuMemcpyDtoH, seen, of->copied, sizeof seen);
        if (memcmp(seen, other->known, sizeof seen) != 0) {
            return side ? "memory of device 0, from device 1" : "memory of device 1, from device 0";
        }
    }
    return "ok";
}

static void unmake(void) {
    for (int side = 0; side < 2; ++side) {
        enter(side);
        CALL(cuCtxDisablePeerAccess, sides[1 - side].context);
    }
    for (int side = 0; side < 2; ++side) {
        enter(side);
        CALL(cuMemFree, sides[side].memory);
        CALL(cuMemFree, sides[side].copied);
        CALL(cuCtxSynchronize);
    }
}

int main(void) {
    static const struct Order orders[] = {
        {"make", .act = make},
        {"check", .say = check},
        {"unmake", .act = unmake},
    };
    CALL(cuInit, 0);
    open_sides();
    OBEY(orders);
    return 0;
}
