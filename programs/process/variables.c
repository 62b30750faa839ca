/* A client that loads code with variables of every kind, and unloads it: it does what it reads from standard input, and answers each line with "ok" or an error.
 *
 * load            loads the code
 * check           whether every variable, and every attribute of its kernels, is as in code that was just loaded
 * write N         has a kernel write to all variables, and changes attributes
 * check N         whether the variables are what was written
 * unload          unloads the code
 * unload running  the same while a kernel runs that writes to all variables at its end
 * churn N         loads, checks, writes and unloads so many times
 */
#include "process.h"

enum { WORDS = 300, LONG = 2000000, SHARED_BYTES = 24 << 10 };

/* `look` copies all variables to memory, in the order of `struct Variables`; `fill` writes a value to all that kernels can write, after so many turns of a loop. */
static const char code[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .global .align 4 .u32 initialised = 42;\n"
    ".visible .global .align 4 .b8 empty[1200];\n"
    ".global .align 4 .u32 _ZZ4lookE5local = 7;\n"
    ".visible .const .align 4 .u32 constants[4] = {1, 2, 3, 4};\n"
    ".visible .const .align 4 .u32 unset;\n"
    ".visible .global .align 8 .u64 pointer = initialised;\n"
    ".visible .entry look(.param .u64 to)\n{\n"
    ".reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p;\n"
    "ld.param.u64 %rd0, [to];\n"
    "ld.global.u32 %r0, [initialised]; st.global.u32 [%rd0], %r0;\n"
    "ld.global.u32 %r0, [_ZZ4lookE5local]; st.global.u32 [%rd0+4], %r0;\n"
    "ld.const.u32 %r0, [constants]; st.global.u32 [%rd0+8], %r0;\n"
    "ld.const.u32 %r0, [constants+12]; st.global.u32 [%rd0+12], %r0;\n"
    "ld.const.u32 %r0, [unset]; st.global.u32 [%rd0+16], %r0;\n"
    "ld.global.u64 %rd1, [pointer]; mov.u64 %rd2, initialised; setp.eq.u64 %p, %rd1, %rd2; selp.u32 %r0, 1, 0, %p;\n"
    "st.global.u32 [%rd0+20], %r0;\n"
    "mov.u32 %r0, 0; mov.u64 %rd1, empty;\n"
    "EACH: ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd0+24], %r1;\n"
    "add.u64 %rd0, %rd0, 4; add.u64 %rd1, %rd1, 4; add.u32 %r0, %r0, 1;\n"
    "setp.lt.u32 %p, %r0, 300; @%p bra EACH;\nret;\n}\n"
    ".visible .entry fill(.param .u32 value, .param .u32 turns)\n{\n"
    ".reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p;\n"
    "ld.param.u32 %r0, [value]; ld.param.u32 %r1, [turns];\n"
    "WAIT: setp.eq.u32 %p, %r1, 0; @%p bra WRITE; sub.u32 %r1, %r1, 1; bra WAIT;\n"
    "WRITE: st.global.u32 [initialised], %r0; st.global.u32 [_ZZ4lookE5local], %r0;\n"
    "cvt.u64.u32 %rd0, %r0; st.global.u64 [pointer], %rd0;\n"
    "mov.u32 %r1, 0; mov.u64 %rd1, empty;\n"
    "EACH: st.global.u32 [%rd1], %r0; add.u64 %rd1, %rd1, 4; add.u32 %r1, %r1, 1;\n"
    "setp.lt.u32 %p, %r1, 300; @%p bra EACH;\nret;\n}\n";

struct Variables {
    uint32_t initialised, local, first_constant, last_constant, unset, points_to_initialised, empty[WORDS];
};

static struct Variables as_loaded(void) {
    return (struct Variables){.initialised = 42, .local = 7, .first_constant = 1, .last_constant = 4, .points_to_initialised = 1};
}

static struct Variables as_written(uint32_t value) {
    struct Variables all = {value, value, value, value, value, 0, {0}};
    for (int i = 0; i < WORDS; ++i)
        all.empty[i] = value;
    return all;
}

static CUmodule module;
static CUfunction look, fill;
static CUdeviceptr room;
static CUstream streams[2];

static void load(void) {
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &look, module, "look");
    CALL(cuModuleGetFunction, &fill, module, "fill");
}

