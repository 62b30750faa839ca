// Whole algorithms: fractals, automata, sparse and dense linear algebra, graphs, dynamic programming, bodies. The host
// runs the same steps, or checks what must hold.
#include "suite.h"

#include <algorithm>
#include <numeric>

// ---- Fractals and automata ----

template <typename T> __host__ __device__ inline uint32_t escape(T x, T y, uint32_t limit) {
    T real = 0, imaginary = 0;
    uint32_t steps = 0;
    while (steps < limit && real * real + imaginary * imaginary < T(4)) {
        T next = real * real - imaginary * imaginary + x;
        imaginary = T(2) * real * imaginary + y;
        real = next;
        ++steps;
    }
    return steps;
}
__global__ void mandelbrot(uint32_t *out, int side) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < side && y < side) {
        out[y * side + x] = escape(-2.0f + 3.0f * x / side, -1.5f + 3.0f * y / side, 100);
    }
}
CASE(mandelbrot) {
    constexpr int kSide = 70;
    std::vector<uint32_t> expected;
    for (int i = 0; i < kSide * kSide; ++i) {
        expected.push_back(escape(-2.0f + 3.0f * (i % kSide) / kSide, -1.5f + 3.0f * (i / kSide) / kSide, 100));
    }
    DeviceArray<uint32_t> out(expected.size());
    suite::launch(mandelbrot, dim3(9, 9), dim3(8, 8), out.get(), kSide);
    suite::compare(out, expected);
}
__host__ __device__ inline uint32_t julia(double x, double y) {
    uint32_t steps = 0;
    for (; steps < 60 && x * x + y * y < 4; ++steps) {
        double next = x * x - y * y - 0.8;
        y = 2 * x * y + 0.156;
        x = next;
    }
    return steps;
}
MAP_AB(julia_f64, uint32_t, int16_t, int16_t, julia(a / 20000.0, b / 20000.0))

// Conway's game on a torus, one byte per cell, many generations by launches.
__global__ void life(const uint8_t *cells, uint8_t *next, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) {
        int neighbours = 0;
        for (int dy = -1; dy <= 1; ++dy) {
            for (int dx = -1; dx <= 1; ++dx) {
                neighbours +=
                    dx == 0 && dy == 0 ? 0 : cells[(y + dy + height) % height * width + (x + dx + width) % width];
            }
        }
        next[y * width + x] = neighbours == 3 || (neighbours == 2 && cells[y * width + x]);
    }
}
CASE(life) {
    constexpr int kWidth = 40, kHeight = 30, kGenerations = 6;
    Random random(8);
    std::vector<uint8_t> cells(kWidth * kHeight), next(cells.size());
    for (uint8_t &cell : cells) {
        cell = random.below<uint8_t>(3) == 0;
    }
    DeviceArray<uint8_t> a(cells), b(cells.size());
    for (int generation = 0; generation < kGenerations; ++generation) {
        bool even = generation % 2 == 0;
        suite::launch(life, dim3(3, 4), dim3(16, 8), static_cast<const uint8_t *>(even ? a.get() : b.get()),
                      even ? b.get() : a.get(), kWidth, kHeight);
        for (int i = 0; i < kWidth * kHeight; ++i) {
            int neighbours = -cells[i];
            for (int d = 0; d < 9; ++d) {
                neighbours += cells[(i / kWidth + d / 3 - 1 + kHeight) % kHeight * kWidth +
                                    (i % kWidth + d % 3 - 1 + kWidth) % kWidth];
            }
            next[i] = neighbours == 3 || (neighbours == 2 && cells[i]);
        }
        cells.swap(next);
    }
    suite::compare(a, cells);
}
// Rule 110 on 64 cells in a register.
__host__ __device__ inline uint64_t rule_110(uint64_t cells) {
    for (int step = 0; step < 50; ++step) {
        uint64_t left = cells << 1 | cells >> 63, right = cells >> 1 | cells << 63;
        cells = (cells | right) & ~(left & cells & right);
    }
    return cells;
}
MAP1(automaton_110, uint64_t, uint64_t, rule_110(a))

// ---- Linear algebra ----

