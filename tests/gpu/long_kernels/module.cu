// What `beside` loads as a module of its own.
__device__ unsigned calls;

extern "C" __global__ void of_module(unsigned *out, unsigned question) {
    ++calls;
    *out = question ^ 0x5a5a5a5au;
}
