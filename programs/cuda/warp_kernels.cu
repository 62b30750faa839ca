// Kernels in which threads work together, and those that branch, call and return in every way: shuffles, votes, matches and
// reductions of warps, groups, barriers of blocks, asynchronous copies, matrix products, grids; switches, recursion, pointers
// to functions, virtual functions.
// nvcc-flags: -gencode arch=compute_80,code=compute_80
#include "check.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>
#include <mma.h>

namespace cg = cooperative_groups;

constexpr int kCount = 1024, kBlock = 128, kGrid = kCount / kBlock;
constexpr unsigned kAll = 0xffffffffu;

using Word = unsigned int;

__device__ int index() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ int lane() { return threadIdx.x % 32; }

#define KERNEL(name, ...)                                                                                             \
    __global__ void name(const Word *in, Word *out) {                                                                 \
        Word x = in[index()];                                                                                         \
        out[index()] = __VA_ARGS__;                                                                                   \
    }
KERNEL(shuffle, __shfl_sync(kAll, x, x % 32))
KERNEL(shuffle_in_groups, __shfl_sync(kAll, x, 3, 8))
KERNEL(shuffle_up, __shfl_up_sync(kAll, x, 3))
KERNEL(shuffle_down_in_groups, __shfl_down_sync(kAll, x, 5, 16))
KERNEL(shuffle_xor, __shfl_xor_sync(kAll, x, 21))
KERNEL(shuffle_double, static_cast<Word>(__shfl_xor_sync(kAll, x * 0.5, 1) * 2))
KERNEL(vote_ballot, __ballot_sync(kAll, x & 1))
KERNEL(vote_any, __any_sync(kAll, x % 37 == 0))
KERNEL(vote_all, __all_sync(kAll, x % 37 != 0))
KERNEL(match_any, __match_any_sync(kAll, x % 5))
KERNEL(match_wide, __match_any_sync(kAll, static_cast<unsigned long long>(x % 3) << 40))
KERNEL(nth_bit, __fns(x, 0, 3))
KERNEL(identity, lane() + 32 * (threadIdx.x / warpSize) + 1000 * blockIdx.x + gridDim.x * blockDim.x)
KERNEL(count_of_block, __syncthreads_count(x & 1))
KERNEL(all_of_block, __syncthreads_and(x != 12345))
KERNEL(any_of_block, __syncthreads_or(threadIdx.x == 99 && blockIdx.x == 2))

__global__ void match_all(const Word *in, Word *out) {
    int same;
    Word mask = __match_all_sync(kAll, in[index()] & (threadIdx.x < 32 ? 0 : 7), &same);
    out[index()] = mask ^ same;
}

__global__ void reductions(const Word *in, Word *out) {
    Word x = in[index()];
#if __CUDA_ARCH__ >= 800
    int s = static_cast<int>(x << 9);
    out[index()] = __reduce_add_sync(kAll, x) ^ __reduce_min_sync(kAll, x) ^ __reduce_max_sync(kAll, x) ^
                   __reduce_and_sync(kAll, x) ^ __reduce_or_sync(kAll, x) ^ __reduce_xor_sync(kAll, x) ^
                   __reduce_min_sync(kAll, s) ^ __reduce_max_sync(kAll, s);
#else
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    int s = static_cast<int>(x << 9);
    out[index()] = cg::reduce(warp, x, cg::plus<Word>()) ^ cg::reduce(warp, x, cg::less<Word>()) ^
                   cg::reduce(warp, x, cg::greater<Word>()) ^ cg::reduce(warp, x, cg::bit_and<Word>()) ^
                   cg::reduce(warp, x, cg::bit_or<Word>()) ^ cg::reduce(warp, x, cg::bit_xor<Word>()) ^
                   cg::reduce(warp, s, cg::less<int>()) ^ cg::reduce(warp, s, cg::greater<int>());
#endif
}

