/* Traces a program as a debugger does: executes it stopped, hands its signals on, and ends as it does. Under the name `cuda-gdb` it stands for
 * NVIDIA's debugger: `tracer PROGRAM ARGUMENTS...`. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int is_event(int status) {
    return status >> 16 != 0;
}

int main(int count, char **words) {
    if (count < 2) {
        return 2;
    }
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(words[1], words + 1);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
        perror("tracer");
        return 1;
    }
    // Its threads are traced, too, and it ends with its debugger.
    ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
    ptrace(PTRACE_CONT, child, NULL, NULL);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0 && errno == EINTR) {
            continue;
        }
        if (thread < 0) {
            return 1;
        }
        if (thread == child && WIFEXITED(status)) {
            return WEXITSTATUS(status);
        }
        if (thread == child && WIFSIGNALED(status)) {
            return 128 + WTERMSIG(status);
        }
        if (WIFSTOPPED(status)) {
            int signal = WSTOPSIG(status);
            int is_ours = is_event(status) || signal == SIGSTOP || signal == SIGTRAP;
            ptrace(PTRACE_CONT, thread, NULL, (void *)(long)(is_ours ? 0 : signal));
        }
    }
}
