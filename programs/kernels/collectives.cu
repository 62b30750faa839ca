// What the lanes of a warp do together: shuffles of every mode, width and mask, votes, matches, reductions, cooperative
// groups.
#include "suite.h"

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

constexpr int kBlock = 128, kGrid = 4, kThreads = kBlock * kGrid;
constexpr unsigned kAll = 0xffffffffu;

static std::vector<uint32_t> random_words(uint32_t seed) {
    Random random(seed);
    std::vector<uint32_t> words(kThreads);
    for (uint32_t &word : words) {
        word = random.next();
    }
    return words;
}

// Runs a kernel of one word in, one out per thread; `host` computes a warp's 32 words.
template <typename T>
static void run_warps(void (*kernel)(const uint32_t *, T *), void (*host)(const uint32_t *, T *)) {
    const std::vector<uint32_t> in = random_words(3);
    std::vector<T> expected(kThreads);
    for (int warp = 0; warp < kThreads / 32; ++warp) {
        host(&in[32 * warp], &expected[32 * warp]);
    }
    DeviceArray<uint32_t> device_in(in);
    DeviceArray<T> out(kThreads);
    CHECK(cudaMemset(out.get(), 0, out.size_bytes()));
    suite::launch(kernel, kGrid, kBlock, device_in.get(), out.get());
    suite::compare(out, expected);
}

