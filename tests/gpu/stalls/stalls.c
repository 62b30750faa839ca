// Which driver calls wait for running kernels, and which keep other threads from submitting meanwhile.
//
//     stalls KERNELS.cubin KERNELS.ptx
//
// One context. For each call: once beside nothing, once while a kernel spins on a word that the main thread writes after HOLD_MS. Watcher threads,
// each with a stream of its own, launch, launch a graph, copy, write a value and ask all the time. Printed are how long the call took and
// the longest time that each watcher's submission took meanwhile; 'held' is a submission or call that lasted until the word was written.
// `stalls.py` builds and runs this with eager and lazy loading.
#include "must.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOLD_MS = 40, BEFORE_MS = 4, IMAGE_BYTES = 1 << 20, MIB = 1 << 20 };

static CUdevice device;
static CUcontext context;
static CUstream spinning, idle;
static CUfunction spin, tick, step_function;
static volatile unsigned *words;  // mapped: 0 the spin's word, 1 started, 2.. written by values
static CUdeviceptr words_device, counters, scratch;
static char cubin[IMAGE_BYTES], ptx[IMAGE_BYTES];

// ---- Watchers ----

enum { LAUNCH, GRAPH, COPY, VALUE, QUERY, WATCHERS };
static const char *const watcher_names[WATCHERS] = {"launch", "graph", "copy", "value", "query"};
static struct watcher {
    CUstream stream;
    CUgraphExec graph;
    _Atomic double since;    // when the submission in progress began, 0: none
    _Atomic double longest;  // us
    _Atomic unsigned submitted;
} watchers[WATCHERS];
static atomic_bool watching = true;

static CUresult submit(int kind, struct watcher *self, CUdeviceptr counter) {
    void *arguments[] = {&counter};
    switch (kind) {
    case LAUNCH: return cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, self->stream, arguments, NULL);
    case GRAPH: return cuGraphLaunch(self->graph, self->stream);
    case COPY: return cuMemcpyDtoDAsync(scratch, scratch + 4096, 4096, self->stream);
    case VALUE: return cuStreamWriteValue64(self->stream, words_device + 64, 1, 0);
    default: {
        CUresult result = cuStreamQuery(self->stream);
        return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
    }
    }
}

static void *watch(void *argument) {
    struct watcher *self = argument;
    int kind = (int)(self - watchers);
    MUST(cuCtxSetCurrent(context));
    while (watching) {
        double begin = now_us();
        self->since = begin;
        MUST(submit(kind, self, counters + 256 * kind));
        self->since = 0;
        double took = now_us() - begin;
        if (took > self->longest) {
            self->longest = took;
        }
        ++self->submitted;
        usleep(100);
    }
    return NULL;
}

// ---- Calls ----

static CUlibrary library;
static CUkernel kernel;
static CUfunction function;
static CUmodule module;
static CUdeviceptr memory, address_range;
static CUmemGenericAllocationHandle allocation;
static CUgraph graph;
static CUgraphExec executable;
static CUgraphNode node;
static CUdevResourceDesc description;
static CUgreenCtx green;
static CUstream stream;
static CUevent event;
static CUarray array;
static CUlinkState link_state;
static CUtexObject texture;
static void *host;
static int descriptor;
static size_t stack_bytes;
static unsigned large;  // the next larger frame

static CUmemAllocationProp properties(void) {
    CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                             .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    return p;
}

