// Clients whose work can disturb each other's.
//
//     neighbour infer|load|reload|meet KERNELS MILLISECONDS
//
// infer: 20 kernels of 16 blocks that spin 8,500 cycles, then a wait, over and over. load: every 2 ms a module is loaded, a kernel of it
// launched and waited for, and the module unloaded; reload is the same, for an image without variables. meet: a kernel on one stream waits for a word that a kernel launched later on another stream
// writes. Each prints how long its iterations took.
#include "must.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGE_BYTES = 1 << 20, MOST = 1 << 20, KERNELS = 20 };
static const double LOAD_PERIOD_US = 2000, MEETING_LIMIT_US = 3e6;

static char image[IMAGE_BYTES];
static double took[MOST];
static CUfunction spin, tick, step;
static CUstream first, second;
static CUdeviceptr words;

static void infer(void) {
    long long cycles = 8500;
    void *arguments[] = {&cycles};
    for (int i = 0; i < KERNELS; ++i) {
        MUST(cuLaunchKernel(step, 16, 1, 1, 128, 1, 1, 0, first, arguments, NULL));
    }
    MUST(cuStreamSynchronize(first));
}

static void load(void) {
    CUmodule module;
    CUfunction plain;
    void *arguments[] = {&words};
    MUST(cuModuleLoadData(&module, image));
    MUST(cuModuleGetFunction(&plain, module, "plain"));
    MUST(cuLaunchKernel(plain, 1, 1, 1, 1, 1, 1, 0, first, arguments, NULL));
    MUST(cuStreamSynchronize(first));
    MUST(cuModuleUnload(module));
}

static void meet(void) {
    unsigned long long limit_ns = (unsigned long long)(MEETING_LIMIT_US * 1000);
    CUdeviceptr word = words + 256, started = words + 512;
    void *waits[] = {&word, &started, &limit_ns}, *writes[] = {&word};
    MUST(cuMemsetD32Async(word, 0, 1, first));
    MUST(cuStreamSynchronize(first));
    MUST(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, first, waits, NULL));
    MUST(cuLaunchKernel(tick, 1, 1, 1, 1, 1, 1, 0, second, writes, NULL));
    MUST(cuStreamSynchronize(first));
    MUST(cuStreamSynchronize(second));
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments) {
    const char *kind = count == 4 ? arguments[1] : "";
    void (*work)(void) = !strcmp(kind, "infer") ? infer : !strcmp(kind, "load") || !strcmp(kind, "reload") ? load : !strcmp(kind, "meet") ? meet : NULL;
    FILE *file = work ? fopen(arguments[2], "rb") : NULL;
    if (file == NULL || fread(image, 1, IMAGE_BYTES - 1, file) == 0) {
        fprintf(stderr, "usage: %s infer|load|reload|meet KERNELS MILLISECONDS\n", arguments[0]);
        return 2;
    }
    CUdevice device;
    CUcontext context;
    CUmodule module;
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoadData(&module, image));
    MUST(cuModuleGetFunction(&spin, module, "spin"));
    MUST(cuModuleGetFunction(&tick, module, "tick"));
    MUST(cuModuleGetFunction(&step, module, "step"));
    MUST(cuFuncLoad(spin));
    MUST(cuFuncLoad(tick));
    MUST(cuMemAlloc(&words, 4096));
    MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    work();
    int n = 0, stuck = 0;
    double begin = now_us(), end = begin + 1e3 * atof(arguments[3]);
    for (double due = begin; n < MOST && now_us() < end; ++n) {
        double started = now_us();
        work();
        double now = now_us();
        took[n] = now - started;
        stuck += work == meet && took[n] > 0.9 * MEETING_LIMIT_US;
        for (due += LOAD_PERIOD_US; work == load && now_us() < due;) {
            struct timespec pause = {0, 50000};
            nanosleep(&pause, NULL);
        }
    }
    double last = took[n - 1];
    qsort(took, n, sizeof *took, ascending);
    printf("%s: %d iterations, us: p50 %.0f p99 %.0f p99.9 %.0f max %.0f last %.0f", kind, n, took[n / 2], took[n - 1 - n / 100],
           took[n - 1 - n / 1000], took[n - 1], last);
    printf(stuck ? ", %d got stuck\n" : "\n", stuck);
    return stuck != 0;
}
