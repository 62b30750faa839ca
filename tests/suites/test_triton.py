"""Kernels that Triton compiles to PTX: loaded and launched through the driver API, compared with NumPy.

Triton compiles for a named target without a device; its PTX then runs on whatever device there is. Each test compiles
one kernel as a program would, hands the text to cuModuleLoadData, and checks what the kernel wrote.
"""

import ctypes
import unittest

import numpy as np
import triton
import triton.language as tl
from cuda.bindings import driver
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

WARP_SIZE = 32


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=-float("inf"))
    weights = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + offsets, weights / tl.sum(weights, axis=0), mask=mask)


@triton.jit
def matmul(a, b, out, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        right = tl.load(b + inner[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(out + rows[:, None] * n + columns[None, :], total)


@triton.jit
def layer_norm(x, gain, out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(mask, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    result = centred * scale * tl.load(gain + offsets, mask=mask, other=0.0)
    tl.store(out + row * columns + offsets, result, mask=mask)


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(counts + tl.load(x + offsets, mask=mask, other=0), 1, mask=mask)


@triton.jit
def scan(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.cumsum(tl.load(x + offsets), axis=0))


@triton.jit
def sort(x, out, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.sort(tl.load(x + offsets)))


@triton.jit
def transpose(x, out, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + rows[:, None] * n + columns[None, :])
    tl.store(out + columns[:, None] * n + rows[None, :], tl.trans(tile))


@triton.jit
def dropout(x, out, n, seed, keep, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    kept = tl.rand(seed, offsets) < keep
    tl.store(out + offsets, tl.where(kept, tl.load(x + offsets, mask=mask) / keep, 0.0), mask=mask)


@triton.jit
def elementwise(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    v = tl.load(x + offsets, mask=mask, other=1.0)
    w = tl.sigmoid(v) * tl.sin(v) + tl.log(tl.abs(v) + 1.0) - tl.sqrt(tl.abs(v)) + tl.floor(v) + tl.cos(v * v)
    tl.store(out + offsets, w, mask=mask)


def check(result):
    """The values of a driver call that must succeed."""
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver answered {error}")
    return values[0] if len(values) == 1 else values


class Kernel:
    """A compiled kernel on the device."""

    def __init__(self, function, signature, constants, warps=4):
        types = {name: signature.get(name, "constexpr") for name in function.arg_names}
        source = ASTSource(fn=function, signature=types, constexprs={(function.arg_names.index(k),): v for k, v in constants.items()})
        compiled = triton.compile(source, target=GPUTarget("cuda", capability(), WARP_SIZE), options={"num_warps": warps})
        self.types = [types[name] for name in function.arg_names if types[name] != "constexpr"]
        self.metadata = compiled.metadata
        self.threads = compiled.metadata.num_warps * WARP_SIZE
        text = compiled.asm["ptx"].encode() + b"\0"
        self.module = check(driver.cuModuleLoadData(text))
        self.function = check(driver.cuModuleGetFunction(self.module, compiled.metadata.name.encode()))
        if self.metadata.shared > 48 * 1024:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(self.function, attribute, self.metadata.shared))

    def __call__(self, grid, *arguments):
        kinds = {"i32": ctypes.c_int32, "fp32": ctypes.c_float}
        values = [int(a) if t.startswith("*") else a for a, t in zip(arguments, self.types)]
        types = [ctypes.c_uint64 if t.startswith("*") else kinds[t] for t in self.types]
        # Behind its own parameters a kernel has pointers to scratch memory, which these need none of.
        values += [0, 0]
        types += [ctypes.c_uint64, ctypes.c_uint64]
        x, y = (*grid, 1)[:2]
        shape = (x, y, 1, self.threads, 1, 1)
        check(driver.cuLaunchKernel(self.function, *shape, self.metadata.shared, 0, (tuple(values), tuple(types)), 0))


def capability():
    """What to compile for: the device's own, in Triton's way of writing it."""
    device = check(driver.cuCtxGetDevice())
    names = driver.CUdevice_attribute
    major = check(driver.cuDeviceGetAttribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    minor = check(driver.cuDeviceGetAttribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
    return 10 * major + minor


def upload(array):
    memory = check(driver.cuMemAlloc(max(array.nbytes, 1)))
    check(driver.cuMemcpyHtoD(memory, array.ctypes.data, array.nbytes))
    return memory


def download(memory, like):
    array = np.empty_like(like)
    check(driver.cuMemcpyDtoH(array.ctypes.data, memory, array.nbytes))
    check(driver.cuMemFree(memory))
    return array


class TestTriton(unittest.TestCase):
    """Compiled for the device at hand; see the module's description."""

    @classmethod
    def setUpClass(cls):
        check(driver.cuInit(0))
        cls.device = check(driver.cuDeviceGet(0))
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(cls.device))))

    @classmethod
    def tearDownClass(cls):
        check(driver.cuDevicePrimaryCtxRelease(cls.device))

    def setUp(self):
        self.random = np.random.default_rng(11)

    def floats(self, *shape):
        return self.random.standard_normal(shape, dtype=np.float32)

    def run_kernel(self, function, signature, constants, grid, inputs, out, scalars=(), warps=4):
        kernel = Kernel(function, signature, constants, warps)
        memory = [upload(array) for array in inputs]
        result = upload(out)
        kernel(grid, *memory, result, *scalars)
        for address in memory:
            check(driver.cuMemFree(address))
        return download(result, out)

    def test_add(self):
        for dtype, kind in ((np.float32, "fp32"), (np.int32, "i32"), (np.float64, "fp64"), (np.float16, "fp16")):
            x, y = (self.floats(1000) * 100).astype(dtype), (self.floats(1000) * 100).astype(dtype)
            types = {"x": f"*{kind}", "y": f"*{kind}", "out": f"*{kind}", "n": "i32"}
            got = self.run_kernel(add, types, {"BLOCK": 256}, (4,), [x, y], np.zeros_like(x), [1000])
            np.testing.assert_array_equal(got, x + y)

    def test_softmax(self):
        x = self.floats(37, 200)
        types = {"x": "*fp32", "out": "*fp32", "columns": "i32"}
        for warps in (1, 8):
            got = self.run_kernel(softmax, types, {"BLOCK": 256}, (37,), [x], np.zeros_like(x), [200], warps)
            weights = np.exp(x - x.max(axis=1, keepdims=True))
            np.testing.assert_allclose(got, weights / weights.sum(axis=1, keepdims=True), rtol=1e-5)

    def matmul_of(self, dtype, kind, rtol):
        n = 128
        a, b = self.floats(n, n).astype(dtype), self.floats(n, n).astype(dtype)
        types = {"a": f"*{kind}", "b": f"*{kind}", "out": "*fp32", "n": "i32"}
        out = np.zeros((n, n), dtype=np.float32)
        got = self.run_kernel(matmul, types, {"BLOCK": 32}, (n // 32, n // 32), [a, b], out, [n])
        np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), rtol=rtol, atol=rtol * n)

    def test_matmul_half(self):
        self.matmul_of(np.float16, "fp16", 1e-4)

    def test_matmul_tf32(self):
        self.matmul_of(np.float32, "fp32", 2e-3)

    def test_layer_norm(self):
        x, gain = self.floats(19, 500), self.floats(500)
        types = {"x": "*fp32", "gain": "*fp32", "out": "*fp32", "columns": "i32", "epsilon": "fp32"}
        got = self.run_kernel(layer_norm, types, {"BLOCK": 512}, (19,), [x, gain], np.zeros_like(x), [500, 1e-5])
        expected = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5) * gain
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

    def test_histogram(self):
        x = self.random.integers(0, 50, 5000, dtype=np.int32)
        types = {"x": "*i32", "counts": "*i32", "n": "i32"}
        got = self.run_kernel(histogram, types, {"BLOCK": 512}, (10,), [x], np.zeros(50, dtype=np.int32), [5000])
        np.testing.assert_array_equal(got, np.bincount(x, minlength=50))

    def test_scan(self):
        x = self.random.integers(-100, 100, (6, 256), dtype=np.int32)
        got = self.run_kernel(scan, {"x": "*i32", "out": "*i32"}, {"BLOCK": 256}, (6,), [x], np.zeros_like(x))
        np.testing.assert_array_equal(got, np.cumsum(x, axis=1))

    def test_sort(self):
        x = self.floats(5, 128)
        got = self.run_kernel(sort, {"x": "*fp32", "out": "*fp32"}, {"BLOCK": 128}, (5,), [x], np.zeros_like(x))
        np.testing.assert_array_equal(got, np.sort(x, axis=1))

    def test_transpose(self):
        x = self.floats(128, 128)
        types = {"x": "*fp32", "out": "*fp32", "n": "i32"}
        got = self.run_kernel(transpose, types, {"BLOCK": 32}, (4, 4), [x], np.zeros_like(x), [128])
        np.testing.assert_array_equal(got, x.T)

    def test_dropout(self):
        x = np.ones(8192, dtype=np.float32)
        types = {"x": "*fp32", "out": "*fp32", "n": "i32", "seed": "i32", "keep": "fp32"}
        got = self.run_kernel(dropout, types, {"BLOCK": 1024}, (8,), [x], np.zeros_like(x), [8192, 77, 0.25])
        self.assertEqual(set(np.unique(got)), {0.0, 4.0})
        self.assertAlmostEqual(float((got > 0).mean()), 0.25, delta=0.02)

    def test_elementwise(self):
        x = self.floats(3000) * 3
        types = {"x": "*fp32", "out": "*fp32", "n": "i32"}
        got = self.run_kernel(elementwise, types, {"BLOCK": 1024}, (3,), [x], np.zeros_like(x), [3000])
        v = x.astype(np.float64)
        expected = np.sin(v) / (1 + np.exp(-v)) + np.log(np.abs(v) + 1) - np.sqrt(np.abs(v)) + np.floor(v) + np.cos(v * v)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