static CUresult load_library(void) { return cuLibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0); }
static CUresult load_library_ptx(void) { return cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0); }
static CUresult get_module(void) { return cuLibraryGetModule(&module, library); }
static CUresult get_kernel(void) { return cuLibraryGetKernel(&kernel, library, "plain"); }
static CUresult get_function(void) { return cuKernelGetFunction(&function, kernel); }
static CUresult load_function(void) { return cuFuncLoad(function); }
static CUresult get_attribute(void) { int v; return cuFuncGetAttribute(&v, CU_FUNC_ATTRIBUTE_NUM_REGS, function); }
static CUresult set_attribute(void) { return cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536); }
static CUresult get_global(void) { CUdeviceptr at; size_t n; return cuLibraryGetGlobal(&at, &n, library, "global_word"); }
static CUresult get_managed(void) { CUdeviceptr at; size_t n; cuLibraryGetManaged(&at, &n, library, "global_word"); return CUDA_SUCCESS; }
static CUresult occupancy(void) { int n; return cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, function, 128, 0); }
static CUresult launch_function(void) {
    void *arguments[] = {&counters};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, idle, arguments, NULL);
}
static CUresult launch_cooperative(void) {
    void *arguments[] = {&counters};
    return cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, idle, arguments);
}
static CUresult launch_large(void) {
    void *arguments[] = {&counters, &large};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, idle, arguments, NULL);
}
static CUresult unload(void) { return cuLibraryUnload(library); }
static CUresult load_module(void) { return cuModuleLoadData(&module, cubin); }
static CUresult unload_module(void) { return cuModuleUnload(module); }
static char *fresh_ptx(void) {
    // A text that no cache has.
    static char text[IMAGE_BYTES + 64];
    snprintf(text, sizeof text, "%s\n// %f\n", ptx, now_us());
    return text;
}
static CUresult load_fresh_ptx(void) { return cuLibraryLoadData(&library, fresh_ptx(), NULL, NULL, 0, NULL, NULL, 0); }
static CUresult link_all(void) {
    void *out;
    size_t n;
    const char *text = fresh_ptx();
    CUresult result = cuLinkCreate(0, NULL, NULL, &link_state);
    result = result ? result : cuLinkAddData(link_state, CU_JIT_INPUT_PTX, (void *)text, strlen(text) + 1, "k", 0, NULL, NULL);
    return result ? result : cuLinkComplete(link_state, &out, &n);
}
static CUresult host_register(void) { return cuMemHostRegister(host, 2 * MIB, 3); }
static CUresult host_unregister(void) { return cuMemHostUnregister(host); }
static CUresult host_allocate(void) { return cuMemHostAlloc(&host, 2 * MIB, 3); }
static CUresult host_free(void) { return cuMemFreeHost(host); }
static CUresult allocate(void) { return cuMemAlloc(&memory, 64 * MIB); }
static CUresult free_memory(void) { return cuMemFree(memory); }
static CUresult create(void) {
    CUmemAllocationProp p = properties();
    return cuMemCreate(&allocation, 64 * MIB, &p, 0);
}
static CUresult import(void) {
    return cuMemImportFromShareableHandle(&allocation, (void *)(size_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}
static CUresult reserve(void) { return cuMemAddressReserve(&address_range, 64 * MIB, 0, 0, 0); }
static CUresult unreserve(void) { return cuMemAddressFree(address_range, 64 * MIB); }
static CUresult map(void) { return cuMemMap(address_range, 64 * MIB, 0, allocation, 0); }
static CUresult set_access(void) {
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return cuMemSetAccess(address_range, 64 * MIB, &access, 1);
}
static CUresult forbid_access(void) {
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device}, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    return cuMemSetAccess(address_range, 64 * MIB, &access, 1);
}
static CUresult unmap(void) { return cuMemUnmap(address_range, 64 * MIB); }
static CUresult release(void) { return cuMemRelease(allocation); }
static CUresult memory_info(void) { size_t a, b; return cuMemGetInfo(&a, &b); }
static CUresult create_stream(void) { return cuStreamCreateWithPriority(&stream, 1, 0); }
static CUresult destroy_stream(void) { return cuStreamDestroy(stream); }
static CUresult create_event(void) { return cuEventCreate(&event, 0); }
static CUresult record_event(void) { return cuEventRecord(event, idle); }
static CUresult destroy_event(void) { return cuEventDestroy(event); }
static CUresult synchronize_idle(void) { return cuStreamSynchronize(idle); }
static CUresult instantiate(void) { return cuGraphInstantiateWithFlags(&executable, graph, 0); }
static CUresult upload(void) { return cuGraphUpload(executable, idle); }
static CUresult launch_graph(void) { return cuGraphLaunch(executable, idle); }
static CUresult set_node(void) {
    void *arguments[] = {&counters};
    CUDA_KERNEL_NODE_PARAMS p = {.func = tick, .gridDimX = 2, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = arguments};
    return cuGraphExecKernelNodeSetParams(executable, node, &p);
}
static CUresult disable_node(void) { return cuGraphNodeSetEnabled(executable, node, 0); }
static CUresult destroy_executable(void) { return cuGraphExecDestroy(executable); }
static CUresult describe(void) {
    CUdevResource whole, part, rest;
    unsigned groups = 1;
    CUresult result = cuDeviceGetDevResource(device, &whole, CU_DEV_RESOURCE_TYPE_SM);
    result = result ? result : cuDevSmResourceSplitByCount(&part, &groups, &whole, &rest, 0, 16);
    return result ? result : cuDevResourceGenerateDesc(&description, &part, 1);
}
static CUresult create_green(void) { return cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM); }
static CUresult green_stream(void) { return cuGreenCtxStreamCreate(&stream, green, 1, 0); }
static CUresult destroy_green(void) { return cuGreenCtxDestroy(green); }
static CUresult set_stack(void) { return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, stack_bytes += 1024); }
static CUresult create_array(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = 256, .Height = 256, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    return cuArray3DCreate(&array, &d);
}
static CUresult destroy_array(void) { return cuArrayDestroy(array); }
static CUresult create_texture(void) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    CUDA_TEXTURE_DESC description = {.filterMode = CU_TR_FILTER_MODE_POINT};
    return cuTexObjectCreate(&texture, &resource, &description, NULL);
}
static CUresult destroy_texture(void) { return cuTexObjectDestroy(texture); }


