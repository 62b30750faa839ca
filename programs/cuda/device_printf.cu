// Output printed by kernels, in the order of the launches.
#include "check.h"

__global__ void greet(int launch, double value) {
    if (threadIdx.x == 31) {
        printf("launch %d: thread %u of block %u says %.3f, %s, %lld, 0x%08x, %c, %5.1f%%\n", launch, threadIdx.x,
               blockIdx.x, value, "a string", -1234567890123ll, 0xbeefu, 'x', 99.5f);
    }
}

int main() {
    for (int launch = 0; launch < 3; ++launch) {
        greet<<<1, 32>>>(launch, launch * 0.25);
    }
    CHECK(cudaDeviceSynchronize());
    Checksum checksum;
    return report_ok("device_printf", checksum);
}
