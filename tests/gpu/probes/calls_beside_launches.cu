// Which calls of a driver wait for other threads that launch, and hold them: what each takes alone and beside 15 threads of the same context that
// launch short kernels without pause, and how much slower those become.
//
//     nvcc -O2 -std=c++17 -arch=native calls_beside_launches.cu -o calls_beside_launches -lcuda && ./calls_beside_launches [THREADS [WORD]]
//
// WORD: only calls with it in their names. The other threads pause for some us when a call has taken a second: it would not have come to an end.
// The answers of an H200 are in docs/lab-notebook.md.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "probe.cuh"

__global__ void small(unsigned us) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < us * 1000ull);
}

static const char PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";
static CUcontext context;
static unsigned US = 2;
static std::atomic<bool> pause_all{false};
static void* arguments[] = {&US};

static void plain(CUfunction function, CUstream stream) { CK(cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr)); }

struct Call {
    std::string name;
    std::function<void()> call;
    // Done before each call, not timed.
    std::function<void()> before;
};

// Every 100 us; p50 and p99 in us, and how many kernels the others launched a second meanwhile.
static void measure(const Call& it, int others, CUfunction function) {
    std::atomic<long> launches{0};
    std::atomic<bool> stop{false}, done{false};
    // When the call in hand began, in ms since the measurement did.
    std::atomic<double> since{0};
    auto start = clk::now();
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        while (!done) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            pause_all = ms(start) - since > 1000;
        }
        pause_all = false;
    });
    for (int i = 0; i < others; i++)
        threads.emplace_back([&] {
            CK(cuCtxSetCurrent(context));
            CUstream stream;
            CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            while (!stop) {
                while (pause_all) std::this_thread::sleep_for(std::chrono::microseconds(50));
                for (int k = 0; k < 12; k++) plain(function, stream), launches++;
                CK(cuStreamSynchronize(stream));
            }
            CK(cuStreamDestroy(stream));
        });
    std::vector<double> times;
    if (others) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    long first = launches;
    auto began = clk::now();
    while (ms(began) < (others ? 80 : 10)) {
        if (it.before) it.before();
        auto before = clk::now();
        since = ms(start);
        if (it.call) it.call();
        times.push_back(ms(before) * 1e3);
        auto until = clk::now() + std::chrono::microseconds(100);
        while (clk::now() < until) {}
    }
    double rate = (launches - first) / ms(began);
    stop = done = true;
    for (auto& thread : threads) thread.join();
    std::sort(times.begin(), times.end());
    printf(" %8.2f %8.2f", times[times.size() / 2], times[times.size() * 99 / 100]);
    if (others) printf(" %6.0f", rate);
}

