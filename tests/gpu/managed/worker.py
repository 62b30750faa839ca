"""A CUDA program with managed memory, through the driver API alone: the worker of managed.py. Does what its arguments say and prints a line of JSON.

| argument | does | says |
|---|---|---|
| `add MIB TURNS` | adds one array to another, TURNS times after the first; then looks | bytes per second of each turn |
| `there-and-back MIB` | the host writes an array first, a kernel adds to it, the host reads it | bytes per second each way |
| `stencil MIB STEPS` | a kernel from one array to the other, which are swapped; the host reads a word each step | steps per second |
| `pages MIB COUNT` | the host reads and writes single pages of one array while kernels run on another | touches per second |
| `attached MIB COUNT` | the same, of an array that is attached to the host | touches per second |
| `prefetched MIB` | a kernel adds to an array, which is prefetched to the host, and read there | bytes per second of all that |
| `beyond MIB COUNT` | COUNT arrays, all written by a kernel and looked at, twice | seconds |
"""

import ctypes
import json
import random
import sys
import time

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 to, .param .u64 from, .param .u32 by)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd0, [to];
    ld.param.u64 %rd1, [from];
    ld.param.u32 %r5, [by];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    mul.wide.u32 %rd2, %r3, 4;
    add.u64 %rd3, %rd0, %rd2;
    add.u64 %rd4, %rd1, %rd2;
    ld.global.u32 %r4, [%rd3];
    ld.global.u32 %r6, [%rd4];
    add.u32 %r4, %r4, %r6;
    add.u32 %r4, %r4, %r5;
    st.global.u32 [%rd3], %r4;
    ret;
}
"""
BLOCK = 256
PAGE = 4096
PIECE = 64 << 20
# CU_DEVICE_CPU, CU_MEM_ATTACH_HOST.
HOST, ATTACH_HOST = -1, 2


class Worker:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, module, self.kernel, self.stream = (ctypes.c_void_p() for _ in range(4))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), PTX)
        self.call("cuModuleGetFunction", ctypes.byref(self.kernel), module, b"add")
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.buffer = ctypes.create_string_buffer(PIECE)

    def call(self, name, *arguments):
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    def managed(self, mib):
        address = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(mib << 20), 1)
        return address.value

    def add(self, to, source, size, by=0):
        """to[i] += source[i] + by"""
        values = (ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_uint32(by))
        pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(value) for value in values])
        self.call("cuLaunchKernel", self.kernel, size // 4 // BLOCK, 1, 1, BLOCK, 1, 1, 0, self.stream, pointers, None)

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)

    def must_be(self, address, size, word):
        """Every word, read by the host."""
        expected = word.to_bytes(4, "little") * (min(size, PIECE) // 4)
        for start in range(0, size, PIECE):
            length = min(PIECE, size - start)
            ctypes.memmove(self.buffer, address + start, length)
            if ctypes.string_at(self.buffer, length) != expected[:length]:
                raise RuntimeError(f"wrong words at byte {start}")

    def adding(self, mib, turns):
        size = mib << 20
        one, other = self.managed(mib), self.managed(mib)
        ctypes.memset(one, 1, size)
        ctypes.memset(other, 2, size)
        rates = []
        for _ in range(turns + 1):
            began = time.perf_counter()
            self.add(one, other, size)
            self.wait()
            rates.append(3 * size / (time.perf_counter() - began))
        self.must_be(one, size, (0x01010101 + 0x02020202 * (turns + 1)) & 0xFFFFFFFF)
        return {"first": rates[0], "then": sorted(rates[1:])[len(rates) // 2 - 1]}

    def there_and_back(self, mib):
        size = mib << 20
        array = self.managed(mib)
        began = time.perf_counter()
        ctypes.memset(array, 3, size)
        self.add(array, array, size)
        self.wait()
        middle = time.perf_counter()
        for start in range(0, size, PIECE):
            ctypes.memmove(self.buffer, array + start, min(PIECE, size - start))
        ended = time.perf_counter()
        self.must_be(array, size, 0x06060606)
        return {"there": size / (middle - began), "back": size / (ended - middle)}

    def stencil(self, mib, steps):
        size = mib << 20
        one, other = self.managed(mib), self.managed(mib)
        ctypes.memset(one, 0, size)
        ctypes.memset(other, 0, size)
        self.add(one, other, size)
        self.wait()
        values = [0, 0]
        began = time.perf_counter()
        for _ in range(steps):
            self.add(one, other, size, 1)
            self.wait()
            values[0] = (values[0] + values[1] + 1) & 0xFFFFFFFF
            if ctypes.c_uint32.from_address(one + size // 2).value != values[0]:
                raise RuntimeError("a wrong word")
            one, other, values = other, one, values[::-1]
        rate = steps / (time.perf_counter() - began)
        self.must_be(other, size, values[1])
        return {"steps": rate}

    def attached(self, mib, count):
        return self.pages(mib, count, is_attached=True)

    def prefetched(self, mib):
        size = mib << 20
        array = self.managed(mib)
        ctypes.memset(array, 0, size)
        self.add(array, array, size, 7)
        self.wait()
        began = time.perf_counter()
        self.call("cuMemPrefetchAsync", ctypes.c_uint64(array), ctypes.c_size_t(size), HOST, self.stream)
        self.wait()
        self.must_be(array, size, 7)
        return {"prefetched": size / (time.perf_counter() - began)}

    def pages(self, mib, count, is_attached=False):
        size = mib << 20
        busy, array = self.managed(mib), self.managed(mib)
        ctypes.memset(busy, 0, size)
        ctypes.memset(array, 0, size)
        if is_attached:
            self.call("cuStreamAttachMemAsync", None, ctypes.c_uint64(array), ctypes.c_size_t(0), ATTACH_HOST)
            self.wait()
        choose, known, kernels = random.Random(1), {}, 0
        self.add(busy, busy, size)
        began = time.perf_counter()
        for number in range(count):
            if number % 100 == 0:
                # At work all the time; the host waits for none of them.
                self.add(busy, busy, size, 1)
                kernels += 1
            page = choose.randrange(size // PAGE)
            word = ctypes.c_uint32.from_address(array + page * PAGE)
            if word.value != known.get(page, 0):
                raise RuntimeError(f"a wrong word in page {page}")
            word.value = known[page] = number + 1
        rate = count / (time.perf_counter() - began)
        self.wait()
        self.must_be(busy, size, ((1 << kernels) - 1) & 0xFFFFFFFF)
        for page, value in known.items():
            if ctypes.c_uint32.from_address(array + page * PAGE).value != value:
                raise RuntimeError(f"a wrong word in page {page}, at the end")
        return {"touches": rate}

    def beyond(self, mib, count):
        size = mib << 20
        began = time.perf_counter()
        arrays = [self.managed(mib) for _ in range(count)]
        for number, array in enumerate(arrays):
            ctypes.memset(array, number & 0x3F, size)
        for _ in range(2):
            for array in arrays:
                self.add(array, array, size)
            self.wait()
        for number, array in enumerate(arrays):
            self.must_be(array, size, (number & 0x3F) * 0x01010101 * 4 & 0xFFFFFFFF)
        return {"seconds": time.perf_counter() - began}


def main():
    name, *numbers = sys.argv[1:]
    worker = Worker()
    work = {"add": worker.adding, "there-and-back": worker.there_and_back, "stencil": worker.stencil, "pages": worker.pages, "attached": worker.attached,
            "prefetched": worker.prefetched, "beyond": worker.beyond}[name]
    print(json.dumps(work(*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
