// Module variables: constants and device variables, initialised, copied by symbol, addressed by symbol.
#include "check.h"

__constant__ int coefficients[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__constant__ double offset = 0.5;
__device__ int table[16] = {10, 20, 30, 40};
__device__ unsigned long long call_count;
__device__ int *table_pointer = &table[2]; // initialised with another variable's address

__global__ void evaluate(const int *in, double *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        int value = 0;
        for (int k = 7; k >= 0; --k) {
            value = value * (in[i] % 5) + coefficients[k];
        }
        out[i] = value + offset + table[i % 16] + table_pointer[0];
        atomicAdd(&call_count, 1ull);
    }
}

static std::vector<double> reference(const std::vector<int> &in, const int *constants, double addend, const int *row) {
    std::vector<double> out;
    for (size_t i = 0; i < in.size(); ++i) {
        int value = 0;
        for (int k = 7; k >= 0; --k) {
            value = value * (in[i] % 5) + constants[k];
        }
        out.push_back(value + addend + row[i % 16] + row[2]);
    }
    return out;
}

int main() {
    constexpr int kCount = 5000, kBlock = 128, kGrid = (kCount + kBlock - 1) / kBlock;
    Random random(9);
    std::vector<int> in(kCount);
    for (int &value : in) {
        value = random.below<int>(1000);
    }
    int constants[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int row[16] = {10, 20, 30, 40};
    DeviceArray<int> device_in(in);
    DeviceArray<double> device_out(kCount);
    Checksum checksum;

    evaluate<<<kGrid, kBlock>>>(device_in.get(), device_out.get(), kCount);
    std::vector<double> out = device_out.to_host();
    require_equal(out, reference(in, constants, 0.5, row), "initial values");
    checksum.add(out);

    constants[3] = -11;
    double addend = 2.25;
    for (int i = 0; i < 16; ++i) {
        row[i] = i * i - 7;
    }
    CHECK(cudaMemcpyToSymbol(coefficients, constants, sizeof constants));
    CHECK(cudaMemcpyToSymbol(offset, &addend, sizeof addend));
    CHECK(cudaMemcpyToSymbol(table, row, 8 * sizeof(int)));
    CHECK(cudaMemcpyToSymbol(table, row + 8, 8 * sizeof(int), 8 * sizeof(int)));
    evaluate<<<kGrid, kBlock>>>(device_in.get(), device_out.get(), kCount);
    out = device_out.to_host();
    require_equal(out, reference(in, constants, addend, row), "copied values");
    checksum.add(out);

    unsigned long long calls = 0;
    CHECK(cudaMemcpyFromSymbol(&calls, call_count, sizeof calls));
    REQUIRE(calls == 2ull * kCount);
    size_t size_bytes = 0;
    CHECK(cudaGetSymbolSize(&size_bytes, table));
    REQUIRE(size_bytes == sizeof row);
    void *address = nullptr;
    CHECK(cudaGetSymbolAddress(&address, table));
    int fifth = 0;
    CHECK(cudaMemcpy(&fifth, static_cast<int *>(address) + 5, sizeof fifth, cudaMemcpyDeviceToHost));
    REQUIRE(fifth == row[5]);
    return report_ok("symbols", checksum);
}
