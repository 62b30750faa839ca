// What the threads of a block do together: reductions, scans, sorts, stencils, products, histograms.
#include "suite.h"

#include <algorithm>
#include <numeric>

static std::vector<uint32_t> random_words(size_t count, uint32_t seed, uint32_t bound = 0) {
    Random random(seed);
    std::vector<uint32_t> words(count);
    for (uint32_t &word : words) {
        word = bound == 0 ? random.next() : random.below<uint32_t>(bound);
    }
    return words;
}

// ---- Reductions ----

__global__ void tree_sum(const uint32_t *in, uint32_t *out) {
    __shared__ uint32_t sums[256];
    unsigned thread = threadIdx.x;
    sums[thread] = in[blockIdx.x * 256 + thread];
    __syncthreads();
    for (unsigned half = 128; half > 0; half /= 2) {
        if (thread < half) {
            sums[thread] += sums[thread + half];
        }
        __syncthreads();
    }
    if (thread == 0) {
        out[blockIdx.x] = sums[0];
    }
}
CASE(tree_sum) {
    const std::vector<uint32_t> in = random_words(256 * 6, 1);
    std::vector<uint32_t> expected;
    for (int block = 0; block < 6; ++block) {
        expected.push_back(std::accumulate(in.begin() + 256 * block, in.begin() + 256 * (block + 1), 0u));
    }
    DeviceArray<uint32_t> device_in(in), out(6);
    suite::launch(tree_sum, 6, 256, device_in.get(), out.get());
    suite::compare(out, expected);
}

// The position of the largest number, the first of equals, by a tree over pairs.
__global__ void arg_max(const int *in, int count, int *position) {
    __shared__ int values[128], positions[128];
    int best = INT32_MIN, at = -1;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
        if (in[i] > best) {
            best = in[i];
            at = i;
        }
    }
    values[threadIdx.x] = best;
    positions[threadIdx.x] = at;
    for (unsigned half = blockDim.x / 2; half > 0; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half) {
            int other = values[threadIdx.x + half], where = positions[threadIdx.x + half];
            if (other > values[threadIdx.x] ||
                (other == values[threadIdx.x] && where >= 0 && where < positions[threadIdx.x])) {
                values[threadIdx.x] = other;
                positions[threadIdx.x] = where;
            }
        }
    }
    if (threadIdx.x == 0) {
        *position = positions[0];
    }
}
CASE(arg_max) {
    std::vector<int> in;
    for (uint32_t word : random_words(3001, 2, 500)) {
        in.push_back(static_cast<int>(word) - 250);
    }
    DeviceArray<int> device_in(in), out(1);
    suite::launch(arg_max, 1, 128, device_in.get(), static_cast<int>(in.size()), out.get());
    suite::compare(out, {static_cast<int>(std::max_element(in.begin(), in.end()) - in.begin())});
}

// Sums that must be taken in one order: pairwise in single precision, as the host does it.
__global__ void pairwise_sum(const float *in, float *out) {
    extern __shared__ float sums[];
    sums[threadIdx.x] = in[threadIdx.x];
    for (unsigned step = 1; step < blockDim.x; step *= 2) {
        __syncthreads();
        if (threadIdx.x % (2 * step) == 0) {
            sums[threadIdx.x] += sums[threadIdx.x + step];
        }
    }
    if (threadIdx.x == 0) {
        *out = sums[0];
    }
}
CASE(pairwise_sum) {
    std::vector<float> in;
    for (uint32_t word : random_words(512, 3)) {
        in.push_back(static_cast<float>(word) * 1e-7f);
    }
    std::vector<float> sums = in;
    for (size_t step = 1; step < 512; step *= 2) {
        for (size_t i = 0; i < 512; i += 2 * step) {
            sums[i] += sums[i + step];
        }
    }
    DeviceArray<float> device_in(in), out(1);
    suite::launch_shared(pairwise_sum, 1, 512, 512 * sizeof(float), device_in.get(), out.get());
    suite::compare(out, {sums[0]});
}

