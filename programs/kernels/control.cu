// Control flow: switches, nested loops, early exits, recursion, function pointers, virtual functions, jumps, loops
// whose lanes leave at different times, and searches with a stack.
#include "suite.h"

// ---- Selection ----

__host__ __device__ inline uint32_t dense_switch(uint32_t x) {
    switch (x % 12) {
    case 0:
        return x + 1;
    case 1:
        return x * 3;
    case 2:
        x ^= 0x55;
    // Falls through.
    case 3:
        return x << 2;
    case 4:
        return ~x;
    case 5:
        return x / 7;
    case 6:
        return x % 1000;
    case 7:
        x += 9;
        break;
    case 8:
        return x >> 5;
    case 9:
        return x * x;
    case 10:
        return x - 77;
    default:
        return 0xdead;
    }
    return x ^ 0xf0f0;
}
MAP1(switch_dense, uint32_t, uint32_t, dense_switch(a) + dense_switch(a >> 9))

__host__ __device__ inline int sparse_switch(int x) {
    switch (x) {
    case -1000:
        return 1;
    case 0:
        return 2;
    case 7:
        return 3;
    case 100:
        return 4;
    case 65537:
        return 5;
    case INT32_MAX:
        return 6;
    case INT32_MIN:
        return 7;
    default:
        return x & 1 ? 8 : 9;
    }
}
MAP1(switch_sparse, int32_t, int32_t, sparse_switch(a) * 10 + sparse_switch(a % 8))

__host__ __device__ inline uint32_t tangled(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (uint32_t i = 0; i < a % 7; ++i) {
        for (uint32_t j = i; j < b % 9; ++j) {
            if ((i + j) % 5 == 4) {
                continue;
            }
            if (r > 5000) {
                goto done;
            }
            r = r * 3 + i * j + 1;
            if ((r & 63) == 17) {
                break;
            }
        }
        r ^= i << 3;
    }
    r += 100000;
done:
    return r;
}
MAP2(nested_loops, uint32_t, uint32_t, tangled(a, b) ^ tangled(b, a))

__host__ __device__ inline uint32_t collatz(uint32_t n) {
    uint32_t steps = 0;
    n = n % 4096 + 1;
    while (n != 1) {
        n = n % 2 == 0 ? n / 2 : 3 * n + 1;
        ++steps;
    }
    return steps;
}
MAP1(collatz_steps, uint32_t, uint32_t, collatz(a))

// A loop entered in its middle, and jumps backwards.
__host__ __device__ inline uint32_t irreducible(uint32_t a, uint32_t b) {
    uint32_t count = 0;
    if (a % 3 == 0) {
        goto middle;
    }
top:
    b = b * 5 + 1;
    ++count;
middle:
    a = a / 2 + b % 3;
    if (count < 20 && a % 4 != 1) {
        goto top;
    }
    if (count < 40 && b % 8 == 3) {
        b >>= 1;
        ++count;
        goto middle;
    }
    return a + b * 7 + count;
}
MAP2(jumps, uint32_t, uint32_t, irreducible(a, b))

__host__ __device__ inline int three_way(float a, float b) { return a < b ? -1 : a > b ? 1 : a == b ? 0 : 2; }
MAP2(short_circuit, int32_t, float, (a > 0 && b / a > 1 || !(b < 0) && a != b ? 1 : 0) + 4 * three_way(a, b))

// ---- Calls ----

__noinline__ __host__ __device__ uint32_t ackermann(uint32_t m, uint32_t n) {
    return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}
