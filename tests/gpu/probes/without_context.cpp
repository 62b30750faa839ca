// What calls of the driver answer on a thread that has no context, though the device's primary context lives: natively, and under OpenMPS.
//
//     g++ -I/usr/local/cuda/include -o /tmp/without_context tests/gpu/probes/without_context.cpp -lcuda
//     /tmp/without_context >native; openmps run -- /tmp/without_context | diff native -
//
// A line for each call: its name, and its result there. Handles are good ones, made on a thread with the context, unless the name ends with "none".
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <thread>

static void must(CUresult result, const char *what) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define SAY(name, call) printf("%s %d\n", name, (int)(call))

static const char code[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .u32 word;\n"
    ".visible .entry nothing(.param .u64 a, .param .u32 b)\n{\nret;\n}\n";

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    MUST(cuInit(0));
    CUcontext context;
    CUdevice device;
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    CUmodule module;
    CUfunction function;
    CUlibrary library;
    CUkernel kernel;
    MUST(cuModuleLoadData(&module, code));
    MUST(cuModuleGetFunction(&function, module, "nothing"));
    MUST(cuLibraryLoadData(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0));
    MUST(cuLibraryGetKernel(&kernel, library, "nothing"));
    CUdeviceptr memory, managed, pooled;
    void *host;
    MUST(cuMemAlloc(&memory, 1 << 20));
    MUST(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
    MUST(cuMemAllocHost(&host, 1 << 20));
    CUstream stream;
    CUevent event, before;
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, 0));
    MUST(cuEventCreate(&before, 0));
    MUST(cuEventRecord(before, stream));
    MUST(cuEventRecord(event, stream));
    CUmemoryPool pool, exported;
    CUmemPoolProps properties = {};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    MUST(cuMemPoolCreate(&pool, &properties));
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(cuMemPoolCreate(&exported, &properties));
    MUST(cuMemAllocFromPoolAsync(&pooled, 1 << 20, exported, stream));
    CUmemPoolPtrExportData pointer_data;
    cuMemPoolExportPointer(&pointer_data, pooled);
    CUgraph graph, kernels;
    CUgraphNode node;
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphCreate(&kernels, 0));
    CUDA_KERNEL_NODE_PARAMS launch = {};
    uint64_t a = 0;
    uint32_t b = 0;
    void *parameters[] = {&a, &b};
    launch.func = function;
    launch.gridDimX = launch.gridDimY = launch.gridDimZ = launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1;
    launch.kernelParams = parameters;
    MUST(cuGraphAddKernelNode(&node, kernels, nullptr, 0, &launch));
    CUgraphExec executable;
    MUST(cuGraphInstantiate(&executable, kernels, 0));
    MUST(cuCtxSynchronize());

    std::thread([&] {
        CUcontext current = context;
        MUST(cuCtxGetCurrent(&current));
        if (current) {
            printf("a new thread has a context\n");
            return;
        }
        int number = 0;
        size_t bytes = 0, other = 0;
        unsigned flags = 0;
        CUdeviceptr made = 0;
        float ms = 0;
        // Code.
        CUmodule another_module;
        CUlibrary another_library;
        CUfunction another_function = nullptr;
        SAY("cuModuleLoadData", cuModuleLoadData(&another_module, code));
        SAY("cuModuleGetFunction", cuModuleGetFunction(&another_function, module, "nothing"));
        SAY("cuModuleGetGlobal", cuModuleGetGlobal(&made, &bytes, module, "word"));
        SAY("cuModuleGetFunctionCount", cuModuleGetFunctionCount(&flags, module));
        SAY("cuModuleEnumerateFunctions", cuModuleEnumerateFunctions(&another_function, 1, module));
        SAY("cuModuleGetLoadingMode", cuModuleGetLoadingMode((CUmoduleLoadingMode *)&number));
        SAY("cuLibraryLoadData", cuLibraryLoadData(&another_library, code, nullptr, nullptr, 0, nullptr, nullptr, 0));
        CUkernel another_kernel = nullptr;
        SAY("cuLibraryGetKernel", cuLibraryGetKernel(&another_kernel, library, "nothing"));
        SAY("cuLibraryGetKernelCount", cuLibraryGetKernelCount(&flags, library));
        SAY("cuLibraryEnumerateKernels", cuLibraryEnumerateKernels(&another_kernel, 1, library));
        SAY("cuLibraryGetModule", cuLibraryGetModule(&another_module, library));
        SAY("cuLibraryGetGlobal", cuLibraryGetGlobal(&made, &bytes, library, "word"));
        SAY("cuLibraryGetGlobal of none", cuLibraryGetGlobal(&made, &bytes, library, "no"));
        SAY("cuKernelGetFunction", cuKernelGetFunction(&another_function, kernel));
        SAY("cuKernelGetLibrary", cuKernelGetLibrary(&another_library, kernel));
        SAY("cuKernelGetAttribute", cuKernelGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, device));
        SAY("cuKernelSetAttribute", cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, kernel, device));
        SAY("cuKernelSetCacheConfig", cuKernelSetCacheConfig(kernel, CU_FUNC_CACHE_PREFER_L1, device));
        SAY("cuKernelGetParamInfo", cuKernelGetParamInfo(kernel, 0, &bytes, &other));
        const char *name;
        SAY("cuKernelGetName", cuKernelGetName(&name, kernel));
        SAY("cuFuncGetAttribute", cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
        SAY("cuFuncSetAttribute", cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50));
        SAY("cuFuncSetCacheConfig", cuFuncSetCacheConfig(function, CU_FUNC_CACHE_PREFER_L1));
        SAY("cuFuncGetModule", cuFuncGetModule(&another_module, function));
        SAY("cuFuncGetName", cuFuncGetName(&name, function));
        SAY("cuFuncGetParamInfo", cuFuncGetParamInfo(function, 0, &bytes, &other));
        CUfunctionLoadingState loading;
        SAY("cuFuncIsLoaded", cuFuncIsLoaded(&loading, function));
        SAY("cuFuncLoad", cuFuncLoad(function));
        SAY("cuOccupancyMaxActiveBlocksPerMultiprocessor", cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, function, 128, 0));
        SAY("cuOccupancyMaxPotentialBlockSize", cuOccupancyMaxPotentialBlockSize(&number, &number, function, nullptr, 0, 0));
        SAY("cuOccupancyAvailableDynamicSMemPerBlock", cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 1, 128));
        CUlinkState linker;
        SAY("cuLinkCreate", cuLinkCreate(0, nullptr, nullptr, &linker));
        // Work.
        SAY("cuLaunchKernel on a stream", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
        SAY("cuLaunchKernel on none", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
        SAY("cuLaunchKernel of a kernel", cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
        SAY("cuStreamSynchronize", cuStreamSynchronize(stream));
        SAY("cuStreamSynchronize of none", cuStreamSynchronize(nullptr));
        SAY("cuStreamQuery", cuStreamQuery(stream));
        SAY("cuStreamGetFlags", cuStreamGetFlags(stream, &flags));
        SAY("cuStreamGetPriority", cuStreamGetPriority(stream, &number));
        CUcontext of_stream;
        SAY("cuStreamGetCtx", cuStreamGetCtx(stream, &of_stream));
        unsigned long long id;
        SAY("cuStreamGetId", cuStreamGetId(stream, &id));
        SAY("cuStreamGetDevice", cuStreamGetDevice(stream, &number));
        SAY("cuStreamWaitEvent", cuStreamWaitEvent(stream, event, 0));
        CUstream another_stream;
        SAY("cuStreamCreate", cuStreamCreate(&another_stream, 0));
        CUevent another_event;
        SAY("cuEventCreate", cuEventCreate(&another_event, 0));
        SAY("cuEventRecord", cuEventRecord(event, stream));
        SAY("cuEventQuery", cuEventSynchronize(event) ? CUDA_ERROR_UNKNOWN : cuEventQuery(event));
        SAY("cuEventElapsedTime", cuEventElapsedTime(&ms, before, event));
        SAY("cuLaunchHostFunc", cuLaunchHostFunc(stream, [](void *) {}, nullptr));
        SAY("cuCtxSynchronize", cuCtxSynchronize());
        CUlimit limit = CU_LIMIT_STACK_SIZE;
        SAY("cuCtxGetLimit", cuCtxGetLimit(&bytes, limit));
        SAY("cuCtxGetDevice", cuCtxGetDevice(&number));
        SAY("cuCtxGetFlags", cuCtxGetFlags(&flags));
        SAY("cuCtxGetApiVersion", cuCtxGetApiVersion(context, &flags));
        SAY("cuCtxGetStreamPriorityRange", cuCtxGetStreamPriorityRange(&number, &number));
        // Memory.
        SAY("cuMemAlloc", cuMemAlloc(&made, 4096));
        SAY("cuMemAllocManaged", cuMemAllocManaged(&made, 4096, CU_MEM_ATTACH_GLOBAL));
        void *pinned;
        SAY("cuMemAllocHost", cuMemAllocHost(&pinned, 4096));
        SAY("cuMemHostAlloc", cuMemHostAlloc(&pinned, 4096, 0));
        SAY("cuMemHostGetDevicePointer", cuMemHostGetDevicePointer(&made, host, 0));
        SAY("cuMemHostGetFlags", cuMemHostGetFlags(&flags, host));
        SAY("cuMemGetInfo", cuMemGetInfo(&bytes, &other));
        SAY("cuMemGetAddressRange", cuMemGetAddressRange(&made, &bytes, memory));
        SAY("cuMemcpyHtoD", cuMemcpyHtoD(memory, host, 4096));
        SAY("cuMemcpyDtoH", cuMemcpyDtoH(host, memory, 4096));
        SAY("cuMemcpyDtoD", cuMemcpyDtoD(memory, memory + 8192, 4096));
        SAY("cuMemcpy", cuMemcpy(memory, memory + 8192, 4096));
        SAY("cuMemcpyAsync on a stream", cuMemcpyAsync(memory, memory + 8192, 4096, stream));
        SAY("cuMemcpyHtoDAsync on a stream", cuMemcpyHtoDAsync(memory, host, 4096, stream));
        SAY("cuMemcpyPeer", cuMemcpyPeer(memory, context, memory + 8192, context, 4096));
        SAY("cuMemcpyPeerAsync on a stream", cuMemcpyPeerAsync(memory, context, memory + 8192, context, 4096, stream));
        SAY("cuMemsetD8", cuMemsetD8(memory, 0, 4096));
        SAY("cuMemsetD8Async on a stream", cuMemsetD8Async(memory, 0, 4096, stream));
        SAY("cuMemAllocAsync on a stream", cuMemAllocAsync(&made, 4096, stream));
        SAY("cuMemFreeAsync on a stream", cuMemFreeAsync(made, stream));
        SAY("cuMemAllocFromPoolAsync", cuMemAllocFromPoolAsync(&made, 4096, pool, stream));
        CUdeviceptr imported;
        SAY("cuMemPoolImportPointer", cuMemPoolImportPointer(&imported, exported, &pointer_data));
        SAY("cuMemPoolExportPointer", cuMemPoolExportPointer(&pointer_data, pooled));
        cuuint64_t value = 0;
        SAY("cuMemPoolGetAttribute", cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
        SAY("cuMemPoolTrimTo", cuMemPoolTrimTo(pool, 0));
        CUmemoryPool another_pool;
        properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
        SAY("cuMemPoolCreate", cuMemPoolCreate(&another_pool, &properties));
        SAY("cuMemPoolDestroy", cuMemPoolDestroy(another_pool));
        SAY("cuDeviceGetMemPool", cuDeviceGetMemPool(&another_pool, device));
        SAY("cuDeviceGetDefaultMemPool", cuDeviceGetDefaultMemPool(&another_pool, device));
        SAY("cuMemAdvise", cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}));
        SAY("cuMemPrefetchAsync on a stream", cuMemPrefetchAsync(managed, 4096, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 0, stream));
        SAY("cuMemPrefetchAsync on none", cuMemPrefetchAsync(managed, 4096, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 0, nullptr));
        SAY("cuMemRangeGetAttribute", cuMemRangeGetAttribute(&number, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed, 4096));
        SAY("cuStreamAttachMemAsync", cuStreamAttachMemAsync(stream, managed, 0, CU_MEM_ATTACH_SINGLE));
        SAY("cuPointerGetAttribute", cuPointerGetAttribute(&of_stream, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
        CUmemAllocationProp wanted = {};
        wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        SAY("cuMemGetAllocationGranularity", cuMemGetAllocationGranularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
        CUdeviceptr reserved = 0;
        SAY("cuMemAddressReserve", cuMemAddressReserve(&reserved, bytes, 0, 0, 0));
        CUmemGenericAllocationHandle handle;
        wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        SAY("cuMemCreate", cuMemCreate(&handle, bytes, &wanted, 0));
        SAY("cuMemMap", cuMemMap(reserved, bytes, 0, handle, 0));
        CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        SAY("cuMemSetAccess", cuMemSetAccess(reserved, bytes, &access, 1));
        int descriptor = -1;
        SAY("cuMemExportToShareableHandle", cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CUmemGenericAllocationHandle from;
        SAY("cuMemImportFromShareableHandle", cuMemImportFromShareableHandle(&from, (void *)(intptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        SAY("cuMemUnmap", cuMemUnmap(reserved, bytes));
        SAY("cuMemRelease", cuMemRelease(handle));
        SAY("cuMemAddressFree", cuMemAddressFree(reserved, bytes));
        CUipcMemHandle of_memory;
        CUipcEventHandle of_event;
        SAY("cuIpcGetMemHandle", cuIpcGetMemHandle(&of_memory, memory));
        SAY("cuIpcGetEventHandle", cuIpcGetEventHandle(&of_event, event));
        // Graphs.
        CUgraphExec another;
        CUDA_HOST_NODE_PARAMS host_node = {[](void *) {}, nullptr};
        SAY("cuGraphAddHostNode", cuGraphAddHostNode(&node, graph, nullptr, 0, &host_node));
        SAY("cuGraphAddEmptyNode", cuGraphAddEmptyNode(&node, graph, nullptr, 0));
        SAY("cuGraphAddEventRecordNode", cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
        CUDA_MEMSET_NODE_PARAMS fill = {};
        fill.dst = memory, fill.elementSize = 1, fill.width = 16, fill.height = 1;
        CUgraph fills;
        cuGraphCreate(&fills, 0);
        SAY("cuGraphAddMemsetNode of none", cuGraphAddMemsetNode(&node, fills, nullptr, 0, &fill, nullptr));
        SAY("cuGraphAddMemsetNode", cuGraphAddMemsetNode(&node, fills, nullptr, 0, &fill, context));
        SAY("cuGraphInstantiate of fills", cuGraphInstantiate(&another, fills, 0));
        SAY("cuGraphInstantiate of kernels", cuGraphInstantiate(&another, kernels, 0));
        CUDA_MEM_ALLOC_NODE_PARAMS allocation = {};
        allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        allocation.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        allocation.bytesize = 4096;
        CUgraph allocations;
        cuGraphCreate(&allocations, 0);
        SAY("cuGraphAddMemAllocNode", cuGraphAddMemAllocNode(&node, allocations, nullptr, 0, &allocation));
        SAY("cuGraphLaunch on a stream", cuGraphLaunch(executable, stream));
        SAY("cuGraphLaunch on none", cuGraphLaunch(executable, nullptr));
        SAY("cuGraphUpload", cuGraphUpload(executable, stream));
        SAY("cuStreamBeginCapture", cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        CUgraph captured;
        SAY("cuStreamEndCapture", cuStreamEndCapture(stream, &captured));
        // Textures and tensor maps.
        CUtensorMap map;
        cuuint64_t sizes[2] = {64, 64}, strides[1] = {256};
        cuuint32_t box[2] = {16, 16}, steps[2] = {1, 1};
        SAY("cuTensorMapEncodeTiled", cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)memory, sizes, strides, box, steps,
                                                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
        SAY("cuTensorMapReplaceAddress", cuTensorMapReplaceAddress(&map, (void *)(memory + 4096)));
        CUarray array;
        CUDA_ARRAY_DESCRIPTOR shape = {16, 16, CU_AD_FORMAT_FLOAT, 1};
        SAY("cuArrayCreate", cuArrayCreate(&array, &shape));
        CUtexObject texture;
        CUDA_RESOURCE_DESC resource = {};
        resource.resType = CU_RESOURCE_TYPE_LINEAR;
        resource.res.linear = {memory, CU_AD_FORMAT_FLOAT, 1, 4096};
        CUDA_TEXTURE_DESC how = {};
        SAY("cuTexObjectCreate", cuTexObjectCreate(&texture, &resource, &how, nullptr));
        // Devices.
        SAY("cuDeviceCanAccessPeer", cuDeviceCanAccessPeer(&number, device, device));
        SAY("cuDeviceGetP2PAttribute", cuDeviceGetP2PAttribute(&number, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, device, device));
        SAY("cuCtxEnablePeerAccess", cuCtxEnablePeerAccess(context, 0));
        CUdevResource sms;
        SAY("cuDeviceGetDevResource", cuDeviceGetDevResource(device, &sms, CU_DEV_RESOURCE_TYPE_SM));
        SAY("cuStreamDestroy", cuStreamDestroy(stream));
        SAY("cuEventDestroy", cuEventDestroy(event));
        SAY("cuMemFree", cuMemFree(memory));
        SAY("cuMemFreeHost", cuMemFreeHost(host));
        SAY("cuModuleUnload", cuModuleUnload(module));
        SAY("cuLibraryUnload", cuLibraryUnload(library));
        SAY("cuMemFree of managed", cuMemFree(managed));
        // NVIDIA's driver 580 ends the program here.
        SAY("cuGraphAddKernelNode", cuGraphAddKernelNode(&node, graph, nullptr, 0, &launch));
    }).join();
}
