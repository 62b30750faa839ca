/* A client with what only the driver has: arrays of every kind, textures and surfaces made of them and of memory, and a graph with a condition. It is told by lines on its
 * standard input what to do, and answers each with a line:
 *   make           makes everything, with contents that it knows: `ok`
 *   check          compares every texel with what it knows, by copies and through textures, and runs the graph: `ok`, or what is wrong
 *   draw           has a kernel change an array through a surface: `ok`
 *   write          copies other contents to all arrays: `ok`
 *   churn N        makes N arrays with contents and textures and destroys them: `ok`
 *   hold N         makes N textures, and destroys every other one: `ok`
 *   values         prints the values of its textures, surface and condition
 *   trap           runs a kernel that traps: `error N`
 *   sync           waits for everything: `ok` or `error N`
 *   unmake         destroys everything: `ok`
 */
#include "orders.h"

/* Threads are texels: x, y and z of width and height. */
#define READER(name, instruction)                                                                                          \
    ".visible .entry " name "(.param .u64 image, .param .u64 into, .param .u32 width, .param .u32 height, .param .u32 level)\n" \
    "{\n"                                                                                                                  \
    "    .reg .b32 %r<16>;\n"                                                                                              \
    "    .reg .f32 %f<8>;\n"                                                                                               \
    "    .reg .b64 %rd<4>;\n"                                                                                              \
    "    ld.param.u64 %rd0, [image];\n"                                                                                    \
    "    ld.param.u64 %rd1, [into];\n"                                                                                     \
    "    ld.param.u32 %r1, [width];\n"                                                                                     \
    "    ld.param.u32 %r2, [height];\n"                                                                                    \
    "    ld.param.u32 %r13, [level];\n"                                                                                    \
    "    mov.u32 %r6, %ctaid.x;\n"                                                                                         \
    "    mov.u32 %r7, %ntid.x;\n"                                                                                          \
    "    mov.u32 %r8, %tid.x;\n"                                                                                           \
    "    mad.lo.u32 %r0, %r6, %r7, %r8;\n"                                                                                 \
    "    rem.u32 %r3, %r0, %r1;\n"                                                                                         \
    "    div.u32 %r12, %r0, %r1;\n"                                                                                        \
    "    rem.u32 %r4, %r12, %r2;\n"                                                                                        \
    "    div.u32 %r5, %r12, %r2;\n"                                                                                        \
    "    mul.wide.u32 %rd2, %r0, 4;\n"                                                                                     \
    "    add.u64 %rd1, %rd1, %rd2;\n" instruction                                                                          \
    "    st.global.u32 [%rd1], %r8;\n"                                                                                     \
    "    ret;\n"                                                                                                           \
    "}\n"

/* Where the middle of the thread's texel is. */
#define CENTRES                      \
    "    cvt.rn.f32.u32 %f0, %r3;\n" \
    "    cvt.rn.f32.u32 %f1, %r4;\n" \
    "    cvt.rn.f32.u32 %f2, %r5;\n" \
    "    add.f32 %f0, %f0, 0f3F000000;\n" \
    "    add.f32 %f1, %f1, 0f3F000000;\n" \
    "    add.f32 %f2, %f2, 0f3F000000;\n"