// WARPS(name, T, device, host): device code with `in` (this lane's word), `lane`, result `out`; host code with `in[]`,
// `lane`.
#define WARPS(NAME, T, DEVICE, HOST)                                                                                   \
    __global__ void NAME(const uint32_t *words, T *results) {                                                          \
        const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;                                                 \
        [[maybe_unused]] const unsigned lane = thread % 32;                                                            \
        [[maybe_unused]] uint32_t in = words[thread];                                                                  \
        T out = 0;                                                                                                     \
        DEVICE;                                                                                                        \
        results[thread] = out;                                                                                         \
    }                                                                                                                  \
    static void NAME##_host(const uint32_t *in, T *results) {                                                          \
        for (unsigned lane = 0; lane < 32; ++lane) {                                                                   \
            T out = 0;                                                                                                 \
            HOST;                                                                                                      \
            results[lane] = out;                                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    CASE(NAME) { run_warps<T>(NAME, NAME##_host); }

// ---- Shuffles ----

// A dynamic source lane: every lane reads another.
WARPS(shfl_idx_dynamic, uint32_t, out = __shfl_sync(kAll, in, in >> 5), out = in[in[lane] >> 5 & 31])
WARPS(shfl_idx_width8, uint32_t, out = __shfl_sync(kAll, in, 11, 8), out = in[(lane & ~7u) + 3])
WARPS(shfl_up, uint32_t, out = __shfl_up_sync(kAll, in, 5), out = in[lane < 5 ? lane : lane - 5])
WARPS(shfl_up_width16, uint32_t, out = __shfl_up_sync(kAll, in, 3, 16), out = in[lane % 16 < 3 ? lane : lane - 3])
WARPS(shfl_down, uint32_t, out = __shfl_down_sync(kAll, in, 7), out = in[lane + 7 > 31 ? lane : lane + 7])
WARPS(shfl_down_width4, uint32_t, out = __shfl_down_sync(kAll, in, 2, 4), out = in[lane % 4 + 2 > 3 ? lane : lane + 2])
WARPS(shfl_xor, uint32_t, out = __shfl_xor_sync(kAll, in, 21), out = in[lane ^ 21])
// A butterfly may read from lower segments but not from higher ones.
WARPS(shfl_xor_width8, uint32_t, out = __shfl_xor_sync(kAll, in, 12, 8),
      out = in[(lane ^ 12) > (lane | 7) ? lane : lane ^ 12])
WARPS(shfl_u64, uint64_t, out = __shfl_sync(kAll, (unsigned long long)in << 32 | lane, 31 - lane),
      out = uint64_t(in[31 - lane]) << 32 | (31 - lane))
WARPS(shfl_f32, float, out = __shfl_down_sync(kAll, float(in & 0xffff), 1),
      out = float(in[lane == 31 ? 31 : lane + 1] & 0xffff))
WARPS(shfl_f64, double, out = __shfl_xor_sync(kAll, double(in), 1), out = double(in[lane ^ 1]))
WARPS(shfl_partial_mask, uint32_t, if (lane % 3 == 0) out = __shfl_sync(0x49249249u, in, 9),
      out = lane % 3 == 0 ? in[9] : 0)
WARPS(shfl_two_halves, uint32_t, if (lane < 16) out = __shfl_xor_sync(0x0000ffffu, in, 5);
      else out = __shfl_up_sync(0xffff0000u, in, 4, 16),
      out = lane < 16 ? in[lane ^ 5] : in[lane < 20 ? lane : lane - 4])
__device__ uint32_t asm_shfl_predicate(uint32_t in, uint32_t source) {
    uint32_t value, valid;
    asm volatile("{ .reg .pred p;\n\tshfl.sync.down.b32 %0|p, %2, %3, 0x101f, 0xffffffff;\n\tselp.u32 %1, 1, 0, p; }"
                 : "=r"(value), "=r"(valid)
                 : "r"(in), "r"(source));
    return value ^ valid << 31;
}
WARPS(shfl_predicate, uint32_t, out = asm_shfl_predicate(in, 6), bool valid = lane % 16 + 6 < 16;
      out = in[valid ? lane + 6 : lane] ^ uint32_t(valid) << 31)
// Lanes that do not take part in the step keep going: a loop whose trip count differs by lane, then a shuffle of all.
WARPS(shfl_after_divergence, uint32_t, for (uint32_t i = 0; i < in % 17; ++i) in = in * 5 + i; __syncwarp();
      out = __shfl_sync(kAll, in, 30 - lane % 2), uint32_t x = in[30 - lane % 2];
      for (uint32_t i = 0; i < x % 17; ++i) x = x * 5 + i; out = x)
__global__ void scan_by_shuffles(const uint32_t *words, uint32_t *results) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, lane = thread % 32;
    uint32_t sum = words[thread];
    for (unsigned step = 1; step < 32; step *= 2) {
        uint32_t below = __shfl_up_sync(kAll, sum, step);
        sum += lane >= step ? below : 0;
    }
    results[thread] = sum;
}
static void scan_host(const uint32_t *in, uint32_t *out) {
    uint32_t sum = 0;
    for (int lane = 0; lane < 32; ++lane) {
        out[lane] = sum += in[lane];
    }
}
CASE(scan_by_shuffles) { run_warps<uint32_t>(scan_by_shuffles, scan_host); }

// ---- Votes and matches ----

static uint32_t ballot(const uint32_t *in, uint32_t lanes, bool (*holds)(uint32_t)) {
    uint32_t result = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        result |= uint32_t((lanes >> lane & 1) && holds(in[lane])) << lane;
    }
    return result;
}
static bool is_odd(uint32_t x) { return x % 2 == 1; }
WARPS(vote_ballot, uint32_t, out = __ballot_sync(kAll, in % 2), out = ballot(in, kAll, is_odd))
WARPS(vote_all_any, uint32_t,
      out = __all_sync(kAll, in != 5) | __any_sync(kAll, in < 0x08000000u) << 1 | __all_sync(kAll, in % 2) << 2,
      out = 1;
      for (int i = 0; i < 32; ++i) out |= (in[i] < 0x08000000u) << 1)
WARPS(vote_partial, uint32_t,
      if (lane >= 20) out = __ballot_sync(0xfff00000u, in % 2) | __any_sync(0xfff00000u, in % 2),
      out = lane >= 20 ? ballot(in, 0xfff00000u, is_odd) | (ballot(in, 0xfff00000u, is_odd) != 0) : 0)
__device__ uint32_t asm_vote_uni(uint32_t in) {
    uint32_t d;
    asm volatile("{ .reg .pred p, q, r;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.uni.pred q, p, "
                 "0xffffffff;\n\tvote.sync.any.pred r, !p, 0xffffffff;\n\t"
                 "selp.u32 %0, 1, 0, q;\n\t@r add.u32 %0, %0, 2; }"
                 : "=r"(d)
                 : "r"(in));
    return d;
}
WARPS(
    vote_uni, uint32_t, out = asm_vote_uni(in & 0x10000) + 4 * asm_vote_uni(lane & 32), bool some = false;
    bool none = false; for (int i = 0; i < 32; ++i) {
        some |= (in[i] & 0x10000) != 0;
        none |= (in[i] & 0x10000) == 0;
    } out = (some != none ? 1 : 0) + (none ? 2 : 0) + 4 * 3)
WARPS(match_any, uint32_t, out = __match_any_sync(kAll, in % 5),
      for (int i = 0; i < 32; ++i) out |= uint32_t(in[i] % 5 == in[lane] % 5) << i)
WARPS(match_any_u64, uint32_t, out = __match_any_sync(kAll, (unsigned long long)(in % 3) << 40),
      for (int i = 0; i < 32; ++i) out |= uint32_t(in[i] % 3 == in[lane] % 3) << i)
WARPS(match_all, uint32_t, int same; out = __match_all_sync(kAll, lane / 32, &same) ^ same;
      out += __match_all_sync(kAll, lane / 31, &same) + 2 * same, out = kAll ^ 1u)
WARPS(match_partial, uint32_t, if (lane % 2) out = __match_any_sync(0xaaaaaaaau, in % 4),
      if (lane % 2) for (int i = 1; i < 32; i += 2) out |= uint32_t(in[i] % 4 == in[lane] % 4) << i)
WARPS(
    activemask_in_branch, uint32_t,
    if (lane < 11) {
        __syncwarp(0x7ff);
        out = __popc(__activemask() & 0x7ff) >= 1;
    },
    out = lane < 11)
WARPS(lane_masks, uint32_t, uint32_t a; uint32_t b; uint32_t c; uint32_t d; uint32_t e;
      asm("mov.u32 %0, %%lanemask_lt;\n\tmov.u32 %1, %%lanemask_le;\n\tmov.u32 %2, %%lanemask_eq;\n\tmov.u32 %3, "
          "%%lanemask_ge;\n\tmov.u32 %4, %%lanemask_gt;" : "=r"(a),
          "=r"(b), "=r"(c), "=r"(d), "=r"(e));
      out = a * 3 + b * 5 + c * 7 + d * 11 + e * 13, uint32_t bit = 1u << lane;
      out = (bit - 1) * 3 + (bit * 2 - 1) * 5 + bit * 7 + ~(bit - 1) * 11 + ~(bit * 2 - 1) * 13)
// Each lane's rank among the lanes with the same key, in order of the lanes.
WARPS(rank_by_match, uint32_t, uint32_t peers = __match_any_sync(kAll, in % 6);
      out = __popc(peers & ((1u << lane) - 1)), for (unsigned i = 0; i < lane; ++i) out += in[i] % 6 == in[lane] % 6)
// The leader of each group, elected, adds up for its peers.
WARPS(fns_leader, uint32_t, uint32_t odd = __ballot_sync(kAll, in % 2);
      out = __fns(odd, 0, lane + 1), uint32_t odd = ballot(in, kAll, is_odd); out = kAll; unsigned seen = 0;
      for (unsigned i = 0; i < 32; ++i) if (odd >> i & 1) if (seen++ == lane) out = i)

// ---- Cooperative groups ----

static uint32_t tile_sum(const uint32_t *in, unsigned lane, unsigned size) {
    uint32_t sum = 0;
    for (unsigned i = 0; i < size; ++i) {
        sum += in[(lane & ~(size - 1)) + i];
    }
    return sum;
}
WARPS(tile_sum_32, uint32_t, auto tile = cg::tiled_partition<32>(cg::this_thread_block());
      out = cg::reduce(tile, in, cg::plus<uint32_t>()), out = tile_sum(in, lane, 32))
WARPS(tile_sum_8, uint32_t, auto tile = cg::tiled_partition<8>(cg::this_thread_block()); uint32_t sum = in;
      for (int step = 4; step > 0; step /= 2) sum += tile.shfl_xor(sum, step);
      out = sum + tile.thread_rank(), out = tile_sum(in, lane, 8) + lane % 8)
WARPS(
    tile_votes_4, uint32_t, auto tile = cg::tiled_partition<4>(cg::this_thread_block());
    out = tile.ballot(in % 2) | tile.any(in % 4 == 0) << 8 | tile.all(in % 2) << 9 | tile.match_any(in % 2) << 16,
    unsigned base = lane & ~3u;
    uint32_t any = 0; uint32_t all = 1; for (unsigned i = 0; i < 4; ++i) {
        uint32_t x = in[base + i];
        out |= (x % 2) << i | uint32_t(x % 2 == in[lane] % 2) << (16 + i);
        any |= x % 4 == 0;
        all &= x % 2;
    } out |= any << 8 | all << 9)
WARPS(tile_of_tile, uint32_t, auto outer = cg::tiled_partition<16>(cg::this_thread_block());
      auto inner = cg::tiled_partition<2>(outer); out = inner.shfl(in, 1) + outer.shfl(in, 0) + inner.meta_group_rank(),
                                                  out = in[lane | 1] + in[lane & 16] + lane % 16 / 2)
WARPS(tile_scans, uint32_t, auto tile = cg::tiled_partition<16>(cg::this_thread_block());
      out = cg::inclusive_scan(tile, in) * 3 + cg::exclusive_scan(tile, in), uint32_t sum = 0;
      for (unsigned i = lane & 16; i < lane; ++i) sum += in[i]; out = (sum + in[lane]) * 3 + sum)
WARPS(
    tile_max, int32_t, auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    out = cg::reduce(tile, int(in), cg::greater<int>()) ^ cg::reduce(tile, int(in >> 3), cg::less<int>()),
    int32_t most = INT32_MIN;
    int32_t least = INT32_MAX; for (int i = 0; i < 32; ++i) {
        int32_t x = int32_t(in[i]);
        int32_t y = int32_t(in[i] >> 3);
        most = x > most ? x : most;
        least = y < least ? y : least;
    } out = most ^ least)
WARPS(
    labeled_groups, uint32_t,
    auto group = cg::labeled_partition(cg::tiled_partition<32>(cg::this_thread_block()), int(in % 3));
    out = group.size() * 100 + group.thread_rank() + (group.shfl(in, 0) & ~0xffffu), uint32_t size = 0;
    uint32_t rank = 0; uint32_t first = 0; for (unsigned i = 32; i-- > 0;) if (in[i] % 3 == in[lane] % 3) {
        ++size;
        rank += i < lane;
        first = in[i];
    } out = size * 100 + rank + (first & ~0xffffu))
WARPS(
    binary_groups, uint32_t,
    auto group = cg::binary_partition(cg::tiled_partition<32>(cg::this_thread_block()), in % 2 == 1);
    out = group.size() * 100 + group.thread_rank(), uint32_t size = 0; uint32_t rank = 0;
    for (unsigned i = 0; i < 32; ++i) if (in[i] % 2 == in[lane] % 2) {
        ++size;
        rank += i < lane;
    } out = size * 100 + rank)

// Threads that happen to be together count themselves; whatever the groups are, the total is right.
__global__ void coalesced_counting(const uint32_t *words, uint32_t *results) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (words[thread] % 3 == 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        uint32_t sum = 0;
        for (unsigned i = 0; i < active.size(); ++i) {
            sum += active.shfl(1u, i);
        }
        if (active.thread_rank() == 0) {
            atomicAdd(&results[0], sum);
        }
    }
}
CASE(coalesced_counting) {
    const std::vector<uint32_t> words = random_words(8);
    std::vector<uint32_t> expected(1, 0);
    for (uint32_t word : words) {
        expected[0] += word % 3 == 0;
    }
    DeviceArray<uint32_t> device_words(words), out(1);
    CHECK(cudaMemset(out.get(), 0, 4));
    suite::launch(coalesced_counting, kGrid, kBlock, device_words.get(), out.get());
    suite::compare(out, expected);
}

// Two groups of lanes each wait for the other's flag: neither may starve.
__global__ void ping_pong(uint32_t *results) {
    __shared__ volatile int turn;
    if (threadIdx.x == 0) {
        turn = 0;
    }
    __syncthreads();
    int mine = threadIdx.x % 2;
    if (threadIdx.x < 2) {
        for (int round = 0; round < 50; ++round) {
            while (turn != 2 * round + mine) {
            }
            results[2 * round + mine] = turn * 3 + mine;
            __threadfence_block();
            turn = turn + 1;
        }
    }
}
CASE(ping_pong) {
    std::vector<uint32_t> expected;
    for (int turn = 0; turn < 100; ++turn) {
        expected.push_back(turn * 3 + turn % 2);
    }
    DeviceArray<uint32_t> out(100);
    suite::launch(ping_pong, 1, 32, out.get());
    suite::compare(out, expected);
}
SUITE_MAIN("collectives")
