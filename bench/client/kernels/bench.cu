// The kernels of the benchmark.

// Keeps one multiprocessor's share busy for a number of its clock cycles.
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

// Nothing: what is left is the cost of a launch.
extern "C" __global__ void empty() {}
