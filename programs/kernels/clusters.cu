// Clusters of blocks: ranks, barriers, and one another's shared memory.
// nvcc-arch: compute_90
#include "suite.h"

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

static std::vector<uint32_t> random_words(size_t count, uint32_t seed) {
    Random random(seed);
    std::vector<uint32_t> words(count);
    for (uint32_t &word : words) {
        word = random.next();
    }
    return words;
}

template <typename... P, typename... A>
static void launch_cluster(void (*kernel)(P...), dim3 grid, dim3 block, dim3 cluster, A... arguments) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster.x, cluster.y, cluster.z};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, kernel, arguments...));
    suite::count_launch(reinterpret_cast<const void *>(kernel));
}

// Where a block is in its cluster, and its cluster in the grid.
__global__ void __cluster_dims__(2, 2, 1) cluster_ranks(uint32_t *out) {
    cg::cluster_group cluster = cg::this_cluster();
    dim3 in_cluster = cluster.block_index();
    uint32_t clusters_x, cluster_x, cluster_y, rank, ranks, is_explicit;
    asm("mov.u32 %0, %%nclusterid.x;\n\tmov.u32 %1, %%clusterid.x;\n\tmov.u32 %2, %%clusterid.y;"
        : "=r"(clusters_x), "=r"(cluster_x), "=r"(cluster_y));
    asm("mov.u32 %0, %%cluster_ctarank;\n\tmov.u32 %1, %%cluster_nctarank;" : "=r"(rank), "=r"(ranks));
    asm("{ .reg .pred p;\n\tmov.pred p, %%is_explicit_cluster;\n\tselp.u32 %0, 1, 0, p; }" : "=r"(is_explicit));
    if (threadIdx.x == 0) {
        out[blockIdx.y * gridDim.x + blockIdx.x] = in_cluster.x | in_cluster.y << 2 | cluster.block_rank() << 4 |
                                                   cluster.num_blocks() << 8 | cluster.dim_blocks().x << 12 |
                                                   clusters_x << 16 | cluster_x << 20 | cluster_y << 24 |
                                                   (rank == cluster.block_rank() && ranks == 4 && is_explicit) << 28;
    }
}
CASE(cluster_ranks) {
    std::vector<uint32_t> expected;
    for (uint32_t y = 0; y < 4; ++y) {
        for (uint32_t x = 0; x < 6; ++x) {
            expected.push_back(x % 2 | y % 2 << 2 | (x % 2 + 2 * (y % 2)) << 4 | 4 << 8 | 2 << 12 | 3 << 16 |
                               x / 2 << 20 | y / 2 << 24 | 1u << 28);
        }
    }
    DeviceArray<uint32_t> out(24);
    suite::launch(cluster_ranks, dim3(6, 4), 32, out.get());
    suite::compare(out, expected);
}

// Each block reads its right neighbour's words and writes its left neighbour's.
__global__ void cluster_ring(const uint32_t *in, uint32_t *out) {
    __shared__ uint32_t words[64], received[64];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned rank = cluster.block_rank(), blocks = cluster.num_blocks(), i = threadIdx.x;
    words[i] = in[blockIdx.x * 64 + i];
    cluster.sync();
    const uint32_t *right = cluster.map_shared_rank(words, (rank + 1) % blocks);
    uint32_t *left = cluster.map_shared_rank(received, (rank + blocks - 1) % blocks);
    left[63 - i] = right[i] * 3 + rank;
    cluster.sync();
    out[blockIdx.x * 64 + i] = received[i];
}
CASE(cluster_ring) {
    constexpr uint32_t kCluster = 4, kGrid = 8;
    const std::vector<uint32_t> in = random_words(kGrid * 64, 1);
    std::vector<uint32_t> expected(in.size());
    for (uint32_t block = 0; block < kGrid; ++block) {
        uint32_t base = block / kCluster * kCluster, rank = block % kCluster, writer = (rank + 1) % kCluster,
                 source = (rank + 2) % kCluster;
        for (uint32_t i = 0; i < 64; ++i) {
            expected[block * 64 + 63 - i] = in[(base + source) * 64 + i] * 3 + writer;
        }
    }
    DeviceArray<uint32_t> device_in(in), out(in.size());
    launch_cluster(cluster_ring, kGrid, 64, kCluster, static_cast<const uint32_t *>(device_in.get()), out.get());
    suite::compare(out, expected);
}

// Bins spread over the blocks of a cluster, counted by remote atomics.
__global__ void __cluster_dims__(4, 1, 1) cluster_histogram(const uint32_t *in, int count, uint32_t *bins) {
    __shared__ uint32_t mine[32];
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x < 32) {
        mine[threadIdx.x] = 0;
    }
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        uint32_t bin = in[i] % 128;
        atomicAdd(cluster.map_shared_rank(&mine[bin % 32], bin / 32), 1u);
    }
    cluster.sync();
    if (threadIdx.x < 32) {
        atomicAdd(&bins[cluster.block_rank() * 32 + threadIdx.x], mine[threadIdx.x]);
    }
}
CASE(cluster_histogram) {
    const std::vector<uint32_t> in = random_words(5000, 2);
    std::vector<uint32_t> expected(128, 0);
    for (uint32_t word : in) {
        ++expected[word % 128];
    }
    DeviceArray<uint32_t> device_in(in), bins(std::vector<uint32_t>(128, 0));
    suite::launch(cluster_histogram, 8, 96, device_in.get(), 5000, bins.get());
    suite::compare(bins, expected);
}

