#!/usr/bin/env python3
"""What OpenMPS promises about speed, measured on this machine: one table of goal, measured, met or missed.

Build first (`cargo xtask build`), then

    python3 bench/table.py                 # everything, in parts of less than 8 minutes: when it says so, run it again with --resume
    python3 bench/table.py --part memory   # one part
    python3 bench/table.py --quick         # seconds instead of minutes; the numbers mean little
    python3 bench/table.py --softcuda      # where there is no GPU: rows that need one say so

Every measurement is a call of `openmps bench`, in which the same program runs natively, under NVIDIA's MPS where that is installed, and under
OpenMPS, the peers in turn, three times; what is compared are medians of one such call. The PyTorch rows come from the scripts beside this one.
What was measured is kept in a file (--state), so that an interrupted run goes on where it was. Exits with 1 when a measurement failed, or when
PyTorch's results differ, wherever that is.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import peers
import table_rows
import torch_clients
from table_measurements import TORCH_PROCESSES, Failed, State, few_cores, is_possible, measure, measurements

ROOT = pathlib.Path(__file__).resolve().parents[1]
# One invocation stops to begin measurements after so long; none takes longer than the rest of 8 minutes.
BUDGET_S = 300
PARTS = ["kernels", "cores", "calls", "memory", "beside", "many", "softcuda", "equal", "mpi", "torch"]
JSON_SCHEMA_VERSION = 1
ASK_LIMIT_S = 20


def commit(dist):
    """What was built: what the build has noted, or else what this checkout has."""
    noted = dist / "commit"
    if noted.exists():
        return noted.read_text().strip()
    try:
        asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, capture_output=True, timeout=ASK_LIMIT_S,
                               check=True)
        return asked.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def machine(options):
    """What the numbers hold for."""
    gpu = "the software GPU"
    if not options.softcuda:
        try:
            asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"], text=True,
                                   capture_output=True, timeout=ASK_LIMIT_S, check=True)
            gpu = asked.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            gpu = "an unknown GPU"
    return (f"{gpu}; {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, {datetime.date.today()}; "
            f"commit {commit(options.dist)}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]
    default = ",".join(map(str, TORCH_PROCESSES))
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory, which has MPI's programs")
    parser.add_argument("--dist", type=pathlib.Path, help="an installation, as `cargo xtask build` makes it [the build directory's]")
    parser.add_argument("--state", type=pathlib.Path, default=ROOT / "target/bench-table.json", help="where measurements are kept")
    parser.add_argument("--part", action="append", choices=PARTS, metavar="PART", help=f"only this part: {', '.join(PARTS)}")
    parser.add_argument("--resume", action="store_true", help="go on with what is in the state; else it begins anew")
    parser.add_argument("--quick", action="store_true", help="few clients, once, for a moment: shows that everything works")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work [where there is no other]")
    parser.add_argument("--repeat", type=int, help="how often everything is measured [3]")
    parser.add_argument("--duration-ms", type=int, help="how long most runs last [700]")
    parser.add_argument("--processes", type=numbers, help=f"how many PyTorch processes at once [{default}]")
    parser.add_argument("--torch-seconds", type=float, default=3.0, help="how long each of their runs lasts [3]")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help=f"begin no measurement after so long [{BUDGET_S}]")
    parser.add_argument("--all", action="store_true", help="print every median, too")
    parser.add_argument("--json", type=pathlib.Path, help="write the table, and the medians of the workloads and of PyTorch, to this file")
    options = parser.parse_args()
    options.softcuda |= not peers.has_gpu()
    options.target = options.target.resolve()
    options.dist = (options.dist or options.target / "dist").resolve()
    if not (options.dist / "bin/openmps").exists():
        sys.exit(f"there is no {options.dist}/bin/openmps: run `cargo xtask build`, or name an installation with --dist")
    return options


def begin(options):
    """The state to go on with."""
    if not options.resume and not options.part:
        return State(options.state)
    try:
        state = State.kept(options.state)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot go on with {options.state}: {error}; remove it, or name another file with --state")
    if not options.resume:
        for part in options.part:
            state.forget(part)
    return state


def wanted(options):
    """What is to be measured here."""
    found = [one for one in measurements(options) if not options.part or one.part in options.part]
    possible = [one for one in found if is_possible(one, options)]
    if not options.softcuda:
        for part in dict.fromkeys(one.part for one in found if one not in possible):
            print(f"what the part {part} needs is not here: its rows are left out", file=sys.stderr)
    return possible


def measure_all(options, state):
    """Measures what the state has not, as long as the budget lasts; the names of what failed, and how many of all are left."""
    began, failed, late = time.monotonic(), [], 0
    for one in wanted(options):
        if state.has(one):
            continue
        start = time.monotonic()
        if start - began > options.budget_s:
            late += 1
            continue
        try:
            state.keep(one, measure(one, options))
            told = f"{time.monotonic() - start:.0f} s"
        except Failed as failure:
            failed.append(one.name)
            told = f"failed: {failure}"
        print(f"{one.part}, {one.name}: {told}", file=sys.stderr)
    return failed, late + len(failed)


def for_programs(here, rows, results):
    """What `--json` writes: the rows, and the medians that plots are made of."""
    told = {"schema": JSON_SCHEMA_VERSION, "machine": here, "rows": [row.for_programs() for row in rows],
            "workloads": results.workloads(), "pytorch": results.torch_rows}
    return json.dumps(told, indent=1) + "\n"


def main():
    options = arguments()
    state = begin(options)
    failed, left = measure_all(options, state)
    results = table_rows.Results(state.by_name(), failed)
    rows, here = table_rows.promises(results, options.softcuda, few_cores(options)), machine(options)
    print(f"{here}\n\n| | goal | measured | |\n|---|---|---|---|")
    print("\n".join(row.line() for row in rows))
    if options.all:
        print("\n".join(table_rows.medians(results)))
    if options.json:
        options.json.write_text(for_programs(here, rows, results))
    sys.stdout.flush()
    if left:
        print(f"\n{left} measurements are left, {len(failed)} of them failed: run this again with --resume", file=sys.stderr)
    # A measurement whose checksums differ has failed; those of several may, too.
    differing = torch_clients.differing(results.torch_rows)
    for line in differing:
        print(line, file=sys.stderr)
    return 1 if failed or differing else 0


if __name__ == "__main__":
    sys.exit(main())
