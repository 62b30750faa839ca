"""A CUDA program: `work.py [KERNELS]` launches kernels, says so, and stays until its input ends."""

import ctypes
import sys

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry step(.param .u64 values)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [values];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r2, [%rd2];
    add.u32 %r2, %r2, %r1;
    st.global.u32 [%rd2], %r2;
    ret;
}
"""
THREADS = 64


class Cuda:
    """A context with the kernel."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.values = ctypes.c_uint64()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        self("cuModuleLoadData", ctypes.byref(module), PTX)
        self("cuModuleGetFunction", ctypes.byref(self.function), module, b"step")
        self("cuMemAlloc_v2", ctypes.byref(self.values), 4 * THREADS)

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} answered {code}")

    def work(self, kernels):
        """Adds each thread's number so many times, and compares."""
        host = (ctypes.c_uint32 * THREADS)()
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(self.values))
        self("cuMemcpyHtoD_v2", self.values, host, ctypes.sizeof(host))
        for _ in range(kernels):
            self("cuLaunchKernel", self.function, 1, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
        self("cuMemcpyDtoH_v2", host, self.values, ctypes.sizeof(host))
        assert list(host) == [kernels * thread for thread in range(THREADS)], list(host)

    def device_name(self):
        name = ctypes.create_string_buffer(100)
        self("cuDeviceGetName", name, 100, 0)
        return name.value.decode()

    def memory_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value


if __name__ == "__main__":
    kernels = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cuda = Cuda()
    cuda.work(kernels)
    print(f"{kernels} kernels on {cuda.device_name()}", flush=True)
    sys.stdin.read()