__global__ void spmv_rows(const int *starts, const int *columns, const double *values, const double *x, double *y,
                          int rows) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 8, lane = threadIdx.x % 8;
    double sum = 0;
    if (row < rows) {
        for (int i = starts[row] + lane; i < starts[row + 1]; i += 8) {
            sum += values[i] * x[columns[i]];
        }
    }
    for (int step = 4; step > 0; step /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, step, 8);
    }
    if (lane == 0 && row < rows) {
        y[row] = sum;
    }
}
CASE(spmv_rows) {
    constexpr int kRows = 90;
    Random random(12);
    std::vector<int> starts = {0}, columns;
    std::vector<double> values, x, expected;
    for (int row = 0; row < kRows; ++row) {
        x.push_back(random.below<double>(1000) - 500);
        for (int i = random.below<int>(30); i > 0; --i) {
            columns.push_back(random.below<int>(kRows));
            values.push_back(random.below<double>(64) - 32);
        }
        starts.push_back(static_cast<int>(columns.size()));
    }
    for (int row = 0; row < kRows; ++row) {
        double sum = 0;
        for (int i = starts[row]; i < starts[row + 1]; ++i) {
            sum += values[i] * x[columns[i]];
        }
        expected.push_back(sum);
    }
    DeviceArray<int> device_starts(starts), device_columns(columns);
    DeviceArray<double> device_values(values), device_x(x), y(kRows);
    suite::launch(spmv_rows, 6, 128, device_starts.get(), device_columns.get(), device_values.get(), device_x.get(),
                  y.get(), kRows);
    suite::compare(y, expected);
}

constexpr int kOrder = 24;
// LU decomposition without pivots, one thread per row.
__global__ void lu_decomposition(double *matrix) {
    int row = threadIdx.x;
    for (int k = 0; k < kOrder; ++k) {
        __syncthreads();
        if (row > k && row < kOrder) {
            double factor = matrix[row * kOrder + k] / matrix[k * kOrder + k];
            matrix[row * kOrder + k] = factor;
            for (int column = k + 1; column < kOrder; ++column) {
                matrix[row * kOrder + column] -= factor * matrix[k * kOrder + column];
            }
        }
    }
}
CASE(lu_decomposition) {
    Random random(13);
    std::vector<double> matrix(kOrder * kOrder);
    for (int i = 0; i < kOrder * kOrder; ++i) {
        matrix[i] = random.below<double>(1000) / 100 + (i % (kOrder + 1) == 0 ? 200 : 0);
    }
    DeviceArray<double> device(matrix);
    suite::launch(lu_decomposition, 1, 32, device.get());
    for (int k = 0; k < kOrder; ++k) {
        for (int row = k + 1; row < kOrder; ++row) {
            double factor = matrix[row * kOrder + k] /= matrix[k * kOrder + k];
            for (int column = k + 1; column < kOrder; ++column) {
                matrix[row * kOrder + column] -= factor * matrix[k * kOrder + column];
            }
        }
    }
    suite::compare(device, matrix);
}
__global__ void cholesky(float *matrix) {
    for (int k = 0; k < kOrder; ++k) {
        __syncthreads();
        if (threadIdx.x == 0) {
            matrix[k * kOrder + k] = sqrtf(matrix[k * kOrder + k]);
        }
        __syncthreads();
        int row = threadIdx.x;
        if (row > k && row < kOrder) {
            matrix[row * kOrder + k] /= matrix[k * kOrder + k];
        }
        __syncthreads();
        if (row > k && row < kOrder) {
            for (int column = k + 1; column <= row; ++column) {
                matrix[row * kOrder + column] -= matrix[row * kOrder + k] * matrix[column * kOrder + k];
            }
        }
    }
}
CASE(cholesky) {
    std::vector<float> matrix(kOrder * kOrder);
    for (int i = 0; i < kOrder * kOrder; ++i) {
        matrix[i] = 1.0f / (1 + i / kOrder + i % kOrder) + (i % (kOrder + 1) == 0 ? 3.0f : 0.0f);
    }
    DeviceArray<float> device(matrix);
    suite::launch(cholesky, 1, 32, device.get());
    for (int k = 0; k < kOrder; ++k) {
        matrix[k * kOrder + k] = std::sqrt(matrix[k * kOrder + k]);
        for (int row = k + 1; row < kOrder; ++row) {
            matrix[row * kOrder + k] /= matrix[k * kOrder + k];
        }
        for (int row = k + 1; row < kOrder; ++row) {
            for (int column = k + 1; column <= row; ++column) {
                matrix[row * kOrder + column] -= matrix[row * kOrder + k] * matrix[column * kOrder + k];
            }
        }
    }
    suite::compare(device, matrix);
}
// Conjugate gradients in one block; the residual must vanish.
__global__ void conjugate_gradients(const double *b, double *x, int *steps) {
    constexpr int kCount = 64;
    __shared__ double p[kCount], sums[kCount];
    int i = threadIdx.x;
    auto total = [&](double value) {
        __syncthreads();
        sums[i] = value;
        for (int half = kCount / 2; half > 0; half /= 2) {
            __syncthreads();
            if (i < half) {
                sums[i] += sums[i + half];
            }
        }
        __syncthreads();
        return sums[0];
    };
    double mine = 0, r = b[i];
    p[i] = r;
    double rr = total(r * r);
    int step = 0;
    for (; step < 200 && rr > 1e-20; ++step) {
        __syncthreads();
        double ap = 4 * p[i] - (i > 0 ? p[i - 1] : 0) - (i < kCount - 1 ? p[i + 1] : 0);
        double alpha = rr / total(p[i] * ap);
        mine += alpha * p[i];
        r -= alpha * ap;
        double next = total(r * r);
        __syncthreads();
        p[i] = r + next / rr * p[i];
        rr = next;
    }
    x[i] = mine;
    if (i == 0) {
        *steps = step;
    }
}
CASE(conjugate_gradients) {
    std::vector<double> b;
    for (int i = 0; i < 64; ++i) {
        b.push_back(i % 7 - 3);
    }
    DeviceArray<double> device_b(b), x(64);
    DeviceArray<int> steps(1);
    suite::launch(conjugate_gradients, 1, 64, device_b.get(), x.get(), steps.get());
    std::vector<double> got = x.to_host();
    for (int i = 0; i < 64; ++i) {
        double product = 4 * got[i] - (i > 0 ? got[i - 1] : 0) - (i < 63 ? got[i + 1] : 0);
        HOLDS(std::fabs(product - b[i]) < 1e-8);
    }
    HOLDS(steps.to_host()[0] > 3 && steps.to_host()[0] < 65);
}

