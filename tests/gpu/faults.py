#!/usr/bin/env python3
"""What a fault on a real GPU costs, and whom: faults of every kind, kills, and endless kernels, beside clients whose every word is checked.

Build first (`cargo xtask build`, `cargo xtask programs`), then, on a machine with a GPU and its driver:

    python3 tests/gpu/faults.py [--rounds 3] [--good 4] [--program FILE] [--json FILE]

The clients are `programs/process/faults.c`. In each round each kind of fault is made once by a client that has just begun, while the good ones are idle with memory of every
kind, streams, an event, a graph and a variable; then each good one works with all of it. Prints for each kind what the culprit was told, how long the good ones' next
kernels took from the fault on, and who was lost.  Then a large session, whose memory the standby has mapped ahead, and its pause. Exits with 1 when an idle client was lost or had
a wrong word, or the large session worked later than a second after the server knew. Ends by itself within 8 minutes, whatever hangs. Without a GPU: `--softcuda --rounds 1 --large "50 4096 5 5"`.
"""

import argparse
import contextlib
import json
import pathlib
import signal
import sys
import tempfile
import time

from openmps import OpenMps
from puppet import Puppet

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ["address", "misaligned", "trap", "assert", "stack", "shared"]
# How long a client may take to be known as idle, with its variables saved.
SETTLE_S = 30
# A standby comes once clients have stayed for two seconds, and has a context to make.
STANDBY_S = 30
LIMIT_S = 8 * 60
# Lines of the server's log that are shown.
TOLD = ["cannot go on", "not saved", "stands by", "was made again", "has left device"]


class Ground:
    def __init__(self, openmps, program, good, most_pause_s):
        self.openmps, self.program, self.most_pause_s, self.late = openmps, program, most_pause_s, 0
        self.good = [self.client() for _ in range(good)]
        self.lost, self.pauses, self.rows, self.large_rows, self.noticed = 0, [], [], [], 0.0
        for client in self.good:
            self.must(client, "variable")

    def client(self):
        client = Puppet([self.openmps.executable, "run", "--", self.program], self.openmps.environment)
        self.must(client, "make")
        self.must(client, "check")
        return client

    @staticmethod
    def must(client, order):
        answer = client.ask(order)
        if answer != "ok":
            raise RuntimeError(f"client {client.pid} answers {order!r} with {answer!r}")

    def settle(self):
        """Waits until the good clients' variables are saved."""
        pids = {client.pid for client in self.good}
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            known = self.openmps.clients()
            if not any(device.get("unsaved") for pid in pids for device in known[pid]["devices"]):
                return
            time.sleep(0.05)
        print("    variables are not saved")

    def await_standby(self):
        until = time.monotonic() + STANDBY_S
        while time.monotonic() < until:
            if any(self.openmps.numbers("standby_pid")):
                return
            time.sleep(0.05)
        print("    nobody stands by")

    def await_mapped(self, mapped_bytes):
        """Waits for a standby that has mapped so much of the clients' memory, while a good client works; says how long it worked at most."""
        until, longest = time.monotonic() + STANDBY_S, 0.0
        while time.monotonic() < until:
            for _ in range(20):
                longest = max(longest, self.time_check(self.good[0]))
            if sum(self.openmps.numbers("standby_memory_bytes")) >= mapped_bytes:
                return longest
        print(f"    nobody stands by with {mapped_bytes} bytes mapped: {self.openmps.numbers('standby_memory_bytes')}")
        return longest

    def granted_bytes(self, client):
        return sum(device["granted_bytes"] for device in self.openmps.clients()[client.pid]["devices"])

    def time_check(self, client):
        began = time.monotonic()
        self.must(client, "check")
        return time.monotonic() - began

    def survive(self, what, began):
        """All good clients work with what they have; those that are lost begin anew."""
        pauses = []
        for client in self.good:
            client.tell("check")
        for client in self.good:
            answer = client.answer()
            pauses.append(time.monotonic() - began)
            if answer == "ok":
                answer = client.ask("variable")
            if answer != "ok":
                print(f"    {what}: good client {client.pid} says {answer!r}")
                self.lost += 1
                self.must(client, "reset")
                self.must(client, "variable")
        self.pauses += pauses
        return max(pauses) * 1e3

    def fault(self, kind):
        culprit = self.client()
        self.settle()
        self.await_standby()
        began = self.make_fault(culprit, kind)
        pause = self.survive(kind, began)
        told = culprit.answer()
        reported = time.monotonic() - began
        again = culprit.ask("reset")
        self.rows.append({"kind": kind, "told": told, "reported_ms": reported * 1e3, "noticed_ms": (self.noticed - began) * 1e3, "pause_ms": pause, "reset": again})
        print(f"    {kind}: the server knows after {(self.noticed - began) * 1e3:.0f} ms, the culprit is told {told} after {reported * 1e3:.0f} ms, good ones work after {pause:.0f} ms; reset: {again}", flush=True)
        culprit.end()

    def make_fault(self, culprit, kind):
        """Returns when it was asked for, once the server knows of it: what is submitted before is in flight and lost, and the culprit is told last of all."""
        known = self.faults()
        began = time.monotonic()
        culprit.tell(f"fault {kind}")
        while self.faults() == known:
            if time.monotonic() - began > SETTLE_S:
                raise RuntimeError(f"the server hears of no fault after {kind!r}")
            time.sleep(0.002)
        self.noticed = time.monotonic()
        return began

    def faults(self):
        """How many the devices have had."""
        return sum(device["faults"] for server in self.openmps.status()["servers"] for device in server["snapshot"]["devices"])

    def large(self, words):
        """The pause of a large session."""
        client = self.client()
        before = self.granted_bytes(client)
        self.must(client, f"large {words}")
        large_bytes = self.granted_bytes(client) - before
        check_ms = self.time_check(client) * 1e3
        calm_ms = max(self.time_check(self.good[0]) for _ in range(20)) * 1e3
        for kind in ["trap", "address"]:
            culprit = self.client()
            asked = time.monotonic()
            busy_ms = self.await_mapped(large_bytes) * 1e3
            mapped_ms = (time.monotonic() - asked) * 1e3
            began = self.make_fault(culprit, kind)
            answer = client.ask("check")
            ended = time.monotonic()
            culprit.answer()
            is_late = ended - self.noticed > self.most_pause_s
            self.late += is_late
            print(f"    a session with (allocations, bytes, modules, streams) {words}: {answer} after {(ended - began) * 1e3:.0f} ms, {(ended - self.noticed) * 1e3:.0f} ms after the server knew{' (too late)' if is_late else ''}; a check takes {check_ms:.0f} ms without a fault; the standby had its memory after {mapped_ms:.0f} ms, meanwhile a good client's check took {busy_ms:.1f} ms at most, {calm_ms:.1f} before", flush=True)
            self.large_rows.append({"session": words, "kind": kind, "answer": answer, "pause_ms": (ended - began) * 1e3,
                                    "after_notice_ms": (ended - self.noticed) * 1e3, "check_ms": check_ms, "mapped_ahead_ms": mapped_ms, "good_check_ms": busy_ms, "calm_check_ms": calm_ms})
            self.lost += answer != "ok"
            culprit.end()
        client.end()

    def restarts(self):
        """How often a device got another executor."""
        return sum(self.openmps.numbers("restarts"))

    def endless(self):
        culprit = self.client()
        self.must(culprit, "spin")
        self.settle()
        before = self.restarts()
        culprit.process.send_signal(signal.SIGKILL)
        culprit.process.wait()
        began = time.monotonic()
        while self.restarts() == before:
            if time.monotonic() - began > SETTLE_S:
                raise RuntimeError("an endless kernel is not killed")
            time.sleep(0.02)
        noticed = time.monotonic()
        pause = self.survive("endless", noticed)
        self.rows.append({"kind": "endless", "told": "killed", "reported_ms": (noticed - began) * 1e3, "pause_ms": pause, "reset": "-"})
        print(f"    endless kernel of a killed client: ended after {(noticed - began) * 1e3:.0f} ms, good ones work {pause:.0f} ms later", flush=True)


