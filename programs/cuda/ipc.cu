// Two processes share memory, an event and a memory pool: what one writes the other sees, in the order that the event gives.
#include "check.h"

#include <cstring>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

constexpr int COUNT = 1 << 16;

__global__ void fill(unsigned *words, unsigned seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    words[i] = i * 2654435761u + seed;
}

__global__ void step(unsigned *words) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    words[i] = words[i] * 3 + i;
}

static unsigned expected(unsigned i, unsigned seed) { return (i * 2654435761u + seed) * 3 + i; }

struct Handles {
    cudaIpcMemHandle_t memory;
    cudaIpcEventHandle_t event;
    cudaMemPoolPtrExportData pointer;
};

static void send_all(int socket, const void *data, size_t size, int descriptor) {
    iovec part = {const_cast<void *>(data), size};
    char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    REQUIRE(sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

static int receive_all(int socket, void *data, size_t size) {
    iovec part = {data, size};
    char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    REQUIRE(recvmsg(socket, &message, MSG_WAITALL) == static_cast<ssize_t>(size));
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    int descriptor = -1;
    if (header) {
        std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
    }
    return descriptor;
}

// The second process: adds its step to all that the first has written.
static int second(int socket) {
    Handles handles;
    int descriptor = receive_all(socket, &handles, sizeof handles);
    unsigned *words, *again, *pooled;
    cudaEvent_t written;
    cudaStream_t stream;
    cudaMemPool_t pool;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&words), handles.memory, cudaIpcMemLazyEnablePeerAccess));
    CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void **>(&again), handles.memory, cudaIpcMemLazyEnablePeerAccess));
    REQUIRE(words == again);
    CHECK(cudaIpcCloseMemHandle(again));
    CHECK(cudaIpcOpenEventHandle(&written, handles.event));
    CHECK(cudaMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void *>(static_cast<intptr_t>(descriptor)),
                                               cudaMemHandleTypePosixFileDescriptor, 0));
    close(descriptor);
    CHECK(cudaMemPoolImportPointer(reinterpret_cast<void **>(&pooled), pool, &handles.pointer));
    CHECK(cudaStreamWaitEvent(stream, written, 0));
    step<<<COUNT / 256, 256, 0, stream>>>(words);
    step<<<COUNT / 256, 256, 0, stream>>>(pooled);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventSynchronize(written));
    CHECK(cudaEventQuery(written));
    std::vector<unsigned> host(COUNT);
    CHECK(cudaMemcpy(host.data(), words, COUNT * 4, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < COUNT; ++i) {
        REQUIRE(host[i] == expected(i, 5));
    }
    CHECK(cudaIpcCloseMemHandle(words));
    REQUIRE(cudaIpcCloseMemHandle(words) != cudaSuccess);
    cudaGetLastError();
    CHECK(cudaFreeAsync(pooled, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventDestroy(written));
    send_all(socket, "d", 1, -1);
    return 0;
}

int main() {
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        close(sockets[0]);
        return second(sockets[1]);
    }
    close(sockets[1]);

    Handles handles;
    unsigned *words, *pooled;
    cudaEvent_t written;
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&words, COUNT * 4));
    CHECK(cudaEventCreateWithFlags(&written, cudaEventInterprocess | cudaEventDisableTiming));
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool;
    CHECK(cudaMemPoolCreate(&pool, &properties));
    // First the pool, then what it gives: otherwise a pointer of it is refused.
    int descriptor = -1;
    CHECK(cudaMemPoolExportToShareableHandle(&descriptor, pool, cudaMemHandleTypePosixFileDescriptor, 0));
    CHECK(cudaMallocFromPoolAsync(reinterpret_cast<void **>(&pooled), COUNT * 4, pool, stream));
    fill<<<COUNT / 256, 256, 0, stream>>>(words, 5);
    fill<<<COUNT / 256, 256, 0, stream>>>(pooled, 9);
    CHECK(cudaEventRecord(written, stream));
    CHECK(cudaIpcGetMemHandle(&handles.memory, words));
    CHECK(cudaIpcGetEventHandle(&handles.event, written));
    CHECK(cudaMemPoolExportPointer(&handles.pointer, pooled));
    void *own;
    REQUIRE(cudaIpcOpenMemHandle(&own, handles.memory, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
    cudaGetLastError();
    send_all(sockets[0], &handles, sizeof handles, descriptor);
    close(descriptor);

    char done;
    receive_all(sockets[0], &done, 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    std::vector<unsigned> host(COUNT), from_pool(COUNT);
    CHECK(cudaMemcpy(host.data(), words, COUNT * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(from_pool.data(), pooled, COUNT * 4, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < COUNT; ++i) {
        REQUIRE(host[i] == expected(i, 5));
        REQUIRE(from_pool[i] == expected(i, 9));
    }
    CHECK(cudaFree(words));
    CHECK(cudaFreeAsync(pooled, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolDestroy(pool));
    CHECK(cudaEventDestroy(written));
    CHECK(cudaStreamDestroy(stream));
    Checksum checksum;
    checksum.add(host);
    checksum.add(from_pool);
    return report_ok("ipc", checksum);
}
