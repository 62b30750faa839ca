// Strong scaling over MPI ranks that share a GPU: the heat equation on a plate, by Jacobi's iteration. The plate stays as it is, and the ranks share its rows: the more
// of them, the less work each has for the device, which is what a Multi-Process Service is for.
//
// Each rank keeps one row of each neighbour beside its own (the halo) and exchanges them after every step: through pinned host memory, or straight between device
// buffers where MPI says that it can (MPIX_Query_cuda_support; `--staged` declines, `--device` does not ask: an MPI that leaves that to UCX does not know). While the edges travel, the rows between them are computed.
//
// Every cell is computed by the same formula from the same numbers whoever owns it, so the result is the same to the bit for any number of ranks.
//
// usage: jacobi [--staged | --device] [CELLS_PER_SIDE [STEPS]]
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        cudaError_t error_ = (call);                                                                   \
        if (error_ != cudaSuccess) {                                                                   \
            std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                              \
        }                                                                                              \
    } while (0)

// One step of rows [first, last) of a slab that is `width` cells wide. Its first and last columns are the plate's edges, which keep their temperature.
__global__ void step(const float *from, float *to, int width, int first, int last) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = first + blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= last) {
        return;
    }
    size_t at = static_cast<size_t>(y) * width + x;
    if (x == 0 || x == width - 1) {
        to[at] = from[at];
    } else {
        to[at] = 0.25f * ((from[at - 1] + from[at + 1]) + (from[at - width] + from[at + width]));
    }
}

static void launch(const float *from, float *to, int width, int first, int last, cudaStream_t stream) {
    if (first >= last) {
        return;
    }
    dim3 block(32, 4), grid((width + 31) / 32, (last - first + 3) / 4);
    step<<<grid, block, 0, stream>>>(from, to, width, first, last);
    CHECK(cudaGetLastError());
}

// The plate's temperature at the beginning: hot spots that are no multiples of anything, and a warm edge.
static float initial(int row, int column, int side) {
    if (row == 0) {
        return 100.0f;
    }
    if (row == side - 1 || column == 0 || column == side - 1) {
        return 0.0f;
    }
    uint32_t mixed = static_cast<uint32_t>(row) * 2654435761u ^ static_cast<uint32_t>(column) * 40503u;
    return static_cast<float>((mixed >> 16) % 1000) / 10.0f;
}

