/* The driver's library closed and opened again: before it was used, while its context is open, and by several handles. */
#include "process.h"

int main(void) {
    for (int turn = 0; turn < 3; ++turn) {
        REQUIRE(dlclose(open_library()) == 0);
    }
    void *library = open_library();
    LOAD(cuDriverGetVersion);
    int version;
    CHECK(cuDriverGetVersion_(&version));
    REQUIRE(dlclose(library) == 0);

    struct Cuda cuda = open_cuda(open_library());
    work(&cuda, 2);
    for (unsigned turn = 0; turn < 4; ++turn) {
        // The context, its memory and its module outlive the handle.
        REQUIRE(dlclose(cuda.library) == 0);
        void *second = open_library();
        cuda.library = open_library();
        REQUIRE(dlclose(second) == 0);
        void *reopened = cuda.library;
        void *library = reopened;
        LOAD(cuInit);
        LOAD(cuCtxGetCurrent);
        CUcontext current;
        CHECK(cuInit_(0));
        CHECK(cuCtxGetCurrent_(&current));
        REQUIRE(current == cuda.context);
        work(&cuda, 2);
    }
    report(&cuda);
    REQUIRE(dlclose(cuda.library) == 0);
    return 0;
}
