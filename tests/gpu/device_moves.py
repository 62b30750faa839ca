#!/usr/bin/env python3
"""`openmps move` and `openmps drain` between two real GPUs: results, and how long a program stands still.

Build first (`cargo xtask build`), then, on a machine with two equal GPUs and their driver:

    python3 tests/gpu/device_moves.py [--gib 1,16,64] [--moves 3]

A program with so much memory works without a pause, and is moved to the other GPU and back. Its longest turn is what it stood still. Every word is looked at after
each move, and the memory must come back where it was. Goal: 2 s, and bytes at 20 GB/s. Then several programs are on one GPU, which is drained, and all of them work
on. Needs Python 3 alone. Prints a table; exits with 1 when a word was wrong, a program was lost or stayed, or a goal was missed.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from openmps import OpenMps
from puppet import Puppet

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = pathlib.Path(__file__).resolve().parent / "device_moves/worker.py"
LIMIT_S = 120
FIXED_S, BYTES_PER_S = 2.0, 20e9
DRAINED = 4


def started(openmps):
    return Puppet([openmps.executable, "run", "--", sys.executable, WORKER, *openmps.worker_arguments], openmps.environment)


def session(openmps, pid):
    """The client's one session."""
    return openmps.clients()[pid]["devices"][0]


def run(openmps, *arguments):
    """A command of ours; what it said, whatever it said."""
    done = subprocess.run([openmps.executable, *map(str, arguments)], env=openmps.environment, text=True, capture_output=True, timeout=LIMIT_S, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def until(what, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.02)
    return False


def moves(openmps, gib, count, failures):
    """Moves a program to and fro while it works; how long it stood still, in seconds, and how long the command took."""
    program = started(openmps)
    answer = program.ask(f"have {gib}")
    if answer != "ok":
        failures.append(f"{gib} GiB: {answer}")
        return [], []
    uuid, stood, took = program.ask("uuid"), [], []
    for number in range(count):
        to = 1 - session(openmps, program.pid)["device"]
        goal_s = FIXED_S + gib * 2**30 / BYTES_PER_S
        program.tell(f"work {goal_s + 4}")
        program.answer()
        time.sleep(0.5)
        begin = time.monotonic()
        code, said = run(openmps, "move", "--pid", program.pid, "--to", to)
        took.append(time.monotonic() - begin)
        stood.append(float(program.answer()) / 1000)
        wrong = program.ask("check")
        there = session(openmps, program.pid)["device"]
        if code != 0 or there != to or wrong != "0" or program.ask("uuid") != uuid:
            failures.append(f"{gib} GiB, move {number}: exit {code}, on {there}, wrong words {wrong}: {said}")
            break
    program.end()
    return stood, took


def drain(openmps, failures):
    """Drains a GPU with several programs; seconds until all are away."""
    programs = [started(openmps) for _ in range(DRAINED)]
    for program in programs:
        program.ask("have 1")
    for program in programs:
        program.tell("work 8")
        program.answer()
    begin = time.monotonic()
    code, said = run(openmps, "drain", 0)
    is_away = until(lambda: all(session(openmps, program.pid)["device"] == 1 for program in programs), 20)
    took = time.monotonic() - begin
    longest = [float(program.answer()) / 1000 for program in programs]
    wrong = [program.ask("check") for program in programs]
    late = started(openmps)
    late.ask("have 1")
    where = session(openmps, late.pid)["device"]
    if not is_away or set(wrong) != {"0"} or where != 1:
        failures.append(f"drain: exit {code}: {said}; away {is_away}, wrong words {wrong}, one that starts is on {where}")
    for program in [*programs, late]:
        program.end()
    run(openmps, "drain", "--undo", 0)
    return took, max(longest)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="an installation [target/dist]")
    parser.add_argument("--gib", default="1,16,64", help="sizes [1,16,64]")
    parser.add_argument("--moves", type=int, default=3, help="of each size [3]")
    parser.add_argument("--softcuda", action="store_true", help="try the script with two of the software's GPUs, and a thousandth of the memory")
    options = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        openmps = OpenMps(options.dist, pathlib.Path(directory))
        openmps.worker_arguments = [str(1 << 18)] if options.softcuda else []
        if options.softcuda:
            openmps.environment.update(OPENMPS_SOFT_DEVICES="2", OPENMPS_NATIVE_DRIVER=str(options.dist / "lib/openmps/libsoftcuda.so"))
        try:
            print("| GiB | stood still, s (worst) | command, s (worst) | goal, s |\n|---|---|---|---|")
            for gib in map(int, options.gib.split(",")):
                stood, took = moves(openmps, gib, options.moves, failures)
                goal_s = FIXED_S + gib * 2**30 / BYTES_PER_S
                if stood:
                    print(f"| {gib} | {statistics.median(stood):.2f} ({max(stood):.2f}) | {statistics.median(took):.2f} ({max(took):.2f}) | {goal_s:.2f} |", flush=True)
                    if max(stood) > goal_s:
                        failures.append(f"{gib} GiB: stood still for {max(stood):.2f} s of {goal_s:.2f}")
            took, longest = drain(openmps, failures)
            print(f"\ndrain of {DRAINED} programs with 1 GiB: all away after {took:.2f} s, the longest turn of one {longest:.2f} s")
        finally:
            openmps.quit()
            for log in sorted(pathlib.Path(directory).glob("log/*.log")) if failures else []:
                print(f"--- {log.name}", *log.read_text(errors="replace").splitlines()[-12:], sep="\n", file=sys.stderr)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
