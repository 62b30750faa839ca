/* Memory between this process and one that is native whatever this one is: `share client` where this one is a client of a server, `share native`
 * where it is not. Descriptors of `cuMemCreate` memory go both ways; handles of `cuIpcGetMemHandle` between native processes only. */
#include "process.h"

#include <sys/socket.h>

enum { WORDS = 1 << 16 };

/* Memory with a descriptor, mapped. */
struct Shared {
    CUmemGenericAllocationHandle memory;
    CUdeviceptr address;
    size_t size_bytes;
};

static int peer;

static void send_all(const void *bytes, size_t count) {
    REQUIRE(write(peer, bytes, count) == (ssize_t)count);
}

static void receive_all(void *bytes, size_t count) {
    REQUIRE(recv(peer, bytes, count, MSG_WAITALL) == (ssize_t)count);
}

static void send_descriptor(int descriptor) {
    char byte = 0, control[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    REQUIRE(sendmsg(peer, &message, 0) == 1);
}

static int receive_descriptor(void) {
    int descriptor = -1;
    char byte, control[CMSG_SPACE(sizeof descriptor)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    REQUIRE(recvmsg(peer, &message, 0) == 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    REQUIRE(header && header->cmsg_type == SCM_RIGHTS);
    memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    return descriptor;
}

static void map(void *library, struct Shared *shared) {
    LOAD(cuMemAddressReserve);
    LOAD(cuMemMap);
    LOAD(cuMemSetAccess);
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemAddressReserve_(&shared->address, shared->size_bytes, 0, 0, 0));
    CHECK(cuMemMap_(shared->address, shared->size_bytes, 0, shared->memory, 0));
    CHECK(cuMemSetAccess_(shared->address, shared->size_bytes, &access, 1));
}

static struct Shared make(void *library) {
    LOAD(cuMemGetAllocationGranularity);
    LOAD(cuMemCreate);
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    struct Shared shared = {0};
    size_t granularity;
    CHECK(cuMemGetAllocationGranularity_(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    shared.size_bytes = (WORDS * sizeof(uint32_t) + granularity - 1) / granularity * granularity;
    CHECK(cuMemCreate_(&shared.memory, shared.size_bytes, &properties, 0));
    map(library, &shared);
    return shared;
}

static void fill(void *library, const struct Shared *shared, uint32_t value) {
    LOAD(cuMemsetD32);
    LOAD(cuCtxSynchronize);
    CHECK(cuMemsetD32_(shared->address, value, WORDS));
    CHECK(cuCtxSynchronize_());
}

static void expect(void *library, const struct Shared *shared, uint32_t value) {
    LOAD(cuMemcpyDtoH);
    static uint32_t words[WORDS];
    CHECK(cuMemcpyDtoH_(words, shared->address, sizeof words));
    for (int i = 0; i < WORDS; ++i) {
        REQUIRE(words[i] == value);
    }
}

/* Gives memory to the peer, which finds `given` in it and leaves `returned`. */
static void give(void *library, uint32_t given, uint32_t returned) {
    LOAD(cuMemExportToShareableHandle);
    struct Shared shared = make(library);
    int descriptor;
    char done;
    fill(library, &shared, given);
    CHECK(cuMemExportToShareableHandle_(&descriptor, shared.memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_all(&shared.size_bytes, sizeof shared.size_bytes);
    send_descriptor(descriptor);
    close(descriptor);
    receive_all(&done, 1);
    expect(library, &shared, returned);
}

static void take(void *library, uint32_t given, uint32_t returned) {
    LOAD(cuMemImportFromShareableHandle);
    struct Shared shared = {0};
    receive_all(&shared.size_bytes, sizeof shared.size_bytes);
    int descriptor = receive_descriptor();
    CHECK(cuMemImportFromShareableHandle_(&shared.memory, (void *)(intptr_t)descriptor,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(descriptor);
    map(library, &shared);
    expect(library, &shared, given);
    fill(library, &shared, returned);
    send_all("", 1);
}

/* Exchanges handles of ordinary memory; what opening the peer's one returns. */
static CUresult exchange_handles(struct Cuda *cuda) {
    void *library = cuda->library;
    LOAD(cuIpcGetMemHandle);
    LOAD(cuIpcOpenMemHandle);
    LOAD(cuIpcCloseMemHandle);
    CUipcMemHandle ours, theirs;
    char done;
    CHECK(cuIpcGetMemHandle_(&ours, cuda->values));
    send_all(&ours, sizeof ours);
    receive_all(&theirs, sizeof theirs);
    CUdeviceptr opened;
    CUresult result = cuIpcOpenMemHandle_(&opened, theirs, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS) {
        CHECK(cuIpcCloseMemHandle_(opened));
    }
    // The other one's memory must stay until both have tried.
    send_all("", 1);
    receive_all(&done, 1);
    return result;
}

int main(int count, char **words) {
    const char *role = count > 1 ? words[1] : "";
    if (strcmp(role, "peer") == 0) {
        peer = atoi(words[2]);
        struct Cuda cuda = open_cuda(open_library());
        take(cuda.library, 0x11, 0x22);
        give(cuda.library, 0x33, 0x44);
        int is_native = strcmp(words[3], "native") == 0;
        REQUIRE((exchange_handles(&cuda) == CUDA_SUCCESS) == is_native);
        return 0;
    }
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    peer = sockets[0];
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", sockets[1]);
        close(sockets[0]);
        // No daemon there.
        setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent", 1);
        execl("/proc/self/exe", "share", "peer", number, role, (char *)NULL);
        _exit(1);
    }
    close(sockets[1]);
    struct Cuda cuda = open_cuda(open_library());
    work(&cuda, 3);
    give(cuda.library, 0x11, 0x22);
    take(cuda.library, 0x33, 0x44);
    CUresult expected = strcmp(role, "native") == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    REFUSED(expected, exchange_handles(&cuda));
    reap(child, 0);
    work(&cuda, 3);
    report(&cuda);
    return 0;
}