MAP2(recursion_ackermann, uint32_t, uint32_t, ackermann(a % 3, b % 5))
__noinline__ __host__ __device__ uint64_t fibonacci(uint32_t n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
MAP1(recursion_fibonacci, uint64_t, uint32_t, fibonacci(a % 11))
__noinline__ __host__ __device__ bool is_even(uint32_t n);
__noinline__ __host__ __device__ bool is_odd(uint32_t n) { return n == 0 ? false : is_even(n - 1); }
__noinline__ __host__ __device__ bool is_even(uint32_t n) { return n == 0 ? true : is_odd(n - 1); }
MAP1(recursion_mutual, uint32_t, uint32_t, is_even(a % 40) + 2 * is_odd(a % 23))

struct Quad {
    double x;
    int32_t y;
    float z;
    uint8_t w;
};
__noinline__ __host__ __device__ Quad turn(Quad q, int32_t by) {
    return {q.x + by, q.y * by, -q.z, static_cast<uint8_t>(q.w + by)};
}
__host__ __device__ inline double through_struct(int32_t a, int32_t b) {
    Quad q = turn(turn({a * 0.5, b % 100, 1.5f, 200}, b % 7), a % 5);
    return q.x + q.y + q.z + q.w;
}
MAP2(calls_by_value, double, int32_t, through_struct(a, b))

using Operation = int32_t (*)(int32_t, int32_t);
__noinline__ __device__ int32_t op_add(int32_t a, int32_t b) { return int32_t(uint32_t(a) + uint32_t(b)); }
__noinline__ __device__ int32_t op_xor(int32_t a, int32_t b) { return a ^ b; }
__noinline__ __device__ int32_t op_shift(int32_t a, int32_t b) { return int32_t(uint32_t(a) << (b & 7)); }
__noinline__ __device__ int32_t op_less(int32_t a, int32_t b) { return a < b ? a : b; }
__device__ Operation table[4] = {op_add, op_xor, op_shift, op_less};
static int32_t by_index(uint32_t index, int32_t a, int32_t b) {
    switch (index) {
    case 0:
        return int32_t(uint32_t(a) + uint32_t(b));
    case 1:
        return a ^ b;
    case 2:
        return int32_t(uint32_t(a) << (b & 7));
    default:
        return a < b ? a : b;
    }
}
// Each lane calls another function of the table.
REF2(function_pointers, int32_t, int32_t, table[(a ^ b) & 3](a, table[b & 3](b, a)),
     by_index((a ^ b) & 3, a, by_index(b & 3, b, a)))

struct Shape {
    __host__ __device__ virtual float area(float scale) const = 0;
    __host__ __device__ virtual int corners() const { return 0; }
    __host__ __device__ virtual ~Shape() {}
};
struct Square : Shape {
    float side;
    __host__ __device__ explicit Square(float side) : side(side) {}
    __host__ __device__ float area(float scale) const override { return side * side * scale; }
    __host__ __device__ int corners() const override { return 4; }
};
struct Bar : Square {
    float length;
    __host__ __device__ Bar(float side, float length) : Square(side), length(length) {}
    __host__ __device__ float area(float scale) const override { return side * length * scale; }
};
struct Disc : Shape {
    float radius;
    __host__ __device__ explicit Disc(float radius) : radius(radius) {}
    __host__ __device__ float area(float scale) const override { return radius * radius * 3.0f * scale; }
};
__host__ __device__ inline float measure(uint32_t a) {
    float size = static_cast<float>(a % 1000) + 0.5f;
    Square square(size);
    Bar bar(size, 2.0f);
    Disc disc(size);
    const Shape *shapes[3] = {&square, &bar, &disc};
    float sum = 0;
    for (uint32_t i = 0; i < 4; ++i) {
        const Shape *shape = shapes[(a >> (2 * i)) % 3];
        sum += shape->area(static_cast<float>(i)) + static_cast<float>(shape->corners());
    }
    return sum;
}
MAP1(virtual_functions, float, uint32_t, measure(a))

template <typename F> __host__ __device__ uint32_t repeated(uint32_t x, F f) {
    for (int i = 0; i < 5; ++i) {
        x = f(x, i);
    }
    return x;
}
struct Mixing {
    uint32_t with;
    __host__ __device__ uint32_t operator()(uint32_t x, int i) const { return (x ^ with) * 3 + i; }
};
struct Halving {
    __host__ __device__ uint32_t operator()(uint32_t x, int) const { return x >> 1; }
};
MAP2(function_objects, uint32_t, uint32_t, repeated(a, Mixing{b}) + repeated(b, Halving{}))

// ---- Lanes that part and meet ----

// Every lane leaves the loop elsewhere; afterwards all are together again.
__global__ void divergent_loop(const uint32_t *in, uint32_t *out) {
    __shared__ uint32_t words[64];
    uint32_t x = in[threadIdx.x], turns = 0;
    while (true) {
        x = x * 1664525u + 1013904223u;
        ++turns;
        if (x >> 28 == threadIdx.x % 16) {
            break;
        }
        if (turns == 300) {
            x = 0;
            break;
        }
    }
    words[threadIdx.x] = turns;
    __syncthreads();
    out[threadIdx.x] = x + words[63 - threadIdx.x];
}
CASE(divergent_loop) {
    Random random(5);
    std::vector<uint32_t> in(64), turns(64, 0), expected(64);
    for (int i = 0; i < 64; ++i) {
        uint32_t x = in[i] = random.next();
        do {
            x = x * 1664525u + 1013904223u;
            ++turns[i];
        } while (x >> 28 != static_cast<uint32_t>(i % 16) && turns[i] < 300);
        expected[i] = x >> 28 == static_cast<uint32_t>(i % 16) ? x : 0;
    }
    for (int i = 0; i < 64; ++i) {
        expected[i] += turns[63 - i];
    }
    DeviceArray<uint32_t> device_in(in), out(64);
    suite::launch(divergent_loop, 1, 64, device_in.get(), out.get());
    suite::compare(out, expected);
}

// A lane waits in a loop for a word that its neighbour writes later: a chain through the warp, last lane first.
__global__ void divergent_spin(volatile int *flags, int *out) {
    int lane = threadIdx.x;
    if (lane < 31) {
        while (flags[lane + 1] == 0) {
        }
    }
    out[lane] = lane == 31 ? 1 : flags[lane + 1] + 1;
    __threadfence();
    flags[lane] = out[lane];
}
CASE(divergent_spin) {
    std::vector<int> expected;
    for (int lane = 0; lane < 32; ++lane) {
        expected.push_back(32 - lane);
    }
    DeviceArray<int> flags(std::vector<int>(32, 0)), out(32);
    suite::launch(divergent_spin, 1, 32, static_cast<volatile int *>(flags.get()), out.get());
    suite::compare(out, expected);
}

__global__ void early_return(const int *in, int *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) {
        return;
    }
    if (in[i] < 0) {
        out[i] = -1;
        return;
    }
    for (int k = 2; k * k <= in[i]; ++k) {
        if (in[i] % k == 0) {
            out[i] = k;
            return;
        }
    }
    out[i] = in[i] + 1;
    asm volatile("exit;");
}
CASE(early_return) {
    std::vector<int> in, expected;
    for (int i = 0; i < 300; ++i) {
        in.push_back(i % 11 == 5 ? -i : i * 13 % 997);
        int value = in.back(), result = value + 1;
        for (int k = 2; value >= 0 && k * k <= value; ++k) {
            if (value % k == 0) {
                result = k;
                break;
            }
        }
        expected.push_back(value < 0 ? -1 : result);
    }
    DeviceArray<int> device_in(in), out(300);
    suite::launch(early_return, 3, 128, device_in.get(), out.get(), 300);
    suite::compare(out, expected);
}

