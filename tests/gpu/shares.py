#!/usr/bin/env python3
"""Shares of SMs on a real GPU: what clients were promised, what they were told, and on how many SMs their kernels ran by their own word.

Build first (`cargo xtask build`, and `cargo xtask test programs`, which builds the programs), then, on a machine with
a GPU and its driver:

    python3 tests/gpu/shares.py

Percentages for one client and for two and four at once, execution affinity, shares by context, and green contexts. A row
passes when the client was told what the share is, its kernels ran on exactly as many SMs, on all kinds of streams and in graphs,
and the server counted this very process's kernels. Then shares that change while clients run (`openmps limit`, groups, `openmps reserve`): the
SMs before and after, dependent kernels meanwhile, and, for each change, the longest time between the ends of two kernels of a client
that launches all the time, by the device's clock; the goal for a change of a limit is 5 ms, that for reservations is only shown. Needs Python 3 alone. Prints a table; exits with 1 when anything failed.
"""

import argparse
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time

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


class Live:
    """A client of the program `live_shares`, which does what it is told."""

    def __init__(self, openmps, program, *arguments, variables=None):
        self.process = openmps.start(program, *arguments, variables=variables, stdin=subprocess.PIPE)

    def tell(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the client ended: {self.process.stderr.read()[-400:]}")
        return line

    def ask(self, order):
        self.tell(order)
        return self.answer()

    def seen(self):
        """(told, counts on streams and in graphs, of the context with affinity, all SMs)."""
        counts, on = self.ask("seen").split(" on", 1)
        primary, _, affinity = counts.partition(" affinity ")
        numbers = [int(word) for word in primary.split() if word.isdigit()]
        few = [int(word) for word in affinity.split() if word.isdigit()]
        return numbers[0], numbers[1:], few, {int(word) for word in on.split()}

    def end(self):
        self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode


GAP_GOAL_US = 5000
GAPS_MS = 2500
# With the time before and after it.
CHANGE_EVERY_S = 0.4


def live(openmps, program, all_sms, report):
    """Shares that change while clients run."""
    client = Live(openmps, program, "affinity", "48")
    pid = str(client.process.pid)
    neighbour = Live(openmps, program)
    client.seen(), neighbour.seen()
    client.ask("graph 50")

    def change(percentage):
        openmps.command("limit", "--client", pid, "--sm-percent", str(percentage))

    for percentage in (25, 50, 1, 100, 33, 100):
        change(percentage)
        promised = share(all_sms, percentage)
        told, ways, few, on = client.seen()
        wrong = None
        if told != promised or set(ways) != {promised} or len(on) != promised or set(few) != {min(48, promised)}:
            wrong = f"affinity {few}, {len(on)} SMs in all"
        fits = client.ask("cooperate")
        report(f"limit {percentage} %", 1, promised, told, f"{ways}", wrong or (None if fits == "0 720" else f"cooperative {fits}"))
    client.tell("chain 20000")
    for percentage in (25, 75, 10, 100, 50, 100):
        change(percentage)
    answer = client.answer()
    report("dependent kernels meanwhile", 1, "", "", answer, None if answer == "ok" else "wrong result")

    def gaps(what, changes, goal=True):
        neighbour.tell(f"gaps {GAPS_MS}")
        client.tell(f"gaps {GAPS_MS}")
        for one in changes:
            time.sleep(CHANGE_EVERY_S)
            one()
        for who, of in (("the client", client), ("its neighbour", neighbour)):
            answer = of.answer()
            longest = float(answer.rsplit(" ", 1)[1])
            promised = f"<{GAP_GOAL_US} us" if goal else ""
            report(f"gaps, {what}: {who}", 2, promised, "", answer, None if longest < GAP_GOAL_US or not goal else "longer than the goal")

    gaps("no change", [])
    # Shares that were there before, then ones that are made.
    gaps("known shares", [lambda p=p: change(p) for p in (25, 100, 50, 100)])
    gaps("new shares", [lambda p=p: change(p) for p in (17, 42, 63, 88)])
    change(100)
    gaps("reservations", [lambda: openmps.command("reserve", "night", "--sms", "32"), lambda: openmps.command("reserve", "day", "--sms", "8"),
                          lambda: openmps.command("reserve", "--release", "night"), lambda: openmps.command("reserve", "--release", "day")], goal=False)

    openmps.command("reserve", "night", "--sms", "32")
    night = Live(openmps, program, variables={"OPENMPS_RESERVATION": "night"})
    reserved, others, free = night.seen(), client.seen(), neighbour.seen()
    rest = all_sms - 32
    apart = not reserved[3] & (others[3] | free[3])
    right = reserved[0] == 32 and set(reserved[1]) == {32} and others[0] == rest and set(others[1]) == {rest} and set(free[1]) == {rest}
    report("reserved SMs", 3, f"32+{rest}", f"{reserved[0]}+{others[0]}", f"{reserved[1]} {others[1]}",
           None if right and apart else f"in common: {sorted(reserved[3] & (others[3] | free[3]))}")
    openmps.command("reserve", "--release", "night")
    told, ways, _, _ = night.seen()
    report("released", 1, all_sms, told, f"{ways}", None if set(ways) == {all_sms} else "not all SMs")

    members = [Live(openmps, program, variables={"OPENMPS_GROUP": "tenant"}) for _ in range(2)]
    openmps.command("limit", "--group", "tenant", "--sm-percent", "30")
    (told, ways, _, one), (_, _, _, two) = (member.seen() for member in members)
    promised = share(all_sms, 30)
    report("group", 2, promised, told, f"{ways}", None if one == two and set(ways) == {promised} else "not the same SMs")
    for done in (client, neighbour, night, *members):
        status = done.end()
        if status != 0:
            report("end", 1, 0, status, "", "a client failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    parser.add_argument("--live", action="store_true", help="only shares that change while clients run")
    options = parser.parse_args()
    program = options.target / "programs/driver-api/multiprocessors"
    green = options.target / "programs/driver-api/green_contexts"
    live_program = options.target / "programs/process/live_shares"
    if not program.exists() or not green.exists() or not live_program.exists():
        sys.exit(f"{program}, {green} or {live_program} is missing: build the programs first")
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

        for clients in () if options.live else (1, 2, 4):
            for percentage in PERCENTAGES:
                run(f"{percentage} %", [share(all_sms, percentage)],
                    {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}, clients=clients)
        if not options.live:
            run("affinity", [all_sms, SMALLEST, 48], arguments=("affinity", "6", "affinity", "47"))
            run("affinity in 25 %", [share(all_sms, 25), SMALLEST, share(all_sms, 25)],
                {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, ("affinity", "6", "affinity", str(all_sms)))
            run("by context", [all_sms, share(all_sms, 25), share(all_sms, 50)],
                {"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1"}, ("percentage", "25", "percentage", "50"))
            natural = natively(green, directory=directory, limit_s=LIMIT_S)
            attached = openmps.start(green)
            out, err = attached.communicate(timeout=LIMIT_S)
            same = attached.returncode == 0 and out == natural.stdout
            shown = " ".join(out.split("\n")[:5]) or err.strip()[-200:]
            report("green contexts", 1, "", "", "", None if same else f"attached {shown!r}, natively {natural.stdout + natural.stderr!r}")
        live(openmps, live_program, all_sms, report)
        openmps.quit()
        print(f"{'share':28} {'clients':>7} {'promised':>9} {'told':>6} {'SMs seen: streams / graphs':32}")
        print("\n".join(table))
        if failures:
            print((openmps.logs / "server.log").read_text()[-4000:])
    print(f"{len(table) - failures} passed, {failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
