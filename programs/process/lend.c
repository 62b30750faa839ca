/* Memory and an event for other processes (`cuIpc*`). Does what it reads, a line for each order; an answer is a line.
 *
 * | order | does | answer |
 * |---|---|---|
 * | `lend` | | the handles of its memory and of its event, as hexadecimal digits |
 * | `borrow MEMORY EVENT` | opens the two | `ok` |
 * | `fill VALUE` | waits for the event, fills what it has borrowed, and records the event | `ok` |
 * | `read` | waits for the event, in a stream | the value that all words of its own memory have, or `mixed` |
 * | `give back` | closes what it has borrowed | `ok` |
 * | `take back` | gives up what it has lent, for other memory and another event | `ok` |
 * | `work` | a kernel on other memory | `ok` |
 *
 * What the driver refuses is answered with `error N`. */
#include "process.h"

enum { WORDS = 1 << 18 };

static CUdeviceptr own, borrowed;
static CUevent own_event, borrowed_event;

static void to_text(const char *bytes, size_t count, char *text) {
    for (size_t i = 0; i < count; ++i) {
        sprintf(text + 2 * i, "%02x", (unsigned char)bytes[i]);
    }
}

static void from_text(const char *text, char *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        unsigned byte;
        REQUIRE(sscanf(text + 2 * i, "%2x", &byte) == 1);
        bytes[i] = (char)byte;
    }
}

static CUresult lend(void *library, char *text) {
    LOAD(cuIpcGetMemHandle);
    LOAD(cuIpcGetEventHandle);
    CUipcMemHandle memory;
    CUipcEventHandle event;
    CUresult result = cuIpcGetMemHandle_(&memory, own);
    if (result == CUDA_SUCCESS) {
        result = cuIpcGetEventHandle_(&event, own_event);
    }
    if (result == CUDA_SUCCESS) {
        to_text(memory.reserved, sizeof memory.reserved, text);
        text[2 * sizeof memory.reserved] = ' ';
        to_text(event.reserved, sizeof event.reserved, text + 2 * sizeof memory.reserved + 1);
    }
    return result;
}

static CUresult borrow(void *library, const char *text) {
    LOAD(cuIpcOpenMemHandle);
    LOAD(cuIpcOpenEventHandle);
    CUipcMemHandle memory;
    CUipcEventHandle event;
    from_text(text, memory.reserved, sizeof memory.reserved);
    from_text(text + 2 * sizeof memory.reserved + 1, event.reserved, sizeof event.reserved);
    CUresult result = cuIpcOpenMemHandle_(&borrowed, memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return result == CUDA_SUCCESS ? cuIpcOpenEventHandle_(&borrowed_event, event) : result;
}

static void fill(void *library, CUdeviceptr memory, CUevent event, uint32_t value) {
    LOAD(cuStreamWaitEvent);
    LOAD(cuMemsetD32Async);
    LOAD(cuEventRecord);
    CHECK(cuStreamWaitEvent_(NULL, event, 0));
    CHECK(cuMemsetD32Async_(memory, value, WORDS, NULL));
    CHECK(cuEventRecord_(event, NULL));
}

static void make_own(void *library) {
    LOAD(cuMemAlloc);
    LOAD(cuEventCreate);
    CHECK(cuMemAlloc_(&own, WORDS * sizeof(uint32_t)));
    CHECK(cuEventCreate_(&own_event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
}

static void read_own(void *library) {
    LOAD(cuStreamWaitEvent);
    LOAD(cuMemcpyDtoH);
    static uint32_t words[WORDS];
    CHECK(cuStreamWaitEvent_(NULL, own_event, 0));
    CHECK(cuMemcpyDtoH_(words, own, sizeof words));
    for (int i = 1; i < WORDS; ++i) {
        if (words[i] != words[0]) {
            return answer("mixed");
        }
    }
    char text[16];
    snprintf(text, sizeof text, "%u", words[0]);
    answer(text);
}

int main(void) {
    struct Cuda cuda = open_cuda(open_library());
    void *library = cuda.library;
    LOAD(cuMemFree);
    LOAD(cuEventDestroy);
    LOAD(cuIpcCloseMemHandle);
    make_own(library);
    char line[1024];
    unsigned value;
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, "lend") == 0) {
            char text[1024] = {0};
            CUresult result = lend(library, text);
            if (result == CUDA_SUCCESS) {
                answer(text);
            } else {
                answer_result(result);
            }
        } else if (strncmp(line, "borrow ", 7) == 0) {
            answer_result(borrow(library, line + 7));
        } else if (sscanf(line, "fill %u", &value) == 1) {
            fill(library, borrowed ? borrowed : own, borrowed ? borrowed_event : own_event, value);
            answer("ok");
        } else if (strcmp(line, "read") == 0) {
            read_own(library);
        } else if (strcmp(line, "give back") == 0) {
            CUresult result = cuIpcCloseMemHandle_(borrowed);
            borrowed = 0;
            answer_result(result == CUDA_SUCCESS ? cuEventDestroy_(borrowed_event) : result);
        } else if (strcmp(line, "take back") == 0) {
            CHECK(cuMemFree_(own));
            CHECK(cuEventDestroy_(own_event));
            make_own(library);
            answer("ok");
        } else if (strcmp(line, "work") == 0) {
            work(&cuda, 1);
            answer("ok");
        } else {
            answer("no such order");
        }
    }
    return 0;
}
