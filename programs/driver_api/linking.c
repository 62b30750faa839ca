/* The linker of the driver API: a kernel in one PTX text calls a function that another one defines. Also what the runtime
 * library relies on in cuPointerGetAttributes: flags are stored as whole ints, and what a pointer has not as zero. */
#include "check.h"

#define HEAD ".version 6.0\n.target sm_50\n.address_size 64\n"

/* out[i] = twisted(i) */
static const char caller[] = HEAD ".extern .func (.param .b32 result) twisted (.param .b32 x);\n"
                                  ".visible .entry fill(.param .u64 out)\n"
                                  "{\n"
                                  "    .reg .b32 %r<3>;\n"
                                  "    .reg .b64 %rd<3>;\n"
                                  "    ld.param.u64 %rd0, [out];\n"
                                  "    cvta.to.global.u64 %rd0, %rd0;\n"
                                  "    mov.u32 %r0, %tid.x;\n"
                                  "    {\n"
                                  "    .param .b32 x;\n"
                                  "    .param .b32 y;\n"
                                  "    st.param.b32 [x], %r0;\n"
                                  "    call (y), twisted, (x);\n"
                                  "    ld.param.b32 %r1, [y];\n"
                                  "    }\n"
                                  "    mul.wide.u32 %rd1, %r0, 4;\n"
                                  "    add.u64 %rd2, %rd0, %rd1;\n"
                                  "    st.global.u32 [%rd2], %r1;\n"
                                  "    ret;\n"
                                  "}\n";

/* twisted(x) = 5 x + 3 */
static const char callee[] = HEAD ".visible .func (.param .b32 result) twisted (.param .b32 x)\n"
                                  "{\n"
                                  "    .reg .b32 %r<2>;\n"
                                  "    ld.param.b32 %r0, [x];\n"
                                  "    mad.lo.u32 %r1, %r0, 5, 3;\n"
                                  "    st.param.b32 [result], %r1;\n"
                                  "    ret;\n"
                                  "}\n";

int main(void) {
    enum { COUNT = 256 };
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
    LOAD(cuLinkCreate);
    LOAD(cuLinkAddData);
    LOAD(cuLinkComplete);
    LOAD(cuLinkDestroy);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleUnload);
    LOAD(cuModuleGetFunction);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemcpyDtoH);
    LOAD(cuLaunchKernel);
    LOAD(cuPointerGetAttribute);
    LOAD(cuPointerGetAttributes);

    CUdevice device;
    CUcontext context;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain_(&context, device));
    CHECK(cuCtxSetCurrent_(context));

    CUlinkState link;
    CUmodule module;
    CUfunction function;
    void *image;
    size_t image_bytes;
    CHECK(cuLinkCreate_(0, NULL, NULL, &link));
    CHECK(cuLinkAddData_(link, CU_JIT_INPUT_PTX, (void *)caller, sizeof caller, "caller", 0, NULL, NULL));
    CHECK(cuLinkAddData_(link, CU_JIT_INPUT_PTX, (void *)callee, sizeof callee, "callee", 0, NULL, NULL));
    CHECK(cuLinkComplete_(link, &image, &image_bytes));
    CHECK(cuModuleLoadData_(&module, image));
    CHECK(cuLinkDestroy_(link));
    CHECK(cuModuleGetFunction_(&function, module, "fill"));

    CUdeviceptr out;
    static uint32_t host[COUNT];
    CHECK(cuMemAlloc_(&out, sizeof host));
    void *parameters[] = {&out};
    CHECK(cuLaunchKernel_(function, 1, 1, 1, COUNT, 1, 1, 0, NULL, parameters, NULL));
    CHECK(cuMemcpyDtoH_(host, out, sizeof host));
    uint64_t checksum = 0;
    for (uint32_t i = 0; i < COUNT; ++i) {
        if (host[i] != 5 * i + 3) {
            fprintf(stderr, "element %u is %u\n", i, host[i]);
            return 1;
        }
        checksum = checksum * 31 + host[i];
    }

    int is_managed = -1;
    void *host_pointer = &host_pointer;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *answers[] = {&is_managed, &host_pointer};
    CHECK(cuPointerGetAttributes_(2, asked, answers, out));
    if (is_managed != 0 || host_pointer != NULL) {
        fprintf(stderr, "device memory is managed: %d, has the host address %p\n", is_managed, host_pointer);
        return 1;
    }
    require(cuPointerGetAttribute_(&host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, out), CUDA_ERROR_INVALID_VALUE,
            "the host address of device memory", __LINE__);

    CHECK(cuMemFree_(out));
    CHECK(cuModuleUnload_(module));
    CHECK(cuDevicePrimaryCtxRelease_(device));
    printf("linking: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
