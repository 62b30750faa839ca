"""Libraries called on threads that have no context yet, as OpenMP's threads call them: cuBLAS and cuRAND. cuFFT refuses such threads natively, too."""

import ctypes
import threading

import torch
from digest import show

COUNT = 512
ADDRESS, DOUBLE = ctypes.c_void_p, ctypes.c_double
DEFAULT_GENERATOR = 100


def loaded(name):
    """A library that PyTorch has loaded, of whatever version."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if f"/{name}.so" in line}
    return ctypes.CDLL(sorted(paths)[0])


def must(call, *arguments):
    if code := call(*arguments):
        raise SystemExit(f"{call.__name__} was refused: {code}")


def apart(work):
    """Does it on a thread of its own, which nothing was called on before."""
    failed = []

    def body():
        try:
            work()
        except SystemExit as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def here(work):
    work()


torch.manual_seed(5)
a = torch.rand(COUNT, COUNT, dtype=torch.float64, device="cuda")
x = torch.rand(COUNT, dtype=torch.float64, device="cuda")
# They are loaded by their first use.
a @ a, torch.rand(8, device="cuda")
blas, random = loaded("libcublas"), loaded("libcurand")
one, zero = DOUBLE(1), DOUBLE(0)
# Handles that the main thread makes, and such as their users make.
for name, make in (("main", here), ("own", apart)):
    product, vector = torch.zeros_like(a), torch.zeros_like(x)
    numbers = torch.zeros_like(x)
    handle, generator = ADDRESS(), ADDRESS()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    make(lambda: must(blas.cublasCreate_v2, ctypes.byref(handle)))
    make(lambda: must(random.curandCreateGenerator, ctypes.byref(generator), DEFAULT_GENERATOR))
    apart(lambda: must(blas.cublasSetStream_v2, handle, ADDRESS(stream.cuda_stream)))
    apart(lambda: must(blas.cublasDgemv_v2,
        handle, 0, COUNT, COUNT, ctypes.byref(one), ADDRESS(a.data_ptr()), COUNT, ADDRESS(x.data_ptr()), 1, ctypes.byref(zero),
        ADDRESS(vector.data_ptr()), 1))
    apart(lambda: must(blas.cublasDgemm_v2,
        handle, 0, 0, COUNT, COUNT, COUNT, ctypes.byref(one), ADDRESS(a.data_ptr()), COUNT, ADDRESS(a.data_ptr()), COUNT, ctypes.byref(zero),
        ADDRESS(product.data_ptr()), COUNT))
    apart(lambda: must(random.curandSetPseudoRandomGeneratorSeed, generator, ctypes.c_ulonglong(9)))
    apart(lambda: must(random.curandGenerateUniformDouble, generator, ADDRESS(numbers.data_ptr()), ctypes.c_size_t(COUNT)))
    torch.cuda.synchronize()
    for what, values in (("vector", vector), ("product", product), ("random", numbers)):
        if not values.abs().sum().item() > 0:
            raise SystemExit(f"{what}: nothing was computed")
        show(f"{name} {what}", values.cpu().numpy())
