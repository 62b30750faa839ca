/* A client that asks where variables of its code are, and uses the addresses for as long as it lives, wherever its session is: it does what it reads from
 * standard input, and answers each line with "ok", what it was asked for, or an error.
 *
 * ask             asks where `FOLLOWED` is, which is a variable's name that libraries have for one that they only copy to
 * ask other       asks where a variable of the program's own is
 * place           "here" if the variable is where the program was told, "elsewhere" if not
 * copies N        writes N and what follows from it to the variable, in all ways of copies and fills, and reads it back by kernels and by copies
 * graph           makes a graph that copies to the variable, and fills it
 * launch graph    launches it, and checks the variable
 * give N          has a kernel write N to the variable by an address that it gets as a parameter, and checks it
 * store           has a kernel store the address that it gets as a parameter
 * follow N        has a kernel write N to where that address says
 * unload          unloads the code, and loads it again
 */
#include "process.h"

#define FOLLOWED "_ZN6cublas8internal15deviceConstantsE"

enum { WORDS = 16, BYTES = 4 * WORDS };

static const char code[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .global .align 8 .b8 other[64];\n"
    ".visible .global .align 8 .b8 " FOLLOWED "[64];\n"
    /* Copies the variable to memory. */
    ".visible .entry look(.param .u64 to)\n{\n"
    ".reg .b32 %r<3>; .reg .b64 %rd<3>; .reg .pred %p;\n"
    "ld.param.u64 %rd0, [to];\n"
    "mov.u32 %r0, 0; mov.u64 %rd1, " FOLLOWED ";\n"
    "EACH: ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd0], %r1;\n"
    "add.u64 %rd0, %rd0, 4; add.u64 %rd1, %rd1, 4; add.u32 %r0, %r0, 1;\n"
    "setp.lt.u32 %p, %r0, 16; @%p bra EACH;\nret;\n}\n"
    /* Whether the variable is where the memory says. */
    ".visible .entry compare(.param .u64 to)\n{\n"
    ".reg .b32 %r<2>; .reg .b64 %rd<4>; .reg .pred %p;\n"
    "ld.param.u64 %rd0, [to];\n"
    "ld.global.u64 %rd1, [%rd0]; mov.u64 %rd2, " FOLLOWED ";\n"
    "setp.eq.u64 %p, %rd1, %rd2; selp.u32 %r0, 1, 0, %p; st.global.u32 [%rd0], %r0;\nret;\n}\n"
    /* Fills 16 words at an address. */
    ".visible .entry give(.param .u32 value, .param .u64 at)\n{\n"
    ".reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p;\n"
    "ld.param.u32 %r0, [value]; ld.param.u64 %rd0, [at];\n"
    "mov.u32 %r1, 0;\n"
    "EACH: st.global.u32 [%rd0], %r0; add.u64 %rd0, %rd0, 4; add.u32 %r1, %r1, 1;\n"
    "setp.lt.u32 %p, %r1, 16; @%p bra EACH;\nret;\n}\n"
    /* Stores an address. */
    ".visible .entry store(.param .u64 to, .param .u64 at)\n{\n"
    ".reg .b64 %rd<2>;\n"
    "ld.param.u64 %rd0, [to]; ld.param.u64 %rd1, [at]; st.global.u64 [%rd0], %rd1;\nret;\n}\n"
    /* Fills 16 words at a stored address. */
    ".visible .entry follow(.param .u32 value, .param .u64 from)\n{\n"
    ".reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p;\n"
    "ld.param.u32 %r0, [value]; ld.param.u64 %rd0, [from]; ld.global.u64 %rd0, [%rd0];\n"
    "mov.u32 %r1, 0;\n"
    "EACH: st.global.u32 [%rd0], %r0; add.u64 %rd0, %rd0, 4; add.u32 %r1, %r1, 1;\n"
    "setp.lt.u32 %p, %r1, 16; @%p bra EACH;\nret;\n}\n";

static CUmodule module;
static CUfunction look, compare, give, store, follow;
static CUdeviceptr asked, memory, stored;
static CUgraphExec graph;
static CUstream stream;
static uint32_t *pinned;

static void load(void) {
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &look, module, "look");
    CALL(cuModuleGetFunction, &compare, module, "compare");
    CALL(cuModuleGetFunction, &give, module, "give");
    CALL(cuModuleGetFunction, &store, module, "store");
    CALL(cuModuleGetFunction, &follow, module, "follow");
}

