// Thousands of launches with nothing between them: what goes to the device together must run in its order, with its own parameters.
//
// Every kernel maps x to x * a + b modulo 2^32, which commutes with no other such map, so that one launch out of its place, run twice or with
// the parameters of another shows in the result. Kernels differ in their parameters' size, in their shape and in what shared
// memory they need; the streams are used in runs and in turns, and some launches are refused.
//
// With the argument "sms" it prints instead on how many SMs the blocks of many launches ran, and of how many it was told. With "copies" each step is what a program
// does that exchanges a little with its host: copies to the device, kernels, copies back, and a wait; what arrives is checked each time.
#include "check.h"

#include <cstring>

constexpr unsigned COUNT = 256;
constexpr unsigned LAUNCHES = 6000;
constexpr unsigned STREAMS = 3;

struct Map {
    unsigned a, b;
};

// Parameters of more than a kilobyte; which of the maps counts stands behind them.
struct Table {
    Map maps[160];
    unsigned chosen;
};

__global__ void apply(unsigned *x, Map map) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT) {
        x[i] = x[i] * map.a + map.b;
    }
}

__global__ void apply_chosen(Table table, unsigned *x) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < COUNT; i += gridDim.x * blockDim.x) {
        Map map = table.maps[table.chosen];
        x[i] = x[i] * map.a + map.b;
    }
}

__global__ void apply_shared(unsigned *x, unsigned a, unsigned b) {
    extern __shared__ unsigned turned[];
    unsigned first = blockIdx.x * blockDim.x;
    turned[blockDim.x - 1 - threadIdx.x] = x[first + threadIdx.x] * a;
    __syncthreads();
    x[first + threadIdx.x] = turned[blockDim.x - 1 - threadIdx.x] + b;
}

__global__ void note_sm(unsigned *seen) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    seen[sm] = 1;
}

// Launches without a pause, all but the first of a few hundred in company.
static int show_sms() {
    constexpr unsigned MOST_SMS = 1024;
    constexpr unsigned LAUNCHES_FOR_SMS = 1000;
    int told = 0;
    CHECK(cudaDeviceGetAttribute(&told, cudaDevAttrMultiProcessorCount, 0));
    DeviceArray<unsigned> seen{std::vector<unsigned>(MOST_SMS)};
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (unsigned done = 0; done < LAUNCHES_FOR_SMS; ++done) {
        note_sm<<<static_cast<unsigned>(told) * 2, 32, 0, stream>>>(seen.get());
    }
    CHECK(cudaDeviceSynchronize());
    unsigned count = 0;
    for (unsigned ran : seen.to_host()) {
        count += ran;
    }
    std::printf("many_launches: on %u SMs of %d\n", count, told);
    CHECK(cudaStreamDestroy(stream));
    return 0;
}

constexpr unsigned STEPS = 600;
// Copies go up to this many values, some of them from odd places.
constexpr unsigned MOST_COPIED = 9000;

__global__ void apply_all(unsigned *x, unsigned count, Map map) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        x[i] = x[i] * map.a + map.b;
    }
}