// ---- Graphs and paths ----

constexpr int kNodes = 60;
static std::vector<int> random_graph(uint32_t seed) {
    Random random(seed);
    std::vector<int> weights(kNodes * kNodes, 1000000);
    for (int i = 0; i < kNodes * 4; ++i) {
        weights[random.below<int>(kNodes) * kNodes + random.below<int>(kNodes)] = 1 + random.below<int>(90);
    }
    return weights;
}
__global__ void floyd_warshall(int *distance, int k) {
    int from = blockIdx.x, to = threadIdx.x;
    if (to < kNodes) {
        distance[from * kNodes + to] =
            min(distance[from * kNodes + to], distance[from * kNodes + k] + distance[k * kNodes + to]);
    }
}
CASE(floyd_warshall) {
    std::vector<int> distance = random_graph(14);
    for (int i = 0; i < kNodes; ++i) {
        distance[i * kNodes + i] = 0;
    }
    DeviceArray<int> device(distance);
    for (int k = 0; k < kNodes; ++k) {
        suite::launch(floyd_warshall, kNodes, 64, device.get(), k);
        for (int from = 0; from < kNodes; ++from) {
            for (int to = 0; to < kNodes; ++to) {
                distance[from * kNodes + to] =
                    std::min(distance[from * kNodes + to], distance[from * kNodes + k] + distance[k * kNodes + to]);
            }
        }
    }
    suite::compare(device, distance);
}
// Breadth first, level by level, in one block.
__global__ void breadth_first(const int *weights, int *levels) {
    __shared__ int changed;
    int node = threadIdx.x;
    for (int level = 0;; ++level) {
        __syncthreads();
        changed = 0;
        __syncthreads();
        if (node < kNodes && levels[node] == level) {
            for (int to = 0; to < kNodes; ++to) {
                if (weights[node * kNodes + to] < 1000000 && atomicCAS(&levels[to], -1, level + 1) == -1) {
                    changed = 1;
                }
            }
        }
        __syncthreads();
        if (!changed) {
            break;
        }
    }
}
CASE(breadth_first) {
    const std::vector<int> weights = random_graph(15);
    std::vector<int> levels(kNodes, -1), queue = {0};
    levels[0] = 0;
    DeviceArray<int> device_weights(weights), device_levels(levels);
    for (size_t at = 0; at < queue.size(); ++at) {
        for (int to = 0; to < kNodes; ++to) {
            if (weights[queue[at] * kNodes + to] < 1000000 && levels[to] < 0) {
                levels[to] = levels[queue[at]] + 1;
                queue.push_back(to);
            }
        }
    }
    suite::launch(breadth_first, 1, 64, device_weights.get(), device_levels.get());
    suite::compare(device_levels, levels);
}
// Relaxation of every edge until nothing changes, atomically.
__global__ void bellman_ford(const int *weights, int *distance, int *changed) {
    int from = blockIdx.x, to = threadIdx.x;
    if (to < kNodes && distance[from] < 1000000 && weights[from * kNodes + to] < 1000000) {
        int through = distance[from] + weights[from * kNodes + to];
        if (atomicMin(&distance[to], through) > through) {
            *changed = 1;
        }
    }
}
CASE(bellman_ford) {
    const std::vector<int> weights = random_graph(16);
    std::vector<int> distance(kNodes, 1000000);
    distance[0] = 0;
    DeviceArray<int> device_weights(weights), device_distance(distance), changed(1);
    // A fixed number of launches, enough for any path: the program's line counts them.
    for (int round = 0; round < kNodes; ++round) {
        suite::launch(bellman_ford, kNodes, 64, device_weights.get(), device_distance.get(), changed.get());
        for (int from = 0; from < kNodes; ++from) {
            for (int to = 0; to < kNodes; ++to) {
                if (distance[from] < 1000000) {
                    distance[to] = std::min(distance[to], distance[from] + weights[from * kNodes + to]);
                }
            }
        }
    }
    suite::compare(device_distance, distance);
}
__global__ void pointer_jumping(int *next, int *rank, int count) {
    for (int step = 1; step < count; step *= 2) {
        int to = next[threadIdx.x], further = next[to], distance = rank[threadIdx.x] + rank[to];
        __syncthreads();
        next[threadIdx.x] = further;
        rank[threadIdx.x] = distance;
        __syncthreads();
    }
}
CASE(pointer_jumping) {
    std::vector<int> order(128), next(128), rank(128, 1), expected(128);
    std::iota(order.begin(), order.end(), 0);
    Random random(17);
    for (int i = 127; i > 0; --i) {
        std::swap(order[i], order[random.below<int>(i + 1)]);
    }
    for (int i = 0; i < 128; ++i) {
        next[order[i]] = order[i < 127 ? i + 1 : 127];
        expected[order[i]] = 127 - i;
    }
    rank[order[127]] = 0;
    DeviceArray<int> device_next(next), device_rank(rank);
    suite::launch(pointer_jumping, 1, 128, device_next.get(), device_rank.get(), 128);
    suite::compare(device_rank, expected);
}

