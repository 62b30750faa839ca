/* Processes that end in every way there is, with work in flight. `endings WAY` works, prints `ran PID KERNELS`, starts more kernels and
 * then ends so:
 *   return        from `main`, with memory, a module and a stream left behind
 *   exit-thread   `exit` from another thread while the main one waits
 *   main-leaves   the main thread ends; another one goes on working and calls `exit`, as a driver's own threads never return
 *   quick         `_exit(7)`
 *   abort, kill, segv, term   that signal
 *   exec          executes itself with `return`, in the same process */
#include "process.h"

#include <pthread.h>

static struct Cuda cuda;

static void *exit_from_here(void *argument) {
    (void)argument;
    exit(0);
}

static void *go_on(void *argument) {
    void *library = cuda.library;
    LOAD(cuCtxSetCurrent);
    pthread_t main_thread = *(pthread_t *)argument;
    pthread_join(main_thread, NULL);
    CHECK(cuCtxSetCurrent_(cuda.context));
    work(&cuda, 4);
    report(&cuda);
    exit(0);
}

int main(int count, char **words) {
    static pthread_t self;
    const char *way = count > 1 ? words[1] : "";
    pthread_t thread;
    cuda = open_cuda(open_library());
    void *library = cuda.library;
    LOAD(cuStreamCreate);
    CUstream stream;
    CHECK(cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING));
    work(&cuda, 3);
    if (strcmp(way, "main-leaves") == 0) {
        self = pthread_self();
        REQUIRE(pthread_create(&thread, NULL, go_on, &self) == 0);
        pthread_exit(NULL);
    }
    report(&cuda);
    launch(&cuda, 50);
    if (strcmp(way, "return") == 0) {
        return 0;
    }
    if (strcmp(way, "exit-thread") == 0) {
        REQUIRE(pthread_create(&thread, NULL, exit_from_here, NULL) == 0);
        LOAD(cuCtxSynchronize);
        // The process ends meanwhile, so what these calls return is nobody's business.
        for (;;) {
            cuCtxSynchronize_();
            launch(&cuda, 1);
        }
    }
    if (strcmp(way, "quick") == 0) {
        _exit(7);
    }
    if (strcmp(way, "abort") == 0) {
        abort();
    }
    if (strcmp(way, "kill") == 0) {
        raise(SIGKILL);
    }
    if (strcmp(way, "segv") == 0) {
        raise(SIGSEGV);
    }
    if (strcmp(way, "term") == 0) {
        raise(SIGTERM);
    }
    if (strcmp(way, "exec") == 0) {
        execl("/proc/self/exe", "endings", "return", (char *)NULL);
    }
    fprintf(stderr, "no such way: %s\n", way);
    return 2;
}
