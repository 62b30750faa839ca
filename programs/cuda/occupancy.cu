// What a device and a kernel can do, as programs ask before they choose a launch: the answers are printed, and are the same under a server.
#include "check.h"

__global__ void __launch_bounds__(256) scale(float *values, float by) { values[blockIdx.x * blockDim.x + threadIdx.x] *= by; }

int main() {
    int device = 0, blocks = 0, grid = 0, block = 0, clusters = 0, cluster = 0;
    CHECK(cudaGetDevice(&device));
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, device));
    std::printf("compute capability %d.%d, %d multiprocessors, warps of %d\n", properties.major, properties.minor,
                properties.multiProcessorCount, properties.warpSize);

    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 1024));
    CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, scale, 0, 0));
    std::printf("blocks of 256: %d a multiprocessor; best: %d of %d\n", blocks, grid, block);
    size_t shared = 0;
    CHECK(cudaOccupancyAvailableDynamicSMemPerBlock(&shared, scale, 2, 128));
    std::printf("shared memory for two blocks of 128: %zu each\n", shared);

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(64);
    config.blockDim = dim3(128);
    cudaLaunchAttribute size = {};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = 2;
    size.val.clusterDim.y = size.val.clusterDim.z = 1;
    config.attrs = &size;
    config.numAttrs = 1;
    if (properties.major >= 9) {
        CHECK(cudaOccupancyMaxActiveClusters(&clusters, scale, &config));
        REQUIRE(clusters > 0);
        config.numAttrs = 0;
        CHECK(cudaOccupancyMaxPotentialClusterSize(&cluster, scale, &config));
        REQUIRE(cluster >= 1);
    }
    std::printf("clusters of 2: %d at a time; largest cluster: %d\n", clusters, cluster);

    cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
    size_t width = 0;
    CHECK(cudaDeviceGetTexture1DLinearMaxWidth(&width, &format, device));
    std::printf("texels of 16 bytes in linear memory: %zu\n", width);

    Checksum checksum;
    for (int value : {blocks, grid, block, clusters, cluster, properties.multiProcessorCount}) {
        checksum.add_value(value);
    }
    checksum.add_value(shared);
    checksum.add_value(width);
    return report_ok("occupancy", checksum);
}