// ---- Dynamic programming ----

// The longest common subsequence along anti-diagonals, one block.
__global__ void longest_common_subsequence(const char *a, const char *b, int length, int *out) {
    __shared__ int rows[3][129];
    int i = threadIdx.x;
    for (int r = 0; r < 3; ++r) {
        rows[r][i] = 0;
    }
    for (int diagonal = 2; diagonal <= 2 * length; ++diagonal) {
        __syncthreads();
        int j = diagonal - i, *now = rows[diagonal % 3];
        const int *last = rows[(diagonal + 2) % 3], *before = rows[(diagonal + 1) % 3];
        if (i >= 1 && i <= length && j >= 1 && j <= length) {
            now[i] = a[i - 1] == b[j - 1] ? before[i - 1] + 1 : max(last[i], last[i - 1]);
        } else if (i <= length) {
            now[i] = 0;
        }
    }
    __syncthreads();
    if (i == length) {
        *out = rows[2 * length % 3][length];
    }
}
CASE(longest_common_subsequence) {
    constexpr int kLength = 100;
    Random random(18);
    std::vector<char> a(kLength), b(kLength);
    std::vector<std::vector<int>> table(kLength + 1, std::vector<int>(kLength + 1, 0));
    for (int i = 0; i < kLength; ++i) {
        a[i] = static_cast<char>('a' + random.below<int>(4));
        b[i] = static_cast<char>('a' + random.below<int>(4));
    }
    for (int i = 1; i <= kLength; ++i) {
        for (int j = 1; j <= kLength; ++j) {
            table[i][j] = a[i - 1] == b[j - 1] ? table[i - 1][j - 1] + 1 : std::max(table[i - 1][j], table[i][j - 1]);
        }
    }
    DeviceArray<char> device_a(a), device_b(b);
    DeviceArray<int> out(1);
    suite::launch(longest_common_subsequence, 1, 128, device_a.get(), device_b.get(), kLength, out.get());
    suite::compare(out, {table[kLength][kLength]});
}
__global__ void knapsack(const int *weights, const int *values, int items, int capacity, int *best) {
    extern __shared__ int worth[];
    for (int i = threadIdx.x; i <= capacity; i += blockDim.x) {
        worth[i] = 0;
    }
    for (int item = 0; item < items; ++item) {
        __syncthreads();
        int kept[4], slot = 0;
        for (int i = threadIdx.x; i <= capacity; i += blockDim.x) {
            kept[slot++] = i >= weights[item] ? max(worth[i], worth[i - weights[item]] + values[item]) : worth[i];
        }
        __syncthreads();
        slot = 0;
        for (int i = threadIdx.x; i <= capacity; i += blockDim.x) {
            worth[i] = kept[slot++];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        *best = worth[capacity];
    }
}
CASE(knapsack) {
    constexpr int kItems = 25, kCapacity = 250;
    Random random(19);
    std::vector<int> weights, values, worth(kCapacity + 1, 0);
    for (int i = 0; i < kItems; ++i) {
        weights.push_back(5 + random.below<int>(40));
        values.push_back(1 + random.below<int>(100));
        for (int room = kCapacity; room >= weights[i]; --room) {
            worth[room] = std::max(worth[room], worth[room - weights[i]] + values[i]);
        }
    }
    DeviceArray<int> device_weights(weights), device_values(values), best(1);
    suite::launch_shared(knapsack, 1, 64, (kCapacity + 1) * sizeof(int), device_weights.get(), device_values.get(),
                         kItems, kCapacity, best.get());
    suite::compare(best, {worth[kCapacity]});
}
__host__ __device__ inline int edit_distance(uint64_t a, uint64_t b) {
    uint8_t row[17];
    for (int i = 0; i <= 16; ++i) {
        row[i] = static_cast<uint8_t>(i);
    }
    for (int i = 0; i < 16; ++i) {
        uint8_t diagonal = row[0];
        row[0] = static_cast<uint8_t>(i + 1);
        for (int j = 0; j < 16; ++j) {
            uint8_t above = row[j + 1],
                    replaced = static_cast<uint8_t>(diagonal + ((a >> (4 * i) & 3) != (b >> (4 * j) & 3)));
            uint8_t least = above < row[j] ? above : row[j];
            row[j + 1] = least + 1 < replaced ? static_cast<uint8_t>(least + 1) : replaced;
            diagonal = above;
        }
    }
    return row[16];
}
MAP2(edit_distances, int32_t, uint64_t, edit_distance(a, b))

// Bodies attract one another: single precision, each sum in one order.
struct Body {
    float x, y, mass, speed_x, speed_y;
};
__host__ __device__ inline Body attracted(const Body *bodies, int count, int self) {
    Body body = bodies[self];
    float ax = 0, ay = 0;
    for (int i = 0; i < count; ++i) {
        float dx = bodies[i].x - body.x, dy = bodies[i].y - body.y;
        float square = dx * dx + dy * dy + 0.01f, strength = bodies[i].mass / (square * sqrtf(square));
        ax += dx * strength;
        ay += dy * strength;
    }
    body.speed_x += ax * 0.01f;
    body.speed_y += ay * 0.01f;
    body.x += body.speed_x * 0.01f;
    body.y += body.speed_y * 0.01f;
    return body;
}
__global__ void bodies_step(const Body *bodies, Body *next, int count) {
    int self = blockIdx.x * blockDim.x + threadIdx.x;
    if (self < count) {
        next[self] = attracted(bodies, count, self);
    }
}
CASE(bodies_step) {
    constexpr int kCount = 100;
    Random random(20);
    std::vector<Body> bodies, expected;
    for (int i = 0; i < kCount; ++i) {
        bodies.push_back(
            {random.below<float>(1000) / 100, random.below<float>(1000) / 100, 1.0f + random.below<float>(5), 0, 0});
    }
    for (int i = 0; i < kCount; ++i) {
        expected.push_back(attracted(bodies.data(), kCount, i));
    }
    DeviceArray<Body> device_bodies(bodies), next(kCount);
    suite::launch(bodies_step, 2, 64, device_bodies.get(), next.get(), kCount);
    suite::compare(next, expected);
}
SUITE_MAIN("algorithms")
