// What a device's SMs can be cut into, and which cuts take clusters of thread blocks.
//
//   nvcc -O2 -std=c++17 -arch=native sm_sets.cu -o sm_sets -lcuda && ./sm_sets
//
// Each line is one green context: how many SMs the driver says it has, on how many a kernel ran, and for clusters of 1
// to 16 blocks how many fit at a time and what a launch returned. The table in docs/control.md was made with it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <vector>

static void check(CUresult result, int line) {
    if (result != CUDA_SUCCESS) {
        const char* name = "?";
        cuGetErrorName(result, &name);
        printf("line %d: %s\n", line, name);
        exit(1);
    }
}
#define CHECK(call) check((call), __LINE__)

constexpr int kMostSms = 1024;
// So much that an SM has room for one block.
constexpr unsigned kSharedBytes = 120 * 1024;

__global__ void note(int* seen) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) {
        seen[sm] = 1;
        long long begun = clock64();
        while (clock64() - begun < 20000) {
        }
    }
}

static CUdevice device;
static CUcontext primary;
static CUfunction function;
static CUdeviceptr seen;

using Resources = std::vector<CUdevResource>;

static Resources split(unsigned flags, unsigned sms, unsigned groups, CUdevResource* rest = nullptr) {
    CUdevResource all, left;
    CHECK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    if (groups == 0) {
        CHECK(cuDevSmResourceSplitByCount(nullptr, &groups, &all, &left, flags, sms));
    }
    Resources made(groups);
    CHECK(cuDevSmResourceSplitByCount(made.data(), &groups, &all, &left, flags, sms));
    made.resize(groups);
    if (rest) {
        *rest = left;
    }
    return made;
}

enum class Show { kCounts, kSms };

static void report(const char* what, Resources resources, Show show = Show::kCounts) {
    CUdevResourceDesc description;
    CUresult described = cuDevResourceGenerateDesc(&description, resources.data(), resources.size());
    if (described != CUDA_SUCCESS) {
        printf("%-44s no description: %d\n", what, described);
        return;
    }
    CUgreenCtx green;
    CUcontext context;
    CUstream stream;
    CUdevResource have;
    CHECK(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK(cuGreenCtxGetDevResource(green, &have, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(cuCtxFromGreenCtx(&context, green));
    CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemsetD32(seen, 0, kMostSms));
    CHECK(cuCtxSynchronize());
    void* parameters[] = {&seen};
    CHECK(cuLaunchKernel(function, 512, 1, 1, 128, 1, 1, kSharedBytes, stream, parameters, nullptr));
    CHECK(cuStreamSynchronize(stream));
    std::vector<int> host(kMostSms);
    CHECK(cuMemcpyDtoH(host.data(), seen, kMostSms * sizeof(int)));
    std::set<int> on;
    for (int sm = 0; sm < kMostSms; ++sm) {
        if (host[sm]) {
            on.insert(sm);
        }
    }
    printf("%-44s %3u SMs, seen %3zu:", what, have.sm.smCount, on.size());
    if (show == Show::kSms) {
        for (int sm : on) {
            printf(" %d", sm);
        }
    } else {
        for (unsigned blocks = 1; blocks <= 16; blocks *= 2) {
            CUlaunchAttribute attribute = {};
            attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attribute.value.clusterDim.x = blocks;
            attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
            CUlaunchConfig config = {};
            config.gridDimX = blocks * 64;
            config.gridDimY = config.gridDimZ = 1;
            config.blockDimX = 128;
            config.blockDimY = config.blockDimZ = 1;
            config.sharedMemBytes = kSharedBytes;
            config.hStream = stream;
            config.attrs = &attribute;
            config.numAttrs = 1;
            int fit = -1;
            CHECK(cuOccupancyMaxActiveClusters(&fit, function, &config));
            CUresult launched = cuLaunchKernelEx(&config, function, parameters, nullptr);
            CHECK(cuStreamSynchronize(stream));
            printf("  %u: %d (%d)", blocks, fit, launched);
        }
    }
    printf("\n");
    CHECK(cuCtxSetCurrent(primary));
    CHECK(cuStreamDestroy(stream));
    CHECK(cuGreenCtxDestroy(green));
}

int main() {
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK(cuCtxSetCurrent(primary));
    cudaFree(nullptr);
    cudaFunction_t by_symbol;
    cudaGetFuncBySymbol(&by_symbol, reinterpret_cast<const void*>(note));
    function = reinterpret_cast<CUfunction>(by_symbol);
    CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kSharedBytes));
    CHECK(cuMemAlloc(&seen, kMostSms * sizeof(int)));
    CUdevResource all, rest;
    CHECK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    report("the whole device", {all});
    const unsigned unit = all.sm.smCoscheduledAlignment;
    Resources sets = split(0, unit, 0, &rest);
    Resources pairs = split(CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 2, 0);
    printf("sets of %u SMs: %zu, %u SMs left over; pairs: %zu\n", unit, sets.size(), rest.sm.smCount, pairs.size());
    report("one set", {sets[0]});
    report("all sets", sets);
    if (sets.size() > 9) {
        report("sets 0, 5 and 9", {sets[0], sets[5], sets[9]});
    }
    if (rest.sm.smCount > 0) {
        report("what is left over", {rest});
        report("a set and what is left over", {sets[0], rest});
    }
    report("a set and a pair", {sets[0], pairs.back()});
    report("4 pairs", Resources(pairs.begin(), pairs.begin() + 4));
    report("8 pairs", Resources(pairs.begin(), pairs.begin() + 8));
    report("32 pairs", Resources(pairs.begin(), pairs.begin() + 32));
    report("a set twice", {sets[0], sets[0]});
    for (unsigned count = all.sm.smCount / (2 * unit); count >= 1; --count) {
        Resources joint = split(CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE, 2 * unit, count);
        printf("%u sets of %u SMs, split for the largest clusters:\n", count, 2 * unit);
        report("  one", {joint[0]});
        report("  one, its SMs", {joint[0]}, Show::kSms);
        report("  all", joint);
        report("  one and a set", {joint[0], sets[0]});
    }
    for (size_t set = 0; set < sets.size(); ++set) {
        report("a set, its SMs", {sets[set]}, Show::kSms);
    }
}