// ---- Scans ----

__global__ void work_efficient_scan(const int *in, int *out, int *total) {
    __shared__ int tree[512];
    int thread = threadIdx.x;
    tree[2 * thread] = in[2 * thread];
    tree[2 * thread + 1] = in[2 * thread + 1];
    int offset = 1;
    for (int active = 256; active > 0; active >>= 1, offset *= 2) {
        __syncthreads();
        if (thread < active) {
            tree[offset * (2 * thread + 2) - 1] += tree[offset * (2 * thread + 1) - 1];
        }
    }
    if (thread == 0) {
        *total = tree[511];
        tree[511] = 0;
    }
    for (int active = 1; active < 512; active *= 2) {
        offset >>= 1;
        __syncthreads();
        if (thread < active) {
            int low = offset * (2 * thread + 1) - 1, high = offset * (2 * thread + 2) - 1, kept = tree[low];
            tree[low] = tree[high];
            tree[high] += kept;
        }
    }
    __syncthreads();
    out[2 * thread] = tree[2 * thread];
    out[2 * thread + 1] = tree[2 * thread + 1];
}
CASE(work_efficient_scan) {
    std::vector<int> in, expected;
    int sum = 0;
    for (uint32_t word : random_words(512, 4, 1000)) {
        in.push_back(static_cast<int>(word) - 300);
        expected.push_back(sum);
        sum += in.back();
    }
    DeviceArray<int> device_in(in), out(512), total(1);
    suite::launch(work_efficient_scan, 1, 256, device_in.get(), out.get(), total.get());
    suite::compare(out, expected);
    suite::compare(total, {sum});
}

// Keeps the even numbers in order: a scan over warps and over their sums, then a scatter.
__global__ void stream_compaction(const uint32_t *in, uint32_t *out, unsigned *kept) {
    __shared__ unsigned warp_sums[8];
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t value = in[threadIdx.x];
    bool keep = value % 2 == 0;
    unsigned votes = __ballot_sync(0xffffffffu, keep), before = __popc(votes & ((1u << lane) - 1));
    if (lane == 0) {
        warp_sums[warp] = __popc(votes);
    }
    __syncthreads();
    unsigned base = 0, all = 0;
    for (unsigned i = 0; i < 8; ++i) {
        base += i < warp ? warp_sums[i] : 0;
        all += warp_sums[i];
    }
    if (keep) {
        out[base + before] = value;
    }
    if (threadIdx.x == 0) {
        *kept = all;
    }
}
CASE(stream_compaction) {
    const std::vector<uint32_t> in = random_words(256, 5);
    std::vector<uint32_t> expected;
    std::copy_if(in.begin(), in.end(), std::back_inserter(expected), [](uint32_t x) { return x % 2 == 0; });
    unsigned kept = static_cast<unsigned>(expected.size());
    expected.resize(256, 0);
    DeviceArray<uint32_t> device_in(in), out(256), count(1);
    CHECK(cudaMemset(out.get(), 0, out.size_bytes()));
    suite::launch(stream_compaction, 1, 256, device_in.get(), out.get(), count.get());
    suite::compare(out, expected);
    suite::compare(count, {kept});
}

// ---- Sorts ----

template <typename T> __device__ void bitonic_sort(T *data) {
    __shared__ T values[512];
    unsigned i = threadIdx.x;
    values[i] = data[i];
    for (unsigned size = 2; size <= blockDim.x; size *= 2) {
        for (unsigned stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            unsigned partner = i ^ stride;
            if (partner > i) {
                bool ascending = (i & size) == 0;
                T left = values[i], right = values[partner];
                if ((left > right) == ascending) {
                    values[i] = right;
                    values[partner] = left;
                }
            }
        }
    }
    __syncthreads();
    data[i] = values[i];
}
__global__ void bitonic_sort_u32(uint32_t *data) { bitonic_sort(data); }
__global__ void bitonic_sort_f64(double *data) { bitonic_sort(data); }
template <typename T> static void run_sort(void (*kernel)(T *), std::vector<T> values, int threads) {
    DeviceArray<T> data(values);
    suite::launch(kernel, 1, threads, data.get());
    std::sort(values.begin(), values.end());
    suite::compare(data, values);
}
CASE(bitonic_sort_u32) { run_sort(bitonic_sort_u32, random_words(512, 6), 512); }
CASE(bitonic_sort_f64) {
    std::vector<double> values;
    for (uint32_t word : random_words(512, 7)) {
        values.push_back((static_cast<double>(word) - 2e9) * 1e-3);
    }
    run_sort(bitonic_sort_f64, values, 512);
}

