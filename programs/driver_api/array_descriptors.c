/* What arrays say of themselves, in both versions of the structures, what memory they need, and the old way to hold a context. */
#include "check.h"

/* The structures of the API's first version, which cuda.h no longer has. */
typedef struct {
    unsigned Width, Height;
    CUarray_format Format;
    unsigned NumChannels;
} OldDescriptor;
typedef struct {
    unsigned Width, Height, Depth;
    CUarray_format Format;
    unsigned NumChannels, Flags;
} OldDescriptor3D;

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    LOAD(cuInit);
    LOAD(cuDeviceGet);
    LOAD(cuCtxGetCurrent);
    LOAD(cuArray3DCreate);
    LOAD(cuArrayCreate);
    LOAD(cuMemcpy3D);
    LOAD(cuTexObjectCreate);
    LOAD(cuTexObjectDestroy);
    LOAD(cuTexObjectGetResourceViewDesc);
    LOAD(cuArray3DGetDescriptor);
    LOAD(cuArrayGetDescriptor);
    LOAD(cuArrayDestroy);
    LOAD(cuArrayGetMemoryRequirements);
    LOAD(cuMipmappedArrayCreate);
    LOAD(cuMipmappedArrayGetMemoryRequirements);
    LOAD(cuMipmappedArrayDestroy);
    CUresult (*create)(CUcontext *, unsigned, CUdevice) =
        (CUresult(*)(CUcontext *, unsigned, CUdevice))symbol(library, "cuCtxCreate_v2");
    /* Deprecated: cuda.h warns of them. */
    CUresult (*attach)(CUcontext *, unsigned) = (CUresult(*)(CUcontext *, unsigned))symbol(library, "cuCtxAttach");
    CUresult (*detach)(CUcontext) = (CUresult(*)(CUcontext))symbol(library, "cuCtxDetach");
    CUresult (*old)(OldDescriptor *, CUarray) = (CUresult(*)(OldDescriptor *, CUarray))symbol(library, "cuArrayGetDescriptor");
    CUresult (*old_3d)(OldDescriptor3D *, CUarray) =
        (CUresult(*)(OldDescriptor3D *, CUarray))symbol(library, "cuArray3DGetDescriptor");

    CUdevice device;
    CUcontext context, current;
    CHECK(cuInit_(0));
    CHECK(cuDeviceGet_(&device, 0));
    CHECK(create(&context, 0, device));
    CUDA_ARRAY3D_DESCRIPTOR asked = {.Width = 48, .Height = 20, .Depth = 6, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 2}, whole;
    CUarray array;
    CHECK(cuArray3DCreate_(&array, &asked));
    CUDA_ARRAY_DESCRIPTOR flat;
    OldDescriptor old_flat;
    OldDescriptor3D old_whole;
    CHECK(cuArray3DGetDescriptor_(&whole, array));
    CHECK(cuArrayGetDescriptor_(&flat, array));
    /* NVIDIA's driver serves the first versions in contexts of the first version only. */
    CUresult served = old(&old_flat, array);
    REQUIRE(served == CUDA_SUCCESS || served == CUDA_ERROR_INVALID_CONTEXT);
    REQUIRE(old_3d(&old_whole, array) == served);
    REQUIRE(whole.Width == 48 && whole.Height == 20 && whole.Depth == 6 && whole.NumChannels == 2);
    REQUIRE(flat.Width == 48 && flat.Height == 20 && flat.Format == CU_AD_FORMAT_FLOAT);
    if (served == CUDA_SUCCESS) {
        REQUIRE(old_flat.Width == 48 && old_flat.Height == 20 && old_flat.Format == CU_AD_FORMAT_FLOAT && old_flat.NumChannels == 2);
        REQUIRE(old_whole.Width == 48 && old_whole.Height == 20 && old_whole.Depth == 6 && old_whole.NumChannels == 2 && old_whole.Flags == 0);
        REFUSED(CUDA_ERROR_INVALID_VALUE, old(NULL, array));
    }

    /* Made by the first versions, they are arrays like others. */
    CUresult (*old_create)(CUarray *, const OldDescriptor *) =
        (CUresult(*)(CUarray *, const OldDescriptor *))symbol(library, "cuArrayCreate");
    CUresult (*old_create_3d)(CUarray *, const OldDescriptor3D *) =
        (CUresult(*)(CUarray *, const OldDescriptor3D *))symbol(library, "cuArray3DCreate");
    OldDescriptor small = {.Width = 16, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    OldDescriptor3D deep = {.Width = 16, .Height = 4, .Depth = 2, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 4};
    CUarray olds[2];
    REQUIRE(old_create(&olds[0], &small) == served && old_create_3d(&olds[1], &deep) == served);
    if (served == CUDA_SUCCESS) {
        REFUSED(CUDA_ERROR_INVALID_VALUE, old_create(&olds[0], NULL));
        CUDA_ARRAY3D_DESCRIPTOR made;
        CHECK(cuArray3DGetDescriptor_(&made, olds[0]));
        REQUIRE(made.Width == 16 && made.Height == 4 && made.Depth == 0 && made.Format == CU_AD_FORMAT_UNSIGNED_INT32);
        CHECK(cuArray3DGetDescriptor_(&made, olds[1]));
        REQUIRE(made.Width == 16 && made.Depth == 2 && made.Format == CU_AD_FORMAT_UNSIGNED_INT8 && made.NumChannels == 4);
        for (int i = 0; i < 2; ++i) {
            uint32_t row[16], back[16] = {0};
            for (uint32_t x = 0; x < 16; ++x)
                row[x] = 1000 * (i + 1) + x;
            CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = row, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                  .dstArray = olds[i], .dstY = 3, .dstZ = (size_t)i, .WidthInBytes = sizeof row, .Height = 1, .Depth = 1};
            CHECK(cuMemcpy3D_(&copy));
            CUDA_MEMCPY3D away = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = olds[i], .srcY = 3, .srcZ = (size_t)i,
                                  .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = back, .WidthInBytes = sizeof back, .Height = 1, .Depth = 1};
            CHECK(cuMemcpy3D_(&away));
            REQUIRE(memcmp(row, back, sizeof row) == 0);
            CHECK(cuArrayDestroy_(olds[i]));
        }
    }

    /* A texture says with which view of its array it was made. */
    CUDA_ARRAY_DESCRIPTOR plane = {.Width = 32, .Height = 8, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    CUarray viewed;
    CUtexObject texture;
    CHECK(cuArrayCreate_(&viewed, &plane));
    CUDA_RESOURCE_DESC resource = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = viewed};
    CUDA_TEXTURE_DESC sampling = {.filterMode = CU_TR_FILTER_MODE_POINT, .flags = CU_TRSF_READ_AS_INTEGER};
    CUDA_RESOURCE_VIEW_DESC view = {.format = CU_RES_VIEW_FORMAT_UINT_1X32, .width = 32, .height = 8}, said_view = {0};
    CHECK(cuTexObjectCreate_(&texture, &resource, &sampling, &view));
    CHECK(cuTexObjectGetResourceViewDesc_(&said_view, texture));
    REQUIRE(said_view.format == view.format && said_view.width == 32 && said_view.height == 8 && said_view.depth == 0);
    CHECK(cuTexObjectDestroy_(texture));
    CHECK(cuArrayDestroy_(viewed));

    /* A driver may say it of arrays only whose memory is mapped later; whoever says it says enough for the texels. */
    CUDA_ARRAY_MEMORY_REQUIREMENTS needed = {0};
    CUresult said = cuArrayGetMemoryRequirements_(&needed, array, device);
    REQUIRE(said == CUDA_ERROR_INVALID_VALUE ||
            (said == CUDA_SUCCESS && needed.size >= 48 * 20 * 6 * 8 && needed.alignment > 0));
    CUmipmappedArray levels;
    asked.Depth = 0;
    CHECK(cuMipmappedArrayCreate_(&levels, &asked, 3));
    CUresult of_levels = cuMipmappedArrayGetMemoryRequirements_(&needed, levels, device);
    REQUIRE(of_levels == said && (said != CUDA_SUCCESS || needed.size >= 48 * 20 * 8));
    REFUSED(said == CUDA_SUCCESS ? CUDA_ERROR_INVALID_DEVICE : said, cuArrayGetMemoryRequirements_(&needed, array, 99));
    CHECK(cuMipmappedArrayDestroy_(levels));
    CHECK(cuArrayDestroy_(array));

    CHECK(attach(&current, 0));
    REQUIRE(current == context);
    REFUSED(CUDA_ERROR_INVALID_VALUE, attach(&current, 1));
    /* Attaching counts: the context stays. */
    CHECK(detach(context));
    CHECK(cuCtxGetCurrent_(&current));
    REQUIRE(current == context);
    printf("array_descriptors: ok checksum=%u\n", (unsigned)(whole.Width * whole.Depth));
    return 0;
}