static CUdeviceptr ask(const char *name) {
    CUdeviceptr at;
    size_t bytes;
    CALL(cuModuleGetGlobal, &at, &bytes, module, name);
    REQUIRE(bytes == BYTES);
    return at;
}

static void run(CUfunction kernel, void **parameters) {
    CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
    CALL(cuStreamSynchronize, stream);
}

/* The variable has these words, as its own code and as copies see it. */
static void expect_words(const uint32_t *expected) {
    uint32_t found[WORDS];
    void *parameters[] = {&memory};
    run(look, parameters);
    CALL(cuMemcpyDtoH, found, memory, BYTES);
    REQUIRE(memcmp(found, expected, BYTES) == 0);
    memset(found, 0, BYTES);
    CALL(cuMemcpyDtoH, found, asked, BYTES);
    REQUIRE(memcmp(found, expected, BYTES) == 0);
}

static void expect_all(uint32_t value) {
    uint32_t expected[WORDS];
    for (int i = 0; i < WORDS; ++i) expected[i] = value;
    expect_words(expected);
}

static const char *place(void) {
    uint32_t is_here;
    void *parameters[] = {&memory};
    CALL(cuMemcpyHtoD, memory, &asked, sizeof asked);
    run(compare, parameters);
    CALL(cuMemcpyDtoH, &is_here, memory, sizeof is_here);
    return is_here ? "here" : "elsewhere";
}

static void copies(uint32_t first) {
    uint32_t words[WORDS];
    for (int i = 0; i < WORDS; ++i) words[i] = first + i;
    /* What the variable had is what it has. */
    CALL(cuMemcpyHtoD, asked, words, BYTES);
    expect_words(words);
    /* From pinned memory, to a part. */
    for (int i = 0; i < WORDS; ++i) pinned[i] = words[i] ^= 0x5555;
    CALL(cuMemcpyHtoDAsync, asked + 8, pinned + 2, BYTES - 8, stream);
    CALL(cuMemcpyHtoDAsync, asked, pinned, 8, stream);
    CALL(cuStreamSynchronize, stream);
    expect_words(words);
    /* Between it and other memory. */
    for (int i = 0; i < WORDS; ++i) words[i] *= 3;
    CALL(cuMemcpyHtoD, memory, words, BYTES);
    CALL(cuMemcpyDtoD, asked, memory, BYTES);
    expect_words(words);
    CALL(cuMemcpyDtoDAsync, memory + BYTES, asked, BYTES, stream);
    memset(pinned, 0, BYTES);
    CALL(cuMemcpyDtoHAsync, pinned, memory + BYTES, BYTES, stream);
    CALL(cuStreamSynchronize, stream);
    REQUIRE(memcmp(pinned, words, BYTES) == 0);
    /* In rows. */
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = words, .srcPitch = 16, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = asked, .dstPitch = 32, .WidthInBytes = 16, .Height = 2};
    for (int i = 0; i < 8; ++i) words[i] = first * 7 + i;
    CALL(cuMemcpy2D, &rows);
    for (int i = 0; i < 4; ++i) words[8 + i] = words[4 + i];
    uint32_t found[WORDS];
    CALL(cuMemcpyDtoH, found, asked, BYTES);
    REQUIRE(memcmp(found, words, 16) == 0 && memcmp(found + 8, words + 8, 16) == 0);
    /* Filled. */
    CALL(cuMemsetD32, asked, first, WORDS);
    expect_all(first);
    CALL(cuMemsetD8Async, asked, 0x11, BYTES, stream);
    expect_all(0x11111111);
    CALL(cuMemsetD2D32, asked, 16, first + 1, 4, 4);
    expect_all(first + 1);
    CALL(cuStreamWriteValue32, stream, asked + 4, first + 2, 0);
    CALL(cuStreamWaitValue32, stream, asked + 4, first + 2, CU_STREAM_WAIT_VALUE_EQ);
    CALL(cuStreamWriteValue32, stream, asked + 4, first + 1, 0);
    CALL(cuStreamSynchronize, stream);
    expect_all(first + 1);
    /* What is told of it. */
    CUdeviceptr base;
    size_t bytes;
    CUmemorytype type;
    CALL(cuMemGetAddressRange, &base, &bytes, asked + 4);
    REQUIRE(base <= asked && asked + BYTES <= base + bytes);
    CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, asked);
    REQUIRE(type == CU_MEMORYTYPE_DEVICE);
    /* The last words stay, for what comes next. */
    for (int i = 0; i < WORDS; ++i) words[i] = first + i;
    CALL(cuMemcpyHtoD, asked, words, BYTES);
    expect_words(words);
}

