// A mistake: writes to an address that is nobody's.
extern "C" __global__ void stray(unsigned long long *where) {
    *where = threadIdx.x;
}