def table(rows):
    """The median round of each kind."""
    lines = [f"{'fault':<12}{'told':>12}{'reported [ms]':>16}{'good ones work [ms]':>22}{'reset':>8}"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        middle = sorted(of_kind, key=lambda row: row["pause_ms"])[len(of_kind) // 2]
        lines.append(f"{kind:<12}{middle['told']:>12}{middle['reported_ms']:>16.0f}{middle['pause_ms']:>22.0f}{middle['reset']:>8}")
    return "\n".join(lines)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] * 1e3


def too_late(_number, _frame):
    raise TimeoutError(f"not done within {LIMIT_S} s: something hangs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="the product [target/dist]")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/programs/process/faults")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--good", type=int, default=4)
    parser.add_argument("--large", default="5000 4295000 200 100", help="the large session [5000 4295000 200 100]")
    parser.add_argument("--most-pause", type=float, default=1.0, help="how long after the server's notice the large session may take to work, in seconds [1]")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "target/faults-report.json", help="the figures, as JSON [target/faults-report.json]")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LIMIT_S)
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as ending:
        directory = pathlib.Path(directory)
        openmps = OpenMps(options.dist, directory)
        ending.callback(openmps.quit)
        openmps.environment["OPENMPS_KILL_PATIENCE_MS"] = "500"
        if options.softcuda:
            openmps.environment["OPENMPS_NATIVE_DRIVER"] = str(options.dist / "lib/openmps/libsoftcuda.so")
        ground = Ground(openmps, options.program, options.good, options.most_pause)
        for number in range(options.rounds):
            print(f"round {number + 1}", flush=True)
            for kind in KINDS:
                ground.fault(kind)
            ground.endless()
        ground.large(options.large)
        pauses = ground.pauses or [0.0]
        p50, p99 = percentile(pauses, 0.5), percentile(pauses, 0.99)
        print(table(ground.rows))
        print(f"{len(pauses)} pauses: p50 {p50:.0f} ms, p99 {p99:.0f} ms; idle clients lost: {ground.lost}")
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"schema": 1, "faults": ground.rows, "large": ground.large_rows, "pauses": len(pauses),
                                            "pause_p50_ms": p50, "pause_p99_ms": p99, "idle_clients_lost": ground.lost}, indent=1))
        known = openmps.clients()
        attached = all(known[client.pid]["kernels"] > 0 for client in ground.good)
        for client in ground.good:
            client.end()
        if not attached:
            print("not all good clients were attached")
        log = (openmps.logs / "server.log").read_text()
        print("\n".join(line for line in log.splitlines() if any(words in line for words in TOLD)))
        return 0 if ground.lost == 0 and ground.late == 0 and attached else 1


if __name__ == "__main__":
    sys.exit(main())
