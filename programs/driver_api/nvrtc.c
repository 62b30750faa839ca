/* CUDA C++ compiled at run time by NVRTC, loaded and launched through the driver API. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <nvrtc.h>

#define CHECK(call) require((int)(call), #call, __LINE__)

static void require(int result, const char *call, int line) {
    if (result != 0) {
        fprintf(stderr, "line %d: %s returned %d\n", line, call, result);
        exit(1);
    }
}

static const char source[] = "template <typename T> __device__ T poly(T x) { return ((x * 3 + 2) * x + 1) * x + 7; }\n"
                             "extern \"C\" __global__ void evaluate(const unsigned *in, unsigned *out, int count) {\n"
                             "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count;\n"
                             "         i += gridDim.x * blockDim.x) {\n"
                             "        out[i] = poly(in[i]) ^ __brev(in[i]);\n"
                             "    }\n"
                             "}\n";

static uint32_t reversed(uint32_t value) {
    uint32_t result = 0;
    for (int bit = 0; bit < 32; ++bit) {
        result |= ((value >> bit) & 1u) << (31 - bit);
    }
    return result;
}

int main(void) {
    enum { COUNT = 30000 };
    nvrtcProgram program;
    const char *options[] = {"--gpu-architecture=compute_75", "-default-device"};
    CHECK(nvrtcCreateProgram(&program, source, "evaluate.cu", 0, NULL, NULL));
    CHECK(nvrtcCompileProgram(program, 2, options));
    size_t ptx_bytes;
    CHECK(nvrtcGetPTXSize(program, &ptx_bytes));
    char *ptx = malloc(ptx_bytes);
    CHECK(ptx == NULL);
    CHECK(nvrtcGetPTX(program, ptx));
    CHECK(nvrtcDestroyProgram(&program));

    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, ptx));
    free(ptx);
    CHECK(cuModuleGetFunction(&function, module, "evaluate"));

    static uint32_t in[COUNT], out[COUNT];
    for (uint32_t i = 0; i < COUNT; ++i) {
        in[i] = i * 2246822519u;
    }
    CUdeviceptr device_in, device_out;
    CUstream stream;
    CHECK(cuMemAlloc(&device_in, sizeof in));
    CHECK(cuMemAlloc(&device_out, sizeof out));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemcpyHtoDAsync(device_in, in, sizeof in, stream));
    int count = COUNT;
    void *parameters[] = {&device_in, &device_out, &count};
    CHECK(cuLaunchKernel(function, 16, 1, 1, 128, 1, 1, 0, stream, parameters, NULL));
    CHECK(cuMemcpyDtoHAsync(out, device_out, sizeof out, stream));
    CHECK(cuStreamSynchronize(stream));
    uint64_t checksum = 0;
    for (uint32_t i = 0; i < COUNT; ++i) {
        uint32_t x = in[i];
        if (out[i] != ((((x * 3 + 2) * x + 1) * x + 7) ^ reversed(x))) {
            fprintf(stderr, "element %u is %u\n", i, out[i]);
            return 1;
        }
        checksum = checksum * 31 + out[i];
    }
    CHECK(cuStreamDestroy(stream));
    CHECK(cuMemFree(device_in));
    CHECK(cuMemFree(device_out));
    CHECK(cuModuleUnload(module));
    CHECK(cuDevicePrimaryCtxRelease(device));
    printf("nvrtc: ok checksum=%016llx\n", (unsigned long long)checksum);
    return 0;
}