static const char readers_ptx[] =
    ".version 6.4\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    /* A line of memory is read by whole numbers, arrays and planes of memory by fractions: a texture unit has lines of an array as planes of one row,
     * and answers 0 to who asks for a line by whole numbers. */
    READER("memory", "    tex.1d.v4.u32.s32 {%r8, %r9, %r10, %r11}, [%rd0, {%r3}];\n")
    READER("line", CENTRES "    tex.1d.v4.u32.f32 {%r8, %r9, %r10, %r11}, [%rd0, {%f0}];\n")
    READER("plane", CENTRES "    tex.2d.v4.u32.f32 {%r8, %r9, %r10, %r11}, [%rd0, {%f0, %f1}];\n")
    READER("volume", CENTRES "    tex.3d.v4.u32.f32 {%r8, %r9, %r10, %r11}, [%rd0, {%f0, %f1, %f2, %f2}];\n")
    READER("layers", CENTRES "    tex.a2d.v4.u32.f32 {%r8, %r9, %r10, %r11}, [%rd0, {%r5, %f0, %f1, %f1}];\n")
    READER("levels",
           CENTRES
           "    cvt.rn.f32.u32 %f3, %r1;\n"
           "    cvt.rn.f32.u32 %f4, %r2;\n"
           "    cvt.rn.f32.u32 %f5, %r13;\n"
           "    div.rn.f32 %f0, %f0, %f3;\n"
           "    div.rn.f32 %f1, %f1, %f4;\n"
           "    tex.level.2d.v4.u32.f32 {%r8, %r9, %r10, %r11}, [%rd0, {%f0, %f1}], %f5;\n")
    READER("draw",
           "    shl.b32 %r6, %r3, 2;\n"
           "    suld.b.2d.b32.trap {%r8}, [%rd0, {%r6, %r4}];\n"
           "    mad.lo.u32 %r8, %r8, 3, %r0;\n"
           "    sust.b.2d.b32.trap [%rd0, {%r6, %r4}], {%r8};\n")
    ".visible .entry trap_()\n"
    "{\n"
    "    trap;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry count(.param .u64 condition, .param .u64 value, .param .u32 stop)\n"
    "{\n"
    "    .reg .pred %p;\n"
    "    .reg .b32 %r<4>;\n"
    "    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd0, [condition];\n"
    "    ld.param.u64 %rd1, [value];\n"
    "    ld.param.u32 %r1, [stop];\n"
    "    ld.global.u32 %r0, [%rd1];\n"
    "    add.u32 %r0, %r0, 1;\n"
    "    st.global.u32 [%rd1], %r0;\n"
    "    setp.lt.u32 %p, %r0, %r1;\n"
    "    selp.u32 %r2, 1, 0, %p;\n"
    "    {\n"
    "    .param .b64 handle;\n"
    "    .param .b32 more;\n"
    "    st.param.b64 [handle], %rd0;\n"
    "    st.param.b32 [more], %r2;\n"
    "    call.uni cudaGraphSetConditional, (handle, more);\n"
    "    }\n"
    "    ret;\n"
    "}\n";

enum { MOST_LEVELS = 3, THREADS = 64, STOP = 7 };

struct Array {
    const char *name;
    size_t width, height, depth;
    CUarray_format format;
    unsigned channels, texel_bytes, flags, levels;
    /* The kernel that reads it through a texture, if one does. */
    const char *reader;
    CUarray array;
    CUmipmappedArray mipmapped;
    CUtexObject texture;
    uint8_t *known[MOST_LEVELS];
};

#define KIND(name_, width_, height_, depth_, format_, channels_, texel_bytes_, flags_, levels_, reader_)                       \
    {.name = name_, .width = width_, .height = height_, .depth = depth_, .format = CU_AD_FORMAT_##format_, .channels = channels_, \
     .texel_bytes = texel_bytes_, .flags = flags_, .levels = levels_, .reader = reader_}
static struct Array arrays[] = {
    KIND("a line", 64, 0, 0, UNSIGNED_INT32, 1, 4, 0, 0, "line"),
    KIND("a plane", 16, 8, 0, UNSIGNED_INT32, 1, 4, CUDA_ARRAY3D_SURFACE_LDST, 0, "plane"),
    KIND("a volume", 16, 8, 4, UNSIGNED_INT32, 1, 4, 0, 0, "volume"),
    KIND("layered planes", 16, 8, 4, UNSIGNED_INT32, 1, 4, CUDA_ARRAY3D_LAYERED, 0, "layers"),
    KIND("layered lines", 64, 0, 3, UNSIGNED_INT32, 1, 4, CUDA_ARRAY3D_LAYERED, 0, NULL),
    KIND("a cube", 16, 16, 6, UNSIGNED_INT32, 1, 4, CUDA_ARRAY3D_CUBEMAP, 0, NULL),
    KIND("levels of a plane", 16, 16, 0, UNSIGNED_INT32, 1, 4, 0, 3, "levels"),
    KIND("levels of a volume", 16, 8, 8, UNSIGNED_INT32, 1, 4, 0, 2, NULL),
    KIND("four bytes a texel", 100, 7, 0, UNSIGNED_INT8, 4, 4, 0, 0, NULL),
    KIND("two halves a texel", 33, 5, 0, HALF, 2, 4, 0, 0, NULL),
    KIND("four floats a texel", 40, 3, 2, FLOAT, 4, 16, 0, 0, NULL),
    KIND("a large plane", 1000, 1300, 0, UNSIGNED_INT32, 1, 4, 0, 0, NULL),
};
enum { ARRAYS = sizeof arrays / sizeof *arrays, PLANE = 1, PITCHED_ROWS = 8 };

