// Calls on the device: functions that are not inlined, recursion, function pointers, virtual functions, local arrays.
#include "check.h"

__device__ __noinline__ int gcd(int a, int b) { return b == 0 ? a : gcd(b, a % b); }

__device__ __noinline__ int ackermann_like(int depth, int value) {
    int saved[4];
    for (int i = 0; i < 4; ++i) {
        saved[i] = value * (i + 1);
    }
    if (depth == 0) {
        return value;
    }
    int result = ackermann_like(depth - 1, saved[depth % 4] % 1009);
    return result + saved[(depth + 1) % 4] % 17;
}

typedef int (*Operation)(int, int);
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int subtract(int a, int b) { return a - b; }
__device__ __noinline__ int multiply(int a, int b) { return a * b; }
__device__ Operation operations[3] = {add, subtract, multiply};

struct Shape {
    __device__ virtual int area() const = 0;
};
struct Square : Shape {
    int side;
    __device__ explicit Square(int s) : side(s) {}
    __device__ int area() const override { return side * side; }
};
struct Rectangle : Shape {
    int width, height;
    __device__ Rectangle(int w, int h) : width(w), height(h) {}
    __device__ int area() const override { return width * height; }
};

__device__ __noinline__ int area_of(const Shape &shape) { return shape.area(); }

__global__ void call_all(const int *in, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) {
        return;
    }
    int value = in[i];
    Operation operation = operations[value % 3];
    Square square(value % 50);
    Rectangle rectangle(value % 50, value % 7);
    int area = value % 2 == 0 ? area_of(square) : area_of(rectangle);
    out[i] = gcd(value, 720720) + ackermann_like(value % 9, value) + operation(value, i) + area;
}

static int host_gcd(int a, int b) { return b == 0 ? a : host_gcd(b, a % b); }

static int host_ackermann_like(int depth, int value) {
    if (depth == 0) {
        return value;
    }
    int result = host_ackermann_like(depth - 1, value * (depth % 4 + 1) % 1009);
    return result + value * ((depth + 1) % 4 + 1) % 17;
}

int main() {
    constexpr int kCount = 3000;
    Random random(10);
    std::vector<int> in(kCount), expected(kCount);
    for (int i = 0; i < kCount; ++i) {
        int value = in[i] = random.below<int>(20000) + 1;
        int results[3] = {value + i, value - i, value * i};
        int area = value % 2 == 0 ? (value % 50) * (value % 50) : (value % 50) * (value % 7);
        expected[i] = host_gcd(value, 720720) + host_ackermann_like(value % 9, value) + results[value % 3] + area;
    }
    DeviceArray<int> device_in(in), device_out(kCount);
    call_all<<<(kCount + 127) / 128, 128>>>(device_in.get(), device_out.get(), kCount);
    CHECK(cudaGetLastError());

    std::vector<int> out = device_out.to_host();
    require_equal(out, expected, "results of the calls");
    Checksum checksum;
    checksum.add(out);
    return report_ok("functions", checksum);
}
