"""A request without PyTorch: 60 kernels, posted one by one through the driver's own library, and a wait for the last. What `torch_tail.py` runs where
there is no PyTorch; a software GPU will do."""

import ctypes

KERNELS = 60
BLOCK_THREADS = 64
# Some 10 us of one SM.
STEPS = 1000
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry step(.param .u64 numbers, .param .u32 steps)
{
    .reg .u64 %place;
    .reg .u32 %thread, %number, %left;
    .reg .pred %more;
    ld.param.u64 %place, [numbers];
    ld.param.u32 %left, [steps];
    cvta.to.global.u64 %place, %place;
    mov.u32 %thread, %tid.x;
    mad.wide.u32 %place, %thread, 4, %place;
    ld.global.u32 %number, [%place];
again:
    mad.lo.u32 %number, %number, 1664525, %thread;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra again;
    st.global.u32 [%place], %number;
    ret;
}
\0"""


class Driver:
    """The driver's calls, which raise when they fail."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            if result := function(*arguments):
                raise RuntimeError(f"{name}: error {result}")

        # Found once: the next time it is an attribute.
        setattr(self, name, call)
        return call


def make(_, __):
    driver = Driver()
    context, module, kernel, stream = (ctypes.c_void_p() for _ in range(4))
    numbers, steps = ctypes.c_uint64(), ctypes.c_uint32(STEPS)
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    driver.cuModuleLoadData(ctypes.byref(module), PTX)
    driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"step")
    driver.cuStreamCreate(ctypes.byref(stream), 1)
    driver.cuMemAlloc_v2(ctypes.byref(numbers), ctypes.c_size_t(4 * BLOCK_THREADS))
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(numbers), ctypes.addressof(steps))
    # An address keeps nothing alive.
    parameters.values = numbers, steps

    def post():
        for _ in range(KERNELS):
            driver.cuLaunchKernel(kernel, 1, 1, 1, BLOCK_THREADS, 1, 1, 0, stream, parameters, None)

    def wait():
        driver.cuStreamSynchronize(stream)

    def checksum():
        driver.cuMemsetD32Async(numbers, 1, ctypes.c_size_t(BLOCK_THREADS), stream)
        post()
        found = (ctypes.c_uint32 * BLOCK_THREADS)()
        wait()
        driver.cuMemcpyDtoH_v2(found, numbers, ctypes.sizeof(found))
        return f"{sum(found):x}"

    return post, wait, checksum
