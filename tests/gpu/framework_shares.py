#!/usr/bin/env python3
"""Frameworks on a part of a real GPU's SMs: each program of `frameworks` under every kind of share, all kinds at once.

Build first (`cargo xtask build`), then, on a machine with a GPU, its driver and the frameworks (what is not installed is skipped and said):

    python3 tests/gpu/framework_shares.py [NAME ...]

The kinds: 75, 50, 25 and 10 %, a group's share, a reservation, the latency class, what is left beside these two, and a share that changes
every half second. A run passes when it exits with 0, prints as many lines as natively, and the server counted its kernels. Digests may differ:
libraries choose other kernels where there are fewer SMs; the table says how many lines did. Prints a table; exits with 1 when anything failed.
"""

import argparse
import importlib.util
import itertools
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

from frameworks import HERE, LIMIT_S, NEEDS, Expected, judge
from openmps import OpenMps, natively

PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
KINDS = {
    "75 %": {PERCENTAGE: "75"},
    "50 %": {PERCENTAGE: "50"},
    "25 %": {PERCENTAGE: "25"},
    "10 %": {PERCENTAGE: "10"},
    "group": {"OPENMPS_GROUP": "tenant"},
    "reservation": {"OPENMPS_RESERVATION": "night"},
    "latency": {"OPENMPS_LATENCY": "1"},
    "the rest": {},
    "changing": {},
}
CHANGES = (100, 50, 10, 75, 25)
CHANGE_EVERY_S = 0.5


class Unequal(Expected):
    """What is printed on fewer SMs: as many lines, of which some may differ."""

    differing = 0

    def difference(self, printed):
        lines = printed.splitlines()
        if len(lines) != len(self.lines):
            return f"{len(lines)} lines, natively {len(self.lines)}"
        pairs = zip(lines, self.lines)
        self.differing += sum(expected is not None and line != expected for line, expected in pairs)
        return None


def change(openmps, started):
    """Gives a client another share again and again, as long as it runs; returns how often."""
    count = 0
    for percentage in itertools.cycle(CHANGES):
        time.sleep(CHANGE_EVERY_S)
        if started.poll() is not None:
            return count
        try:
            openmps.command("limit", "--client", str(started.pid), "--sm-percent", str(percentage))
            count += 1
        except RuntimeError:
            pass  # Not attached yet, or gone.
    return count


def is_attached(openmps, pid):
    """Whether the daemon answers and has this client."""
    try:
        return pid in openmps.clients()
    except subprocess.CalledProcessError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs of `frameworks` [all]")
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    options = parser.parse_args()
    programs = sorted(path for path in (HERE / "frameworks").glob("*_*.py") if not options.names or path.stem in options.names)
    failures, rows = 0, []
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        openmps = OpenMps(options.target / "dist", directory)
        openmps.environment |= {"OPENMPS_LATENCY_SMS": "16"}
        holder = openmps.start(sys.executable, "-c", "import ctypes, sys; ctypes.CDLL('libcuda.so.1').cuInit(0); sys.stdin.read()", stdin=subprocess.PIPE)
        deadline = time.monotonic() + LIMIT_S
        while not is_attached(openmps, holder.pid):
            if time.monotonic() > deadline:
                sys.exit(f"no daemon, or no client of it, after {LIMIT_S} s")
            time.sleep(0.1)
        openmps.command("limit", "--group", "tenant", "--sm-percent", "40")
        openmps.command("reserve", "night", "--sms", "24")
        for program in programs:
            missing = [name for name in NEEDS[program.stem.split("_")[0]] if importlib.util.find_spec(name) is None]
            if missing:
                rows.append(f"{program.stem:20} skipped: {', '.join(missing)} not installed")
                continue
            begun = time.monotonic()
            command = [sys.executable, program]
            expected = Unequal([natively(*command, directory=directory, limit_s=LIMIT_S) for _ in range(2)])
            if expected.failure:
                rows.append(f"{program.stem:20} cannot be compared: natively {expected.failure!r}")
                failures += 1
                continue
            runs = {kind: openmps.start(*command, variables=variables) for kind, variables in KINDS.items()}
            changer = threading.Thread(target=change, args=(openmps, runs["changing"]))
            changer.start()
            wrong = {kind: found for kind, run in runs.items() if (found := judge(expected, run, openmps))}
            changer.join()
            failures += len(wrong)
            outcome = "all pass" if not wrong else "; ".join(f"{kind}: {found}" for kind, found in wrong.items())
            rows.append(f"{program.stem:20} {len(runs) - len(wrong)} of {len(runs)}, {expected.differing} of "
                        f"{len(runs) * len(expected.lines)} lines differ: {outcome}  ({time.monotonic() - begun:.0f} s)")
            print(rows[-1], flush=True)
        holder.communicate("")
        openmps.quit()
        if failures:
            log = openmps.logs / "server.log"
            print(log.read_text()[-3000:] if log.exists() else "no server was started")
    print("\n".join(rows))
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
