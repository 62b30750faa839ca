// Transpose of a ragged matrix through a padded shared tile; device code for two architectures in one image.
// nvcc-flags: -gencode arch=compute_80,code=compute_80
#include "check.h"

constexpr int kTile = 32;
constexpr int kRowsPerTurn = 8;

__global__ void transpose(const int *in, int *out, int rows, int columns) {
    __shared__ int tile[kTile][kTile + 1];
    int column = blockIdx.x * kTile + threadIdx.x;
    int row = blockIdx.y * kTile + threadIdx.y;
    for (int offset = 0; offset < kTile; offset += kRowsPerTurn) {
        if (row + offset < rows && column < columns) {
            tile[threadIdx.y + offset][threadIdx.x] = in[(row + offset) * columns + column];
        }
    }
    __syncthreads();
    column = blockIdx.y * kTile + threadIdx.x;
    row = blockIdx.x * kTile + threadIdx.y;
    for (int offset = 0; offset < kTile; offset += kRowsPerTurn) {
        if (row + offset < columns && column < rows) {
            out[(row + offset) * rows + column] = tile[threadIdx.x][threadIdx.y + offset];
        }
    }
}

int main() {
    constexpr int kRows = 301, kColumns = 219;
    Random random(6);
    std::vector<int> in(kRows * kColumns), expected(kRows * kColumns);
    for (int i = 0; i < kRows * kColumns; ++i) {
        in[i] = static_cast<int>(random.next());
        expected[(i % kColumns) * kRows + i / kColumns] = in[i];
    }
    DeviceArray<int> device_in(in), device_out(kRows * kColumns);
    dim3 grid((kColumns + kTile - 1) / kTile, (kRows + kTile - 1) / kTile);
    transpose<<<grid, dim3(kTile, kRowsPerTurn)>>>(device_in.get(), device_out.get(), kRows, kColumns);
    CHECK(cudaGetLastError());

    std::vector<int> out = device_out.to_host();
    require_equal(out, expected, "transposed");
    Checksum checksum;
    checksum.add(out);
    return report_ok("transpose", checksum);
}