// Four bits at a time: counts per digit, their scan, and a stable scatter.
__global__ void radix_sort(uint32_t *data) {
    constexpr unsigned kThreads = 128;
    __shared__ uint32_t values[kThreads], next[kThreads];
    __shared__ unsigned counts[16][kThreads], bases[16];
    values[threadIdx.x] = data[threadIdx.x];
    for (unsigned shift = 0; shift < 32; shift += 4) {
        unsigned digit = values[threadIdx.x] >> shift & 15;
        for (unsigned d = 0; d < 16; ++d) {
            counts[d][threadIdx.x] = d == digit;
        }
        __syncthreads();
        if (threadIdx.x < 16) {
            unsigned sum = 0;
            for (unsigned i = 0; i < kThreads; ++i) {
                unsigned count = counts[threadIdx.x][i];
                counts[threadIdx.x][i] = sum;
                sum += count;
            }
            bases[threadIdx.x] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned sum = 0;
            for (unsigned d = 0; d < 16; ++d) {
                unsigned count = bases[d];
                bases[d] = sum;
                sum += count;
            }
        }
        __syncthreads();
        next[bases[digit] + counts[digit][threadIdx.x]] = values[threadIdx.x];
        __syncthreads();
        values[threadIdx.x] = next[threadIdx.x];
        __syncthreads();
    }
    data[threadIdx.x] = values[threadIdx.x];
}
CASE(radix_sort) { run_sort(radix_sort, random_words(128, 8), 128); }

// Odd-even transposition over shorts, many barriers.
__global__ void transposition_sort(int16_t *data) {
    __shared__ int16_t values[100];
    if (threadIdx.x < 100) {
        values[threadIdx.x] = data[threadIdx.x];
    }
    for (int round = 0; round < 100; ++round) {
        __syncthreads();
        int left = 2 * threadIdx.x + round % 2;
        if (left + 1 < 100 && values[left] > values[left + 1]) {
            int16_t kept = values[left];
            values[left] = values[left + 1];
            values[left + 1] = kept;
        }
    }
    __syncthreads();
    if (threadIdx.x < 100) {
        data[threadIdx.x] = values[threadIdx.x];
    }
}
CASE(transposition_sort) {
    std::vector<int16_t> values;
    for (uint32_t word : random_words(100, 9)) {
        values.push_back(static_cast<int16_t>(word));
    }
    run_sort(transposition_sort, values, 128);
}

