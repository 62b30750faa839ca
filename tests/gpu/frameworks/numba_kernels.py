"""numba-cuda: kernels with shared memory, atomics, a stream and mapped memory."""

import numpy

# numba-cuda up to 0.30 asks for a name that numpy 2.4 no longer has.
if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack
from digest import show
from numba import cuda, float32


@cuda.jit
def scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@cuda.jit
def block_sums(x, out):
    partial = cuda.shared.array(256, float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    partial[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    step = 128
    while step > 0:
        if t < step:
            partial[t] += partial[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = partial[0]


@cuda.jit
def count(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)


host = numpy.arange(100_000, dtype=numpy.float32)
stream = cuda.stream()
x = cuda.to_device(host, stream=stream)
scale[400, 256, stream](x, numpy.float32(0.5))
sums = cuda.device_array(391, numpy.float32)
block_sums[391, 256, stream](x, sums)
show("scaled", x.copy_to_host(stream=stream))
show("sums", sums.copy_to_host())
bins = cuda.to_device(numpy.zeros(64, numpy.int32))
count[400, 256](cuda.to_device((numpy.arange(100_000) * 7 % 64).astype(numpy.int32)), bins)
show("bins", bins.copy_to_host())
mapped = cuda.mapped_array(1000, numpy.float32)
mapped[:] = 3
scale[4, 256](mapped, numpy.float32(2))
cuda.synchronize()
show("mapped", numpy.array(mapped))
