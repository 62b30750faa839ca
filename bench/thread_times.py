"""How long the threads of some processes ran, and how long they were runnable while others had the processor, looked at once in a while.

    python3 bench/thread_times.py PID [--interval-ms 1]

Says `ready` when it has looked once. Looks at the process and all that descend from it until standard input ends, then writes JSON: of each thread
what was counted whenever it had changed (CLOCK_MONOTONIC, ns on a processor, ns of waiting for one), how it split its time between the program and
the kernel, and what looking took itself. Reads /proc alone. Time on a processor is counted there up to the scheduler's last tick; waiting is
counted when it ends.
"""

import argparse
import json
import os
import pathlib
import select
import sys
import time

PROC = pathlib.Path("/proc")
# Threads and processes that are new are looked for so often.
SEARCH_S = 0.1


def descendants(root):
    """The process and all that descend from it."""
    found, left = [], [root]
    while left:
        found.append(left.pop())
        for task in PROC.glob(f"{found[-1]}/task/*/children"):
            try:
                left += map(int, task.read_text().split())
            except OSError:
                pass
    return found


class Thread:
    """What is known of one thread."""

    def __init__(self, directory):
        self.directory = directory
        self.counts = os.open(directory / "schedstat", os.O_RDONLY)
        self.name = (directory / "comm").read_text().strip()
        self.process = (directory.parents[1] / "comm").read_text().strip()
        self.samples, self.ticks, self.first_ticks = [], None, self.user_and_kernel()

    def user_and_kernel(self):
        # The name, in parentheses, may contain anything.
        fields = (self.directory / "stat").read_text().rpartition(")")[2].split()
        return int(fields[11]), int(fields[12])

    def look(self, now):
        running, delayed, _ = map(int, os.pread(self.counts, 64, 0).split())
        if not self.samples or self.samples[-1][1:] != [running, delayed]:
            self.samples.append([now, running, delayed])

    def end(self):
        try:
            self.ticks = self.user_and_kernel()
        except OSError:
            self.ticks = self.first_ticks

    def told(self):
        per_s = os.sysconf("SC_CLK_TCK")
        user_s, kernel_s = ((after - before) / per_s for before, after in zip(self.first_ticks, self.ticks))
        return {"process": self.process, "name": self.name, "user_s": user_s, "kernel_s": kernel_s, "samples": self.samples}


def watch(root, interval_s):
    threads, searched, began, is_first = {}, 0.0, time.monotonic(), True
    while is_first or not select.select([sys.stdin], [], [], interval_s)[0]:
        if time.monotonic() - searched >= SEARCH_S:
            searched = time.monotonic()
            for process in descendants(root):
                for directory in PROC.glob(f"{process}/task/*"):
                    if directory not in threads:
                        try:
                            threads[directory] = Thread(directory)
                        except OSError:
                            # It has ended meanwhile, or is somebody else's.
                            continue
        for thread in threads.values():
            try:
                thread.look(time.monotonic_ns())
            except (OSError, ValueError):
                # It has ended: what it had is still told.
                continue
        if is_first:
            print("ready", flush=True)
            is_first = False
    for thread in threads.values():
        thread.end()
    busy = time.process_time() / (time.monotonic() - began)
    return {"interval_ms": interval_s * 1e3, "busy": busy, "threads": [thread.told() for thread in threads.values()]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pid", type=int, help="the process to begin with")
    parser.add_argument("--interval-ms", type=float, default=1.0, help="between two looks [1]")
    options = parser.parse_args()
    json.dump(watch(options.pid, options.interval_ms / 1e3), sys.stdout)


if __name__ == "__main__":
    main()