__global__ void divergent_lanes(const Word *in, Word *out) {
    Word x = in[index()], result;
    if (x % 3 == 0) {
        result = __popc(__activemask() & __ballot_sync(__activemask(), 1)) != 0;
        result += __shfl_sync(1u << lane(), x, lane());
    } else if (x % 3 == 1) {
        result = x * 2;
        __syncwarp(1u << lane());
    } else {
        result = x * 3;
    }
    __syncwarp();
    out[index()] = __shfl_xor_sync(kAll, result, 1);
}

__global__ void tiles(const Word *in, Word *out) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    Word sum = cg::reduce(tile, in[index()] & 0xff, cg::plus<Word>());
    out[index()] = sum * 8 + tile.thread_rank() + (tile.any(in[index()] == 1) ? 1 : 0) + tile.shfl(sum, 2);
}

__global__ void coalesced(const Word *in, Word *out) {
    Word x = in[index()];
    out[index()] = 0;
    if (x % 2 == 1) {
        auto group = cg::coalesced_threads();
        Word rank = group.thread_rank(), size = group.size();
        out[index()] = rank < size && group.shfl(x, 0) % 2 == 1;
    }
}

__global__ void block_scan(const Word *in, Word *out) {
    __shared__ Word sums[2][kBlock];
    int from = 0;
    sums[0][threadIdx.x] = in[index()];
    for (int step = 1; step < kBlock; step *= 2) {
        __syncthreads();
        Word sum = sums[from][threadIdx.x];
        if (threadIdx.x >= step) {
            sum += sums[from][threadIdx.x - step];
        }
        from ^= 1;
        sums[from][threadIdx.x] = sum;
    }
    out[index()] = sums[from][threadIdx.x];
}

__global__ void named_barriers(const Word *in, Word *out) {
    __shared__ Word values[kBlock];
    if (threadIdx.x >= 64) {
        values[threadIdx.x] = in[index()];
        asm volatile("bar.arrive 3, 128;" ::: "memory");
        asm volatile("bar.sync 4, 64;" ::: "memory");
        out[index()] = values[64 + (threadIdx.x + 7) % 64];
    } else {
        asm volatile("bar.sync 3, 128;" ::: "memory");
        out[index()] = values[threadIdx.x + 64] + 1;
    }
}

__global__ void asynchronous_copy(const Word *in, Word *out) {
    __shared__ alignas(16) Word values[kBlock * 4];
    __pipeline_memcpy_async(values + threadIdx.x * 4, in + index() / 4 * 4, 16);
    __pipeline_commit();
    __pipeline_memcpy_async(values + threadIdx.x * 4 + index() % 4, in + index(), 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    out[index()] = values[(threadIdx.x ^ 3) * 4 + index() % 4];
}

__global__ void arrive_and_wait(const Word *in, Word *out) {
#if __CUDA_ARCH__ >= 800
    __shared__ alignas(8) unsigned long long object;
    __shared__ Word values[kBlock];
    Word at = static_cast<Word>(__cvta_generic_to_shared(&object));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(kBlock) : "memory");
    }
    __syncthreads();
    values[threadIdx.x] = in[index()];
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at) : "memory");
    int done = 0;
    while (done == 0) {
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.shared.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(at), "l"(state)
                     : "memory");
    }
    out[index()] = values[threadIdx.x ^ 64];
#else
    out[index()] = in[index() ^ 64];
#endif
}

// A warp's product of 16 by 16 matrices of small numbers, which are exact.
__global__ void tensor_product(const Word *in, Word *out) {
    using namespace nvcuda;
    __shared__ __half a[256], b[256];
    __shared__ float c[256];
    for (int k = threadIdx.x; k < 256; k += blockDim.x) {
        a[k] = __int2half_rn(static_cast<int>(in[k] % 9) - 4);
        b[k] = __int2half_rn(static_cast<int>(in[k + 256] % 9) - 4);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
        wmma::load_matrix_sync(fa, a, 16);
        wmma::load_matrix_sync(fb, b, 16);
        wmma::fill_fragment(fc, 1.0f);
        wmma::mma_sync(fc, fa, fb, fc);
        wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
    }
    __syncthreads();
    out[index()] = static_cast<Word>(static_cast<int>(c[(index() * 7) % 256]));
}