// Each thread finds its place in the merged sequence by binary search.
__global__ void merge_paths(const int *a, const int *b, int count, int *out) {
    int i = threadIdx.x;
    if (i < count) {
        int low = 0, high = count;
        while (low < high) {
            int middle = (low + high) / 2;
            if (b[middle] < a[i]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        out[i + low] = a[i];
        low = 0, high = count;
        while (low < high) {
            int middle = (low + high) / 2;
            if (a[middle] <= b[i]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        out[i + low] = b[i];
    }
}
CASE(merge_paths) {
    constexpr int kCount = 200;
    std::vector<int> a, b, expected;
    for (uint32_t word : random_words(kCount, 10, 300)) {
        a.push_back(static_cast<int>(word));
        b.push_back(static_cast<int>(word * 7 % 311));
    }
    std::sort(a.begin(), a.end());
    std::sort(b.begin(), b.end());
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
    DeviceArray<int> device_a(a), device_b(b), out(2 * kCount);
    suite::launch(merge_paths, 1, 256, device_a.get(), device_b.get(), kCount, out.get());
    suite::compare(out, expected);
}

// ---- Grids of numbers ----

constexpr int kSide = 48;
// A 5-point stencil with a halo in shared memory.
__global__ void stencil_2d(const float *in, float *out) {
    __shared__ float tile[18][18];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    auto at = [&](int x, int y) { return x < 0 || y < 0 || x >= kSide || y >= kSide ? 0.0f : in[y * kSide + x]; };
    tile[threadIdx.y + 1][threadIdx.x + 1] = at(x, y);
    if (threadIdx.x == 0) {
        tile[threadIdx.y + 1][0] = at(x - 1, y);
        tile[threadIdx.y + 1][17] = at(x + 16, y);
    }
    if (threadIdx.y == 0) {
        tile[0][threadIdx.x + 1] = at(x, y - 1);
        tile[17][threadIdx.x + 1] = at(x, y + 16);
    }
    __syncthreads();
    int i = threadIdx.x + 1, j = threadIdx.y + 1;
    out[y * kSide + x] =
        0.5f * tile[j][i] + 0.125f * (tile[j - 1][i] + tile[j + 1][i] + tile[j][i - 1] + tile[j][i + 1]);
}
CASE(stencil_2d) {
    std::vector<float> in, expected;
    for (uint32_t word : random_words(kSide * kSide, 11, 4096)) {
        in.push_back(static_cast<float>(word) / 7);
    }
    auto at = [&](int x, int y) { return x < 0 || y < 0 || x >= kSide || y >= kSide ? 0.0f : in[y * kSide + x]; };
    for (int y = 0; y < kSide; ++y) {
        for (int x = 0; x < kSide; ++x) {
            expected.push_back(0.5f * at(x, y) + 0.125f * (at(x, y - 1) + at(x, y + 1) + at(x - 1, y) + at(x + 1, y)));
        }
    }
    DeviceArray<float> device_in(in), out(kSide * kSide);
    suite::launch(stencil_2d, dim3(3, 3), dim3(16, 16), device_in.get(), out.get());
    suite::compare(out, expected);
}

__constant__ float filter[7] = {0.0625f, 0.125f, 0.1875f, 0.25f, 0.1875f, 0.125f, 0.0625f};
__global__ void convolution_rows(const float *in, float *out, int width) {
    extern __shared__ float row[];
    for (int x = threadIdx.x; x < width + 6; x += blockDim.x) {
        int from = x - 3;
        row[x] = from < 0 || from >= width ? 0.0f : in[blockIdx.x * width + from];
    }
    __syncthreads();
    for (int x = threadIdx.x; x < width; x += blockDim.x) {
        float sum = 0;
        for (int tap = 0; tap < 7; ++tap) {
            sum += filter[tap] * row[x + tap];
        }
        out[blockIdx.x * width + x] = sum;
    }
}
CASE(convolution_rows) {
    constexpr int kWidth = 100, kHeight = 9;
    const float taps[7] = {0.0625f, 0.125f, 0.1875f, 0.25f, 0.1875f, 0.125f, 0.0625f};
    std::vector<float> in, expected;
    for (uint32_t word : random_words(kWidth * kHeight, 12, 999)) {
        in.push_back(static_cast<float>(word) / 3);
    }
    for (int y = 0; y < kHeight; ++y) {
        for (int x = 0; x < kWidth; ++x) {
            float sum = 0;
            for (int tap = 0; tap < 7; ++tap) {
                int from = x + tap - 3;
                sum += taps[tap] * (from < 0 || from >= kWidth ? 0.0f : in[y * kWidth + from]);
            }
            expected.push_back(sum);
        }
    }
    DeviceArray<float> device_in(in), out(kWidth * kHeight);
    suite::launch_shared(convolution_rows, kHeight, 64, (kWidth + 6) * sizeof(float), device_in.get(), out.get(),
                         kWidth);
    suite::compare(out, expected);
}

// C = A * B in tiles, each product kept in registers: rectangular, in double precision.
__global__ void tiled_product(const double *a, const double *b, double *c, int rows, int inner, int columns) {
    __shared__ double tile_a[8][9], tile_b[8][9];
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    double sum = 0;
    for (int base = 0; base < inner; base += 8) {
        int k = base + threadIdx.x, l = base + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < rows && k < inner ? a[row * inner + k] : 0.0;
        tile_b[threadIdx.y][threadIdx.x] = l < inner && column < columns ? b[l * columns + column] : 0.0;
        __syncthreads();
        for (int i = 0; i < 8; ++i) {
            sum = fma(tile_a[threadIdx.y][i], tile_b[i][threadIdx.x], sum);
        }
        __syncthreads();
    }
    if (row < rows && column < columns) {
        c[row * columns + column] = sum;
    }
}
CASE(tiled_product) {
    constexpr int kRows = 37, kInner = 29, kColumns = 41;
    std::vector<double> a, b, expected;
    for (uint32_t word : random_words(kRows * kInner, 13)) {
        a.push_back(word * 1e-6);
    }
    for (uint32_t word : random_words(kInner * kColumns, 14)) {
        b.push_back(word * -1e-6);
    }
    for (int row = 0; row < kRows; ++row) {
        for (int column = 0; column < kColumns; ++column) {
            double sum = 0;
            for (int k = 0; k < kInner; ++k) {
                sum = std::fma(a[row * kInner + k], b[k * kColumns + column], sum);
            }
            expected.push_back(sum);
        }
    }
    DeviceArray<double> device_a(a), device_b(b), c(expected.size());
    suite::launch(tiled_product, dim3(6, 5), dim3(8, 8), device_a.get(), device_b.get(), c.get(), kRows, kInner,
                  kColumns);
    suite::compare(c, expected);
}

// One count per warp and bin, 16 bits each, then their sums.
__global__ void histogram_private(const uint32_t *in, int count, uint32_t *bins) {
    __shared__ uint16_t counts[4][64];
    for (int i = threadIdx.x; i < 4 * 64; i += blockDim.x) {
        (&counts[0][0])[i] = 0;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        for (int i = threadIdx.x / 32; i < count; i += 4) {
            ++counts[threadIdx.x / 32][in[i] % 64];
        }
    }
    __syncthreads();
    if (threadIdx.x < 64) {
        bins[threadIdx.x] =
            counts[0][threadIdx.x] + counts[1][threadIdx.x] + counts[2][threadIdx.x] + counts[3][threadIdx.x];
    }
}
CASE(histogram_private) {
    const std::vector<uint32_t> in = random_words(2000, 15);
    std::vector<uint32_t> expected(64, 0);
    for (uint32_t word : in) {
        ++expected[word % 64];
    }
    DeviceArray<uint32_t> device_in(in), bins(64);
    suite::launch(histogram_private, 1, 128, device_in.get(), static_cast<int>(in.size()), bins.get());
    suite::compare(bins, expected);
}

// A matrix turned in place by a block, padding against bank conflicts.
__global__ void transpose_in_place(int *data) {
    __shared__ int tile[32][33];
    for (int row = threadIdx.y; row < 32; row += blockDim.y) {
        tile[row][threadIdx.x] = data[row * 32 + threadIdx.x];
    }
    __syncthreads();
    for (int row = threadIdx.y; row < 32; row += blockDim.y) {
        data[row * 32 + threadIdx.x] = tile[threadIdx.x][row];
    }
}
CASE(transpose_in_place) {
    std::vector<int> data(1024), expected(1024);
    std::iota(data.begin(), data.end(), 5);
    for (int i = 0; i < 1024; ++i) {
        expected[i % 32 * 32 + i / 32] = data[i];
    }
    DeviceArray<int> device(data);
    suite::launch(transpose_in_place, 1, dim3(32, 8), device.get());
    suite::compare(device, expected);
}

SUITE_MAIN("blocks")
