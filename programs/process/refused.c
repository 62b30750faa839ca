/* What no MPS serves (MPS guide, 2.3.2): contexts of the API before CUDA 4.0, kernels that launch kernels, 32-bit code. `refused client` where the
 * process is a client of a server: each is refused with an error, and nothing else suffers. `refused native`: the software GPU makes old
 * contexts and refuses the others, too. */
#include "process.h"

#define HEADER ".version 7.0\n.target sm_75\n.address_size 64\n"

/* As nvcc -rdc=true writes a launch from the device. */
static const char launches[] =
    HEADER ".extern .func (.param .b64 func_retval0) __cudaCDP2GetParameterBufferV2\n"
           "(\n"
           "    .param .b64 p0,\n"
           "    .param .align 4 .b8 p1[12],\n"
           "    .param .align 4 .b8 p2[12],\n"
           "    .param .b32 p3\n"
           ");\n"
           ".extern .func (.param .b32 func_retval0) __cudaCDP2LaunchDeviceV2\n"
           "(\n"
           "    .param .b64 p0,\n"
           "    .param .b64 p1\n"
           ");\n"
           ".visible .entry parent()\n"
           "{\n"
           "    .reg .b32 %r<2>;\n"
           "    .reg .b64 %rd<2>;\n"
           "    {\n"
           "        .param .b64 p0;\n"
           "        .param .b64 p1;\n"
           "        .param .b32 result;\n"
           "        mov.u64 %rd0, 0;\n"
           "        st.param.b64 [p0], %rd0;\n"
           "        st.param.b64 [p1], %rd0;\n"
           "        call.uni (result), __cudaCDP2LaunchDeviceV2, (p0, p1);\n"
           "        ld.param.b32 %r0, [result];\n"
           "    }\n"
           "    ret;\n"
           "}\n";

static const char narrow[] = ".version 6.0\n.target sm_50\n.address_size 32\n.visible .entry narrow() { ret; }\n";

static const char plain[] = HEADER ".visible .entry plain() { ret; }\n";

/* The program's own declarations: today's header has no names for the old functions. */
typedef CUresult OldCreate(CUcontext *, unsigned, CUdevice);
typedef CUresult OldAllocate(unsigned *, unsigned);

static void is_refused(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_UNKNOWN) {
        fprintf(stderr, "%s: %d\n", what, (int)result);
        exit(1);
    }
}

/* Loads and looks up: the software GPU translates a kernel when it is asked for. */
static CUresult load(void *library, const char *text, const char *name) {
    LOAD(cuModuleLoadData);
    LOAD(cuModuleGetFunction);
    LOAD(cuModuleUnload);
    CUmodule module;
    CUfunction function;
    CUresult result = cuModuleLoadData_(&module, text);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuModuleGetFunction_(&function, module, name);
    CHECK(cuModuleUnload_(module));
    return result;
}

int main(int count, char **words) {
    int is_client = count > 1 && strcmp(words[1], "client") == 0;
    void *library = open_library();
    LOAD(cuInit);
    LOAD(cuCtxGetCurrent);
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxSynchronize);
    LOAD(cuDevicePrimaryCtxRetain);
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    CHECK(cuInit_(0));

    OldCreate *old_create = (OldCreate *)symbol(library, "cuCtxCreate");
    CUcontext context = NULL;
    if (is_client) {
        REFUSED(CUDA_ERROR_NOT_SUPPORTED, old_create(&context, 0, 0));
    } else {
        LOAD(cuCtxDestroy);
        CHECK(old_create(&context, 0, 0));
        CHECK(cuCtxDestroy_(context));
    }
    CHECK(cuCtxGetCurrent_(&context));
    REQUIRE(context == NULL);

    CHECK(cuDevicePrimaryCtxRetain_(&context, 0));
    CHECK(cuCtxSetCurrent_(context));
    OldAllocate *old_allocate = (OldAllocate *)symbol(library, "cuMemAlloc");
    unsigned narrow_pointer = 0;
    REFUSED(CUDA_ERROR_NOT_SUPPORTED, old_allocate(&narrow_pointer, 4096));

    CUresult launching = load(library, launches, "parent");
    is_refused(launching, "a kernel that launches kernels");
    REQUIRE(!is_client || launching == CUDA_ERROR_NOT_SUPPORTED);
    is_refused(load(library, narrow, "narrow"), "a kernel with 32-bit addresses");

    CUdeviceptr memory;
    CHECK(load(library, plain, "plain"));
    CHECK(cuMemAlloc_(&memory, 4096));
    CHECK(cuMemFree_(memory));
    CHECK(cuCtxSynchronize_());
    struct Cuda cuda = open_cuda(library);
    work(&cuda, 2);
    report(&cuda);
    return 0;
}
