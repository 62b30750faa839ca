#!/usr/bin/env python3
"""What being prepared for faults costs while there are none: `infer` with 1 and 8 clients, without a standby, with one and with two.

Build first (`cargo xtask build`), then, on a machine with a GPU and its driver:

    python3 tests/gpu/fault_cost.py [--rounds 9] [--json FILE]

Each setting has a daemon and clients of its own, which stay, so that standbys are there and only one thing differs; in each round all settings work in turn, one at a time, in
changing order. Printed is the median over the rounds of a setting's rate over that of the setting without a standby in the same round. That setting is there twice: what the second
one differs by is noise. What the journal and the knowledge of what is in flight cost is not a setting: `crates/executor/src/instructions.rs` counts it.
Exits with 1 where a setting costs more than 2 % and more than the noise. Without a GPU: `--softcuda --milliseconds 1000`.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from openmps import OpenMps

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The first is what the others are compared with; the second is the same.
SETTINGS = ["0", "0 again", "1", "2"]
COUNTS = [1, 8]
MOST_COST = 0.02
STANDBY_S = 30
# A second standby is seen by nothing but its process.
SECOND_STANDBY_S = 2


class Setting:
    """A daemon with so many standbys, and clients that work when they are told."""

    def __init__(self, name, options, directory):
        self.name, self.standbys = name, int(name.split()[0])
        directory.mkdir()
        self.openmps = OpenMps(options.dist, directory)
        self.openmps.environment["OPENMPS_STANDBY"] = str(self.standbys)
        if options.softcuda:
            self.openmps.environment["OPENMPS_NATIVE_DRIVER"] = str(options.dist / "lib/openmps/libsoftcuda.so")
        worker = [self.openmps.executable, "bench-worker", "--driver", options.dist / "lib/openmps/libcuda.so.1", "--workload", "infer",
                  "--duration-ms", str(options.milliseconds)]
        self.workers = [self.openmps.start(*worker, stdin=subprocess.PIPE) for _ in range(max(COUNTS))]
        self.rates = {count: [] for count in COUNTS}

    def await_ready(self):
        for worker in self.workers:
            line = worker.stdout.readline()
            if line.strip() != "ready":
                raise RuntimeError(f"a client says {line!r}: {worker.stderr.read()}")
        until = time.monotonic() + STANDBY_S
        while any(self.openmps.numbers("standby_pid")) != (self.standbys > 0):
            if time.monotonic() > until:
                raise RuntimeError(f"not as many standbys as wanted: {self.name}")
            time.sleep(0.1)

    def measure(self, count):
        """So many of its clients work; kernels per second of all."""
        workers = self.workers[:count]
        for worker in workers:
            worker.stdin.write("go\n")
            worker.stdin.flush()
        outcomes = [json.loads(worker.stdout.readline()) for worker in workers]
        seconds = (max(each["end_ns"] for each in outcomes) - min(each["start_ns"] for each in outcomes)) / 1e9
        self.rates[count].append(sum(each["kernels"] for each in outcomes) / seconds)

    def end(self):
        for worker in self.workers:
            worker.stdin.close()
        for worker in self.workers:
            worker.wait(timeout=60)
        self.openmps.quit()


def compare(settings):
    """A row for each setting and count: its rate, and by how much it is below the first one's in the same round."""
    first, rows = settings[0], []
    for count in COUNTS:
        for setting in settings:
            costs = [1 - rate / known for rate, known in zip(setting.rates[count], first.rates[count], strict=True)]
            rows.append({"standbys": setting.name, "clients": count, "kernels_per_s": statistics.median(setting.rates[count]),
                         "cost": statistics.median(costs), "least": min(costs), "most": max(costs)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="the product [target/dist]")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--milliseconds", type=int, default=200, help="of one measurement [200]")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "target/fault-cost-report.json", help="the figures, as JSON [target/fault-cost-report.json]")
    options = parser.parse_args()
    options.dist = options.dist.absolute()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as ending:
        settings = []
        for name in SETTINGS:
            setting = Setting(name, options, pathlib.Path(directory) / name.replace(" ", "-"))
            ending.callback(setting.end)
            settings.append(setting)
        for setting in settings:
            setting.await_ready()
        time.sleep(SECOND_STANDBY_S)
        for number in range(options.rounds):
            for count in COUNTS:
                turn = (number + count) % len(settings)
                for setting in settings[turn:] + settings[:turn]:
                    setting.measure(count)
        rows = compare(settings)
    print(f"{'standbys':<12}{'clients':>8}{'kernels/s':>14}{'cost [%]':>10}   least to most of {options.rounds} rounds [%]")
    for row in rows:
        print(f"{row['standbys']:<12}{row['clients']:>8}{row['kernels_per_s']:>14,.0f}{row['cost'] * 100:>10.2f}   {row['least'] * 100:.2f} to {row['most'] * 100:.2f}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"schema": 1, "rounds": options.rounds, "rows": rows}, indent=1))
    noise = {row["clients"]: abs(row["cost"]) for row in rows if row["standbys"] == SETTINGS[1]}
    too_much = [row for row in rows if row["cost"] > max(MOST_COST, noise[row["clients"]])]
    for row in too_much:
        print(f"BROKEN: {row['standbys']} standbys cost {row['clients']} clients {row['cost'] * 100:.1f} %")
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