__global__ void whole_grid(const Word *in, Word *out) {
    out[index()] = in[index()];
    cg::this_grid().sync();
    Word other = out[kCount - 1 - index()];
    cg::this_grid().sync();
    out[index()] = other + 1;
}

__global__ void clocks(const Word *, Word *out) {
    long long start = clock64();
    Word before = clock();
    __nanosleep(10);
    unsigned long long timer;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(timer));
    out[index()] = (clock64() >= start) + 2 * (clock() - before < 1u << 31) + 4 * (timer != 0);
}

__device__ Word switched(Word x) {
    switch (x % 11) {
    case 0: return x + 1;
    case 1: return x * 2;
    case 2: return x ^ 5;
    case 3: return x >> 3;
    case 4: return ~x;
    case 5: return x * x;
    case 6: return x % 1000;
    case 7: return x | 0xf0;
    case 8: return 8;
    default: return x & 0xff;
    }
}
KERNEL(switches, switched(x))

__device__ __noinline__ Word fibonacci(Word n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
KERNEL(recursion, fibonacci(x % 12))

__device__ __noinline__ Word twice(Word x) { return x * 2; }
__device__ __noinline__ Word squared(Word x) { return x * x; }
__device__ __noinline__ Word flipped(Word x) { return ~x; }
__device__ Word (*const functions[3])(Word) = {twice, squared, flipped};
KERNEL(function_pointers, functions[x % 3](x))

struct Shape {
    __device__ virtual Word area() const = 0;
    __device__ virtual ~Shape() {}
};
struct Square : Shape {
    Word side;
    __device__ explicit Square(Word side) : side(side) {}
    __device__ Word area() const override { return side * side; }
};
struct Strip : Shape {
    Word length;
    __device__ explicit Strip(Word length) : length(length) {}
    __device__ Word area() const override { return length * 3; }
};
__global__ void virtual_functions(const Word *in, Word *out) {
    Word x = in[index()] & 0xfff;
    Square square(x);
    Strip strip(x);
    const Shape *shapes[2] = {&square, &strip};
    out[index()] = shapes[x & 1]->area();
}

__global__ void loops(const Word *in, Word *out) {
    Word x = in[index()], sum = 0;
    for (Word outer = 0; outer < (x & 7); ++outer) {
        for (Word inner = outer;; inner += 3) {
            if (inner > 40) {
                break;
            }
            if ((inner ^ x) % 5 == 0) {
                continue;
            }
            sum += inner * outer;
        }
        if (sum > 2000) {
            goto done;
        }
    }
    sum += 1;
done:
    out[index()] = sum;
}

__global__ void early_returns(const Word *in, Word *out) {
    Word x = in[index()];
    out[index()] = 1;
    if (x % 4 == 0) {
        return;
    }
    out[index()] = 2;
    if (x % 4 == 1) {
        asm volatile("exit;");
    }
    out[index()] = 3;
}

template <typename F> __device__ Word applied(F f, int times, Word x) {
    for (int k = 0; k < times; ++k) {
        x = f(x);
    }
    return x;
}
KERNEL(lambdas, applied([=](Word y) { return y * 3 + x; }, x % 6, 1))

__global__ void large_frames(const Word *in, Word *out) {
    Word stack[64];
    int depth = 0;
    stack[depth++] = in[index()] & 0x3f;
    Word visited = 0;
    while (depth > 0) {
        Word node = stack[--depth];
        visited += node;
        if (node > 1) {
            stack[depth++] = node / 2;
            stack[depth++] = node / 3;
        }
    }
    out[index()] = visited;
}

static Checksum checksum;
static std::vector<Word> input(kCount);

using Kernel = void (*)(const Word *, Word *);

template <typename F> void run(const char *name, Kernel kernel, F value, bool cooperative = false) {
    DeviceArray<Word> in(input), out(kCount);
    const Word *from = in.get();
    Word *to = out.get();
    if (cooperative) {
        void *arguments[] = {&from, &to};
        CHECK(cudaLaunchCooperativeKernel(reinterpret_cast<void *>(kernel), dim3(kGrid), dim3(kBlock), arguments, 0, nullptr));
    } else {
        kernel<<<kGrid, kBlock>>>(from, to);
    }
    CHECK(cudaGetLastError());
    std::vector<Word> got = out.to_host(), expected(kCount);
    for (int i = 0; i < kCount; ++i) {
        expected[i] = value(i);
    }
    require_equal(got, expected, name);
    checksum.add(got);
}

// Folds `f` over the `width` elements around element `i`.
template <typename F> Word around(int i, int width, Word start, F f) {
    for (int k = i / width * width; k < i / width * width + width; ++k) {
        start = f(start, input[k], k % width);
    }
    return start;
}

static Word host_fibonacci(Word n) { return n < 2 ? n : host_fibonacci(n - 1) + host_fibonacci(n - 2); }
static Word host_visited(Word n) { return n + (n > 1 ? host_visited(n / 2) + host_visited(n / 3) : 0); }

int main() {
    Random random(17);
    for (Word &value : input) {
        value = random.next() >> 6;
    }
    auto at = [](int i, int offset) { return input[i / 32 * 32 + offset]; };
    run("shuffle", shuffle, [&](int i) { return at(i, input[i] % 32); });
    run("shuffle_in_groups", shuffle_in_groups, [&](int i) { return input[i / 8 * 8 + 3]; });
    run("shuffle_up", shuffle_up, [&](int i) { return i % 32 < 3 ? input[i] : input[i - 3]; });
    run("shuffle_down_in_groups", shuffle_down_in_groups, [&](int i) { return i % 16 + 5 > 15 ? input[i] : input[i + 5]; });
    run("shuffle_xor", shuffle_xor, [&](int i) { return input[i ^ 21]; });
    run("shuffle_double", shuffle_double, [&](int i) { return input[i ^ 1]; });
    auto votes = [](int i, auto holds) {
        return around(i, 32, 0, [&](Word mask, Word x, int k) { return mask | Word(holds(x)) << k; });
    };
    run("vote_ballot", vote_ballot, [&](int i) { return votes(i, [](Word x) { return x & 1; }); });
    run("vote_any", vote_any, [&](int i) { return votes(i, [](Word x) { return x % 37 == 0; }) != 0; });
    run("vote_all", vote_all, [&](int i) { return votes(i, [](Word x) { return x % 37 == 0; }) == 0; });
    run("match_any", match_any, [&](int i) { return votes(i, [&](Word x) { return x % 5 == input[i] % 5; }); });
    run("match_wide", match_wide, [&](int i) { return votes(i, [&](Word x) { return x % 3 == input[i] % 3; }); });
    run("match_all", match_all, [&](int i) { return i % kBlock < 32 ? kAll ^ 1 : 0; });
    run("nth_bit", nth_bit, [](int i) {
        Word x = input[i];
        x &= x - 1;
        x &= x - 1;
        return x == 0 ? kAll : Word(__builtin_ctz(x));
    });
    run("identity", identity, [](int i) { return i % kBlock + 1000 * (i / kBlock) + kCount; });
    auto odd = [](int i) { return around(i, kBlock, 0, [](Word n, Word x, int) { return n + (x & 1); }); };
    run("count_of_block", count_of_block, odd);
    run("all_of_block", all_of_block, [](int) { return 1; });
    run("any_of_block", any_of_block, [](int i) { return i / kBlock == 2; });
    run("reductions", reductions, [](int i) {
        Word sum = 0, least = ~0u, most = 0, conjunction = ~0u, disjunction = 0, difference = 0;
        int low = 0x7fffffff, high = -low - 1;
        for (int k = i / 32 * 32; k < i / 32 * 32 + 32; ++k) {
            Word x = input[k];
            int s = static_cast<int>(x << 9);
            sum += x;
            least = x < least ? x : least;
            most = x > most ? x : most;
            conjunction &= x;
            disjunction |= x;
            difference ^= x;
            low = s < low ? s : low;
            high = s > high ? s : high;
        }
        return sum ^ least ^ most ^ conjunction ^ disjunction ^ difference ^ Word(low) ^ Word(high);
    });
    run("divergent_lanes", divergent_lanes, [](int i) {
        Word x = input[i ^ 1];
        return x % 3 == 0 ? x + 1 : x % 3 == 1 ? x * 2 : x * 3;
    });
    run("tiles", tiles, [](int i) {
        Word sum = around(i, 8, 0, [](Word n, Word x, int) { return n + (x & 0xff); });
        Word one = around(i, 8, 0, [](Word n, Word x, int) { return n | (x == 1); });
        return sum * 8 + i % 8 + one + sum;
    });
    run("coalesced", coalesced, [](int i) { return input[i] % 2; });
    run("block_scan", block_scan, [](int i) {
        Word sum = 0;
        for (int k = i / kBlock * kBlock; k <= i; ++k) {
            sum += input[k];
        }
        return sum;
    });
    run("named_barriers", named_barriers, [](int i) {
        int start = i / kBlock * kBlock, thread = i % kBlock;
        return thread >= 64 ? input[start + 64 + (thread + 7) % 64] : input[i + 64] + 1;
    });
    run("asynchronous_copy", asynchronous_copy, [](int i) { return input[(i ^ 3) / 4 * 4 + i % 4]; });
    run("arrive_and_wait", arrive_and_wait, [](int i) { return input[i ^ 64]; });
    run("tensor_product", tensor_product, [](int i) {
        int row = i * 7 % 256 / 16, column = i * 7 % 16, sum = 1;
        for (int k = 0; k < 16; ++k) {
            sum += (int(input[row * 16 + k] % 9) - 4) * (int(input[256 + k * 16 + column] % 9) - 4);
        }
        return Word(sum);
    });
    run("whole_grid", whole_grid, [](int i) { return input[kCount - 1 - i] + 1; }, true);
    run("clocks", clocks, [](int) { return 7; });
    run("switches", switches, [](int i) {
        Word x = input[i];
        const Word values[] = {x + 1, x * 2, x ^ 5, x >> 3, ~x, x * x, x % 1000, x | 0xf0, 8, x & 0xff, x & 0xff};
        return values[x % 11];
    });
    run("recursion", recursion, [](int i) { return host_fibonacci(input[i] % 12); });
    run("function_pointers", function_pointers, [](int i) {
        Word x = input[i];
        const Word values[] = {x * 2, x * x, ~x};
        return values[x % 3];
    });
    run("virtual_functions", virtual_functions, [](int i) {
        Word x = input[i] & 0xfff;
        return x % 2 == 0 ? x * x : x * 3;
    });
    run("loops", loops, [](int i) {
        Word x = input[i], sum = 0;
        for (Word outer = 0; outer < (x & 7); ++outer) {
            for (Word inner = outer; inner <= 40; inner += 3) {
                sum += (inner ^ x) % 5 == 0 ? 0 : inner * outer;
            }
            if (sum > 2000) {
                return sum;
            }
        }
        return sum + 1;
    });
    run("early_returns", early_returns, [](int i) { return input[i] % 4 == 0 ? 1 : input[i] % 4 == 1 ? 2 : 3; });
    run("lambdas", lambdas, [](int i) {
        Word y = 1;
        for (Word k = 0; k < input[i] % 6; ++k) {
            y = y * 3 + input[i];
        }
        return y;
    });
    run("large_frames", large_frames, [](int i) { return host_visited(input[i] & 0x3f); });
    return report_ok("warp_kernels", checksum);
}