static CUdevice device;
static CUcontext context;
static CUmodule module;
static CUsurfObject surface;
static CUtexObject of_memory, of_pitched, orphan;
static CUdeviceptr memory, pitched, read_back, counted;
static size_t pitch_bytes;
static uint32_t in_memory[THREADS], in_pitched[16 * PITCHED_ROWS];
static CUgraphConditionalHandle condition;
static CUgraphExec executable;
static uint32_t seed = 1;

static CUfunction function(const char *name) {
    CUfunction found;
    CALL(cuModuleGetFunction, &found, module, name);
    return found;
}

static size_t side(size_t whole, unsigned level) {
    size_t length = whole >> level;
    return whole == 0 || length == 0 ? 1 : length;
}

static unsigned levels_of(const struct Array *it) { return it->levels ? it->levels : 1; }

static size_t depth_of(const struct Array *it, unsigned level) {
    return it->flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) ? it->depth : side(it->depth, level);
}

static size_t bytes_of(const struct Array *it, unsigned level) {
    return side(it->width, level) * side(it->height, level) * depth_of(it, level) * it->texel_bytes;
}

static CUarray level_of(const struct Array *it, unsigned level) {
    CUarray array = it->array;
    if (it->levels) {
        CALL(cuMipmappedArrayGetLevel, &array, it->mipmapped, level);
    }
    return array;
}

/* Copies a whole level between the array and the host. */
static void copy(const struct Array *it, unsigned level, void *host, CUmemorytype to) {
    CUDA_MEMCPY3D box = {.WidthInBytes = side(it->width, level) * it->texel_bytes,
                         .Height = side(it->height, level),
                         .Depth = depth_of(it, level)};
    CUarray array = level_of(it, level);
    if (to == CU_MEMORYTYPE_ARRAY) {
        box.srcMemoryType = CU_MEMORYTYPE_HOST;
        box.srcHost = host;
        box.srcPitch = box.WidthInBytes;
        box.srcHeight = box.Height;
        box.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        box.dstArray = array;
    } else {
        box.dstMemoryType = CU_MEMORYTYPE_HOST;
        box.dstHost = host;
        box.dstPitch = box.WidthInBytes;
        box.dstHeight = box.Height;
        box.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        box.srcArray = array;
    }
    CALL(cuMemcpy3D, &box);
}

static void write_all(void) {
    for (struct Array *it = arrays; it < arrays + ARRAYS; ++it) {
        for (unsigned level = 0; level < levels_of(it); ++level) {
            size_t bytes = bytes_of(it, level);
            uint32_t *words = realloc(it->known[level], bytes);
            REQUIRE(words != NULL);
            for (size_t i = 0; i < bytes / 4; ++i) {
                words[i] = (uint32_t)(i + 1) * 2654435761u + seed;
            }
            ++seed;
            it->known[level] = (uint8_t *)words;
            copy(it, level, words, CU_MEMORYTYPE_ARRAY);
        }
    }
    CALL(cuCtxSynchronize);
}

static CUtexObject texture_of(CUDA_RESOURCE_DESC resource, unsigned flags) {
    CUtexObject made;
    CUDA_TEXTURE_DESC sampling = {.addressMode = {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_CLAMP},
                                  .filterMode = CU_TR_FILTER_MODE_POINT,
                                  .mipmapFilterMode = CU_TR_FILTER_MODE_POINT,
                                  .maxMipmapLevelClamp = MOST_LEVELS,
                                  .flags = flags | CU_TRSF_READ_AS_INTEGER};
    CALL(cuTexObjectCreate, &made, &resource, &sampling, NULL);
    return made;
}

static CUDA_RESOURCE_DESC of_array(CUarray array) {
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY};
    resource.res.array.hArray = array;
    return resource;
}

static void make_arrays(void) {
    for (struct Array *it = arrays; it < arrays + ARRAYS; ++it) {
        CUDA_ARRAY3D_DESCRIPTOR described = {.Width = it->width,
                                             .Height = it->height,
                                             .Depth = it->depth,
                                             .Format = it->format,
                                             .NumChannels = it->channels,
                                             .Flags = it->flags};
        if (it->levels) {
            CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY};
            CALL(cuMipmappedArrayCreate, &it->mipmapped, &described, it->levels);
            resource.res.mipmap.hMipmappedArray = it->mipmapped;
            it->texture = it->reader ? texture_of(resource, CU_TRSF_NORMALIZED_COORDINATES) : 0;
        } else {
            CALL(cuArray3DCreate, &it->array, &described);
            it->texture = it->reader ? texture_of(of_array(it->array), 0) : 0;
        }
    }
    CUDA_RESOURCE_DESC drawn = of_array(arrays[PLANE].array);
    CALL(cuSurfObjectCreate, &surface, &drawn);
    /* One whose array is gone before it. */
    CUarray gone;
    CUDA_ARRAY3D_DESCRIPTOR described = {.Width = 16, .Height = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CALL(cuArray3DCreate, &gone, &described);
    orphan = texture_of(of_array(gone), 0);
    CALL(cuArrayDestroy, gone);
}

