#!/usr/bin/env python3
"""Shares of SMs on a real GPU: what clients were promised, what they were told, and on how many SMs their kernels ran by their own word.

Build first (`cargo xtask build`, and `cargo xtask test programs`, which builds the programs), then, on a machine with
a GPU and its driver:

    python3 tests/gpu/shares.py

Percentages for one client and for two and four at once, execution affinity, shares by context, and green contexts. A row
passes when the client was told what the share is, its kernels ran on exactly as many SMs, on all kinds of streams and in graphs,
and the server counted this very process's kernels. Needs Python 3 alone. Prints a table; exits with 1 when anything failed.
"""

import argparse
import math
import pathlib
import re
import sys
import tempfile

from openmps import OpenMps, natively

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 120
PERCENTAGES = [1, 10, 25, 33, 40, 50, 75, 100]
SMALLEST = 8
# At least: it launches until it has seen all SMs of a share.
KERNELS_PER_CONTEXT = 8
LINE = re.compile(r"([\w ]+): (\d+) SMs; kernels ran on ([\d ]+), in graphs on ([\d ]+)")


def share(all_sms, percentage):
    """The original's rounding: down to pairs, but 8 at least (1, 25, 40, 50 % of 132 are 8, 32, 52, 66)."""
    if percentage >= 100:
        return all_sms
    exact = math.floor(all_sms * percentage / 100 + 1e-6)
    return max(exact - exact % 2, min(SMALLEST, all_sms))


def rows(out):
    """(what, told, seen on streams, seen in graphs) of each context."""
    found = []
    for line in out.splitlines():
        match = LINE.fullmatch(line.strip())
        if match:
            streams, graphs = ([int(number) for number in match[group].split()] for group in (3, 4))
            found.append((match[1], int(match[2]), streams, graphs))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    options = parser.parse_args()
    program = options.target / "programs/driver-api/multiprocessors"
    green = options.target / "programs/driver-api/green_contexts"
    if not program.exists() or not green.exists():
        sys.exit(f"{program} or {green} is missing: build the programs first")
    failures = 0
    table = []

    def report(what, clients, promised, told, seen, wrong):
        nonlocal failures
        failures += wrong is not None
        table.append(f"{what:28} {clients:>7} {promised!s:>9} {told!s:>6} {seen:32} {'ok' if wrong is None else wrong}")

    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        native = natively(program, directory=directory, limit_s=LIMIT_S)
        if native.returncode != 0:
            sys.exit(f"natively the program fails: {native.stderr}")
        all_sms = rows(native.stdout)[0][1]
        openmps = OpenMps(options.target / "dist", directory)
        # The first run starts the daemon, whose environment is every client's limit.
        openmps.start(program).communicate(timeout=LIMIT_S)

        def run(what, expected, variables=None, arguments=(), clients=1):
            running = [openmps.start(program, *arguments, variables=variables) for _ in range(clients)]
            for started in running:
                out, err = started.communicate(timeout=LIMIT_S)
                found = rows(out)
                client = openmps.clients().get(started.pid)
                if started.returncode != 0 or len(found) != len(expected):
                    report(what, clients, "", "", "", f"exit {started.returncode}: {err.strip()[-300:]}")
                    continue
                counted = client and client["kernels"] >= KERNELS_PER_CONTEXT * len(found)
                for (context, told, streams, graphs), promised in zip(found, expected):
                    right = told == promised and set(streams + graphs) == {promised}
                    wrong = None if right else "not what was promised"
                    if not counted:
                        wrong = "the server did not count these kernels"
                    seen = f"{' '.join(map(str, streams))} / {' '.join(map(str, graphs))}"
                    report(f"{what}: {context}", clients, promised, told, seen, wrong)

        for clients in (1, 2, 4):
            for percentage in PERCENTAGES:
                run(f"{percentage} %", [share(all_sms, percentage)],
                    {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}, clients=clients)
        run("affinity", [all_sms, 6, 48], arguments=("affinity", "6", "affinity", "48"))
        run("affinity in 25 %", [share(all_sms, 25), 6, share(all_sms, 25)],
            {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, ("affinity", "6", "affinity", str(all_sms)))
        run("by context", [all_sms, share(all_sms, 25), share(all_sms, 50)],
            {"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1"}, ("percentage", "25", "percentage", "50"))
        natural = natively(green, directory=directory, limit_s=LIMIT_S)
        attached = openmps.start(green)
        out, err = attached.communicate(timeout=LIMIT_S)
        same = attached.returncode == 0 and out == natural.stdout
        shown = " ".join(out.split("\n")[:5]) or err.strip()[-200:]
        report("green contexts", 1, "", "", "", None if same else f"attached {shown!r}, natively {natural.stdout + natural.stderr!r}")
        openmps.quit()
        print(f"{'share':28} {'clients':>7} {'promised':>9} {'told':>6} {'SMs seen: streams / graphs':32}")
        print("\n".join(table))
        if failures:
            print((openmps.logs / "server.log").read_text()[-4000:])
    print(f"{len(table) - failures} passed, {failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
