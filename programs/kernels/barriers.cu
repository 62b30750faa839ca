// Barriers of every kind: votes, by name, of part of a block, of a warp, after an exit; and matrices that a warp loads
// together.
#include "suite.h"

static std::vector<uint32_t> random_words(size_t count, uint32_t seed, uint32_t bound = 0) {
    Random random(seed);
    std::vector<uint32_t> words(count);
    for (uint32_t &word : words) {
        word = bound == 0 ? random.next() : random.below<uint32_t>(bound);
    }
    return words;
}

// ---- Barriers ----

__global__ void barrier_votes(const uint32_t *in, int *out) {
    uint32_t value = in[threadIdx.x];
    int count = __syncthreads_count(value % 3 == 0), every = __syncthreads_and(value != 7),
        some = __syncthreads_or(value == 7);
    int none = __syncthreads_and(value % 3 == 0), most = __syncthreads_or(value > 0xf0000000u);
    out[threadIdx.x] = count * 100 + !!every * 8 + !!some * 4 + !!none * 2 + !!most;
}
CASE(barrier_votes) {
    const std::vector<uint32_t> in = random_words(160, 16);
    int count = 0, most = 0;
    for (uint32_t word : in) {
        count += word % 3 == 0;
        most |= word > 0xf0000000u;
    }
    DeviceArray<uint32_t> device_in(in);
    DeviceArray<int> out(160);
    suite::launch(barrier_votes, 1, 160, device_in.get(), out.get());
    suite::compare(out, std::vector<int>(160, count * 100 + 8 + most));
}

// Warps 0 and 1 produce, 2 and 3 consume, over two named barriers: arrive does not wait, sync does.
__global__ void named_barriers(const uint32_t *in, uint32_t *out, int rounds) {
    __shared__ uint32_t buffer[64];
    int half = threadIdx.x / 64, index = threadIdx.x % 64;
    for (int round = 0; round < rounds; ++round) {
        if (half == 0) {
            if (round > 0) {
                asm volatile("bar.sync 2, 128;" ::: "memory");
            }
            buffer[index] = in[round * 64 + index] * 3;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            out[round * 64 + index] = buffer[63 - index] + 1;
            if (round + 1 < rounds) {
                asm volatile("bar.arrive 2, 128;" ::: "memory");
            }
        }
    }
}
CASE(named_barriers) {
    constexpr int kRounds = 9;
    const std::vector<uint32_t> in = random_words(64 * kRounds, 17);
    std::vector<uint32_t> expected;
    for (int i = 0; i < 64 * kRounds; ++i) {
        expected.push_back(in[i / 64 * 64 + 63 - i % 64] * 3 + 1);
    }
    DeviceArray<uint32_t> device_in(in), out(64 * kRounds);
    suite::launch(named_barriers, 1, 128, device_in.get(), out.get(), kRounds);
    suite::compare(out, expected);
}

// A barrier of each warp pair, by number in a register; and a reduction over part of the block.
__global__ void barrier_groups(uint32_t *out) {
    __shared__ uint32_t words[256];
    unsigned group = threadIdx.x / 64, base = group * 64, index = threadIdx.x % 64, number = group + 1, threads = 64,
             odd;
    words[threadIdx.x] = threadIdx.x * 5;
    asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
    uint32_t sum = words[base + (index + 1) % 64];
    for (unsigned i = 0; i <= group; ++i) {
        asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
        words[threadIdx.x] += sum;
        asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
        sum += words[base + (index + 32) % 64];
    }
    asm volatile("{ .reg .pred p;\n\tand.b32 %0, %1, 1;\n\tsetp.eq.u32 p, %0, 1;\n\tbar.red.popc.u32 %0, %2, %3, p; }"
                 : "=&r"(odd)
                 : "r"(sum), "r"(number), "r"(threads)
                 : "memory");
    out[threadIdx.x] = sum * 64 + odd;
}
CASE(barrier_groups) {
    std::vector<uint32_t> expected(256), words(256), sums(256);
    for (unsigned group = 0; group < 4; ++group) {
        unsigned base = 64 * group, odd = 0;
        for (unsigned i = 0; i < 64; ++i) {
            words[base + i] = (base + i) * 5;
        }
        for (unsigned i = 0; i < 64; ++i) {
            sums[base + i] = words[base + (i + 1) % 64];
        }
        for (unsigned round = 0; round <= group; ++round) {
            for (unsigned i = 0; i < 64; ++i) {
                words[base + i] += sums[base + i];
            }
            for (unsigned i = 0; i < 64; ++i) {
                sums[base + i] += words[base + (i + 32) % 64];
            }
        }
        for (unsigned i = 0; i < 64; ++i) {
            odd += sums[base + i] % 2;
        }
        for (unsigned i = 0; i < 64; ++i) {
            expected[base + i] = sums[base + i] * 64 + odd;
        }
    }
    DeviceArray<uint32_t> out(256);
    suite::launch(barrier_groups, 1, 256, out.get());
    suite::compare(out, expected);
}

