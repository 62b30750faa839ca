"""A CUDA program that checks all of its memory on the device, for device_moves.py: it does what it reads from standard input, line by line.

| order | does | answer |
|---|---|---|
| `have COUNT` | allocations, by default of 1 GiB; each word is its own number | `ok`, or `error CODE` |
| `check` | a kernel looks at every word | how many are wrong |
| `work SECONDS` | a kernel and a wait, over and over; `begun` is the first line | the longest turn, in ms |
| `uuid` | | what the program takes its GPU for |
"""

import ctypes
import sys
import time

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 words, .param .u32 count, .param .u32 number, .param .u64 wrong)
{
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [words]; ld.param.u32 %r0, [count]; ld.param.u32 %r6, [number];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r7, %nctaid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3; mul.lo.u32 %r7, %r7, %r2;
NEXT:
    setp.ge.u32 %p, %r4, %r0;
    @%p bra DONE;
    mul.wide.u32 %rd1, %r4, 4; add.u64 %rd2, %rd0, %rd1;
    mad.lo.u32 %r5, %r4, 2654435761, %r6;
    st.global.u32 [%rd2], %r5;
    add.u32 %r4, %r4, %r7;
    bra NEXT;
DONE:
    ret;
}
.visible .entry check(.param .u64 words, .param .u32 count, .param .u32 number, .param .u64 wrong)
{
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [words]; ld.param.u32 %r0, [count]; ld.param.u32 %r6, [number]; ld.param.u64 %rd3, [wrong];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mov.u32 %r7, %nctaid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3; mul.lo.u32 %r7, %r7, %r2;
NEXT:
    setp.ge.u32 %p, %r4, %r0;
    @%p bra DONE;
    mul.wide.u32 %rd1, %r4, 4; add.u64 %rd2, %rd0, %rd1;
    mad.lo.u32 %r5, %r4, 2654435761, %r6;
    ld.global.u32 %r8, [%rd2];
    setp.eq.u32 %p, %r8, %r5;
    @%p bra RIGHT;
    red.global.add.u64 [%rd3], 1;
RIGHT:
    add.u32 %r4, %r4, %r7;
    bra NEXT;
DONE:
    ret;
}
"""
# Of an allocation; fewer for trying the script.
WORDS = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 28
BLOCKS, THREADS = 1024, 256


class CudaError(Exception):
    """A call of the driver that did not succeed."""


class Worker:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, module, self.stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.kernels = {name: ctypes.c_void_p() for name in ("fill", "check")}
        for name, kernel in self.kernels.items():
            self.call("cuModuleGetFunction", ctypes.byref(kernel), module, name.encode())
        self.held = []
        self.wrong = self.allocated(8)
        self.call("cuMemsetD8_v2", ctypes.c_uint64(self.wrong), 0, ctypes.c_size_t(8))

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise CudaError(f"error {code} of {name}")

    def allocated(self, size_bytes):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return address.value

    def launch(self, name, words, count, number):
        values = (ctypes.c_uint64(words), ctypes.c_uint32(count), ctypes.c_uint32(number), ctypes.c_uint64(self.wrong))
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values])
        self.call("cuLaunchKernel", self.kernels[name], BLOCKS, 1, 1, THREADS, 1, 1, 0, self.stream, pointers, None)

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)

    def have(self, count):
        while len(self.held) < int(count):
            self.held.append(self.allocated(4 * WORDS))
            self.launch("fill", self.held[-1], WORDS, len(self.held))
        self.wait()
        return "ok"

    def check(self):
        for number, words in enumerate(self.held, 1):
            self.launch("check", words, WORDS, number)
        self.wait()
        wrong = ctypes.c_uint64()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(wrong), ctypes.c_uint64(self.wrong), ctypes.c_size_t(8))
        return str(wrong.value)

    def work(self, seconds):
        print("begun", flush=True)
        longest, end = 0.0, time.monotonic() + float(seconds)
        begin = time.monotonic()
        while begin < end:
            self.launch("check", self.held[0], min(WORDS, 1 << 16), 1)
            self.wait()
            now = time.monotonic()
            longest, begin = max(longest, now - begin), now
        return f"{longest * 1000:.1f}"

    def uuid(self):
        found = ctypes.create_string_buffer(16)
        self.call("cuDeviceGetUuid_v2", found, 0)
        return found.raw.hex()


def main():
    worker = Worker()
    for line in sys.stdin:
        order, *arguments = line.split()
        try:
            print(getattr(worker, order)(*arguments), flush=True)
        except CudaError as error:
            print(error, flush=True)


main()