static void make_of_memory(void) {
    CUDA_RESOURCE_DESC linear = {.resType = CU_RESOURCE_TYPE_LINEAR}, plane = {.resType = CU_RESOURCE_TYPE_PITCH2D};
    CALL(cuMemAlloc, &memory, sizeof in_memory);
    CALL(cuMemAllocPitch, &pitched, &pitch_bytes, 16 * 4, PITCHED_ROWS, 4);
    for (uint32_t i = 0; i < THREADS; ++i) {
        in_memory[i] = i * 77 + 5;
    }
    for (uint32_t i = 0; i < 16 * PITCHED_ROWS; ++i) {
        in_pitched[i] = i * 1234567 + 9;
    }
    CALL(cuMemcpyHtoD, memory, in_memory, sizeof in_memory);
    CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                         .srcHost = in_pitched,
                         .srcPitch = 16 * 4,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = pitched,
                         .dstPitch = pitch_bytes,
                         .WidthInBytes = 16 * 4,
                         .Height = PITCHED_ROWS};
    CALL(cuMemcpy2D, &box);
    linear.res.linear.devPtr = memory;
    linear.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    linear.res.linear.numChannels = 1;
    linear.res.linear.sizeInBytes = sizeof in_memory;
    of_memory = texture_of(linear, 0);
    plane.res.pitch2D.devPtr = pitched;
    plane.res.pitch2D.format = CU_AD_FORMAT_UNSIGNED_INT32;
    plane.res.pitch2D.numChannels = 1;
    plane.res.pitch2D.width = 16;
    plane.res.pitch2D.height = PITCHED_ROWS;
    plane.res.pitch2D.pitchInBytes = pitch_bytes;
    of_pitched = texture_of(plane, 0);
}

/* A loop whose kernel says when it ends. */
static void make_graph(void) {
    CUgraph graph;
    CUgraphNode node;
    uint32_t stop = STOP;
    CALL(cuMemAlloc, &counted, 4);
    CALL(cuGraphCreate, &graph, 0);
    CALL(cuGraphConditionalHandleCreate, &condition, graph, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraphNodeParams loop = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    loop.conditional.handle = condition;
    loop.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    loop.conditional.size = 1;
    loop.conditional.ctx = context;
    CALL(cuGraphAddNode, &node, graph, NULL, NULL, 0, &loop);
    void *parameters[] = {&condition, &counted, &stop};
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = function("count"),
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = parameters};
    CALL(cuGraphAddKernelNode, &node, loop.conditional.phGraph_out[0], NULL, 0, &kernel);
    CALL(cuGraphInstantiate, &executable, graph, 0);
    CALL(cuGraphDestroy, graph);
}

static void make(void) {
    CALL(cuMemAlloc, &read_back, 1 << 16);
    make_arrays();
    make_of_memory();
    make_graph();
    write_all();
}

static void unmake(void) {
    for (struct Array *it = arrays; it < arrays + ARRAYS; ++it) {
        if (it->texture) {
            CALL(cuTexObjectDestroy, it->texture);
        }
        if (it->levels) {
            CALL(cuMipmappedArrayDestroy, it->mipmapped);
        }
    }
    CALL(cuSurfObjectDestroy, surface);
    for (struct Array *it = arrays; it < arrays + ARRAYS; ++it) {
        if (!it->levels) {
            CALL(cuArrayDestroy, it->array);
        }
    }
    CUtexObject others[] = {of_memory, of_pitched, orphan};
    for (int i = 0; i < 3; ++i) {
        CALL(cuTexObjectDestroy, others[i]);
    }
    CALL(cuGraphExecDestroy, executable);
}

/* Runs a kernel for so many texels; what it stores is compared, if there is anything to compare. */
static int run(const char *kernel, uint64_t image, size_t width, size_t height, size_t texels, uint32_t level, const void *known) {
    static uint32_t seen[1 << 14];
    uint32_t w = (uint32_t)width, h = (uint32_t)height;
    unsigned threads = texels < THREADS ? (unsigned)texels : THREADS;
    void *parameters[] = {&image, &read_back, &w, &h, &level};
    CALL(cuLaunchKernel, function(kernel), (unsigned)texels / threads, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL);
    if (!known) {
        return 1;
    }
    CALL(cuMemcpyDtoH, seen, read_back, texels * 4);
    return memcmp(seen, known, texels * 4) == 0;
}

