/* Signals in the middle of calls. `signals CASE`:
 *   storm       SIGALRM five thousand times a second, without SA_RESTART, from before `cuInit` on: nothing fails, and nothing is wrong
 *   handled     SIGINT whose handler returns, sent to a thread that waits for its kernels: the wait goes on
 *   threads     signals to every thread of the process but the one that calls, those of the driver included: see `storm`
 *   interrupt   prints `ready PID` and waits for kernels again and again, for somebody who sends SIGINT */
#include "process.h"

#include <pthread.h>
#include <sys/time.h>

static volatile sig_atomic_t signals;

static void count_signal(int number) {
    (void)number;
    signals = signals + 1;
}

static void handle(int number) {
    struct sigaction action = {.sa_handler = count_signal};
    REQUIRE(sigaction(number, &action, NULL) == 0);
}

static void every(long microseconds) {
    struct itimerval interval = {{0, microseconds}, {0, microseconds}};
    REQUIRE(setitimer(ITIMER_REAL, &interval, NULL) == 0);
}

/* Most kinds of calls, with results that are checked. */
static void calls(struct Cuda *cuda) {
    void *library = cuda->library;
    LOAD(cuMemAlloc);
    LOAD(cuMemFree);
    LOAD(cuMemAllocHost);
    LOAD(cuMemFreeHost);
    LOAD(cuMemsetD32);
    LOAD(cuMemcpyDtoHAsync);
    LOAD(cuStreamCreate);
    LOAD(cuStreamDestroy);
    LOAD(cuStreamSynchronize);
    LOAD(cuEventCreate);
    LOAD(cuEventRecord);
    LOAD(cuEventSynchronize);
    LOAD(cuEventDestroy);
    LOAD(cuModuleLoadData);
    LOAD(cuModuleUnload);
    enum { WORDS = 1 << 18 };
    CUdeviceptr memory;
    uint32_t *pinned;
    CUstream stream;
    CUevent event;
    CUmodule module;
    CHECK(cuMemAlloc_(&memory, WORDS * sizeof *pinned));
    CHECK(cuMemAllocHost_((void **)&pinned, WORDS * sizeof *pinned));
    CHECK(cuStreamCreate_(&stream, CU_STREAM_DEFAULT));
    CHECK(cuEventCreate_(&event, CU_EVENT_DEFAULT));
    CHECK(cuModuleLoadData_(&module, step_ptx));
    CHECK(cuMemsetD32_(memory, 0x5eed, WORDS));
    CHECK(cuMemcpyDtoHAsync_(pinned, memory, WORDS * sizeof *pinned, stream));
    CHECK(cuEventRecord_(event, stream));
    CHECK(cuEventSynchronize_(event));
    for (unsigned i = 0; i < WORDS; ++i) {
        REQUIRE(pinned[i] == 0x5eed);
    }
    CHECK(cuStreamSynchronize_(stream));
    CHECK(cuModuleUnload_(module));
    CHECK(cuEventDestroy_(event));
    CHECK(cuStreamDestroy_(stream));
    CHECK(cuMemFreeHost_(pinned));
    CHECK(cuMemFree_(memory));
    work(cuda, 3);
}

static int storm(void) {
    enum { TURNS = 20 };
    handle(SIGALRM);
    every(200);
    struct Cuda cuda = open_cuda(open_library());
    // At least so long that signals have met the calls.
    for (unsigned turn = 0; turn < TURNS || signals < 200; ++turn) {
        calls(&cuda);
    }
    every(0);
    report(&cuda);
    return 0;
}

static volatile int done;

static void *send_signals(void *argument) {
    pthread_t to = *(pthread_t *)argument;
    while (!done) {
        pthread_kill(to, SIGINT);
        usleep(300);
    }
    return NULL;
}

static int handled(void) {
    static pthread_t self;
    pthread_t sender;
    handle(SIGINT);
    struct Cuda cuda = open_cuda(open_library());
    self = pthread_self();
    REQUIRE(pthread_create(&sender, NULL, send_signals, &self) == 0);
    while (signals < 100) {
        work(&cuda, 100);
    }
    done = 1;
    REQUIRE(pthread_join(sender, NULL) == 0);
    report(&cuda);
    return 0;
}

static int at_other_threads(void) {
    handle(SIGALRM);
    struct Cuda cuda = open_cuda(open_library());
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    // The timer's signals go to any thread that takes them.
    pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
    every(200);
    for (unsigned turn = 0; turn < 20; ++turn) {
        calls(&cuda);
    }
    every(0);
    // Nobody may take them: a library's own threads block the signals of the program they serve.
    REQUIRE(signals == 0);
    report(&cuda);
    return 0;
}

static _Noreturn void interrupt(void) {
    /* A shell that started this in the background has it ignored. */
    REQUIRE(signal(SIGINT, SIG_DFL) != SIG_ERR);
    struct Cuda cuda = open_cuda(open_library());
    work(&cuda, 2);
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    for (;;) {
        work(&cuda, 200);
    }
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "";
    if (strcmp(name, "storm") == 0) {
        return storm();
    }
    if (strcmp(name, "handled") == 0) {
        return handled();
    }
    if (strcmp(name, "threads") == 0) {
        return at_other_threads();
    }
    if (strcmp(name, "interrupt") == 0) {
        interrupt();
    }
    fprintf(stderr, "no such case: %s\n", name);
    return 2;
}
