#!/usr/bin/env python3
"""What `openmps trace` costs, and whether it is complete, on a real GPU.

Build first (`cargo xtask build`), then, on a machine with a GPU and the CUDA toolkit:

    python3 tests/gpu/trace.py

One client and four at once launch kernels of several lengths, ahead of the device or waiting for each, with and without a trace in turns (each client has a tracer of its own). Per
launch, medians over the rounds of the clients' mean. A trace must have every kernel and every call; where a launch takes 5 us or more it must cost under 5 %, where launches are
ahead of the device: that is the promise. What waiting for each of them costs is printed beside it. Ends with 1 when something is missing or costs more.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from openmps import OpenMps

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 120
# Of spin.cu.
WARM_UP = 2200
MOST_COST, FROM_US = 0.05, 5


class Client:
    """A program that waits for its start, traced or not."""

    def __init__(self, openmps, program, arguments, file):
        front = ["run"] if file is None else ["trace", "-o", file]
        command = [openmps.executable, *front, "--", program, *map(str, arguments)]
        self.process = subprocess.Popen(command, env=openmps.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.file = file

    def is_ready(self):
        if self.process.stdout.readline().strip() != "ready":
            sys.exit(f"a client did not start: {self.process.communicate(timeout=LIMIT_S)[1]}")

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def microseconds(self):
        out, errors = self.process.communicate(timeout=LIMIT_S)
        if self.process.returncode != 0 or "not complete" in errors:
            sys.exit(f"exit {self.process.returncode}: {out}{errors}")
        return float(out)


def kernels_of(file, launches):
    """Lengths in us of the kernels of a trace; empty if kernels, or the calls that asked for them, are missing."""
    trace = json.loads(file.read_text())
    of = lambda category: [event for event in trace["traceEvents"] if event.get("cat") == category and event["ph"] == "X"]
    kernels, calls = of("kernel"), [event for event in of("driver") if event["name"].startswith("cuLaunchKernel")]
    is_complete = len(kernels) == len(calls) == launches + WARM_UP and trace["otherData"]["lost_records"] == "0"
    return [event["dur"] for event in kernels[-launches:]] if is_complete else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--launches", type=int, default=100000, help="of the shortest kernel; of longer ones fewer [100000]")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2000, 5000, 20000], help="of kernels, in ns")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        program = directory / "spin"
        subprocess.run([options.nvcc, "-O2", "-o", program, HERE / "trace/spin.cu"], check=True)
        openmps = OpenMps(options.target / "dist", directory)

        def timed(is_traced, count, arguments):
            files = [directory / f"trace-{number}.json" if is_traced else None for number in range(count)]
            clients = [Client(openmps, program, arguments, file) for file in files]
            for step in [Client.is_ready, Client.go]:
                for client in clients:
                    step(client)
            return statistics.mean(client.microseconds() for client in clients), files

        print(f"{'launches':>8} {'clients':>8} {'kernel':>8} {'plain':>10} {'traced':>10} {'cost':>8}   the trace")
        for mode in ["ahead", "waited"]:
            for count in options.clients:
                for nanoseconds in options.lengths:
                    launches = options.launches * options.lengths[0] // nanoseconds
                    times, lengths = {False: [], True: []}, []
                    for turn in range(options.rounds):
                        # Whoever comes first has the machine as the other left it: in turns.
                        for is_traced in [turn % 2 == 1, turn % 2 == 0]:
                            took, files = timed(is_traced, count, [nanoseconds, launches, mode])
                            times[is_traced].append(took)
                            if is_traced:
                                lengths = [kernels_of(file, launches) for file in files]
                                failures += not all(lengths)
                    plain, traced = (statistics.median(times[each]) for each in [False, True])
                    cost = traced / plain - 1
                    is_dear = mode == "ahead" and plain >= FROM_US and cost >= MOST_COST
                    failures += is_dear
                    said = f"complete, kernels of {statistics.median(sum(lengths, [])):.2f} us" if all(lengths) else "NOT COMPLETE"
                    print(f"{mode:>8} {count:8} {nanoseconds / 1000:6.1f}us {plain:8.3f}us {traced:8.3f}us {cost:+8.1%}   {said}{', TOO DEAR' * is_dear}", flush=True)
        openmps.quit()
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
