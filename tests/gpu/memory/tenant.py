"""A CUDA program that does what it reads from standard input, line by line, through the driver API alone: the tenant of memory.py.

| order | does | answer |
|---|---|---|
| `allocate MIB COUNT` | so many allocations, every word of them set to a number of its own | `ok`, or `error CODE` |
| `work` | a kernel, in a graph every second time, adds one to every word; then every word is looked at | `ok`, or what is wrong |
| `info` | cuMemGetInfo | free and total bytes |
| `total` | cuDeviceTotalMem | bytes |
| `addresses` | | the addresses of all allocations |
| `free` | frees everything | `ok` |
"""

import array
import ctypes
import sys

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add_one(.param .u64 words, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [words];
    ld.param.u32 %r0, [count];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    setp.ge.u32 %p, %r4, %r0;
    @%p bra DONE;
    mul.wide.u32 %rd1, %r4, 4;
    add.u64 %rd2, %rd0, %rd1;
    ld.global.u32 %r5, [%rd2];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%rd2], %r5;
DONE:
    ret;
}
"""
BLOCK = 256
CAPTURE_MODE_RELAXED = 2
SECTION_BYTES = 64 << 20


class CudaError(Exception):
    def __init__(self, code, call):
        super().__init__(f"{call}: {code}")
        self.code = code


class Tenant:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"add_one")
        self.host = ctypes.create_string_buffer(SECTION_BYTES)
        self.held, self.graph, self.value, self.rounds = [], None, 0, 0

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise CudaError(code, name)

    def allocate(self, mib, count):
        for _ in range(count):
            address = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(mib << 20))
            number = 1_000_003 * (len(self.held) + 1)
            self.held.append((address.value, (mib << 20) // 4, number))
            self.call("cuMemsetD32_v2", address, number & 0xffffffff, ctypes.c_size_t((mib << 20) // 4))
        self.call("cuCtxSynchronize")
        self.graph = None

    def launch(self):
        for address, words, _ in self.held:
            parameters = (ctypes.c_uint64(address), ctypes.c_uint32(words))
            pointers = (ctypes.c_void_p * 2)(*[ctypes.addressof(parameter) for parameter in parameters])
            blocks = (words + BLOCK - 1) // BLOCK
            self.call("cuLaunchKernel", self.kernel, blocks, 1, 1, BLOCK, 1, 1, 0, self.stream, pointers, None)

    def work(self):
        self.rounds += 1
        if self.rounds % 2:
            self.launch()
        else:
            if self.graph is None:
                captured, self.graph = ctypes.c_void_p(), ctypes.c_void_p()
                self.call("cuStreamBeginCapture_v2", self.stream, CAPTURE_MODE_RELAXED)
                self.launch()
                self.call("cuStreamEndCapture", self.stream, ctypes.byref(captured))
                self.call("cuGraphInstantiateWithFlags", ctypes.byref(self.graph), captured, ctypes.c_uint64(0))
            self.call("cuGraphLaunch", self.graph, self.stream)
        self.call("cuStreamSynchronize", self.stream)
        self.value += 1
        for address, words, number in self.held:
            expected = (number + self.value) & 0xffffffff
            for start in range(0, 4 * words, SECTION_BYTES):
                length = min(SECTION_BYTES, 4 * words - start)
                self.call("cuMemcpyDtoH_v2", self.host, ctypes.c_uint64(address + start), ctypes.c_size_t(length))
                if self.host.raw[:length] != array.array("I", [expected]).tobytes() * (length // 4):
                    return f"wrong words in {length} bytes at {address + start:#x}"
        return "ok"

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return f"{free.value} {total.value}"

    def total(self):
        total = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), 0)
        return str(total.value)

    def free(self):
        for address, _, _ in self.held:
            self.call("cuMemFree_v2", ctypes.c_uint64(address))
        self.held, self.graph = [], None

    def obey(self, words):
        match words:
            case ["allocate", mib, count]:
                self.allocate(int(mib), int(count))
            case ["work"]:
                return self.work()
            case ["info"]:
                return self.info()
            case ["total"]:
                return self.total()
            case ["addresses"]:
                return " ".join(f"{address:#x}" for address, _, _ in self.held)
            case ["free"]:
                self.free()
            case _:
                return "no such order"
        return "ok"


def main():
    tenant = Tenant()
    for line in sys.stdin:
        try:
            answer = tenant.obey(line.split())
        except CudaError as error:
            answer = f"error {error.code} {error}"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
