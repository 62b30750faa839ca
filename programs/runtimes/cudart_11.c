/* What the compiler of CUDA 13 asks of its runtime library and that of CUDA 11.8 does not have: handles of kernels. There a kernel is named
 * by its function on the host. */
#include <stddef.h>

struct Dimensions {
    unsigned x, y, z;
};

int cudaLaunchKernel(const void *function, struct Dimensions grid, struct Dimensions block, void **arguments,
                     size_t shared_bytes, void *stream);

int __cudaGetKernel(const void **kernel, const void *function) {
    *kernel = function;
    return 0;
}

int __cudaLaunchKernel(const void *kernel, struct Dimensions grid, struct Dimensions block, void **arguments,
                       size_t shared_bytes, void *stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

int cudaLaunchKernel_ptsz(const void *function, struct Dimensions grid, struct Dimensions block, void **arguments,
                          size_t shared_bytes, void *stream);

/* With `--default-stream per-thread`. */
int __cudaLaunchKernel_ptsz(const void *kernel, struct Dimensions grid, struct Dimensions block, void **arguments,
                            size_t shared_bytes, void *stream) {
    return cudaLaunchKernel_ptsz(kernel, grid, block, arguments, shared_bytes, stream);
}