// The first row of a rank; the rows of all are within one of each other.
static int first_row(int rank, int ranks, int rows) {
    return static_cast<int>(static_cast<int64_t>(rows) * rank / ranks);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    bool staged = true;
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    staged = MPIX_Query_cuda_support() == 0;
#endif
    int argument = 1;
    if (argument < argc && std::strcmp(argv[argument], "--staged") == 0) {
        staged = true;
        ++argument;
    } else if (argument < argc && std::strcmp(argv[argument], "--device") == 0) {
        staged = false;
        ++argument;
    }
    const int side = argument < argc ? std::atoi(argv[argument]) : 256;
    const int steps = argument + 1 < argc ? std::atoi(argv[argument + 1]) : 40;
    if (side < 2 * ranks + 2 || steps < 1) {
        std::fprintf(stderr, "jacobi: %d cells per side are too few for %d ranks\n", side, ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }

    // The rows between the plate's fixed first and last one, of which this rank has `rows`, with a halo row before and behind.
    const int begin = 1 + first_row(rank, ranks, side - 2);
    const int rows = 1 + first_row(rank + 1, ranks, side - 2) - begin;
    const size_t cells = static_cast<size_t>(rows + 2) * side, row_bytes = side * sizeof(float);
    std::vector<float> host(cells);
    for (int y = 0; y < rows + 2; ++y) {
        for (int x = 0; x < side; ++x) {
            host[static_cast<size_t>(y) * side + x] = initial(begin - 1 + y, x, side);
        }
    }
    float *from, *to, *pinned;
    CHECK(cudaMalloc(&from, cells * sizeof(float)));
    CHECK(cudaMalloc(&to, cells * sizeof(float)));
    CHECK(cudaMallocHost(&pinned, 4 * row_bytes));
    CHECK(cudaMemcpy(from, host.data(), cells * sizeof(float), cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(to, host.data(), cells * sizeof(float), cudaMemcpyHostToDevice));
    cudaStream_t edges, inside;
    CHECK(cudaStreamCreateWithFlags(&edges, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&inside, cudaStreamNonBlocking));
    cudaEvent_t edges_done, inside_done;
    CHECK(cudaEventCreateWithFlags(&edges_done, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&inside_done, cudaEventDisableTiming));

    const int above = rank == 0 ? MPI_PROC_NULL : rank - 1;
    const int below = rank == ranks - 1 ? MPI_PROC_NULL : rank + 1;
    float *const send_up = pinned, *const send_down = pinned + side;
    float *const got_up = pinned + 2 * side, *const got_down = pinned + 3 * side;

    MPI_Barrier(MPI_COMM_WORLD);
    const double started = MPI_Wtime();
    for (int done = 0; done < steps; ++done) {
        // The edges first, so that they can travel while the inside is computed.
        launch(from, to, side, 1, 2, edges);
        launch(from, to, side, rows > 1 ? rows : 2, rows + 1, edges);
        launch(from, to, side, 2, rows, inside);
        float *top = to + side, *bottom = to + static_cast<size_t>(rows) * side;
        float *halo_top = to, *halo_bottom = to + static_cast<size_t>(rows + 1) * side;
        if (staged) {
            CHECK(cudaMemcpyAsync(send_up, top, row_bytes, cudaMemcpyDeviceToHost, edges));
            CHECK(cudaMemcpyAsync(send_down, bottom, row_bytes, cudaMemcpyDeviceToHost, edges));
            CHECK(cudaStreamSynchronize(edges));
            MPI_Sendrecv(send_up, side, MPI_FLOAT, above, 0, got_down, side, MPI_FLOAT, below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Sendrecv(send_down, side, MPI_FLOAT, below, 1, got_up, side, MPI_FLOAT, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (above != MPI_PROC_NULL) {
                CHECK(cudaMemcpyAsync(halo_top, got_up, row_bytes, cudaMemcpyHostToDevice, edges));
            }
            if (below != MPI_PROC_NULL) {
                CHECK(cudaMemcpyAsync(halo_bottom, got_down, row_bytes, cudaMemcpyHostToDevice, edges));
            }
        } else {
            CHECK(cudaStreamSynchronize(edges));
            MPI_Sendrecv(top, side, MPI_FLOAT, above, 0, halo_bottom, side, MPI_FLOAT, below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Sendrecv(bottom, side, MPI_FLOAT, below, 1, halo_top, side, MPI_FLOAT, above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        CHECK(cudaEventRecord(edges_done, edges));
        CHECK(cudaEventRecord(inside_done, inside));
        CHECK(cudaStreamWaitEvent(inside, edges_done, 0));
        CHECK(cudaStreamWaitEvent(edges, inside_done, 0));
        std::swap(from, to);
    }
    CHECK(cudaDeviceSynchronize());
    MPI_Barrier(MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - started;

    // A sum that no order changes: of the cells' bits, each weighed by its place.
    CHECK(cudaMemcpy(host.data(), from, cells * sizeof(float), cudaMemcpyDeviceToHost));
    uint64_t own = 0, all = 0;
    for (int y = 1; y <= rows; ++y) {
        for (int x = 0; x < side; ++x) {
            uint32_t bits;
            std::memcpy(&bits, &host[static_cast<size_t>(y) * side + x], sizeof bits);
            own += bits * (static_cast<uint64_t>(begin - 1 + y) * side + x + 1);
        }
    }
    MPI_Reduce(&own, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    int pid = getpid();
    std::vector<int> pids(ranks);
    MPI_Gather(&pid, 1, MPI_INT, pids.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        std::printf("jacobi: pids");
        for (int each : pids) {
            std::printf(" %d", each);
        }
        std::printf("\njacobi: ok ranks=%d side=%d steps=%d halo=%s checksum=%016llx us_per_step=%.2f\n", ranks, side, steps,
                    staged ? "staged" : "device", static_cast<unsigned long long>(all), seconds * 1e6 / steps);
    }
    CHECK(cudaFree(from));
    CHECK(cudaFree(to));
    CHECK(cudaFreeHost(pinned));
    MPI_Finalize();
    return 0;
}
