// What the start of a second context costs those who are at work in the first, step by step, and how long each step takes beside a
// kernel that does not end. Are the SMs of the pieces of a split the same in each process?
//
//   nvcc -O2 -std=c++17 context_start.cu -o context_start -lcuda && ./context_start
//
// The answers of an H200 are in docs/lab-notebook.md.
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "probe.cuh"

static const char PTX[] = R"(
.version 6.3
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 stop) { .reg .pred %p; .reg .b32 %r; .reg .b64 %rd; ld.param.u64 %rd,[stop];
L: ld.volatile.global.u32 %r,[%rd]; setp.eq.u32 %p,%r,0; @%p bra L; ret; }
.visible .entry small(.param .u64 ns) { .reg .pred %p; .reg .b64 %a<4>; ld.param.u64 %a0,[ns]; mov.u64 %a1,%globaltimer;
L: mov.u64 %a2,%globaltimer; sub.u64 %a3,%a2,%a1; setp.lt.u64 %p,%a3,%a0; @%p bra L; ret; }
.visible .entry note(.param .u64 noted) { .reg .b32 %r<3>; .reg .b64 %rd<3>; ld.param.u64 %rd0,[noted]; mov.u32 %r1,%smid;
mad.wide.u32 %rd2,%r1,4,%rd0; mov.u32 %r2,1; st.global.u32 [%rd2],%r2; nanosleep.u32 20000; ret; }
)";

struct Shared {
    std::atomic<int> phase, ready, end;
    char names[64][96];
    double took[64], longest[64], second[64];
    int iterations[64], phases;
    unsigned char sms[2][200];
};
static Shared* shared;

static void begin(const char* name) {
    usleep(60000);
    int next = shared->phases++;
    snprintf(shared->names[next], sizeof shared->names[next], "%s", name);
    shared->phase = next;
}
template <class F> static void step(const char* name, F&& what) {
    begin(name);
    auto t = clk::now();
    what();
    shared->took[shared->phase] = ms(t);
    int done = shared->phase;
    begin("(pause)");
    (void)done;
}

static void worker(bool hog, int blocks) {
    CUdevice device; CUcontext context; CUmodule module; CUfunction spin, small;
    CK(cuInit(0)); CK(cuDeviceGet(&device, 0)); CK(cuDevicePrimaryCtxRetain(&context, device)); CK(cuCtxSetCurrent(context));
    CK(cuModuleLoadData(&module, PTX)); CK(cuModuleGetFunction(&spin, module, "spin")); CK(cuModuleGetFunction(&small, module, "small"));
    CUstream one, two; CK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING)); CK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    unsigned* host; CK(cuMemHostAlloc((void**)&host, 4096, 0)); *host = 0;
    CUdeviceptr word; CK(cuMemHostGetDevicePointer(&word, host, 0));
    unsigned long long ns = 2000; void* a[] = {&ns}; void* s[] = {&word};
    CK(cuLaunchKernel(small, 1, 1, 1, 32, 1, 1, 0, one, a, 0)); CK(cuStreamSynchronize(one));
    if (hog) CK(cuLaunchKernel(spin, blocks, 1, 1, 32, 1, 1, 0, two, s, 0));
    shared->ready = 1;
    while (!shared->end) {
        int phase = shared->phase;
        auto t = clk::now();
        for (int i = 0; i < 20; i++) CK(cuLaunchKernel(small, 1, 1, 1, 32, 1, 1, 0, one, a, 0));
        CK(cuStreamSynchronize(one));
        double took = ms(t);
        shared->iterations[phase]++;
        if (took > shared->longest[phase]) { shared->second[phase] = shared->longest[phase]; shared->longest[phase] = took; }
        else if (took > shared->second[phase]) shared->second[phase] = took;
    }
    *(volatile unsigned*)host = 1;
    CK(cuCtxSynchronize());
    exit(0);
}

