"""CuPy: kernels of its own, cuBLAS, cuFFT, cuSOLVER, cuRAND, pools and pinned memory."""

import cupy
import numpy
from digest import show


@cupy.fuse
def length(u, v):
    return cupy.sqrt(u * u + v * v)


generator = cupy.random.default_rng(6)
a = generator.random((256, 256))
show("random", a.get())
show("product", (a @ a).get())
show("single", (a.astype(cupy.float32) @ a.astype(cupy.float32)).get())
show("fft", cupy.fft.fft2(a).get())
show("solve", cupy.linalg.solve(a + 256 * cupy.eye(256), cupy.ones(256)).get())
show("svd", cupy.linalg.svd(a, compute_uv=False).get())
show("cholesky", cupy.linalg.cholesky(a @ a.T + 256 * cupy.eye(256)).get())
show("sorted", cupy.sort(a.ravel()).get())
show("normal", cupy.random.RandomState(7).standard_normal(1000).get())
kernel = cupy.RawKernel(
    'extern "C" __global__ void scale(double *x, double f, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= f; }',
    "scale")
x = cupy.arange(1000, dtype=cupy.float64)
kernel((4,), (256,), (x, 1.5, numpy.int32(1000)))
show("raw", x.get())
show("fused", length(x, x).get())
cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
show("pool", (cupy.ones(1 << 20) + 1).get())
stream = cupy.cuda.Stream(non_blocking=True)
pinned = cupy.cuda.alloc_pinned_memory(8000)
host = numpy.frombuffer(pinned, numpy.float64, 1000)
host[...] = numpy.arange(1000)
with stream:
    moved = cupy.empty(1000)
    moved.set(host, stream=stream)
    moved += 1
stream.synchronize()
show("pinned", moved.get())