static void write_all(uint32_t value) {
    uint32_t no_turns = 0, words[4] = {value, value, value, value};
    void *parameters[] = {&value, &no_turns};
    CUdeviceptr constants, unset;
    size_t bytes;
    CALL(cuModuleGetGlobal, &constants, &bytes, module, "constants");
    REQUIRE(bytes == sizeof words);
    CALL(cuModuleGetGlobal, &unset, &bytes, module, "unset");
    CALL(cuMemcpyHtoD, constants, words, sizeof words);
    CALL(cuMemcpyHtoD, unset, words, sizeof value);
    CALL(cuLaunchKernel, fill, 1, 1, 1, 1, 1, 1, 0, streams[0], parameters, NULL);
    CALL(cuStreamSynchronize, streams[0]);
    CALL(cuFuncSetAttribute, fill, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, SHARED_BYTES);
    CALL(cuFuncSetCacheConfig, look, CU_FUNC_CACHE_PREFER_L1);
}

static int dynamic_shared_bytes(void) {
    int bytes;
    CALL(cuFuncGetAttribute, &bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, fill);
    return bytes;
}

/* How much a kernel may have that nobody has said anything about. */
static int usual_shared_bytes = -1;

static int are(struct Variables expected, int shared_bytes) {
    struct Variables found;
    void *parameters[] = {&room};
    CALL(cuLaunchKernel, look, 1, 1, 1, 1, 1, 1, 0, streams[1], parameters, NULL);
    CALL(cuStreamSynchronize, streams[1]);
    CALL(cuMemcpyDtoH, &found, room, sizeof found);
    const uint32_t *found_words = (const uint32_t *)&found, *expected_words = (const uint32_t *)&expected;
    for (size_t word = 0; word < sizeof found / 4; ++word)
        if (found_words[word] != expected_words[word]) {
            printf("word %zu is %u instead of %u\n", word, found_words[word], expected_words[word]);
            return 0;
        }
    if (dynamic_shared_bytes() != shared_bytes) {
        printf("%d bytes of shared memory instead of %d\n", dynamic_shared_bytes(), shared_bytes);
        return 0;
    }
    return 1;
}

static void unload_running(void) {
    uint32_t value = 0xdead, turns = LONG;
    void *parameters[] = {&value, &turns};
    CALL(cuLaunchKernel, fill, 1, 1, 1, 1, 1, 1, 0, streams[0], parameters, NULL);
    CALL(cuModuleUnload, module);
}

/* Says what is wrong, if something is. */
static int churn(int times) {
    for (int i = 0; i < times; ++i) {
        load();
        if (!are(as_loaded(), usual_shared_bytes))
            return 0;
        write_all(1000 + i);
        if (!are(as_written(1000 + i), SHARED_BYTES))
            return 0;
        CALL(cuModuleUnload, module);
    }
    return 1;
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc, &room, sizeof(struct Variables));
    CALL(cuStreamCreate, &streams[0], CU_STREAM_NON_BLOCKING);
    CALL(cuStreamCreate, &streams[1], CU_STREAM_NON_BLOCKING);
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        unsigned number;
        int is_right = 1;
        if (!strncmp(line, "load", 4)) {
            load();
            if (usual_shared_bytes < 0)
                usual_shared_bytes = dynamic_shared_bytes();
        } else if (sscanf(line, "write %u", &number) == 1)
            write_all(number);
        else if (sscanf(line, "check %u", &number) == 1)
            is_right = are(as_written(number), SHARED_BYTES);
        else if (!strncmp(line, "check", 5))
            is_right = are(as_loaded(), usual_shared_bytes);
        else if (!strncmp(line, "unload running", 14))
            unload_running();
        else if (!strncmp(line, "unload", 6))
            CALL(cuModuleUnload, module);
        else if (sscanf(line, "churn %u", &number) == 1)
            is_right = churn((int)number);
        if (is_right)
            printf("ok\n");
        fflush(stdout);
    }
    return 0;
}