static int exchange(Random &random) {
    unsigned *pinned, *device, *other;
    const size_t bytes = (MOST_COPIED + 8) * sizeof(unsigned);
    CHECK(cudaMallocHost(&pinned, 2 * bytes));
    CHECK(cudaMalloc(&device, bytes));
    CHECK(cudaMalloc(&other, bytes));
    unsigned *const sent = pinned, *const got = pinned + MOST_COPIED + 8;
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Checksum checksum;
    for (unsigned step = 0; step < STEPS; ++step) {
        // Mostly whole rows of a halo's length; now and then what no word fits, and what is too long.
        const unsigned count = step % 8 == 7 ? 1 + random.below<unsigned>(MOST_COPIED) : 512;
        const unsigned from = step % 4 == 3 ? random.below<unsigned>(8) : 0, to = step % 5 == 4 ? random.below<unsigned>(8) : 0;
        const size_t length = count * sizeof(unsigned) - (step % 16 == 15 ? 1 : 0);
        const Map first = {random.below<unsigned>(1u << 16) * 2 + 1, step}, second = {random.below<unsigned>(1u << 16) * 2 + 1, ~step};
        std::vector<unsigned> expected(count);
        for (unsigned i = 0; i < count; ++i) {
            sent[from + i] = i * 2654435761u + step;
            expected[i] = (sent[from + i] * first.a + first.b) * second.a + second.b;
            got[to + i] = 0;
        }
        CHECK(cudaMemcpyAsync(device + to, sent + from, count * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
        apply_all<<<4, 64, 0, stream>>>(device + to, count, first);
        CHECK(cudaMemcpyAsync(other + from, device + to, count * sizeof(unsigned), cudaMemcpyDeviceToDevice, stream));
        apply_all<<<4, 64, 0, stream>>>(other + from, count, second);
        CHECK(cudaMemcpyAsync(got + to, other + from, length, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        REQUIRE(std::memcmp(got + to, expected.data(), length) == 0);
        checksum.add(expected);
    }
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(device));
    CHECK(cudaFree(other));
    CHECK(cudaFreeHost(pinned));
    return report_ok("many_launches copies", checksum);
}

static Random random_numbers(12345);

static unsigned random_below(unsigned limit) { return random_numbers.below<unsigned>(limit); }

// Launches a map of the given kind.
static void launch(unsigned kind, unsigned *x, Map map, cudaStream_t stream) {
    if (kind == 0) {
        unsigned threads = 32u << random_below(4);
        apply<<<COUNT / threads, threads, 0, stream>>>(x, map);
    } else if (kind == 1) {
        Table table = {};
        table.chosen = random_below(160);
        table.maps[table.chosen] = map;
        apply_chosen<<<1 + random_below(3), 64, 0, stream>>>(table, x);
    } else {
        unsigned threads = 64u << random_below(3);
        apply_shared<<<COUNT / threads, threads, threads * sizeof(unsigned), stream>>>(x, map.a, map.b);
    }
    CHECK(cudaGetLastError());
}

int main(int argc, char **argv) {
    if (argc > 1) {
        return std::strcmp(argv[1], "copies") == 0 ? exchange(random_numbers) : show_sms();
    }
    std::vector<std::vector<unsigned>> expected(STREAMS, std::vector<unsigned>(COUNT));
    std::vector<unsigned *> arrays(STREAMS);
    std::vector<cudaStream_t> streams(STREAMS);
    for (unsigned s = 0; s < STREAMS; ++s) {
        for (unsigned i = 0; i < COUNT; ++i) {
            expected[s][i] = i * 2654435761u + s;
        }
        CHECK(cudaMalloc(&arrays[s], COUNT * sizeof(unsigned)));
        CHECK(cudaMemcpy(arrays[s], expected[s].data(), COUNT * sizeof(unsigned), cudaMemcpyHostToDevice));
        // The last one is ordered with the default stream.
        CHECK(cudaStreamCreateWithFlags(&streams[s], s + 1 < STREAMS ? cudaStreamNonBlocking : cudaStreamDefault));
    }
    unsigned stream = 0;
    for (unsigned done = 0; done < LAUNCHES; ++done) {
        // Runs of launches on one stream, short and long.
        if (random_below(40) == 0) {
            stream = random_below(STREAMS);
        }
        Map map = {random_below(1u << 16) * 2 + 1, random_below(1u << 20)};
        launch(random_below(3), arrays[stream], map, streams[stream]);
        for (unsigned &value : expected[stream]) {
            value = value * map.a + map.b;
        }
        if (random_below(700) == 0) {
            apply<<<1, 4096, 0, streams[stream]>>>(arrays[stream], map);
            REQUIRE(cudaGetLastError() != cudaSuccess);
        }
        if (random_below(900) == 0) {
            CHECK(cudaStreamSynchronize(streams[stream]));
        }
    }
    CHECK(cudaDeviceSynchronize());
    Checksum checksum;
    for (unsigned s = 0; s < STREAMS; ++s) {
        std::vector<unsigned> got(COUNT);
        CHECK(cudaMemcpy(got.data(), arrays[s], COUNT * sizeof(unsigned), cudaMemcpyDeviceToHost));
        require_equal(got, expected[s], "mapped values");
        checksum.add(got);
        CHECK(cudaFree(arrays[s]));
        CHECK(cudaStreamDestroy(streams[s]));
    }
    return report_ok("many_launches", checksum);
}