static void starter(int number) {
    CUdevice device; CUcontext context; CUmodule module; CUfunction note;
    std::vector<CUgreenCtx> lanes;
    CUdeviceptr noted;
    CUdevResource whole;
    step("cuInit", [&] { CK(cuInit(0)); CK(cuDeviceGet(&device, 0)); });
    step("primary context", [&] { CK(cuDevicePrimaryCtxRetain(&context, device)); CK(cuCtxSetCurrent(context)); });
    step("module of PTX", [&] { CK(cuModuleLoadData(&module, PTX)); CK(cuModuleGetFunction(&note, module, "note")); });
    step("a first allocation and kernel, with a wait", [&] {
        CK(cuMemAlloc(&noted, 4096)); CK(cuMemsetD8(noted, 0, 4096));
        void* a[] = {&noted};
        CK(cuLaunchKernel(note, 132, 1, 1, 1024, 1, 1, 0, 0, a, 0)); CK(cuCtxSynchronize());
    });
    whole = all_sms(device);
    auto green = [&](std::vector<CUdevResource> of) { return green_context(device, of); };
    step("a green context of all SMs", [&] { lanes.push_back(green({whole})); });
    step("four more", [&] { for (int i = 0; i < 4; i++) lanes.push_back(green({whole})); });
    std::vector<CUdevResource> pairs(100); unsigned count = 100; CUdevResource rest;
    step("split into pairs", [&] { CK(cuDevSmResourceSplitByCount(pairs.data(), &count, &whole, &rest, 1, 2)); });
    pairs.resize(count);
    step("fifteen green contexts of half the pairs, a kernel with a wait in each", [&] {
        for (int i = 0; i < 15; i++) {
            std::vector<CUdevResource> some;
            for (unsigned p = 0; p < count; p++) if ((p + 1) >> (i % 7) & 1) some.push_back(pairs[p]);
            CUgreenCtx made = green(some);
            CUstream stream; CK(cuGreenCtxStreamCreate(&stream, made, CU_STREAM_NON_BLOCKING, 0));
            CK(cuMemsetD8Async(noted, 0, 4096, stream));
            void* a[] = {&noted};
            CK(cuLaunchKernel(note, 4 * 132, 1, 1, 1024, 1, 1, 0, stream, a, 0));
            unsigned seen[200] = {}; CK(cuMemcpyDtoHAsync(seen, noted, sizeof seen, stream)); CK(cuStreamSynchronize(stream));
            if (i < 7) for (int sm = 0; sm < 200; sm++) if (seen[sm]) shared->sms[number][sm] |= 1 << i;
            CK(cuStreamDestroy(stream)); CK(cuGreenCtxDestroy(made));
        }
    });
    CUdeviceptr range; CUmemGenericAllocationHandle handle;
    step("256 streams", [&] { for (int i = 0; i < 256; i++) { CUstream stream; CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); } });
    step("1 GiB mapped", [&] {
        CUmemAllocationProp prop = {}; prop.type = CU_MEM_ALLOCATION_TYPE_PINNED; prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        CK(cuMemAddressReserve(&range, 1ull << 30, 0, 0, 0)); CK(cuMemCreate(&handle, 1ull << 30, &prop, 0));
        CK(cuMemMap(range, 1ull << 30, 0, handle, 0));
        CUmemAccessDesc access = {}; access.location = prop.location; access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        CK(cuMemSetAccess(range, 1ull << 30, &access, 1));
    });
    step("a limit of the context (printf)", [&] { CK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 8 << 20)); });
    step("a module with local memory: stack of 8 KiB", [&] { CK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192)); });
    exit(0);
}

int main() {
    shared = (Shared*)mmap(0, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    printf("| beside | step | takes, ms | longest and second longest iteration meanwhile, ms |\n|---|---|---|---|\n");
    fflush(stdout);
    struct { const char* name; bool hog; int blocks; } kinds[] = {{"no kernel", false, 0}, {"an endless kernel on 1 SM", true, 1}, {"an endless kernel on all", true, 132}};
    unsigned char first[200];
    for (int k = 0; k < 3; k++) {
        memset((void*)shared, 0, sizeof(Shared));
        shared->phases = 1;
        strcpy(shared->names[0], "(before)");
        pid_t a = fork();
        if (!a) worker(kinds[k].hog, kinds[k].blocks);
        while (!shared->ready) usleep(1000);
        if (k == 2) usleep(1000);
        pid_t b = fork();
        if (!b) starter(0);
        waitpid(b, 0, 0);
        begin("after its end");
        usleep(300000);
        shared->end = 1;
        waitpid(a, 0, 0);
        for (int i = 0; i < shared->phases; i++)
            if (strcmp(shared->names[i], "(pause)") || shared->longest[i] > 5)
                printf("| %s | %s | %.1f | %.2f, %.2f (of %d) |\n", kinds[k].name, shared->names[i], shared->took[i], shared->longest[i], shared->second[i], shared->iterations[i]);
        if (k == 0) memcpy(first, shared->sms[0], 200);
        else printf("| %s | the SMs of the pairs | %s | |\n", kinds[k].name, memcmp(first, shared->sms[0], 200) ? "others than in the first process" : "the same as in the first process");
        fflush(stdout);
    }
}
