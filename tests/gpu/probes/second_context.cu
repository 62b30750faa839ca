// A second context in one process: does a load of code there wait for kernels of the first, does memory serve both,
// what do a fault and the end of one do to the other, and what does it cost?
//
//   nvcc -O2 -std=c++17 second_context.cu -o second_context -lcuda && ./second_context
//
// The answers of an H200 are in docs/lab-notebook.md.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>
#define CK(x)                                         \
    do {                                              \
        CUresult r_ = (x);                            \
        if (r_) {                                     \
            const char* n = "?";                      \
            cuGetErrorName(r_, &n);                   \
            printf("%d %s -> %s\n", __LINE__, #x, n); \
            fflush(stdout);                           \
            exit(1);                                  \
        }                                             \
    } while (0)
using clk = std::chrono::steady_clock;
static double ms(clk::time_point a) {
    return std::chrono::duration<double>(clk::now() - a).count() * 1e3;
}
static std::string ptx(int id) {
    char b[1600];
    snprintf(b, sizeof b,
             ".version 8.0\n.target sm_80\n.address_size 64\n.global .align 8 .u64 gv%d;\n.visible .entry k%d(.param "
             ".u64 p, .param .u64 n){ .reg .pred %%p; .reg .b64 %%r<9>; ld.param.u64 %%r1,[p]; ld.param.u64 %%r2,[n]; "
             "mov.u64 %%r3,%%globaltimer; L: mov.u64 %%r4,%%globaltimer; sub.u64 %%r5,%%r4,%%r3; setp.lt.u64 "
             "%%p,%%r5,%%r2; @%%p bra L; st.global.u64 [%%r1],%%r2; ret; }\n.visible .entry j%d(.param .u64 p){ .reg "
             ".b64 %%r<4>; ld.param.u64 %%r1,[p]; mov.u64 %%r2,%d; st.global.u64 [%%r1],%%r2; ret; }\n",
             id, id, id, id);
    return b;
}
static size_t freeMem() {
    size_t f, t;
    CK(cuMemGetInfo(&f, &t));
    return f >> 20;
}
int main() {
    CK(cuInit(0));
    CUdevice d;
    CK(cuDeviceGet(&d, 0));
    CUcontext A, B;
    CK(cuDevicePrimaryCtxRetain(&A, d));
    CK(cuCtxSetCurrent(A));
    size_t f0 = freeMem();
    auto t0 = clk::now();
    CUctxCreateParams cp = {};
    CK(cuCtxCreate(&B, &cp, 0, d));
    printf("second context made in %.1f ms, costs %ld MiB\n", ms(t0), (long)(f0 - freeMem()));
    CK(cuCtxSetCurrent(A));
    CUmodule ma, mb;
    CK(cuModuleLoadData(&ma, ptx(0).c_str()));
    CUfunction ka, kb, ja, jb;
    CK(cuModuleGetFunction(&ka, ma, "k0"));
    CK(cuModuleGetFunction(&ja, ma, "j0"));
    CUstream sa, sb;
    CK(cuStreamCreate(&sa, 1));
    CK(cuCtxSetCurrent(B));
    CK(cuModuleLoadData(&mb, ptx(0).c_str()));
    CK(cuModuleGetFunction(&kb, mb, "k0"));
    CK(cuModuleGetFunction(&jb, mb, "j0"));
    CK(cuStreamCreate(&sb, 1));
    // VMM memory mapped once: both contexts?
    CUmemAllocationProp pr = {};
    pr.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    pr.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle h;
    CK(cuMemCreate(&h, 64 << 20, &pr, 0));
    CUdeviceptr va;
    CK(cuMemAddressReserve(&va, 64 << 20, 0, 0x100000000000ull, 0));
    CK(cuMemMap(va, 64 << 20, 0, h, 0));
    CUmemAccessDesc ac = {};
    ac.location = pr.location;
    ac.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CK(cuMemSetAccess(va, 64 << 20, &ac, 1));
    auto launch = [&](CUcontext c, CUstream s, CUfunction f, CUdeviceptr p, unsigned long long ns) {
        CK(cuCtxSetCurrent(c));
        void* a[2] = {&p, &ns};
        CUresult r = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, a, 0);
        return r;
    };
    CK(launch(A, sa, ka, va, 1000));
    CK(cuStreamSynchronize(sa));
    CK(launch(B, sb, kb, va + 8, 2000));
    CUresult rb = cuStreamSynchronize(sb);
    unsigned long long w[2];
    CK(cuCtxSetCurrent(A));
    CK(cuMemcpyDtoH(w, va, 16));
    printf("VMM memory: kernel of A %llu, kernel of B %llu (%d)\n", w[0], w[1], rb);
    void* reg = mmap((void*)0x90000000000ull, 1 << 20, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CUresult rr = cuMemHostRegister(reg, 1 << 20, CU_MEMHOSTREGISTER_PORTABLE);
    CUdeviceptr da = 0, db = 0;
    CUresult ra = cuMemHostGetDevicePointer(&da, reg, 0);
    CK(cuCtxSetCurrent(B));
    rb = cuMemHostGetDevicePointer(&db, reg, 0);
    printf("registered portable in A: %d; device pointer in A %d %s, in B %d %s\n", rr, ra,
           da == (CUdeviceptr)reg ? "same" : "other", rb, db == (CUdeviceptr)reg ? "same" : "other");
    CK(launch(B, sb, kb, (CUdeviceptr)reg, 77));
    rb = cuStreamSynchronize(sb);
    printf("kernel of B writes registered memory: %llu (%d)\n", *(unsigned long long*)reg, rb);
    rb = cuStreamWriteValue64(sb, (CUdeviceptr)reg + 8, 5, 0);
    CUresult rc = cuStreamSynchronize(sb);
    printf("cuStreamWriteValue64 of B: %d %d, %llu\n", rb, rc, ((volatile unsigned long long*)reg)[1]);
    CUevent ev;
    CK(cuCtxSetCurrent(A));
    CK(cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING));
    CK(cuEventRecord(ev, sa));
    CK(cuCtxSetCurrent(B));
    printf("stream of B waits for event of A: %d\n", cuStreamWaitEvent(sb, ev, 0));
    int id = 1;
    for (int blocks : {1, 66, 1056})
        for (int dir = 0; dir < 2; dir++)
            for (int how = 0; how < 3; how++) {
                CUcontext L = dir ? B : A, W = dir ? A : B;
                CUstream ls = dir ? sb : sa, ws = dir ? sa : sb;
                CUfunction lf = dir ? kb : ka, wf = dir ? ja : jb;
                CK(cuCtxSetCurrent(L));
                CUdeviceptr q = va;
                unsigned long long ns = 1500ull * 1000 * 1000;
                void* a[2] = {&q, &ns};
                CK(cuLaunchKernel(lf, blocks, 1, 1, 1024, 1, 1, 0, ls, a, 0));
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                std::atomic<bool> stop{false};
                std::vector<double> waits;
                std::thread other([&] {
                    CK(cuCtxSetCurrent(W));
                    CUstream s2;
                    CK(cuStreamCreate(&s2, 1));
                    while (!stop) {
                        auto b = clk::now();
                        CUdeviceptr z = va + 64;
                        void* ar[1] = {&z};
                        CK(cuLaunchKernel(wf, 1, 1, 1, 1, 1, 1, 0, s2, ar, 0));
                        CK(cuStreamSynchronize(s2));
                        waits.push_back(ms(b));
                        std::this_thread::sleep_for(std::chrono::microseconds(500));
                    }
                });
                std::atomic<bool> stop2{false};
                double lworst = 0;
                std::thread same([&] {
                    CK(cuCtxSetCurrent(L));
                    CUstream s2;
                    CK(cuStreamCreate(&s2, 1));
                    CUfunction lj = dir ? jb : ja;
                    while (!stop2) {
                        auto b = clk::now();
                        CUdeviceptr z = va + 72;
                        void* ar[1] = {&z};
                        CK(cuLaunchKernel(lj, 1, 1, 1, 1, 1, 1, 0, s2, ar, 0));
                        double m = ms(b);
                        if (m > lworst)
                            lworst = m;
                        std::this_thread::sleep_for(std::chrono::microseconds(500));
                    }
                });
                CK(cuCtxSetCurrent(W));
                auto t = clk::now();
                std::string tx = ptx(id), kn = "j" + std::to_string(id);
                id++;
                CUmodule m;
                CUfunction f;
                double l1 = 0, l2 = 0;
                if (how == 0) {
                    CK(cuModuleLoadData(&m, tx.c_str()));
                    l1 = ms(t);
                    CK(cuModuleGetFunction(&f, m, kn.c_str()));
                } else if (how == 1) {
                    CUlibrary lib;
                    CUkernel ker;
                    CK(cuLibraryLoadData(&lib, tx.c_str(), 0, 0, 0, 0, 0, 0));
                    l1 = ms(t);
                    CK(cuLibraryGetKernel(&ker, lib, kn.c_str()));
                    CK(cuKernelGetFunction(&f, ker));
                } else {
                    CUdeviceptr x;
                    CK(cuMemAlloc(&x, 8 << 20));
                    l1 = ms(t);
                    CK(cuMemFree(x));
                    f = wf;
                }
                l2 = ms(t);
                CUdeviceptr z = va + 128;
                void* ar[1] = {&z};
                CK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, ws, ar, 0));
                double l3 = ms(t);
                CK(cuStreamSynchronize(ws));
                double done = ms(t);
                stop = true;
                stop2 = true;
                other.join();
                same.join();
                std::sort(waits.begin(), waits.end());
                CK(cuCtxSetCurrent(L));
                CK(cuCtxSynchronize());
                printf(
                    "kernel of %4d blocks in %s, %-14s in %s: loaded %7.1f got %7.1f launched %7.1f done %7.1f ms | "
                    "kernels there: %zu, p50 %.2f worst %.1f ms | launches beside the kernel: worst %.1f ms\n",
                    blocks, dir ? "B" : "A",
                    how == 0   ? "module load"
                    : how == 1 ? "library load"
                               : "alloc and free",
                    dir ? "A" : "B", l1, l2, l3, done, waits.size(), waits.empty() ? 0 : waits[waits.size() / 2],
                    waits.empty() ? 0 : waits.back(), lworst);
                fflush(stdout);
            }
    // three contexts: cost
    CUcontext C;
    CK(cuCtxSetCurrent(A));
    f0 = freeMem();
    t0 = clk::now();
    CK(cuCtxCreate(&C, &cp, 0, d));
    printf("third context %.1f ms, %ld MiB\n", ms(t0), (long)(f0 - freeMem()));
    t0 = clk::now();
    CK(cuCtxDestroy(C));
    printf("destroyed in %.1f ms\n", ms(t0));
    // destroying a context whose endless kernel runs
    CK(cuCtxCreate(&C, &cp, 0, d));
    {
        CUmodule mc;
        CK(cuModuleLoadData(&mc, ptx(0).c_str()));
        CUfunction kc;
        CK(cuModuleGetFunction(&kc, mc, "k0"));
        CUstream sc;
        CK(cuStreamCreate(&sc, 1));
        CK(launch(C, sc, kc, va, 4000ull * 1000 * 1000));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        t0 = clk::now();
        CUresult r = cuCtxDestroy(C);
        printf("destroyed beside its 4 s kernel: %d after %.1f ms\n", r, ms(t0));
        CK(cuCtxSetCurrent(A));
        CK(launch(A, sa, ka, va, 1000));
        printf("A goes on: %d\n", cuStreamSynchronize(sa));
    }
    // a fault in B: A?
    CK(launch(B, sb, jb, 0x7, 0));
    CUresult fb = cuStreamSynchronize(sb);
    CK(cuCtxSetCurrent(A));
    CUresult la = launch(A, sa, ka, va, 1000);
    CUresult fa = cuStreamSynchronize(sa);
    printf("fault in B: B %d, A launch %d, sync %d\n", fb, la, fa);
    t0 = clk::now();
    CUresult ds = cuCtxDestroy(B);
    printf("destroy faulted B: %d in %.1f ms; ", ds, ms(t0));
    CK(cuCtxSetCurrent(A));
    la = launch(A, sa, ka, va, 1000);
    printf("A after: %d %d; ", la, cuStreamSynchronize(sa));
    CUcontext D;
    printf("a new context: %d\n", cuCtxCreate(&D, &cp, 0, d));
}
