/* A client with much memory, every word of which it knows: it does what it reads from standard input, and answers each line with "ok" or an error.
 *
 * take COUNT MIB    allocates
 * pieces COUNT MIB  the same by cuMemCreate, each mapped at addresses of its own
 * work              adds one to every word, by a kernel
 * look              whether every word is right
 * free              gives all of it back
 */
#include "../driver_api/check.h"

enum { MOST_BLOCKS = 64, THREADS = 256 };

static const char code[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                           ".visible .entry add_one(.param .u64 values)\n{\n"
                           ".reg .b32 %r<6>; .reg .b64 %rd<3>;\n"
                           "ld.param.u64 %rd0, [values];\n"
                           "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r0, %r1, %r2;\n"
                           "mul.wide.u32 %rd1, %r3, 4; add.u64 %rd2, %rd0, %rd1;\n"
                           "ld.global.u32 %r4, [%rd2]; add.u32 %r5, %r4, 1; st.global.u32 [%rd2], %r5;\nret;\n}\n";

static struct Block {
    CUdeviceptr at;
    size_t bytes;
    uint32_t value;
    CUmemGenericAllocationHandle piece; /* 0: allocated */
} blocks[MOST_BLOCKS];
static int count;
static CUfunction add_one;

static CUresult map_piece(struct Block *block) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult made = FUNCTION(cuMemCreate, "")(&block->piece, block->bytes, &properties, 0);
    if (made != CUDA_SUCCESS)
        return made;
    CALL(cuMemAddressReserve, &block->at, block->bytes, 0, 0, 0);
    CALL(cuMemMap, block->at, block->bytes, 0, block->piece, 0);
    CALL(cuMemSetAccess, block->at, block->bytes, &access, 1);
    return CUDA_SUCCESS;
}

static CUresult take(int more, size_t bytes, int pieces) {
    REQUIRE(count + more <= MOST_BLOCKS);
    for (int i = 0; i < more; ++i) {
        struct Block *block = &blocks[count];
        *block = (struct Block){.bytes = bytes, .value = (uint32_t)count * 1000003};
        CUresult taken = pieces ? map_piece(block) : FUNCTION(cuMemAlloc, "")(&block->at, bytes);
        if (taken != CUDA_SUCCESS)
            return taken;
        CALL(cuMemsetD32, block->at, block->value, bytes / 4);
        ++count;
    }
    return CUDA_SUCCESS;
}

static void work(void) {
    for (int i = 0; i < count; ++i) {
        void *parameters[] = {&blocks[i].at};
        CALL(cuLaunchKernel, add_one, blocks[i].bytes / 4 / THREADS, 1, 1, THREADS, 1, 1, 0, NULL, parameters, NULL);
        ++blocks[i].value;
    }
    CALL(cuCtxSynchronize);
}

static int is_right(void) {
    for (int i = 0; i < count; ++i) {
        uint32_t *words = malloc(blocks[i].bytes);
        REQUIRE(words);
        CALL(cuMemcpyDtoH, words, blocks[i].at, blocks[i].bytes);
        for (size_t word = 0; word < blocks[i].bytes / 4; ++word)
            if (words[word] != blocks[i].value) {
                printf("word %zu of block %d is %u instead of %u\n", word, i, words[word], blocks[i].value);
                free(words);
                return 0;
            }
        free(words);
    }
    return 1;
}

static void give_back(void) {
    for (; count > 0; --count) {
        struct Block *block = &blocks[count - 1];
        if (!block->piece) {
            CALL(cuMemFree, block->at);
            continue;
        }
        CALL(cuMemUnmap, block->at, block->bytes);
        CALL(cuMemRelease, block->piece);
        CALL(cuMemAddressFree, block->at, block->bytes);
    }
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &add_one, module, "add_one");
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        int more, mib;
        CUresult taken = CUDA_SUCCESS;
        if (sscanf(line, "take %d %d", &more, &mib) == 2)
            taken = take(more, (size_t)mib << 20, 0);
        else if (sscanf(line, "pieces %d %d", &more, &mib) == 2)
            taken = take(more, (size_t)mib << 20, 1);
        else if (!strncmp(line, "work", 4))
            work();
        else if (!strncmp(line, "free", 4))
            give_back();
        else if (!strncmp(line, "look", 4) && !is_right())
            taken = CUDA_ERROR_UNKNOWN;
        if (taken == CUDA_SUCCESS)
            printf("ok\n");
        else if (strncmp(line, "look", 4))
            printf("error %d\n", (int)taken);
        fflush(stdout);
    }
    return 0;
}
