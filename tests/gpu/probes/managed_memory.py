#!/usr/bin/env python3
"""What the ways to give clients managed memory do on this machine: the driver's own, pieces of one reservation, pinned memory with copies.

On a machine with a GPU, its driver and nvcc; OpenMPS has no part in it:

    python3 tests/gpu/probes/managed_memory.py [--out DIRECTORY]

Builds managed_memory.cu, runs each of its probes in a process of its own with a limit, and prints one table: way, question, answer. A probe that does not end, or fails, is a
row as well. No probe takes more managed memory than 512 MiB, nor more than the device has free, unless --oversubscribe says so: that may hang the device, for all who use it, and is
only for a machine of one's own.
"""

import argparse
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent / "managed_memory.cu"
PROBES = ["attributes", "poll", "switch", "budget", "others", "address", "pageable", "pieces", "registered", "copies", "fault"]
LIMIT_S, OVERSUBSCRIBE_LIMIT_S = 15, 60


def rows_of(output):
    """Of what a probe has printed: its rows, and the other lines."""
    lines = output.splitlines()
    return [line.split("|", 3)[1:] for line in lines if line.startswith("row|")], [line for line in lines if not line.startswith("row|")]


def run(command, environment, limit_s):
    """Exit code and output; the code is nothing if it did not end within the limit."""
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = process.communicate(timeout=limit_s)[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            return None, process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            # Something that even this does not end: its output is lost.
            return None, ""


def measured(command, probe, environment, limit_s):
    """A probe's rows and all that it printed."""
    arguments, output = [probe], ""
    if probe == "address":
        # The first process says where its memory is and is killed; the second looks for the place.
        _, output = run([*command, probe, "0"], environment, limit_s)
        found = [line.split()[1] for line in output.splitlines() if line.startswith("address ")]
        if not found:
            return [["managed", probe, f"failed: {output[-200:].strip()}"]], output
        arguments.append(found[0])
    code, more = run([*command, *arguments], environment, limit_s)
    rows, others = rows_of(more)
    if code != 0:
        told = f"did not end within {limit_s} s" if code is None else f"exit {code}"
        rows.append(["-", f"the probe `{probe}`", f"{told} {' '.join(others)[-200:]}"])
    return rows, output + more


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--nvcc-flag", action="append", default=[], help="one more of its arguments; can be given again")
    parser.add_argument("--front", type=shlex.split, default=[], help="a command line that the probes are run by")
    parser.add_argument("--probes", default=",".join(PROBES), help=f"of {','.join(PROBES)} [all]")
    parser.add_argument("--oversubscribe", action="store_true", help="also more managed memory than is free: may hang the device")
    parser.add_argument("--budget-s", type=float, default=88, help="begin no probe that might end after so long [88]")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for all that was printed")
    options = parser.parse_args()
    began, rows, printed = time.monotonic(), [], []
    with tempfile.TemporaryDirectory(prefix="openmps-probe-") as directory:
        directory = pathlib.Path(directory)
        program = directory / "managed_memory"
        # No daemon has a part in it.
        environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nobody"))
        flags = options.nvcc_flag or ["-arch=native"]
        subprocess.run([options.nvcc, "-O2", "-std=c++17", *flags, SOURCE, "-o", program, "-lcuda"], check=True, timeout=120)
        for probe in options.probes.split(",") + ["oversubscribe"] * options.oversubscribe:
            left = options.budget_s - (time.monotonic() - began) + (OVERSUBSCRIBE_LIMIT_S if probe == "oversubscribe" else 0)
            if left < 4:
                rows.append(["-", f"the probe `{probe}`", "left out, there was no time"])
                continue
            start = time.monotonic()
            found, output = measured([*options.front, program], probe, environment, min(left, OVERSUBSCRIBE_LIMIT_S if probe == "oversubscribe" else LIMIT_S))
            rows += found
            printed.append(f"==== {probe}, {time.monotonic() - start:.1f} s\n{output}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "managed_memory.txt").write_text("\n".join(printed))
    print("| way | question | answer |\n|---|---|---|")
    print("\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