// Threads that have left count no more at the block's barrier.
__global__ void barrier_after_exit(int *out) {
    __shared__ int words[128];
    if (threadIdx.x >= 96) {
        return;
    }
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = words[95 - threadIdx.x];
}
CASE(barrier_after_exit) {
    std::vector<int> expected;
    for (int i = 0; i < 96; ++i) {
        expected.push_back(95 - i);
    }
    DeviceArray<int> out(96);
    suite::launch(barrier_after_exit, 1, 128, out.get());
    suite::compare(out, expected);
}

// Parts of a warp meet at a barrier of the warp from different places.
__global__ void warp_barriers(int *out) {
    __shared__ volatile int words[32];
    int lane = threadIdx.x;
    if (lane < 16) {
        words[lane] = lane * 2;
        __syncwarp();
        out[lane] = words[31 - lane];
    } else {
        words[lane] = lane * 3;
        __syncwarp();
        out[lane] = words[31 - lane] + 1;
    }
}
CASE(warp_barriers) {
    std::vector<int> expected;
    for (int lane = 0; lane < 32; ++lane) {
        int other = 31 - lane;
        expected.push_back(other < 16 ? other * 2 + 1 : other * 3);
    }
    DeviceArray<int> out(32);
    suite::launch(warp_barriers, 1, 32, out.get());
    suite::compare(out, expected);
}

// ---- Matrices by ldmatrix ----

__device__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Rows of 8 halves, one address per row from the lanes; each lane receives two neighbours of each matrix.
__global__ void ldmatrix_forms(uint32_t *out) {
    __shared__ alignas(16) uint16_t tile[32][8];
    unsigned lane = threadIdx.x;
    for (int column = 0; column < 8; ++column) {
        tile[lane][column] = static_cast<uint16_t>(lane * 8 + column);
    }
    __syncwarp();
    uint32_t address = shared_address(&tile[lane][0]), r[4], t[4], two[2], one;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(t[0]), "=r"(t[1]), "=r"(t[2]), "=r"(t[3])
                 : "r"(address)
                 : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(two[0]), "=r"(two[1])
                 : "r"(address)
                 : "memory");
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(one) : "r"(address) : "memory");
    for (int i = 0; i < 4; ++i) {
        out[lane * 11 + i] = r[i];
        out[lane * 11 + 4 + i] = t[i];
    }
    out[lane * 11 + 8] = two[0];
    out[lane * 11 + 9] = two[1];
    out[lane * 11 + 10] = one;
}
CASE(ldmatrix_forms) {
    std::vector<uint32_t> expected;
    auto half = [](unsigned matrix, unsigned row, unsigned column) { return (matrix * 8 + row) * 8 + column; };
    for (unsigned lane = 0; lane < 32; ++lane) {
        unsigned row = lane / 4, pair = lane % 4 * 2;
        auto straight = [&](unsigned m) { return half(m, row, pair) | half(m, row, pair + 1) << 16; };
        auto turned = [&](unsigned m) { return half(m, pair, row) | half(m, pair + 1, row) << 16; };
        for (unsigned m = 0; m < 4; ++m) {
            expected.push_back(straight(m));
        }
        for (unsigned m = 0; m < 4; ++m) {
            expected.push_back(turned(m));
        }
        expected.insert(expected.end(), {straight(0), straight(1), turned(0)});
    }
    DeviceArray<uint32_t> out(expected.size());
    suite::launch(ldmatrix_forms, 1, 32, out.get());
    suite::compare(out, expected);
}
SUITE_MAIN("barriers")