/* Fills all of it, and copies to its first half. */
static void make_graph(void) {
    CUgraph template;
    CUgraphNode fill, copy;
    CUcontext context;
    CUDA_MEMSET_NODE_PARAMS filled = {.dst = asked, .value = 0xabcd, .elementSize = 4, .width = WORDS, .height = 1};
    CUDA_MEMCPY3D copied = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = memory + 2 * BYTES, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = asked, .WidthInBytes = BYTES / 2, .Height = 1, .Depth = 1};
    CALL(cuMemsetD32, memory + 2 * BYTES, 0x1234, WORDS);
    CALL(cuCtxGetCurrent, &context);
    CALL(cuGraphCreate, &template, 0);
    CALL(cuGraphAddMemsetNode, &fill, template, NULL, 0, &filled, context);
    CALL(cuGraphAddMemcpyNode, &copy, template, &fill, 1, &copied, context);
    CALL(cuGraphInstantiateWithFlags, &graph, template, 0);
    CALL(cuGraphDestroy, template);
}

static void launch_graph(void) {
    uint32_t expected[WORDS];
    for (int i = 0; i < WORDS; ++i) expected[i] = i < WORDS / 2 ? 0x1234 : 0xabcd;
    CALL(cuMemsetD32, asked, 1, WORDS);
    CALL(cuGraphLaunch, graph, stream);
    CALL(cuStreamSynchronize, stream);
    expect_words(expected);
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc, &memory, 4 * BYTES);
    CALL(cuMemAlloc, &stored, 8);
    CALL(cuMemHostAlloc, (void **)&pinned, BYTES, 0);
    /* Ordered with the default stream, in which fills and copies go on when their calls have returned. */
    CALL(cuStreamCreate, &stream, CU_STREAM_DEFAULT);
    load();
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        uint32_t value;
        const char *said = "ok";
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "ask"))
            asked = ask(FOLLOWED);
        else if (!strcmp(line, "ask other"))
            ask("other");
        else if (!strcmp(line, "place"))
            said = place();
        else if (sscanf(line, "copies %u", &value) == 1)
            copies(value);
        else if (!strcmp(line, "graph"))
            make_graph();
        else if (!strcmp(line, "launch graph"))
            launch_graph();
        else if (sscanf(line, "give %u", &value) == 1) {
            void *parameters[] = {&value, &asked};
            run(give, parameters);
            expect_all(value);
        } else if (!strcmp(line, "store")) {
            void *parameters[] = {&stored, &asked};
            run(store, parameters);
        } else if (sscanf(line, "follow %u", &value) == 1) {
            void *parameters[] = {&value, &stored};
            run(follow, parameters);
            expect_all(value);
        } else if (!strcmp(line, "unload")) {
            CALL(cuModuleUnload, module);
            load();
        } else
            said = "what?";
        answer(said);
    }
    return 0;
}