// A jump table by inline PTX.
__device__ uint32_t asm_jump_table(uint32_t index) {
    uint32_t d;
    asm volatile("{\n\t"
                 ".reg .u32 i;\n\t"
                 "min.u32 i, %1, 3;\n\t"
                 "targets: .branchtargets zero, one, two, more;\n\t"
                 "brx.idx i, targets;\n\t"
                 "zero: mov.u32 %0, 10; bra.uni done;\n\t"
                 "one: mov.u32 %0, 21; bra.uni done;\n\t"
                 "two: mov.u32 %0, 32; bra.uni done;\n\t"
                 "more: mov.u32 %0, 43;\n\t"
                 "done:\n\t}"
                 : "=r"(d)
                 : "r"(index));
    return d;
}
REF1(jump_table, uint32_t, uint32_t, asm_jump_table(a), (a < 3 ? a : 3) * 11 + 10)

// ---- Searches ----

__host__ __device__ inline uint32_t queens(uint32_t n, uint32_t first_column) {
    const uint32_t all = (1u << n) - 1;
    uint32_t columns[12], left[12], right[12], free[12], found = 0;
    uint32_t bit = 1u << first_column;
    columns[1] = bit, left[1] = bit << 1, right[1] = bit >> 1;
    free[1] = all & ~(columns[1] | left[1] | right[1]);
    for (int row = 1; row > 0;) {
        if (free[row] == 0) {
            --row;
            continue;
        }
        bit = free[row] & (0 - free[row]);
        free[row] ^= bit;
        if (row + 1 == static_cast<int>(n)) {
            ++found;
            continue;
        }
        columns[row + 1] = columns[row] | bit;
        left[row + 1] = (left[row] | bit) << 1;
        right[row + 1] = (right[row] | bit) >> 1;
        ++row;
        free[row] = all & ~(columns[row] | left[row] | right[row]);
    }
    return found;
}
__global__ void n_queens(uint32_t n, uint32_t *found) {
    if (threadIdx.x < n) {
        atomicAdd(found, queens(n, threadIdx.x));
    }
}
CASE(n_queens) {
    uint32_t expected = 0;
    for (uint32_t column = 0; column < 8; ++column) {
        expected += queens(8, column);
    }
    HOLDS(expected == 92);
    DeviceArray<uint32_t> found(std::vector<uint32_t>(1, 0));
    suite::launch(n_queens, 1, 32, 8u, found.get());
    suite::compare(found, {expected});
}

