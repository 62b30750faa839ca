// Steps: commands of a stream, or nodes of a graph, each of which the device does and the host does as well. Hardly any two of them commute: one that is out of its
// place, left out or done twice shows.
#pragma once

#include "../check.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// Values of an array, and how kernels divide them.
constexpr unsigned COUNT = 256, THREADS = 64, BLOCKS = COUNT / THREADS;
// Words of pinned memory; each step that uses some has words of its own.
constexpr unsigned HOST_WORDS = 1u << 18;

// Maps are modulo 2^32; those with an odd factor have an inverse, so that no value forgets what it was.
struct Map {
    unsigned a, b;
    __host__ __device__ unsigned of(unsigned x) const { return x * a + b; }
};

// Parameters of more than a kilobyte.
struct Table {
    Map maps[160];
    unsigned chosen;
};

__device__ unsigned place() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void apply(unsigned *x, Map map) { x[place()] = map.of(x[place()]); }

__global__ void apply_chosen(Table table, unsigned *x) { x[place()] = table.maps[table.chosen].of(x[place()]); }

// Each block's values in reverse.
__global__ void apply_turned(unsigned *x, Map map) {
    extern __shared__ unsigned turned[];
    turned[blockDim.x - 1 - threadIdx.x] = x[place()];
    __syncthreads();
    x[place()] = map.of(turned[threadIdx.x]);
}

__global__ void combine(unsigned *to, const unsigned *from, Map map) { to[place()] = map.of(to[place()]) + from[COUNT - 1 - place()]; }

// Each block gets the values of the next one of its cluster.
__global__ void apply_in_cluster(unsigned *x, Map map) {
    __shared__ unsigned own[THREADS];
    cg::cluster_group cluster = cg::this_cluster();
    own[threadIdx.x] = x[place()];
    cluster.sync();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    x[place()] = map.of(cluster.map_shared_rank(own, next)[threadIdx.x]);
    cluster.sync();
}

// All values in reverse.
__global__ void apply_across_grid(unsigned *x, Map map) {
    unsigned value = x[COUNT - 1 - place()];
    cg::this_grid().sync();
    x[place()] = map.of(value);
}

// May begin before what precedes it has ended, and lets what follows begin.
__global__ void apply_overlapped(unsigned *x, Map map) {
    cudaTriggerProgrammaticLaunchCompletion();
    cudaGridDependencySynchronize();
    x[place()] = map.of(x[place()]);
}

enum class Kind {
    Apply, ApplyChosen, ApplyTurned, Combine, ApplyInCluster, ApplyAcrossGrid, ApplyOverlapped, ApplyUrgently,
    Fill, Copy, FromHost, FromPageable, ToHost, OnHost,
};

// One command of a stream, or node of a graph. Fills and copies are of words `first` and so on of `to`; the host's words begin at `slot`.
struct Step {
    Kind kind;
    unsigned to, from, first, count, slot, shape;
    Map map;
};

struct Array {
    unsigned *device;
    std::vector<unsigned> expected;
    // To which it belongs; see mixed_commands.cu.
    unsigned stream;
};

struct HostCall {
    unsigned *words;
    unsigned count;
    Map map;
};

static void CUDART_CB call_host(void *argument) {
    const HostCall &call = *static_cast<const HostCall *>(argument);
    std::for_each(call.words, call.words + call.count, [&](unsigned &word) { word = call.map.of(word); });
}

// What the steps work on, on the device and as it should be.
class Memory {
  public:
    std::vector<Array> arrays;

    Memory() : expected_host_(HOST_WORDS) {
        CHECK(cudaDeviceGetStreamPriorityRange(&least_priority_, &greatest_priority_));
        CHECK(cudaMallocHost(&host_, HOST_WORDS * sizeof(unsigned)));
    }

    ~Memory() {
        std::for_each(arrays.begin(), arrays.end(), [](Array &array) { CHECK(cudaFree(array.device)); });
        CHECK(cudaFreeHost(host_));
    }

    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    // How many kernels there were.
    unsigned launches() const { return launches_; }

    // Words of the host for one step.
    unsigned reserve_host(unsigned count) {
        REQUIRE(host_used_ + count <= HOST_WORDS);
        host_used_ += count;
        return host_used_ - count;
    }

    // The same, set to something.
    unsigned put_on_host(Random &random, unsigned count) {
        const unsigned slot = reserve_host(count);
        for (unsigned i = slot; i < slot + count; ++i) {
            host_[i] = expected_host_[i] = random.next();
        }
        return slot;
    }

