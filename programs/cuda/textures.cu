// Arrays, textures and surfaces: copies of every shape to and from arrays, reads through textures, writes through surfaces.
#include "check.h"

constexpr int WIDTH = 96, HEIGHT = 40, DEPTH = 5;

__global__ void read_plane(cudaTextureObject_t texture, float *out) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x < WIDTH) {
        out[y * WIDTH + x] = tex2D<float>(texture, x + 0.5f, y + 0.5f);
    }
}

__global__ void read_volume(cudaTextureObject_t texture, int *out) {
    int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
    out[(z * HEIGHT + y) * WIDTH + x] = tex3D<int>(texture, x, y, z);
}

__global__ void read_layers(cudaTextureObject_t texture, int *out) {
    int x = threadIdx.x, y = blockIdx.x, layer = blockIdx.y;
    out[(layer * HEIGHT + y) * WIDTH + x] = tex2DLayered<int>(texture, x, y, layer);
}

__global__ void read_linear(cudaTextureObject_t texture, uint4 *out, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        out[i] = tex1Dfetch<uint4>(texture, i);
    }
}

__global__ void write_plane(cudaSurfaceObject_t surface) {
    int x = threadIdx.x, y = blockIdx.x;
    surf2Dwrite(x * 1000 + y, surface, x * 4, y);
}

__global__ void read_level(cudaTextureObject_t texture, float *out, float level) {
    out[threadIdx.x] = tex2DLod<float>(texture, (threadIdx.x + 0.5f) / blockDim.x, 0.5f, level);
}

static cudaTextureObject_t texture_of(const cudaResourceDesc &resource, cudaTextureFilterMode filter = cudaFilterModePoint,
                                      bool normalized = false) {
    cudaTextureDesc description = {};
    description.addressMode[0] = description.addressMode[1] = description.addressMode[2] = cudaAddressModeClamp;
    description.filterMode = filter;
    description.readMode = cudaReadModeElementType;
    description.normalizedCoords = normalized;
    cudaTextureObject_t texture = 0;
    CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    return texture;
}

static cudaResourceDesc of_array(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

static Checksum checksum;

static void plane() {
    std::vector<float> host(WIDTH * HEIGHT), back(WIDTH * HEIGHT);
    Random random(7);
    for (float &value : host) {
        value = random.below<float>(1000);
    }
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array, copy;
    CHECK(cudaMallocArray(&array, &format, WIDTH, HEIGHT));
    CHECK(cudaMallocArray(&copy, &format, WIDTH, HEIGHT));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, host.data(), WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy2DArrayToArray(copy, 0, 0, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2DFromArray(back.data(), WIDTH * 4, copy, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToHost));
    require_equal(back, host, "a plane copied back");

    DeviceArray<float> out(WIDTH * HEIGHT);
    cudaTextureObject_t texture = texture_of(of_array(array));
    read_plane<<<dim3(3, HEIGHT), 32>>>(texture, out.get());
    CHECK(cudaDeviceSynchronize());
    require_equal(out.to_host(), host, "a plane read through a texture");
    cudaResourceDesc told;
    CHECK(cudaGetTextureObjectResourceDesc(&told, texture));
    REQUIRE(told.resType == cudaResourceTypeArray && told.res.array.array == array);
    CHECK(cudaDestroyTextureObject(texture));

    // Pitched memory under a texture that interpolates: exact at the texels' centres.
    float *pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, WIDTH * 4, HEIGHT));
    CHECK(cudaMemcpy2DFromArray(pitched, pitch, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = pitched;
    resource.res.pitch2D.desc = format;
    resource.res.pitch2D.width = WIDTH;
    resource.res.pitch2D.height = HEIGHT;
    resource.res.pitch2D.pitchInBytes = pitch;
    texture = texture_of(resource, cudaFilterModeLinear);
    read_plane<<<dim3(3, HEIGHT), 32>>>(texture, out.get());
    CHECK(cudaDeviceSynchronize());
    require_equal(out.to_host(), host, "pitched memory read through a texture");
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaFree(pitched));
    EXPECT(cudaErrorInvalidValue, cudaMemcpy2DToArray(array, 8, 0, host.data(), WIDTH * 4, WIDTH * 4, HEIGHT, cudaMemcpyHostToDevice));
    CHECK(cudaFreeArray(array));
    CHECK(cudaFreeArray(copy));
    checksum.add(host);
}

