// Tiled matrix product: static shared memory, barriers, a two-dimensional grid.
// nvcc-flags: -compress-mode=speed
#include "check.h"

constexpr int kTile = 16;

// c (rows x columns) = a (rows x inner) * b (inner x columns), row-major; every size is a multiple of the tile.
__global__ void matrix_product(const float *a, const float *b, float *c, int inner, int columns) {
    __shared__ float tile_a[kTile][kTile];
    __shared__ float tile_b[kTile][kTile];
    int row = blockIdx.y * kTile + threadIdx.y;
    int column = blockIdx.x * kTile + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < inner; start += kTile) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * inner + start + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(start + threadIdx.y) * columns + column];
        __syncthreads();
        for (int k = 0; k < kTile; ++k) {
            sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        }
        __syncthreads();
    }
    c[row * columns + column] = sum;
}

int main() {
    constexpr int kRows = 96, kInner = 80, kColumns = 112;
    Random random(2);
    std::vector<float> a(kRows * kInner), b(kInner * kColumns), expected(kRows * kColumns, 0.0f);
    for (float &value : a) {
        value = random.below<float>(64) - 32.0f;
    }
    for (float &value : b) {
        value = random.below<float>(64) - 32.0f;
    }
    for (int row = 0; row < kRows; ++row) {
        for (int k = 0; k < kInner; ++k) {
            for (int column = 0; column < kColumns; ++column) {
                expected[row * kColumns + column] += a[row * kInner + k] * b[k * kColumns + column];
            }
        }
    }
    DeviceArray<float> device_a(a), device_b(b), device_c(kRows * kColumns);
    matrix_product<<<dim3(kColumns / kTile, kRows / kTile), dim3(kTile, kTile)>>>(device_a.get(), device_b.get(),
                                                                                  device_c.get(), kInner, kColumns);
    CHECK(cudaGetLastError());

    std::vector<float> c = device_c.to_host();
    require_equal(c, expected, "product");
    Checksum checksum;
    checksum.add(c);
    return report_ok("matrix_product", checksum);
}
