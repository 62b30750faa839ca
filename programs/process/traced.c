/* What a trace is to have: launches by two threads, copies, and NVTX ranges of all kinds, named by NVTX's own headers.
 *
 * usage: traced LAUNCHES [wait]: with `wait` it works a little, says `ready`, and works on when a line comes. */
#include "process.h"

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <wchar.h>

static struct Cuda cuda;

/* A level that a tool has told, or that there is no tool. */
static void require_level(int level, int expected) { REQUIRE(level == expected || level == NVTX_NO_PUSH_POP_TRACKING); }

static void *in_a_thread(void *launches) {
    void *library = cuda.library;
    LOAD(cuCtxSetCurrent);
    LOAD(cuCtxSynchronize);
    CHECK(cuCtxSetCurrent_(cuda.context));
    nvtxRangePushA("thread");
    launch(&cuda, *(unsigned *)launches);
    CHECK(cuCtxSynchronize_());
    nvtxRangePop();
    return NULL;
}

int main(int argc, char **argv) {
    REQUIRE(argc >= 2);
    unsigned half = (unsigned)atoi(argv[1]) / 2;
    nvtxRangePushA("before cuInit");
    cuda = open_cuda(open_library());
    if (argc > 2) {
        char line[16];
        work(&cuda, 2);
        printf("ready\n");
        fflush(stdout);
        REQUIRE(fgets(line, sizeof line, stdin));
    }
    nvtxRangePop();

    nvtxDomainHandle_t domain = nvtxDomainCreateA("solver");
    nvtxStringHandle_t registered = nvtxDomainRegisterStringA(domain, "registered");
    nvtxEventAttributes_t attributes = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = registered;
    nvtxRangeId_t free_range = nvtxRangeStartA("started");
    require_level(nvtxDomainRangePushEx(domain, &attributes), 0);
    require_level(nvtxRangePushW(L"outer \"quoted\" \u00fc"), 0);
    require_level(nvtxRangePushA("inner"), 1);
    work(&cuda, half);
    nvtxMarkA("a mark");
    require_level(nvtxRangePop(), 1);
    require_level(nvtxRangePop(), 0);
    require_level(nvtxDomainRangePop(domain), 0);
    nvtxRangeEnd(free_range);
    nvtxRangePushA("left open");

    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, in_a_thread, &half) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
    report(&cuda);
    return 0;
}