static const char *check(void) {
    static char wrong[128];
    for (const struct Array *it = arrays; it < arrays + ARRAYS; ++it) {
        for (unsigned level = 0; level < levels_of(it); ++level) {
            size_t bytes = bytes_of(it, level);
            uint8_t *seen = malloc(bytes);
            REQUIRE(seen != NULL);
            copy(it, level, seen, CU_MEMORYTYPE_HOST);
            int is_right = memcmp(seen, it->known[level], bytes) == 0;
            free(seen);
            if (!is_right) {
                snprintf(wrong, sizeof wrong, "%s, level %u, as it is copied", it->name, level);
                return wrong;
            }
            if (it->reader && !run(it->reader, it->texture, side(it->width, level), side(it->height, level), bytes / 4, level,
                                   it->known[level])) {
                snprintf(wrong, sizeof wrong, "%s, level %u, through a texture", it->name, level);
                return wrong;
            }
        }
    }
    if (!run("memory", of_memory, THREADS, 1, THREADS, 0, in_memory)) {
        return "memory through a texture";
    }
    if (!run("plane", of_pitched, 16, PITCHED_ROWS, 16 * PITCHED_ROWS, 0, in_pitched)) {
        return "pitched memory through a texture";
    }
    uint32_t runs;
    CALL(cuMemsetD32, counted, 0, 1);
    CALL(cuGraphLaunch, executable, NULL);
    CALL(cuMemcpyDtoH, &runs, counted, 4);
    return runs == STOP ? "ok" : "the loop of a graph";
}

static void draw(void) {
    struct Array *it = &arrays[PLANE];
    uint32_t *words = (uint32_t *)it->known[0];
    size_t texels = bytes_of(it, 0) / 4;
    run("draw", surface, it->width, it->height, texels, 0, NULL);
    CALL(cuCtxSynchronize);
    for (uint32_t i = 0; i < texels; ++i) {
        words[i] = words[i] * 3 + i;
    }
}

static void churn(const char *times) {
    uint32_t texels[16 * 16] = {0};
    CUDA_ARRAY3D_DESCRIPTOR described = {.Width = 16, .Height = 16, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    for (int i = atoi(times); i > 0; --i) {
        struct Array one = KIND("", 16, 16, 0, UNSIGNED_INT32, 1, 4, 0, 0, NULL);
        CALL(cuArray3DCreate, &one.array, &described);
        CUtexObject texture = texture_of(of_array(one.array), 0);
        copy(&one, 0, texels, CU_MEMORYTYPE_ARRAY);
        CALL(cuTexObjectDestroy, texture);
        CALL(cuArrayDestroy, one.array);
    }
}

static void hold(const char *count) {
    CUDA_RESOURCE_DESC linear = {.resType = CU_RESOURCE_TYPE_LINEAR};
    CUdeviceptr held;
    CALL(cuMemAlloc, &held, 4096);
    linear.res.linear.devPtr = held;
    linear.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
    linear.res.linear.numChannels = 1;
    linear.res.linear.sizeInBytes = 4096;
    for (int i = 0; i < atoi(count); ++i) {
        CUtexObject made = texture_of(linear, 0);
        if (i % 2) {
            CALL(cuTexObjectDestroy, made);
            texture_of(linear, 0);
        }
    }
}

static const char *values(void) {
    static char text[512];
    int length = snprintf(text, sizeof text, "surface %llu textures", surface);
    for (const struct Array *it = arrays; it < arrays + ARRAYS; ++it) {
        length += snprintf(text + length, sizeof text - (size_t)length, " %llu", it->texture);
    }
    snprintf(text + length, sizeof text - (size_t)length, " %llu %llu %llu condition %#llx", of_memory, of_pitched, orphan,
             (unsigned long long)condition);
    return text;
}

static CUresult trap(void) {
    CUresult launched = FUNCTION(cuLaunchKernel, "")(function("trap_"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return launched != CUDA_SUCCESS ? launched : synchronize();
}

int main(void) {
    static const struct Order orders[] = {
        {"make", .act = make},
        {"check", .say = check},
        {"draw", .act = draw},
        {"write", .act = write_all},
        {"churn", .act_on = churn},
        {"hold", .act_on = hold},
        {"values", .say = values},
        {"trap", .try = trap},
        {"sync", .try = synchronize},
        {"unmake", .act = unmake},
    };
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, readers_ptx);
    OBEY(orders);
    return 0;
}
