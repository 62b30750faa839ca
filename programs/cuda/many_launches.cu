// Thousands of launches with nothing between them: what goes to the device together must run in its order, with its own parameters.
//
// Every kernel maps x to x * a + b modulo 2^32, which commutes with no other such map, so that one launch out of its place, run twice or with
// the parameters of another shows in the result. Kernels differ in their parameters' size, in their shape and in what shared
// memory they need; the streams are used in runs and in turns, and some launches are refused.
//
// With an argument it prints instead on how many SMs the blocks of many launches ran, and of how many it was told.
#include "check.h"

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

int main(int argc, char **) {
    if (argc > 1) {
        return show_sms();
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
