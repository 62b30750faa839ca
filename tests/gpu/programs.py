#!/usr/bin/env python3
"""Every CUDA program of the tests on a real GPU: natively and under OpenMPS, one at a time and several at once.

Build first (`cargo xtask build`, and `cargo xtask test programs`, which builds the programs), then, on a machine with
a GPU and its driver:

    python3 tests/gpu/programs.py

A program passes when both runs exit with 0 and print the same, and the server counted this very process and its kernels. Needs Python 3
alone. Prints a table; exits with 1 when anything failed.
"""

import argparse
import os
import pathlib
import sys
import tempfile

from openmps import OpenMps, natively

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 120
# Programs that launch no kernel.
WITHOUT_KERNELS = {"array_descriptors", "arrays", "batch_copies", "contexts", "copies_and_fills", "device_facts", "memory_calls", "occupancy",
                   "peers", "stream_calls"}
# Their launches end the context, and what runs beside them.
FAULTY = {"errors"}
AT_ONCE = 4


def judge(name, native, started, openmps):
    """What is wrong with a run under OpenMPS, or None."""
    out, err = started.communicate(timeout=LIMIT_S)
    if native.returncode != 0:
        return f"natively: exit {native.returncode}: {native.stderr.strip()}"
    if started.returncode != 0:
        return f"exit {started.returncode}: {err.strip().splitlines()[-1:]}"
    if out != native.stdout:
        return f"printed {out!r}, natively {native.stdout!r}"
    # `openmps run` becomes the program: the process that was started is the client.
    client = openmps.clients().get(started.pid)
    if client is None:
        return "the server never saw this process"
    if client["kernels"] == 0 and (name not in WITHOUT_KERNELS or client["commands"] == 0):
        return "the server counted no work of this process"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    options = parser.parse_args()
    programs = sorted(path for folder in ("cudart-13.0-static", "cudart-12.9-static", "driver-api", "rust", "kernels")
                      for path in (options.target / "programs" / folder).glob("*") if os.access(path, os.X_OK) and path.is_file())
    if not programs:
        sys.exit(f"no programs under {options.target}/programs: build them first")
    failures = 0
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        openmps = OpenMps(options.target / "dist", directory)
        results = []

        def report(program, how, wrong):
            nonlocal failures
            failures += wrong is not None
            label = f"{program.parent.name}/{program.name}"
            results.append(f"{label:40} {how:8} {'same' if wrong is None else wrong}")

        native = {program: natively(program, directory=directory, limit_s=LIMIT_S) for program in programs}
        for program in programs:
            report(program, "alone", judge(program.name, native[program], openmps.start(program), openmps))
        harmless = [program for program in programs if program.name not in FAULTY]
        for first in range(0, len(harmless), AT_ONCE):
            together = harmless[first:first + AT_ONCE]
            running = [(program, openmps.start(program)) for program in together]
            for program, started in running:
                report(program, "shared", judge(program.name, native[program], started, openmps))
        openmps.quit()
        print("\n".join(results))
        if failures:
            print((openmps.logs / "server.log").read_text()[-4000:])
    print(f"{len(results) - failures} passed, {failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