static void volumes() {
    std::vector<int> host(WIDTH * HEIGHT * DEPTH);
    for (size_t i = 0; i < host.size(); ++i) {
        host[i] = static_cast<int>(i * 17 + 5);
    }
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    DeviceArray<int> out(host.size());
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
        cudaTextureObject_t texture = texture_of(of_array(array));
        if (flags == 0) {
            read_volume<<<dim3(HEIGHT, DEPTH), WIDTH>>>(texture, out.get());
        } else {
            read_layers<<<dim3(HEIGHT, DEPTH), WIDTH>>>(texture, out.get());
        }
        CHECK(cudaDeviceSynchronize());
        require_equal(out.to_host(), host, flags == 0 ? "a volume" : "layers");
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
        CHECK(cudaDestroyTextureObject(texture));
        CHECK(cudaFreeArray(array));
    }
    checksum.add(host);
}

static void linear() {
    constexpr int COUNT = 1000;
    std::vector<unsigned> host(COUNT * 4);
    Random random(3);
    for (unsigned &value : host) {
        value = random.next();
    }
    DeviceArray<unsigned> memory(host);
    DeviceArray<uint4> out(COUNT);
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = memory.get();
    resource.res.linear.desc = cudaCreateChannelDesc<uint4>();
    resource.res.linear.sizeInBytes = memory.size_bytes();
    cudaTextureObject_t texture = texture_of(resource);
    read_linear<<<(COUNT + 127) / 128, 128>>>(texture, out.get(), COUNT);
    CHECK(cudaDeviceSynchronize());
    std::vector<unsigned> back(COUNT * 4);
    CHECK(cudaMemcpy(back.data(), out.get(), out.size_bytes(), cudaMemcpyDeviceToHost));
    require_equal(back, host, "linear memory read through a texture");
    CHECK(cudaDestroyTextureObject(texture));

    // A texture may be longer than the memory, as long as nobody reads there.
    resource.res.linear.sizeInBytes = memory.size_bytes() + (64 << 20);
    texture = texture_of(resource);
    CHECK(cudaMemset(out.get(), 0, out.size_bytes()));
    read_linear<<<(COUNT + 127) / 128, 128>>>(texture, out.get(), COUNT);
    CHECK(cudaMemcpy(back.data(), out.get(), out.size_bytes(), cudaMemcpyDeviceToHost));
    require_equal(back, host, "linear memory read through a texture that is longer");
    cudaResourceDesc told{};
    CHECK(cudaGetTextureObjectResourceDesc(&told, texture));
    REQUIRE(told.res.linear.sizeInBytes == resource.res.linear.sizeInBytes);
    CHECK(cudaDestroyTextureObject(texture));
    checksum.add(back);
}

static void surface() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
    cudaArray_t array;
    CHECK(cudaMallocArray(&array, &format, WIDTH, HEIGHT, cudaArraySurfaceLoadStore));
    cudaResourceDesc resource = of_array(array);
    cudaSurfaceObject_t surface = 0;
    CHECK(cudaCreateSurfaceObject(&surface, &resource));
    write_plane<<<HEIGHT, WIDTH>>>(surface);
    std::vector<int> back(WIDTH * HEIGHT);
    CHECK(cudaMemcpy2DFromArray(back.data(), WIDTH * 4, array, 0, 0, WIDTH * 4, HEIGHT, cudaMemcpyDeviceToHost));
    for (int y = 0; y < HEIGHT; ++y) {
        for (int x = 0; x < WIDTH; ++x) {
            REQUIRE(back[y * WIDTH + x] == x * 1000 + y);
        }
    }
    CHECK(cudaDestroySurfaceObject(surface));
    CHECK(cudaFreeArray(array));
    checksum.add(back);
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
        std::vector<float> texels(side * side);
        for (int i = 0; i < side * side; ++i) {
            texels[i] = 100.0f * level + i % side;
        }
        CHECK(cudaMemcpy2DToArray(array, 0, 0, texels.data(), side * 4, side * 4, side, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = mipmaps;
    cudaTextureDesc description = {};
    description.normalizedCoords = 1;
    description.maxMipmapLevelClamp = 2;
    description.addressMode[0] = description.addressMode[1] = cudaAddressModeClamp;
    cudaTextureObject_t texture = 0;
    CHECK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    DeviceArray<float> out(16);
    for (int level = 0; level < 3; ++level) {
        read_level<<<1, 16>>>(texture, out.get(), static_cast<float>(level));
        std::vector<float> back = out.to_host();
        int side = 64 >> level;
        for (int i = 0; i < 16; ++i) {
            REQUIRE(back[i] == 100.0f * level + static_cast<int>((i + 0.5f) / 16 * side));
        }
        checksum.add(back);
    }
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaFreeMipmappedArray(mipmaps));
}

int main() {
    plane();
    volumes();
    linear();
    surface();
    mipmaps();
    return report_ok("textures", checksum);
}
