#!/usr/bin/env python3
"""Frameworks on a real GPU: PyTorch, NCCL, CuPy, Triton, JAX and numba-cuda, natively and under OpenMPS, alone and four at once.

Build first (`cargo xtask build`), then, on a machine with a GPU, its driver and the frameworks (what is not installed is skipped and said):

    python3 tests/gpu/frameworks.py [NAME ...]

The programs in `frameworks` print digests of all they compute. Each runs natively twice: a line that differs between these two is not deterministic
and is left out of the comparison (the table says how many). Under OpenMPS a program passes when it exits with 0, prints the
same, and the server counted kernels of that very process. Needs nothing beside the frameworks. Prints a table; exits with 1 when anything failed.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import time

from openmps import OpenMps, natively

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 180
AT_ONCE = 4
NEEDS = {"torch": ["torch"], "nccl": ["torch"], "cupy": ["cupy"], "triton": ["torch", "triton"], "jax": ["jax"], "numba": ["numba"]}


class Expected:
    """What a program prints natively, and which of its lines are the same each time."""

    def __init__(self, runs):
        self.failure = next((run.stderr.strip()[-600:] for run in runs if run.returncode != 0), None)
        first, second = (run.stdout.splitlines() for run in runs)
        self.lines = [line if index < len(second) and second[index] == line else None for index, line in enumerate(first)]

    def difference(self, printed):
        """What a run printed differently, or None."""
        printed = printed.splitlines()
        if len(printed) != len(self.lines):
            return f"{len(printed)} lines, natively {len(self.lines)}"
        for index, (line, expected) in enumerate(zip(printed, self.lines)):
            if expected is not None and line != expected:
                return f"line {index + 1}: {line!r}, natively {expected!r}"
        return None


def judge(expected, started, openmps):
    """What is wrong with a run under OpenMPS, or None."""
    try:
        out, err = started.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        started.kill()
        out, err = started.communicate()
        return f"no end after {LIMIT_S} s: {err.strip()[-300:]}"
    if started.returncode != 0:
        return f"exit {started.returncode}: {' | '.join(err.strip().splitlines()[-3:])[-600:]}"
    client = openmps.clients().get(started.pid)
    if client is None:
        return "the server never saw this process"
    if client["kernels"] == 0:
        return "the server counted no kernel of this process"
    return expected.difference(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs of `frameworks` [all]")
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"processes of the shared run [{AT_ONCE}]")
    options = parser.parse_args()
    programs = sorted(path for path in (HERE / "frameworks").glob("*_*.py") if not options.names or path.stem in options.names)
    failures, rows = 0, []

    def report(row):
        rows.append(row)
        print(row, flush=True)

    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        openmps = OpenMps(options.target / "dist", directory)
        for program in programs:
            missing = [name for name in NEEDS[program.stem.split("_")[0]] if importlib.util.find_spec(name) is None]
            if missing:
                report(f"{program.stem:20} skipped: {', '.join(missing)} not installed")
                continue
            begun = time.monotonic()
            command = [sys.executable, program]
            expected = Expected([natively(*command, directory=directory, limit_s=LIMIT_S) for _ in range(2)])
            if expected.failure:
                report(f"{program.stem:20} cannot be compared: natively {expected.failure!r}")
                failures += 1
                continue
            compared = sum(line is not None for line in expected.lines)
            cells = []
            for processes in (1, options.at_once):
                started = [openmps.start(*command) for _ in range(processes)]
                wrong = [found for found in (judge(expected, run, openmps) for run in started) if found]
                failures += len(wrong)
                cells.append(f"{processes}: " + ("same" if not wrong else f"{len(wrong)} wrong: {wrong[0]}"))
            report(f"{program.stem:20} {compared:3} of {len(expected.lines):3} lines  {'  '.join(cells)}  ({time.monotonic() - begun:.0f} s)")
        openmps.quit()
        if failures:
            log = openmps.logs / "server.log"
            print(log.read_text()[-3000:] if log.exists() else "no server was started")
    print("\n".join(rows))
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