// Arrive and wait apart, addresses by mapa, loads and stores of the cluster's shared space.
__global__ void __cluster_dims__(2, 1, 1) cluster_instructions(uint32_t *out) {
    __shared__ uint32_t words[32];
    uint32_t rank, own = static_cast<uint32_t>(__cvta_generic_to_shared(&words[threadIdx.x])), remote, value, owner,
                   generic_rank, is_shared;
    uint64_t generic;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    words[threadIdx.x] = rank * 1000 + threadIdx.x;
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(1 - rank));
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(owner) : "r"(remote));
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(&words[threadIdx.x]), "r"(1 - rank));
    asm volatile("getctarank.u64 %0, %1;" : "=r"(generic_rank) : "l"(generic));
    asm volatile("{ .reg .pred p, q;\n\tisspacep.shared::cluster p, %1;\n\tisspacep.shared::cta q, %1;\n\tselp.u32 %0, "
                 "1, 0, p;\n\t@q add.u32 %0, %0, 2; }"
                 : "=r"(is_shared)
                 : "l"(generic));
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(remote) : "memory");
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote), "r"(value + 7) : "memory");
    asm volatile("red.shared::cluster.add.u32 [%0], 50000;" ::"r"(remote) : "memory");
    asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
    out[blockIdx.x * 32 + threadIdx.x] =
        words[threadIdx.x] + (owner == 1 - rank && generic_rank == 1 - rank) * 100000 + is_shared * 1000000;
}
CASE(cluster_instructions) {
    std::vector<uint32_t> expected;
    for (uint32_t block = 0; block < 4; ++block) {
        for (uint32_t i = 0; i < 32; ++i) {
            // The partner read our word, and wrote it back changed.
            expected.push_back(block % 2 * 1000 + i + 7 + 50000 + 100000 + 1000000);
        }
    }
    DeviceArray<uint32_t> out(128);
    suite::launch(cluster_instructions, 4, 32, out.get());
    suite::compare(out, expected);
}

// Blocks arrive at the barrier of their cluster's first block.
__global__ void __cluster_dims__(4, 1, 1) cluster_remote_barrier(uint32_t *out) {
    __shared__ uint64_t barrier;
    __shared__ uint32_t sum;
    cg::cluster_group cluster = cg::this_cluster();
    uint32_t own = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier)), remote;
    if (threadIdx.x == 0) {
        sum = 0;
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(own), "r"(4) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        atomicAdd(cluster.map_shared_rank(&sum, 0), 10 + cluster.block_rank());
        __threadfence();
        asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(own));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
    }
    if (cluster.block_rank() == 0) {
        uint32_t done = 0;
        while (!done) {
            asm volatile("{ .reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], "
                         "0;\n\tselp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(own)
                         : "memory");
        }
        if (threadIdx.x == 0) {
            out[blockIdx.x / 4] = *static_cast<volatile uint32_t *>(&sum);
        }
    }
    cluster.sync();
}
CASE(cluster_remote_barrier) {
    DeviceArray<uint32_t> out(3);
    suite::launch(cluster_remote_barrier, 12, 64, out.get());
    suite::compare(out, std::vector<uint32_t>(3, 46));
}

// A sum over the blocks of a cluster, one value per cluster and no global atomics; 8 blocks are the most that every
// device takes.
__global__ void cluster_sum(const uint32_t *in, uint32_t *out) {
    __shared__ uint32_t sum;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) {
        sum = 0;
    }
    __syncthreads();
    atomicAdd(&sum, in[blockIdx.x * blockDim.x + threadIdx.x]);
    cluster.sync();
    if (cluster.block_rank() == 0 && threadIdx.x == 0) {
        uint32_t total = 0;
        for (unsigned block = 0; block < cluster.num_blocks(); ++block) {
            total += *cluster.map_shared_rank(&sum, block);
        }
        out[blockIdx.x / cluster.num_blocks()] = total;
    }
    // No block may leave while another reads its memory.
    cluster.sync();
}
CASE(cluster_sum) {
    const std::vector<uint32_t> in = random_words(16 * 128, 3);
    std::vector<uint32_t> expected(2, 0);
    for (size_t i = 0; i < in.size(); ++i) {
        expected[i / 1024] += in[i];
    }
    DeviceArray<uint32_t> device_in(in), out(2);
    launch_cluster(cluster_sum, 16, 128, 8, static_cast<const uint32_t *>(device_in.get()), out.get());
    suite::compare(out, expected);
}
SUITE_MAIN("clusters")