    // Gives a step to a stream, or to a capture.
    void enqueue(const Step &step, cudaStream_t stream) {
        unsigned *to = arrays[step.to].device, *from = arrays[step.from].device, *host = host_ + step.slot;
        const size_t bytes = step.count * sizeof(unsigned);
        switch (step.kind) {
        case Kind::Apply:
            apply<<<BLOCKS, THREADS, 0, stream>>>(to, step.map);
            break;
        case Kind::ApplyChosen: {
            Table table = {};
            table.chosen = step.map.b % std::size(table.maps);
            table.maps[table.chosen] = step.map;
            apply_chosen<<<BLOCKS / 2, THREADS * 2, 0, stream>>>(table, to);
            break;
        }
        case Kind::ApplyTurned:
            apply_turned<<<BLOCKS, THREADS, THREADS * sizeof(unsigned), stream>>>(to, step.map);
            break;
        case Kind::Combine:
            combine<<<BLOCKS, THREADS, 0, stream>>>(to, from, step.map);
            break;
        case Kind::ApplyInCluster:
        case Kind::ApplyAcrossGrid:
        case Kind::ApplyOverlapped:
        case Kind::ApplyUrgently:
            enqueue_with_attributes(step, stream);
            break;
        case Kind::Fill:
            CHECK(cudaMemsetAsync(to + step.first, static_cast<int>(step.map.b & 0xff), bytes, stream));
            break;
        case Kind::Copy:
            // Within one array it is from the first half to the second.
            CHECK(cudaMemcpyAsync(to + COUNT - step.count, from, bytes, cudaMemcpyDeviceToDevice, stream));
            break;
        case Kind::FromHost:
            CHECK(cudaMemcpyAsync(to + step.first, host, bytes, cudaMemcpyHostToDevice, stream));
            break;
        case Kind::FromPageable: {
            std::vector<unsigned> pageable(host, host + step.count);
            CHECK(cudaMemcpyAsync(to + step.first, pageable.data(), bytes, cudaMemcpyHostToDevice, stream));
            // It has been read.
            std::fill(pageable.begin(), pageable.end(), 0);
            break;
        }
        case Kind::ToHost:
            CHECK(cudaMemcpyAsync(host, to + step.first, bytes, cudaMemcpyDeviceToHost, stream));
            break;
        case Kind::OnHost:
            calls_.push_back({host, step.count, step.map});
            CHECK(cudaLaunchHostFunc(stream, call_host, &calls_.back()));
            break;
        }
        CHECK(cudaGetLastError());
    }

    // What a step does that was given to a stream.
    void model(const Step &step) {
        const std::vector<unsigned> before = arrays[step.to].expected, &from = arrays[step.from].expected;
        std::vector<unsigned> &to = arrays[step.to].expected;
        unsigned *host = expected_host_.data() + step.slot, *some = to.data() + step.first;
        switch (step.kind) {
        case Kind::Fill:
            std::fill_n(some, step.count, (step.map.b & 0xff) * 0x01010101u);
            break;
        case Kind::Copy:
            std::copy_n(from.begin(), step.count, to.end() - step.count);
            break;
        case Kind::FromHost:
        case Kind::FromPageable:
            std::copy_n(host, step.count, some);
            break;
        case Kind::ToHost:
            std::copy_n(some, step.count, host);
            break;
        case Kind::OnHost:
            std::transform(host, host + step.count, host, [&](unsigned word) { return step.map.of(word); });
            break;
        default:
            for (unsigned i = 0; i < COUNT; ++i) {
                to[i] = step.map.of(before[source(step, i)]) + (step.kind == Kind::Combine ? from[COUNT - 1 - i] : 0);
            }
            ++launches_;
        }
    }

    // Of words that a step has brought to the host, and that have been waited for.
    void check_host(const Step &step) const {
        const auto first = expected_host_.begin() + step.slot;
        require_equal(std::vector<unsigned>(host_ + step.slot, host_ + step.slot + step.count), {first, first + step.count}, "copied words");
    }

    static void check_array(const Array &array) {
        std::vector<unsigned> got(COUNT);
        CHECK(cudaMemcpy(got.data(), array.device, COUNT * sizeof(unsigned), cudaMemcpyDeviceToHost));
        require_equal(got, array.expected, "values of an array");
    }

    // All of it, when nothing is at work any more.
    Checksum check_all() const {
        Checksum checksum;
        for (const Array &array : arrays) {
            check_array(array);
            checksum.add(array.expected);
        }
        const std::vector<unsigned> expected(expected_host_.begin(), expected_host_.begin() + host_used_);
        require_equal(std::vector<unsigned>(host_, host_ + host_used_), expected, "words of the host");
        checksum.add(expected);
        return checksum;
    }

  private:
    void enqueue_with_attributes(const Step &step, cudaStream_t stream) {
        cudaLaunchAttribute attributes[2] = {};
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(BLOCKS);
        config.blockDim = dim3(THREADS);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 1;
        unsigned *x = arrays[step.to].device;
        if (step.kind == Kind::ApplyInCluster) {
            attributes[0].id = cudaLaunchAttributeClusterDimension;
            attributes[0].val.clusterDim = {step.shape, 1, 1};
            CHECK(cudaLaunchKernelEx(&config, apply_in_cluster, x, step.map));
        } else if (step.kind == Kind::ApplyAcrossGrid) {
            attributes[0].id = cudaLaunchAttributeCooperative;
            attributes[0].val.cooperative = 1;
            CHECK(cudaLaunchKernelEx(&config, apply_across_grid, x, step.map));
        } else {
            attributes[0].id = cudaLaunchAttributePriority;
            attributes[0].val.priority = step.shape == 2 ? greatest_priority_ : least_priority_;
            attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attributes[1].val.programmaticStreamSerializationAllowed = 1;
            config.numAttrs = step.kind == Kind::ApplyOverlapped ? 2 : 1;
            CHECK(cudaLaunchKernelEx(&config, apply_overlapped, x, step.map));
        }
    }

    // Whose value a kernel's map is of that sets value `i`.
    static unsigned source(const Step &step, unsigned i) {
        const unsigned cluster = step.shape * THREADS;
        switch (step.kind) {
        case Kind::ApplyTurned:
            return i / THREADS * THREADS + THREADS - 1 - i % THREADS;
        case Kind::ApplyInCluster:
            return i / cluster * cluster + (i + THREADS) % cluster;
        case Kind::ApplyAcrossGrid:
            return COUNT - 1 - i;
        default:
            return i;
        }
    }

    int least_priority_, greatest_priority_;
    unsigned *host_;
    unsigned host_used_ = 0;
    std::vector<unsigned> expected_host_;
    // Host functions may run at any time.
    std::deque<HostCall> calls_;
    unsigned launches_ = 0;
};