int main(int count, char** words) {
    int others = count > 1 ? atoi(words[1]) : 15;
    CUfunction function;
    CUkernel kernel;
    CUstream stream, other;
    CK(cudaFree(nullptr)); CK(cuCtxGetCurrent(&context));
    CK(cudaGetFuncBySymbol((cudaFunction_t*)&function, (const void*)small));
    CK(cudaGetKernel((cudaKernel_t*)&kernel, (const void*)small));
    CK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)); CK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CUdeviceptr device, second;
    void* pinned;
    CK(cuMemAlloc(&device, 1 << 20)); CK(cuMemAlloc(&second, 1 << 20)); CK(cuMemAllocHost(&pinned, 1 << 20));
    std::vector<char> pageable(1 << 20);
    CUevent timed, untimed, done, done_too;
    CK(cuEventCreate(&timed, CU_EVENT_DEFAULT)); CK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    CK(cuEventCreate(&done, CU_EVENT_DEFAULT)); CK(cuEventCreate(&done_too, CU_EVENT_DEFAULT));
    CK(cuEventRecord(done, stream)); CK(cuEventRecord(done_too, stream)); CK(cuEventRecord(untimed, stream)); CK(cuStreamSynchronize(stream));
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_KERNEL_NODE_PARAMS parameters = {};
    parameters.func = function, parameters.gridDimX = 8, parameters.gridDimY = parameters.gridDimZ = 1;
    parameters.blockDimX = 128, parameters.blockDimY = parameters.blockDimZ = 1, parameters.kernelParams = arguments;
    CK(cuGraphCreate(&graph, 0)); CK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &parameters)); CK(cuGraphInstantiate(&exec, graph, 0));
    CK(cuGraphLaunch(exec, stream)); CK(cuStreamSynchronize(stream));
    int value, number = 0;
    float milliseconds;
    CUevent made;
    CUlaunchAttribute cooperative = {};
    cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, cooperative.value.cooperative = 1;
    CUlaunchConfig config = {8, 1, 1, 128, 1, 1, 0, stream, &cooperative, 1};
    auto rest = [&] { CK(cuStreamSynchronize(stream)); };
    CUgreenCtx green = green_context(0, {all_sms(0)});
    CUmemAllocationProp property = {};
    property.type = CU_MEM_ALLOCATION_TYPE_PINNED, property.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    property.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle memory;
    CUmemAccessDesc access = {property.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr place;
    int exported;
    CK(cuMemCreate(&memory, 2 << 20, &property, 0)); CK(cuMemAddressReserve(&place, 2 << 20, 0, 0, 0));
    CK(cuMemExportToShareableHandle(&exported, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    void* pages = aligned_alloc(1 << 16, 1 << 16);
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_LINEAR, resource.res.linear.devPtr = device, resource.res.linear.sizeInBytes = 1 << 16;
    resource.res.linear.format = CU_AD_FORMAT_FLOAT, resource.res.linear.numChannels = 1;
    CUDA_TEXTURE_DESC texture = {};
    CUDA_ARRAY_DESCRIPTOR array = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUgraphExec second_exec;
    std::vector<Call> calls = {
        {"nothing", {}, {}},
        {"cuLaunchKernel", [&] { plain(function, stream); }, rest},
        {"cuLaunchKernelEx, cooperative", [&] { CK(cuLaunchKernelEx(&config, function, arguments, nullptr)); }, rest},
        {"cuGraphLaunch of a kernel", [&] { CK(cuGraphLaunch(exec, stream)); }, rest},
        {"cuGraphExecKernelNodeSetParams", [&] { parameters.gridDimX = 8 + number++ % 2; CK(cuGraphExecKernelNodeSetParams(exec, node, &parameters)); }, rest},
        {"cuMemsetD8Async, 64 KiB", [&] { CK(cuMemsetD8Async(device, 0, 1 << 16, stream)); }, rest},
        {"cuMemcpyAsync, device, 64 KiB", [&] { CK(cuMemcpyAsync(second, device, 1 << 16, stream)); }, rest},
        {"cuMemcpyHtoDAsync, pinned, 8 bytes", [&] { CK(cuMemcpyHtoDAsync(device, pinned, 8, stream)); }, rest},
        {"cuMemcpyHtoDAsync, pinned, 768 KiB", [&] { CK(cuMemcpyHtoDAsync(device, pinned, 768 << 10, stream)); }, rest},
        {"cuMemcpyDtoHAsync, pinned, 8 bytes", [&] { CK(cuMemcpyDtoHAsync(pinned, device, 8, stream)); }, rest},
        {"cuMemcpyDtoHAsync, pinned, 64 KiB", [&] { CK(cuMemcpyDtoHAsync(pinned, device, 1 << 16, stream)); }, rest},
        {"cuMemcpyHtoDAsync, pageable, 64 KiB", [&] { CK(cuMemcpyHtoDAsync(device, pageable.data(), 1 << 16, stream)); }, rest},
        {"cuStreamWriteValue64", [&] { CK(cuStreamWriteValue64(stream, device, 1, 0)); }, rest},
        {"cuEventRecord, with timing", [&] { CK(cuEventRecord(timed, stream)); }, rest},
        {"cuEventRecord, without", [&] { CK(cuEventRecord(untimed, stream)); }, rest},
        {"cuEventQuery", [&] { CK(cuEventQuery(done)); }, {}},
        {"cuEventElapsedTime", [&] { CK(cuEventElapsedTime(&milliseconds, done, done_too)); }, {}},
        {"cuStreamQuery, idle", [&] { CK(cuStreamQuery(stream)); }, rest},
        {"cuStreamWaitEvent", [&] { CK(cuStreamWaitEvent(other, untimed, 0)); }, rest},
        {"cuEventCreate and Destroy", [&] { CK(cuEventCreate(&made, CU_EVENT_DEFAULT)); CK(cuEventDestroy(made)); }, {}},
        {"cuFuncGetAttribute", [&] { CK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function)); }, {}},
        {"cuFuncSetAttribute, the same value", [&] { CK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536)); }, {}},
        {"cuFuncSetAttribute, another value", [&] { CK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, number++ % 2 ? 65536 : 16384)); }, {}},
        {"cuKernelSetAttribute, another value", [&] { CK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, number++ % 2 ? 65536 : 16384, kernel, 0)); }, {}},
        {"cuOccupancyMaxActiveBlocksPerMultiprocessor", [&] { CK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, function, 128, 0)); }, {}},
        {"cuCtxGetStreamPriorityRange", [&] { CK(cuCtxGetStreamPriorityRange(&value, &number)); }, {}},
        {"cuMemGetInfo", [&] { size_t a, b; CK(cuMemGetInfo(&a, &b)); }, {}},
        {"cuPointerGetAttribute", [&] { CUmemorytype type; CK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device)); }, {}},
        {"cuStreamCreate and Destroy", [&] { CUstream it; CK(cuStreamCreate(&it, CU_STREAM_NON_BLOCKING)); CK(cuStreamDestroy(it)); }, {}},
        {"cuMemAllocAsync and FreeAsync, 64 KiB", [&] { CUdeviceptr it; CK(cuMemAllocAsync(&it, 1 << 16, stream)); CK(cuMemFreeAsync(it, stream)); }, rest},
        {"cuEventCreate", [&] { CK(cuEventCreate(&made, CU_EVENT_DEFAULT)); }, {}},
        {"cuEventDestroy", [&] { CK(cuEventDestroy(made)); }, [&] { CK(cuEventCreate(&made, CU_EVENT_DEFAULT)); }},
        {"cuGreenCtxStreamCreate and Destroy", [&] { CUstream it; CK(cuGreenCtxStreamCreate(&it, green, CU_STREAM_NON_BLOCKING, 0)); CK(cuStreamDestroy(it)); }, {}},
        {"cuMemCreate and Release, 2 MiB", [&] { CUmemGenericAllocationHandle it; CK(cuMemCreate(&it, 2 << 20, &property, 0)); CK(cuMemRelease(it)); }, {}},
        {"cuMemAddressReserve and Free", [&] { CUdeviceptr it; CK(cuMemAddressReserve(&it, 2 << 20, 0, 0, 0)); CK(cuMemAddressFree(it, 2 << 20)); }, {}},
        {"cuMemImportFromShareableHandle, Release", [&] { CUmemGenericAllocationHandle it; CK(cuMemImportFromShareableHandle(&it, (void*)(long)exported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)); CK(cuMemRelease(it)); }, {}},
        {"cuMemMap and Unmap, 2 MiB", [&] { CK(cuMemMap(place, 2 << 20, 0, memory, 0)); CK(cuMemUnmap(place, 2 << 20)); }, {}},
        {"cuMemMap, SetAccess, Unmap, 2 MiB", [&] { CK(cuMemMap(place, 2 << 20, 0, memory, 0)); CK(cuMemSetAccess(place, 2 << 20, &access, 1)); CK(cuMemUnmap(place, 2 << 20)); }, {}},
        {"cuMemHostRegister and Unregister, 64 KiB", [&] { CK(cuMemHostRegister(pages, 1 << 16, 0)); CK(cuMemHostUnregister(pages)); }, {}},
        {"cuMemHostAlloc and FreeHost, 64 KiB", [&] { void* it; CK(cuMemHostAlloc(&it, 1 << 16, 0)); CK(cuMemFreeHost(it)); }, {}},
        {"cuMemAlloc and Free, 64 KiB", [&] { CUdeviceptr it; CK(cuMemAlloc(&it, 1 << 16)); CK(cuMemFree(it)); }, {}},
        {"cuTexObjectCreate and Destroy", [&] { CUtexObject it; CK(cuTexObjectCreate(&it, &resource, &texture, nullptr)); CK(cuTexObjectDestroy(it)); }, {}},
        {"cuArrayCreate and Destroy", [&] { CUarray it; CK(cuArrayCreate(&it, &array)); CK(cuArrayDestroy(it)); }, {}},
        {"cuGraphCreate, AddKernelNode, Destroy", [&] { CUgraph it; CUgraphNode n; CK(cuGraphCreate(&it, 0)); CK(cuGraphAddKernelNode(&n, it, nullptr, 0, &parameters)); CK(cuGraphDestroy(it)); }, {}},
        {"capture of a launch", [&] { CUgraph it; CK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); plain(function, stream); CK(cuStreamEndCapture(stream, &it)); CK(cuGraphDestroy(it)); }, rest},
        {"cuGraphExecUpdate", [&] { CUgraphExecUpdateResultInfo info; CK(cuGraphExecUpdate(exec, graph, &info)); }, rest},
        {"cuGraphUpload", [&] { CK(cuGraphUpload(exec, stream)); }, rest},
        {"cuGraphNodeSetEnabled", [&] { CK(cuGraphNodeSetEnabled(exec, node, number++ % 2)); }, rest},
        {"cuGraphExecDestroy", [&] { CK(cuGraphExecDestroy(second_exec)); }, [&] { CK(cuGraphInstantiate(&second_exec, graph, 0)); }},
        {"cuLibraryLoadData, lazily", [&] { CUlibrary it; CK(cuLibraryLoadData(&it, PTX, nullptr, nullptr, 0, nullptr, nullptr, 0)); CK(cuLibraryUnload(it)); }, {}},
        {"cuStreamGetPriority", [&] { CK(cuStreamGetPriority(stream, &value)); }, {}},
        {"cuFuncGetParamInfo", [&] { size_t a, b; CK(cuFuncGetParamInfo(function, 0, &a, &b)); }, {}},
        {"cuGraphInstantiate and Destroy", [&] { CUgraphExec it; CK(cuGraphInstantiate(&it, graph, 0)); CK(cuGraphExecDestroy(it)); }, {}},
    };
    printf("%-45s  alone: p50, p99; beside %d threads: p50, p99, and their thousand launches a second\n", "us", others);
    for (auto& call : calls) {
        if (count > 2 && call.name.find(words[2]) == std::string::npos) continue;
        printf("%-45s", call.name.c_str());
        measure(call, 0, function);
        measure(call, others, function);
        printf("\n");
        fflush(stdout);
    }
}