static void add_kernel(CUfunction f) {
    void *arguments[] = {&counters};
    CUDA_KERNEL_NODE_PARAMS p = {.func = f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = arguments};
    MUST(cuGraphAddKernelNode(&node, graph, NULL, 0, &p));
}
static void to_library(void) { MUST(load_library()); }
static void to_module(void) { to_library(); MUST(get_module()); }
static void to_kernel(void) { to_library(); MUST(get_kernel()); }
static void to_function(void) { to_kernel(); MUST(get_function()); }
static void to_attributed(void) { to_function(); MUST(get_attribute()); }
static void to_loaded(void) { to_function(); MUST(load_function()); }
static void to_launched(void) { to_loaded(); MUST(launch_function()); MUST(cuStreamSynchronize(idle)); }
static void to_large(void) {
    static const char *const names[] = {"frame_0", "frame_1", "frame_2"};
    to_library();
    MUST(cuLibraryGetKernel(&kernel, library, names[large++]));
    MUST(get_function());
    MUST(load_function());
}
static void to_old_module(void) { MUST(load_module()); }
static void to_fresh(void) { MUST(load_fresh_ptx()); }
static void to_linked(void) { MUST(link_all()); }
static void to_pages(void) { host = aligned_alloc(2 * MIB, 2 * MIB); memset(host, 1, 2 * MIB); }
static void to_registered(void) { to_pages(); MUST(host_register()); }
static void to_host(void) { MUST(host_allocate()); }
static void to_memory(void) { MUST(allocate()); }
static void to_created(void) { MUST(create()); }
static void to_descriptor(void) {
    MUST(create());
    MUST(cuMemExportToShareableHandle(&descriptor, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(release());
}
static void to_reserved(void) { MUST(reserve()); }
static void to_mappable(void) { to_created(); to_reserved(); }
static void to_mapped(void) { to_mappable(); MUST(map()); }
static void to_accessible(void) { to_mapped(); MUST(set_access()); }
static void to_stream(void) { MUST(create_stream()); }
static void to_event(void) { MUST(create_event()); }
static void to_graph(void) { MUST(cuGraphCreate(&graph, 0)); for (int i = 0; i < 20; ++i) add_kernel(tick); }
static void to_executable(void) { to_graph(); MUST(instantiate()); }
static void to_graph_of_new(void) { to_function(); MUST(cuGraphCreate(&graph, 0)); add_kernel(function); }
static void to_description(void) { MUST(describe()); }
static void to_green(void) { to_description(); MUST(create_green()); }
static void to_array(void) { MUST(create_array()); }

static void end_library(void) { MUST(cuStreamSynchronize(idle)); MUST(unload()); }
static void end_module(void) { MUST(unload_module()); }
static CUresult destroy_link(void) { return cuLinkDestroy(link_state); }
static void end_link(void) { MUST(destroy_link()); }
static void end_pages(void) { free(host); }
static void end_registered(void) { MUST(host_unregister()); free(host); }
static void end_host(void) { MUST(host_free()); }
static void end_memory(void) { MUST(free_memory()); }
static void end_created(void) { MUST(release()); }
static void end_imported(void) { MUST(release()); close(descriptor); }
static void end_reserved(void) { MUST(unreserve()); }
static void end_unmapped(void) { MUST(release()); MUST(unreserve()); }
static void end_mapped(void) { MUST(unmap()); end_unmapped(); }
static void end_stream(void) { MUST(destroy_stream()); }
static void end_event(void) { MUST(destroy_event()); }
static void end_graph(void) { MUST(cuGraphDestroy(graph)); }
static void end_executable(void) { MUST(cuStreamSynchronize(idle)); MUST(destroy_executable()); end_graph(); }
static void end_graph_of_new(void) { end_executable(); end_library(); }
static void end_green(void) { MUST(destroy_green()); }
static void end_green_stream(void) { end_stream(); end_green(); }
static void to_texture(void) { to_array(); MUST(create_texture()); }
static void end_array(void) { MUST(destroy_array()); }
static void end_texture(void) { MUST(destroy_texture()); end_array(); }
static void nothing(void) {}

static const struct call {
    const char *name;
    void (*before)(void);
    CUresult (*call)(void);
    void (*after)(void);
} calls[] = {
    {"cuLibraryLoadData, cubin", nothing, load_library, end_library},
    {"cuLibraryLoadData, PTX", nothing, load_library_ptx, end_library},
    {"cuLibraryGetModule", to_library, get_module, end_library},
    {"cuLibraryGetKernel", to_library, get_kernel, end_library},
    {"cuLibraryGetGlobal", to_library, get_global, end_library},
    {"cuLibraryGetGlobal after GetModule", to_module, get_global, end_library},
    {"cuLibraryGetManaged, none there", to_library, get_managed, end_library},
    {"cuKernelGetFunction", to_kernel, get_function, end_library},
    {"cuFuncGetAttribute, first", to_function, get_attribute, end_library},
    {"cuFuncLoad", to_function, load_function, end_library},
    {"cuFuncLoad after GetAttribute", to_attributed, load_function, end_library},
    {"cuFuncSetAttribute, loaded", to_loaded, set_attribute, end_library},
    {"cuOccupancy..., loaded", to_loaded, occupancy, end_library},
    {"first launch, got", to_function, launch_function, end_library},
    {"first launch, attribute asked", to_attributed, launch_function, end_library},
    {"first launch, loaded", to_loaded, launch_function, end_library},
    {"cooperative launch, launched before", to_launched, launch_cooperative, end_library},
    {"launch, larger frame", to_large, launch_large, end_library},
    {"cuLibraryUnload, never loaded", to_library, unload, nothing},
    {"cuLibraryUnload, function got", to_function, unload, nothing},
    {"cuLibraryUnload, launched", to_launched, unload, nothing},
    {"cuModuleLoadData, cubin", nothing, load_module, end_module},
    {"cuModuleUnload", to_old_module, unload_module, nothing},
    {"cuMemHostRegister", to_pages, host_register, end_registered},
    {"cuMemHostUnregister", to_registered, host_unregister, end_pages},
    {"cuMemHostAlloc", nothing, host_allocate, end_host},
    {"cuMemFreeHost", to_host, host_free, nothing},
    {"cuMemAlloc", nothing, allocate, end_memory},
    {"cuMemFree", to_memory, free_memory, nothing},
    {"cuMemCreate", nothing, create, end_created},
    {"cuMemImportFromShareableHandle", to_descriptor, import, end_imported},
    {"cuMemAddressReserve", nothing, reserve, end_reserved},
    {"cuMemAddressFree", to_reserved, unreserve, nothing},
    {"cuMemMap", to_mappable, map, end_mapped},
    {"cuMemSetAccess", to_mapped, set_access, end_mapped},
    {"cuMemSetAccess, none", to_accessible, forbid_access, end_mapped},
    {"cuMemUnmap", to_accessible, unmap, end_unmapped},
    {"cuMemRelease", to_created, release, nothing},
    {"cuMemGetInfo", nothing, memory_info, nothing},
    {"cuStreamCreate", nothing, create_stream, end_stream},
    {"cuStreamDestroy", to_stream, destroy_stream, nothing},
    {"cuEventCreate", nothing, create_event, end_event},
    {"cuEventRecord", to_event, record_event, end_event},
    {"cuEventDestroy", to_event, destroy_event, nothing},
    {"cuStreamSynchronize, idle stream", nothing, synchronize_idle, nothing},
    {"cuGraphInstantiate, 20 kernels", to_graph, instantiate, end_executable},
    {"cuGraphInstantiate, new function", to_graph_of_new, instantiate, end_graph_of_new},
    {"cuGraphUpload", to_executable, upload, end_executable},
    {"cuGraphLaunch, first", to_executable, launch_graph, end_executable},
    {"cuGraphExecKernelNodeSetParams", to_executable, set_node, end_executable},
    {"cuGraphNodeSetEnabled", to_executable, disable_node, end_executable},
    {"cuGraphExecDestroy", to_executable, destroy_executable, end_graph},
    {"cuDevResourceGenerateDesc", nothing, describe, nothing},
    {"cuGreenCtxCreate", to_description, create_green, end_green},
    {"cuGreenCtxStreamCreate", to_green, green_stream, end_green_stream},
    {"cuGreenCtxDestroy", to_green, destroy_green, nothing},
    {"cuCtxSetLimit, stack", nothing, set_stack, nothing},
    {"cuArray3DCreate", nothing, create_array, end_array},
    {"cuArrayDestroy", to_array, destroy_array, nothing},
    {"cuTexObjectCreate", to_array, create_texture, end_texture},
    {"cuTexObjectDestroy", to_texture, destroy_texture, end_array},
    {"cuLibraryLoadData, PTX not in cache", nothing, load_fresh_ptx, end_library},
    {"cuLibraryGetModule, PTX not in cache", to_fresh, get_module, end_library},
    {"cuLink..., PTX not in cache", nothing, link_all, end_link},
    {"cuLinkDestroy", to_linked, destroy_link, nothing},
};

static _Atomic double call_us;  // 0 until it has returned
static CUresult call_result;

static void *make_call(void *argument) {
    const struct call *call = argument;
    MUST(cuCtxSetCurrent(context));
    double begin = now_us();
    call_result = call->call();
    call_us = now_us() - begin;
    return NULL;
}

struct outcome {
    double call_us;
    bool waited;
    double longest[WATCHERS];
    CUresult result;
};

static struct outcome measure(const struct call *call, bool spins) {
    struct outcome outcome = {0};
    call->before();
    MUST(cuStreamSynchronize(idle));
    words[0] = words[1] = 0;
    if (spins) {
        unsigned long long limit_ns = 3000000000ull;
        CUdeviceptr started = words_device + 4;
        void *arguments[] = {&words_device, &started, &limit_ns};
        MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, spinning, arguments, NULL));
        for (double begin = now_us(); words[1] == 0 && now_us() - begin < 1e6;) {
        }
    }
    usleep(1000 * BEFORE_MS);
    for (int i = 0; i < WATCHERS; ++i) {
        watchers[i].longest = 0;
    }
    call_us = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, make_call, (void *)call);
    usleep(1000 * (spins ? HOLD_MS : 8));
    outcome.waited = call_us == 0;
    double end = now_us();
    for (int i = 0; i < WATCHERS; ++i) {
        double since = watchers[i].since, longest = watchers[i].longest;
        outcome.longest[i] = since != 0 && end - since > longest ? end - since : longest;
    }
    words[0] = 1;
    pthread_join(thread, NULL);
    MUST(cuStreamSynchronize(spinning));
    outcome.call_us = call_us;
    outcome.result = call_result;
    if (call_result == CUDA_SUCCESS) {
        call->after();
    }
    return outcome;
}

