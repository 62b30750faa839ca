// c = a * b for square row-major matrices whose size is a multiple of the tile.
constexpr int kTile = 16;

extern "C" __global__ void matrix_product(const float *a, const float *b, float *c, int size) {
    __shared__ float tile_a[kTile][kTile];
    __shared__ float tile_b[kTile][kTile];
    int row = blockIdx.y * kTile + threadIdx.y;
    int column = blockIdx.x * kTile + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < size; start += kTile) {
        tile_a[threadIdx.y][threadIdx.x] = a[row * size + start + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(start + threadIdx.y) * size + column];
        __syncthreads();
        for (int k = 0; k < kTile; ++k) {
            sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        }
        __syncthreads();
    }
    c[row * size + column] = sum;
}
