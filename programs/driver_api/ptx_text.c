/* The driver API alone, in C: a module from PTX text, a launch with packed parameters, a module variable, errors of a
 * text that does not parse. Linked against nothing: the driver's library is opened by name, as a program without a
 * CUDA toolkit does it. */
#include "check.h"

/* out[i] = a * in[i] + bias, written by hand for ISA 6.0 so that every driver of this century takes it. */
static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".address_size 64\n"
                          ".visible .global .align 4 .u32 bias = 7;\n"
                          ".visible .entry axpb(.param .u64 in, .param .u64 out, .param .u32 a, .param .u32 count)\n"
                          "{\n"
                          "    .reg .pred %p;\n"
                          "    .reg .b32 %r<8>;\n"
                          "    .reg .b64 %rd<6>;\n"
                          "    ld.param.u64 %rd0, [in];\n"
                          "    ld.param.u64 %rd1, [out];\n"
                          "    ld.param.u32 %r0, [a];\n"
                          "    ld.param.u32 %r1, [count];\n"
                          "    cvta.to.global.u64 %rd0, %rd0;\n"
                          "    cvta.to.global.u64 %rd1, %rd1;\n"
                          "    mov.u32 %r2, %ctaid.x;\n"
                          "    mov.u32 %r3, %ntid.x;\n"
                          "    mov.u32 %r4, %tid.x;\n"
                          "    mad.lo.u32 %r5, %r2, %r3, %r4;\n"
                          "    setp.ge.u32 %p, %r5, %r1;\n"
                          "    @%p bra DONE;\n"
                          "    mul.wide.u32 %rd2, %r5, 4;\n"
                          "    add.u64 %rd3, %rd0, %rd2;\n"
                          "    add.u64 %rd4, %rd1, %rd2;\n"
                          "    ld.global.u32 %r6, [%rd3];\n"
                          "    ld.global.u32 %r7, [bias];\n"
                          "    mad.lo.u32 %r6, %r6, %r0, %r7;\n"
                          "    st.global.u32 [%rd4], %r6;\n"
                          "DONE:\n"
                          "    ret;\n"
                          "}\n";

int main(void) {
    enum { COUNT = 20000, BLOCK = 128 };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuDevicePrimaryCtxRelease);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleLoadDataEx);
    LOAD(cuModuleUnload);
    LOAD(cuModuleGetFunction);
    LOAD(cuModuleGetGlobal);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemcpyHtoD);
    LOAD(cuMemcpyDtoH);
    LOAD(cuLaunchKernel);

    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&context, device));
    CHECK(cuCtxSetCurrent_(context));

    char log[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    require(cuModuleLoadDataEx_(&module, ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry x( { ret; }\n",
                                2, options, values),
            CUDA_ERROR_INVALID_PTX, "a text that does not parse", __LINE__);
    if (log[0] == 0) {
        fprintf(stderr, "the error log is empty\n");
        return 1;
    }
    CHECK(cuModuleLoadData_(&module, ptx));
    require(cuModuleGetFunction_(&function, module, "absent"), CUDA_ERROR_NOT_FOUND, "an absent function", __LINE__);
    CHECK(cuModuleGetFunction_(&function, module, "axpb"));

    CUdeviceptr in, out, bias;
    size_t bias_bytes;
    CHECK(cuModuleGetGlobal_(&bias, &bias_bytes, module, "bias"));
    if (bias_bytes != 4) {
        fprintf(stderr, "bias has %zu bytes, expected 4\n", bias_bytes);
        return 1;
    }
    static uint32_t host_in[COUNT], host_out[COUNT];
    for (uint32_t i = 0; i < COUNT; ++i) {
        host_in[i] = i * 2654435761u;
    }
    CHECK(cuMemAlloc_(&in, sizeof host_in));
    CHECK(cuMemAlloc_(&out, sizeof host_out));
    CHECK(cuMemcpyHtoD_(in, host_in, sizeof host_in));
    uint64_t checksum = 0;
    for (uint32_t turn = 0; turn < 2; ++turn) {
        uint32_t factor = 3 + turn, count = COUNT, new_bias = 7 + turn * 1000;
        CHECK(cuMemcpyHtoD_(bias, &new_bias, sizeof new_bias));
        if (turn == 0) {
            void *parameters[] = {&in, &out, &factor, &count};
            CHECK(cuLaunchKernel_(function, (COUNT + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL, parameters, NULL));
        } else {
            struct {
                CUdeviceptr in, out;
                uint32_t factor, count;
            } packed = {in, out, factor, count};
            size_t packed_bytes = sizeof packed;
            void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes,
                             CU_LAUNCH_PARAM_END};
            CHECK(cuLaunchKernel_(function, (COUNT + BLOCK - 1) / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL, NULL, extra));
        }
        CHECK(cuCtxSynchronize_());
        CHECK(cuMemcpyDtoH_(host_out, out, sizeof host_out));
        for (uint32_t i = 0; i < COUNT; ++i) {
            if (host_out[i] != host_in[i] * factor + new_bias) {
                fprintf(stderr, "element %u is %u\n", i, host_out[i]);
                return 1;
            }
            checksum = checksum * 31 + host_out[i];
        }
    }
    CHECK(cuMemFree_(in));
    CHECK(cuMemFree_(out));
    CHECK(cuModuleUnload_(module));
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("ptx_text: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
