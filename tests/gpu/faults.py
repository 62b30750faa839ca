#!/usr/bin/env python3
"""What a fault on a real GPU costs, and whom: faults of every kind, kills, and endless kernels, beside clients whose every word is checked.

Build first (`cargo xtask build`, `cargo xtask programs`), then, on a machine with a GPU and its driver:

    python3 tests/gpu/faults.py [--rounds 3] [--good 4] [--program FILE]

The clients are `programs/process/faults.c`. In each round each kind of fault is made once by a client that has just begun, while the good ones are idle with memory of every
kind, streams, an event, a graph and a variable; then each good one works with all of it. Prints for each kind what the culprit was told, how long the good ones' next
kernels took from the fault on, and who was lost.  Then a large session, and its pause. Exits with 1 when an idle client was lost or had
a wrong word.
"""

import argparse
import pathlib
import signal
import sys
import tempfile
import time

from openmps import OpenMps, Puppet

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ["address", "misaligned", "trap", "assert", "stack", "shared"]
# How long a client may take to be known as idle, with its variables saved.
SETTLE_S = 30


class Ground:
    def __init__(self, openmps, program, good):
        self.openmps, self.program = openmps, program
        self.good = [self.client() for _ in range(good)]
        self.lost, self.pauses = 0, []
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
        began = time.monotonic()
        told = culprit.ask(f"fault {kind}")
        reported = time.monotonic() - began
        pause = self.survive(kind, began)
        again = culprit.ask("reset")
        print(f"    {kind}: the culprit is told {told} after {reported * 1e3:.0f} ms, good ones work after {pause:.0f} ms; reset: {again}", flush=True)
        culprit.end()

    def large(self, words):
        """The pause of a large session."""
        client = self.client()
        self.must(client, f"large {words}")
        self.must(client, "check")
        for kind in ["trap", "address"]:
            culprit = self.client()
            # The next standby.
            time.sleep(3)
            began = time.monotonic()
            culprit.ask(f"fault {kind}")
            reported = time.monotonic()
            answer = client.ask("check")
            ended = time.monotonic()
            print(f"    a session with (allocations, bytes, modules, streams) {words}: {answer} after {(ended - began) * 1e3:.0f} ms, {(ended - reported) * 1e3:.0f} ms after the report", flush=True)
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
        print(f"    endless kernel of a killed client: ended after {(noticed - began) * 1e3:.0f} ms, good ones work {pause:.0f} ms later", flush=True)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="the product [target/dist]")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/programs/process/faults")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--good", type=int, default=4)
    parser.add_argument("--large", default="5000 4295000 200 100", help="the large session [5000 4295000 200 100]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        openmps = OpenMps(options.dist, directory)
        openmps.environment["OPENMPS_KILL_PATIENCE_MS"] = "500"
        ground = Ground(openmps, options.program, options.good)
        # A standby is started once clients have stayed.
        time.sleep(4)
        for number in range(options.rounds):
            print(f"round {number + 1}", flush=True)
            for kind in KINDS:
                ground.fault(kind)
            ground.endless()
        ground.large(options.large)
        pauses = ground.pauses
        print(f"{len(pauses)} pauses: p50 {percentile(pauses, 0.5):.0f} ms, p99 {percentile(pauses, 0.99):.0f} ms; idle clients lost: {ground.lost}")
        known = openmps.clients()
        attached = all(known[client.pid]["kernels"] > 0 for client in ground.good)
        for client in ground.good:
            client.end()
        openmps.quit()
        if not attached:
            print("not all good clients were attached")
        log = (openmps.logs / "server.log").read_text()
        print("\n".join(line for line in log.splitlines() if "cannot go on" in line or "not saved" in line))
        return 0 if ground.lost == 0 and attached else 1


if __name__ == "__main__":
    sys.exit(main())