// Quicksort with a stack of its own, one array per thread.
__host__ __device__ inline void quick_sort(int *data, int count) {
    int lows[24], highs[24], depth = 0;
    lows[0] = 0, highs[0] = count - 1;
    while (depth >= 0) {
        int low = lows[depth], high = highs[depth];
        --depth;
        while (low < high) {
            int pivot = data[(low + high) / 2], i = low, j = high;
            while (i <= j) {
                while (data[i] < pivot) {
                    ++i;
                }
                while (data[j] > pivot) {
                    --j;
                }
                if (i <= j) {
                    int kept = data[i];
                    data[i++] = data[j];
                    data[j--] = kept;
                }
            }
            // The longer part waits on the stack.
            if (j - low < high - i) {
                ++depth;
                lows[depth] = i, highs[depth] = high;
                high = j;
            } else {
                ++depth;
                lows[depth] = low, highs[depth] = j;
                low = i;
            }
        }
    }
}
__global__ void quick_sort_own_stack(int *data, int count) { quick_sort(data + threadIdx.x * count, count); }
CASE(quick_sort_own_stack) {
    constexpr int kThreads = 40, kCount = 50;
    Random random(21);
    std::vector<int> data(kThreads * kCount);
    for (int &value : data) {
        value = random.below<int>(2000) - 1000;
    }
    DeviceArray<int> device(data);
    suite::launch(quick_sort_own_stack, 1, kThreads, device.get(), kCount);
    for (int thread = 0; thread < kThreads; ++thread) {
        quick_sort(&data[thread * kCount], kCount);
        for (int i = 1; i < kCount; ++i) {
            HOLDS(data[thread * kCount + i - 1] <= data[thread * kCount + i]);
        }
    }
    suite::compare(device, data);
}

// Towers of Hanoi by recursion: local memory in every frame.
struct Towers {
    int pegs[3][8];
    int heights[3];
    uint32_t moves;
};
__noinline__ __host__ __device__ void move_tower(Towers *towers, int count, int from, int to) {
    if (count == 0) {
        return;
    }
    int other = 3 - from - to;
    move_tower(towers, count - 1, from, other);
    towers->pegs[to][towers->heights[to]++] = towers->pegs[from][--towers->heights[from]];
    towers->moves = towers->moves * 31 + from * 3 + to;
    move_tower(towers, count - 1, other, to);
}
__host__ __device__ inline uint32_t hanoi(uint32_t a) {
    Towers towers = {};
    int count = a % 8;
    for (int i = 0; i < count; ++i) {
        towers.pegs[0][i] = count - i;
    }
    towers.heights[0] = count;
    move_tower(&towers, count, 0, 2);
    uint32_t hash = towers.moves;
    for (int i = 0; i < towers.heights[2]; ++i) {
        hash = hash * 7 + towers.pegs[2][i];
    }
    return hash;
}
MAP1(recursion_hanoi, uint32_t, uint32_t, hanoi(a))

// A small virtual machine interprets a program per thread.
__host__ __device__ inline int32_t interpret(uint32_t seed) {
    uint32_t stack[8] = {}, accumulator = seed, depth = 0;
    for (int step = 0; step < 60; ++step) {
        uint32_t op = accumulator >> 7 & 7;
        if (op == 0 && depth < 8) {
            stack[depth++] = accumulator;
        } else if (op == 1 && depth > 0) {
            accumulator ^= stack[--depth];
        } else if (op == 2) {
            accumulator = accumulator << 3 | accumulator >> 29;
        } else if (op == 3) {
            accumulator += 0x9e3779b9u;
        } else if (op == 4 && depth > 1) {
            stack[0] += stack[depth - 1];
        } else if (op == 5) {
            accumulator = (accumulator & 0xffff) * 48271u;
        } else {
            accumulator = accumulator * 5 + step;
        }
    }
    return static_cast<int32_t>(accumulator ^ stack[depth & 7]);
}
MAP1(interpreter, int32_t, uint32_t, interpret(a))
SUITE_MAIN("control")
