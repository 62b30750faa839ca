// Arrays: copies of every shape between arrays, device memory and host memory; texture and surface objects made of them.
#include "check.h"

constexpr int WIDTH = 96, HEIGHT = 40, DEPTH = 5;

static Checksum checksum;

static cudaResourceDesc of_array(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

static void objects_of(cudaArray_t array) {
    cudaResourceDesc resource = of_array(array), told;
    cudaTextureDesc description = {}, described;
    description.addressMode[0] = cudaAddressModeWrap;
    description.filterMode = cudaFilterModeLinear;
    description.normalizedCoords = 1;
    cudaTextureObject_t texture = 0;
    cudaSurfaceObject_t surface = 0;
    CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    CHECK(cudaCreateSurfaceObject(&surface, &resource));
    REQUIRE(texture != 0 && surface != 0);
    CHECK(cudaGetTextureObjectResourceDesc(&told, texture));
    REQUIRE(told.resType == cudaResourceTypeArray && told.res.array.array == array);
    CHECK(cudaGetSurfaceObjectResourceDesc(&told, surface));
    REQUIRE(told.resType == cudaResourceTypeArray && told.res.array.array == array);
    CHECK(cudaGetTextureObjectTextureDesc(&described, texture));
    REQUIRE(described.filterMode == cudaFilterModeLinear && described.addressMode[0] == cudaAddressModeWrap &&
            described.normalizedCoords == 1);
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaDestroySurfaceObject(surface));
    REQUIRE(cudaGetTextureObjectResourceDesc(&told, texture) != cudaSuccess);
    cudaGetLastError();
}

static void planes() {
    std::vector<float> host(WIDTH * HEIGHT), back(WIDTH * HEIGHT);
    Random random(7);
    for (float &value : host) {
        value = random.below<float>(1000);
    }
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array, copy;
    CHECK(cudaMallocArray(&array, &format, WIDTH, HEIGHT, cudaArraySurfaceLoadStore));
    CHECK(cudaMallocArray(&copy, &format, WIDTH, HEIGHT));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, host.data(), WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2DArrayToArray(copy, 0, 0, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2DFromArray(back.data(), WIDTH * 4, copy, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToHost));
    require_equal(back, host, "a plane copied to an array, to another, and back");

    // Into a box inside, from device memory, in a stream.
    DeviceArray<float> memory(host);
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMemcpy2DToArrayAsync(copy, 8, 3, memory.get(), WIDTH * 4, 20 * 4, 7, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy2DFromArray(back.data(), WIDTH * 4, copy, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToHost));
    for (int y = 0; y < HEIGHT; ++y) {
        for (int x = 0; x < WIDTH; ++x) {
            bool inside = x >= 2 && x < 22 && y >= 3 && y < 10;
            REQUIRE(back[y * WIDTH + x] == (inside ? host[(y - 3) * WIDTH + x - 2] : host[y * WIDTH + x]));
        }
    }
    // Through pinned memory.
    float *pinned;
    CHECK(cudaMallocHost(&pinned, WIDTH * HEIGHT * 4));
    CHECK(cudaMemcpy2DFromArrayAsync(pinned, WIDTH * 4, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    require_equal(std::vector<float>(pinned, pinned + WIDTH * HEIGHT), host, "a plane copied to pinned memory");
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaStreamDestroy(stream));

    objects_of(array);
    REQUIRE(cudaMemcpy2DToArray(array, 8, 0, host.data(), WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyHostToDevice) ==
            cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaFreeArray(array));
    CHECK(cudaFreeArray(copy));
    checksum.add(back);
}

static void volumes() {
    std::vector<int> host(WIDTH * HEIGHT * DEPTH);
    for (size_t i = 0; i < host.size(); ++i) {
        host[i] = static_cast<int>(i * 17 + 5);
    }
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    for (unsigned flags : {0u, static_cast<unsigned>(cudaArrayLayered)}) {
        cudaArray_t array;
        CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(WIDTH, HEIGHT, DEPTH), flags));
        cudaChannelFormatDesc told;
        cudaExtent extent;
        unsigned told_flags;
        CHECK(cudaArrayGetInfo(&told, &extent, &told_flags, array));
        REQUIRE(told.x == 32 && extent.depth == DEPTH && told_flags == flags);
        cudaMemcpy3DParms copy = {};
        copy.srcPtr = make_cudaPitchedPtr(host.data(), WIDTH * 4, WIDTH, HEIGHT);
        copy.dstArray = array;
        copy.extent = make_cudaExtent(WIDTH, HEIGHT, DEPTH);
        copy.kind = cudaMemcpyHostToDevice;
        CHECK(cudaMemcpy3D(&copy));
        // One box of it, from the array to the host.
        std::vector<int> box(10 * 4 * 2, -1);
        cudaMemcpy3DParms part = {};
        part.srcArray = array;
        part.srcPos = make_cudaPos(3, 2, 1);
        part.dstPtr = make_cudaPitchedPtr(box.data(), 10 * 4, 10, 4);
        part.extent = make_cudaExtent(10, 4, 2);
        part.kind = cudaMemcpyDeviceToHost;
        CHECK(cudaMemcpy3D(&part));
        for (int z = 0; z < 2; ++z) {
            for (int y = 0; y < 4; ++y) {
                for (int x = 0; x < 10; ++x) {
                    REQUIRE(box[(z * 4 + y) * 10 + x] == host[((z + 1) * HEIGHT + y + 2) * WIDTH + x + 3]);
                }
            }
        }
        checksum.add(box);
        CHECK(cudaFreeArray(array));
    }
}

static void mipmaps() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t mipmaps;
    CHECK(cudaMallocMipmappedArray(&mipmaps, &format, make_cudaExtent(64, 64, 0), 3));
    for (int level = 0; level < 3; ++level) {
        cudaArray_t array, again;
        CHECK(cudaGetMipmappedArrayLevel(&array, mipmaps, level));
        CHECK(cudaGetMipmappedArrayLevel(&again, mipmaps, level));
        REQUIRE(array == again);
        int side = 64 >> level;
        std::vector<float> texels(side * side), back(side * side);
        for (int i = 0; i < side * side; ++i) {
            texels[i] = 100.0f * level + i % side;
        }
        CHECK(cudaMemcpy2DToArray(array, 0, 0, texels.data(), side * 4, side * 4, side, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy2DFromArray(back.data(), side * 4, array, 0, 0, side * 4, side, cudaMemcpyDeviceToHost));
        require_equal(back, texels, "a level");
        checksum.add(back);
    }
    CHECK(cudaFreeMipmappedArray(mipmaps));
}

int main() {
    planes();
    volumes();
    mipmaps();
    return report_ok("arrays", checksum);
}
