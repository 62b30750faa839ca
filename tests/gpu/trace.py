#!/usr/bin/env python3
"""What `openmps trace` costs, and whether it is complete, on a real GPU.

Build first (`cargo xtask build`), then, on a machine with a GPU and the CUDA toolkit:

    python3 tests/gpu/trace.py

Launches of kernels of several lengths, as fast as they go, with and without a trace in turns; medians. A trace must have every kernel, and cost under 5 % where a launch takes
5 us or more. Prints a table; exits with 1 when it does not.
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
WARM_UP = 2000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--launches", type=int, default=100000)
    options = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        program = directory / "spin"
        subprocess.run(["nvcc", "-O2", "-o", program, HERE / "trace/spin.cu"], check=True)
        openmps = OpenMps(options.target / "dist", directory)
        file = directory / "trace.json"

        def timed(traced, nanoseconds, launches):
            front = ["trace", "-o", file] if traced else ["run"]
            done = subprocess.run([openmps.executable, *front, "--", program, str(nanoseconds), str(launches)], env=openmps.environment, text=True,
                                  capture_output=True, timeout=LIMIT_S, check=True)
            if "not complete" in done.stderr:
                sys.exit(done.stderr)
            return float(done.stdout)

        print(f"{'kernel':>8} {'plain':>10} {'traced':>10} {'cost':>8}   kernels in the trace")
        for nanoseconds in [100, 4000, 8000, 30000, 200000]:
            launches = min(options.launches, 1_000_000_000 // nanoseconds)
            times = {False: [], True: []}
            for _ in range(options.rounds):
                for traced in [False, True]:
                    times[traced].append(timed(traced, nanoseconds, launches))
            plain, traced = (statistics.median(times[each]) for each in [False, True])
            events = json.loads(file.read_text())["traceEvents"]
            kernels = [event for event in events if event.get("cat") == "kernel"]
            cost = traced / plain - 1
            is_complete = len(kernels) == launches + WARM_UP
            lengths = sorted(event["dur"] for event in kernels)
            failures += not is_complete or (plain >= 5 and cost >= 0.05)
            print(f"{nanoseconds / 1000:6.1f}us {plain:8.3f}us {traced:8.3f}us {cost:+8.1%}   {len(kernels)} of {launches + WARM_UP}, median {lengths[len(lengths) // 2]:.2f} us",
                  flush=True)
        openmps.quit()
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
