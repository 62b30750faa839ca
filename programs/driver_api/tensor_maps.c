/* Tensor maps: boxes of a tensor that a kernel loads by them, a map that is told another address, and the maps of images, where a driver
 * has them. */
#include "check.h"

enum { WIDTH = 64, HEIGHT = 16, BOX_WIDTH = 8, BOX_HEIGHT = 4, BOX_WORDS = BOX_WIDTH * BOX_HEIGHT };

/* load(map, words, x, y): the box at (x, y), in the order in which it lies in shared memory. */
static const char code[] =
    ".version 8.3\n.target sm_90\n.address_size 64\n"
    ".visible .entry load(.param .align 128 .b8 map[128], .param .u64 words, .param .u32 x, .param .u32 y)\n"
    "{\n"
    "    .reg .b64 %rd<6>;\n"
    "    .reg .b32 %r<8>;\n"
    "    .reg .pred %p<3>;\n"
    "    .shared .align 128 .b8 box[128];\n"
    "    .shared .align 8 .b64 barrier;\n"
    "    mov.b64 %rd0, map;\n"
    "    cvta.param.u64 %rd0, %rd0;\n"
    "    ld.param.u64 %rd1, [words];\n"
    "    cvta.to.global.u64 %rd1, %rd1;\n"
    "    ld.param.u32 %r0, [x];\n"
    "    ld.param.u32 %r1, [y];\n"
    "    mov.u32 %r2, box;\n"
    "    mov.u32 %r3, barrier;\n"
    "    mov.u32 %r4, %tid.x;\n"
    "    setp.ne.u32 %p0, %r4, 0;\n"
    "    @%p0 bra loaded;\n"
    "    mbarrier.init.shared.b64 [%r3], 1;\n"
    "    fence.proxy.async;\n"
    "    mbarrier.arrive.expect_tx.shared.b64 %rd2, [%r3], 128;\n"
    "    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd0, {%r0, %r1}], [%r3];\n"
    "wait:\n"
    "    mbarrier.try_wait.parity.shared.b64 %p1, [%r3], 0;\n"
    "    @!%p1 bra wait;\n"
    "loaded:\n"
    "    bar.sync 0;\n"
    "    shl.b32 %r5, %r4, 2;\n"
    "    add.u32 %r6, %r2, %r5;\n"
    "    ld.shared.u32 %r7, [%r6];\n"
    "    cvt.u64.u32 %rd3, %r5;\n"
    "    add.u64 %rd4, %rd1, %rd3;\n"
    "    st.global.u32 [%rd4], %r7;\n"
    "    ret;\n"
    "}\n";

static CUdeviceptr box;

/* Loads the box at (x, y), and compares it with a tensor whose elements are start + place, and zero outside. */
static uint64_t check_box(CUfunction load, CUtensorMap *map, int x, int y, uint32_t start) {
    void *parameters[] = {map, &box, &x, &y};
    uint32_t host[BOX_WORDS];
    CALL(cuMemsetD32, box, 0xeeeeeeee, BOX_WORDS);
    CALL(cuLaunchKernel, load, 1, 1, 1, BOX_WORDS, 1, 1, 0, NULL, parameters, NULL);
    CALL(cuMemcpyDtoH, host, box, sizeof host);
    uint64_t checksum = 0;
    for (int i = 0; i < BOX_WORDS; ++i) {
        int column = x + i % BOX_WIDTH, row = y + i / BOX_WIDTH;
        int inside = column >= 0 && column < WIDTH && row >= 0 && row < HEIGHT;
        REQUIRE(host[i] == (inside ? start + (uint32_t)(row * WIDTH + column) : 0));
        checksum = mix(checksum, host[i]);
    }
    return checksum;
}

int main(void) {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction load;
    int major = 0;
    uint64_t checksum = 0;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    REQUIRE(major >= 9);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, code);
    CALL(cuModuleGetFunction, &load, module, "load");
    CUdeviceptr tensors[2];
    static uint32_t host[WIDTH * HEIGHT];
    for (uint32_t t = 0; t < 2; ++t) {
        CALL(cuMemAlloc, &tensors[t], sizeof host);
        for (uint32_t i = 0; i < WIDTH * HEIGHT; ++i)
            host[i] = 10000 * (t + 1) + i;
        CALL(cuMemcpyHtoD, tensors[t], host, sizeof host);
    }
    CALL(cuMemAlloc, &box, 4 * BOX_WORDS);

    CUtensorMap map;
    cuuint64_t dimensions[] = {WIDTH, HEIGHT}, strides[] = {4 * WIDTH};
    cuuint32_t spans[] = {BOX_WIDTH, BOX_HEIGHT}, steps[] = {1, 1};
    CALL(cuTensorMapEncodeTiled, &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, (void *)(uintptr_t)tensors[0], dimensions, strides, spans, steps,
         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    checksum = mix(checksum, check_box(load, &map, 0, 0, 10000));
    checksum = mix(checksum, check_box(load, &map, 20, 9, 10000));
    checksum = mix(checksum, check_box(load, &map, 60, 14, 10000));
    checksum = mix(checksum, check_box(load, &map, -4, -2, 10000));
    CALL(cuTensorMapReplaceAddress, &map, (void *)(uintptr_t)tensors[1]);
    checksum = mix(checksum, check_box(load, &map, 36, 5, 20000));
    REFUSED(CUDA_ERROR_INVALID_VALUE, FUNCTION(cuTensorMapReplaceAddress, "")(&map, (void *)(uintptr_t)(tensors[1] + 4)));
    cuuint32_t wide[] = {512, 1};
    REFUSED(CUDA_ERROR_INVALID_VALUE,
            FUNCTION(cuTensorMapEncodeTiled, "")(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, (void *)(uintptr_t)tensors[0], dimensions, strides,
                                                 wide, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                                 CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));

    /* Images: the software GPU has none. */
    cuuint64_t image[] = {16, 8, 8, 2}, image_strides[] = {64, 512, 4096};
    int lower[] = {0, 0}, upper[] = {0, 0};
    cuuint32_t image_steps[] = {1, 1, 1, 1};
    CUresult encoded = FUNCTION(cuTensorMapEncodeIm2col, "")(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, (void *)(uintptr_t)tensors[0], image, image_strides, lower, upper, 16, 32, image_steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    REQUIRE(encoded == CUDA_SUCCESS || encoded == CUDA_ERROR_NOT_SUPPORTED);
    CALL(cuMemFree, box);
    for (int t = 0; t < 2; ++t)
        CALL(cuMemFree, tensors[t]);
    CALL(cuModuleUnload, module);
    CALL(cuDevicePrimaryCtxRelease, device);
    printf("tensor_maps: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