static void read_image(const char *path, char *into) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(into, 1, IMAGE_BYTES - 1, file) == 0) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    fclose(file);
}

static void print_delays(const struct outcome *outcome) {
    for (int i = 0; i < WATCHERS; ++i) {
        if (outcome->longest[i] > 1e3 * (HOLD_MS - 10)) {
            printf(" %7s", "held");
        } else {
            printf(" %7.0f", outcome->longest[i]);
        }
    }
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: %s KERNELS.cubin KERNELS.ptx [PART OF A NAME]\n", arguments[0]);
        return 2;
    }
    read_image(arguments[1], cubin);
    read_image(arguments[2], ptx);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuCtxGetLimit(&stack_bytes, CU_LIMIT_STACK_SIZE));
    CUmodule main_module;
    MUST(cuModuleLoadData(&main_module, cubin));
    MUST(cuModuleGetFunction(&spin, main_module, "spin"));
    MUST(cuModuleGetFunction(&tick, main_module, "tick"));
    MUST(cuModuleGetFunction(&step_function, main_module, "step"));
    MUST(cuFuncLoad(spin));
    MUST(cuFuncLoad(tick));
    MUST(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE));
    MUST(cuMemHostGetDevicePointer(&words_device, (void *)words, 0));
    MUST(cuMemAlloc(&counters, 4096));
    MUST(cuMemAlloc(&scratch, 2 * MIB));
    MUST(cuStreamCreateWithPriority(&spinning, CU_STREAM_NON_BLOCKING, 0));
    MUST(cuStreamCreateWithPriority(&idle, CU_STREAM_NON_BLOCKING, 0));
    pthread_t threads[WATCHERS];
    for (int i = 0; i < WATCHERS; ++i) {
        MUST(cuStreamCreateWithPriority(&watchers[i].stream, CU_STREAM_NON_BLOCKING, 0));
        MUST(cuGraphCreate(&graph, 0));
        add_kernel(tick);
        MUST(cuGraphInstantiateWithFlags(&watchers[i].graph, graph, 0));
        MUST(cuGraphLaunch(watchers[i].graph, watchers[i].stream));
        MUST(cuGraphDestroy(graph));
        pthread_create(&threads[i], NULL, watch, &watchers[i]);
    }
    int driver = 0;
    MUST(cuDriverGetVersion(&driver));
    const char *loading = getenv("CUDA_MODULE_LOADING");
    printf("driver API %d, CUDA_MODULE_LOADING=%s; microseconds; a kernel that spins lasts %d ms\n", driver, loading ? loading : "(unset)", HOLD_MS + BEFORE_MS);
    printf("%-36s | %8s", "call", "idle:");
    for (int i = 0; i < WATCHERS; ++i) printf(" %7s", watcher_names[i]);
    printf(" | %8s", "spins:");
    for (int i = 0; i < WATCHERS; ++i) printf(" %7s", watcher_names[i]);
    printf("\n");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        const struct call *call = &calls[i];
        if (count > 3 && strstr(call->name, arguments[3]) == NULL) {
            continue;
        }
        measure(call, false);  // once for what the first time costs
        struct outcome alone = measure(call, false), beside = measure(call, true);
        printf("%-36s | %8.0f", call->name, alone.call_us);
        print_delays(&alone);
        if (beside.waited) {
            printf(" | %8s", "WAITED");
        } else {
            printf(" | %8.0f", beside.call_us);
        }
        print_delays(&beside);
        printf(alone.result || beside.result ? "  failed: %d %d\n" : "\n", alone.result, beside.result);
        fflush(stdout);
    }
    watching = false;
    for (int i = 0; i < WATCHERS; ++i) {
        pthread_join(threads[i], NULL);
    }
    return 0;
}
