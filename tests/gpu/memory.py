#!/usr/bin/env python3
"""More memory than a GPU has, on a real GPU, by each policy: what two programs get that do not fit together, and whether every word stays right.

Build first (`cargo xtask build`), then, on a machine with a GPU and its driver:

    python3 tests/gpu/memory.py

`limits`: those of a client, changed while it runs, and of a group (2 GiB are enough). `told`: what programs are told as the GPU's memory under each kind of limit, and PyTorch, CuPy, JAX with its own preallocation
and vLLM with random weights under a quarter of the GPU (what is not installed is skipped and said). Then two programs want 60 % of the free memory each. `fail`: the second is refused at once. `queue`: it waits until the first frees, or ends. `spill`: they take
turns, each a kernel over all its words, launched directly and in a graph, and every word is looked at; then one is killed while its memory is in
the host. `--share-mib` makes the programs smaller: what they leave free is then taken by a third one, which runs natively, so that nobody moves its
memory, and does nothing; the device is as full. Needs Python 3.10 alone (but for the frameworks), and as much free host memory as two programs have. Prints a table; exits with 1 when anything failed.
"""

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from openmps import OpenMps
from puppet import Puppet

ROOT = pathlib.Path(__file__).resolve().parents[2]
TENANT = pathlib.Path(__file__).resolve().parent / "memory/tenant.py"
FRAMEWORK = pathlib.Path(__file__).resolve().parent / "memory/framework.py"
FRAMEWORKS = ["torch", "cupy", "jax", "vllm"]
# An engine compiles at its start.
FRAMEWORK_LIMIT_S = 600
OUT_OF_MEMORY = "error 2 "
MIB = 1 << 20


class Program(Puppet):
    """A tenant under a daemon."""

    def __init__(self, openmps, policy, host_mib, **more):
        variables = {**more, "OPENMPS_MEMORY_POLICY": policy, "OPENMPS_MEMORY_SPILL_LIMIT": f"{host_mib}M"}
        environment = dict(openmps.environment, **variables)
        super().__init__([openmps.executable, "run", "--", sys.executable, TENANT], environment)


class Filler(Puppet):
    """A tenant without OpenMPS, in a server's way like any other process."""

    def __init__(self, directory):
        super().__init__([sys.executable, TENANT], dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nobody")))


def spilled_bytes(openmps, pid):
    client = openmps.clients().get(pid) or {"devices": []}
    return sum(device.get("spilled_bytes", 0) for device in client["devices"])


COUNT = 12


def wanted(program, share_mib):
    """How large the allocations of each program are, and the device's memory in bytes."""
    free, total = map(int, program.ask("info").split())
    share = share_mib or free // MIB * 6 // 10
    return max(share // COUNT, 2), total


def fill(directory, each_mib):
    """A third program that leaves the two what is 60 % of by one of them, and what it says."""
    filler = Filler(directory)
    free, _ = map(int, filler.ask("info").split())
    rest_mib = max(free // MIB - each_mib * COUNT * 10 // 6, 0)
    return filler, filler.ask(f"allocate {rest_mib} 1") if rest_mib else "ok"


def check(table, policy, what, right, detail=""):
    table.append(right)
    print(f"{policy:6} {what:58} {'ok' if right else 'FAILED'} {detail}", flush=True)
    return 0 if right else 1


def one_policy(openmps, directory, policy, options, table):
    failures = 0
    first, second = (Program(openmps, policy, options.host_mib) for _ in range(2))
    each, total = wanted(first, options.share_mib)
    allocate = f"allocate {each} {COUNT}"
    third = None

    def expect(what, got, expected="ok"):
        nonlocal failures
        right = got.startswith(expected)
        failures += check(table, policy, what, right, "" if right else got)

    if options.share_mib:
        filler, said = fill(directory, each)
        expect("a program of its own fills the rest of the device", said)
    else:
        filler = None
    expect(f"first program: {each * COUNT} MiB", first.ask(allocate))
    expect("it computes", first.ask("work"))
    began = time.monotonic()
    if policy == "fail":
        got = second.ask(allocate)
        expect("the second is refused", got, OUT_OF_MEMORY)
        failures += check(table, policy, f"at once ({(time.monotonic() - began) * 1000:.0f} ms)", True)
        expect("the first goes on", first.ask("work"))
    elif policy == "queue":
        second.tell(allocate)
        expect("the first goes on while the second waits", first.ask("work"))
        expect("and frees", first.ask("free"))
        expect(f"the second gets its memory after {time.monotonic() - began:.1f} s", second.answer())
        expect("and computes", second.ask("work"))
        first.tell(allocate)
        second.end()
        expect("the first waits for the second's end", first.answer())
    else:
        expect(f"second program: {each * COUNT} MiB", second.ask(allocate))
        failures += check(table, policy, f"memory of the first is in the host ({(time.monotonic() - began):.1f} s)",
                          spilled_bytes(openmps, first.process.pid) > 0)
        before = first.ask("addresses")
        for number in range(options.rounds):
            for name, program in (("first", first), ("second", second)):
                began = time.monotonic()
                got = program.ask("work")
                expect(f"turn {number + 1} of the {name} ({time.monotonic() - began:.1f} s)", got)
        expect("the addresses are the same", first.ask("addresses"), before)
        _, said_total = map(int, first.ask("info").split())
        failures += check(table, policy, "cuMemGetInfo's total is the device's", said_total == total)
        # Both at once: nobody is idle, so they take turns by the clock.
        began = time.monotonic()
        for program in (first, second):
            program.tell("work")
            program.tell("work")
        answers = [program.answer() for program in (first, second) for _ in range(2)]
        expect(f"both at once ({time.monotonic() - began:.1f} s)", "ok" if answers == ["ok"] * 4 else str(answers))
        second.ask("work")
        failures += check(table, policy, "the first is out again", spilled_bytes(openmps, first.process.pid) > 0)
        first.process.kill()
        first.process.wait()
        expect("it is killed there; the second goes on", second.ask("work"))
        third = Program(openmps, policy, options.host_mib)
        expect("another takes its place", third.ask(allocate))
        expect("and computes", third.ask("work"))
    for program in (first, second, third, filler):
        if program and program.process.poll() is None:
            program.end()
    return failures


def limits(openmps, options, table):
    """Limits of a client, while it runs, too, and of a group."""
    failures = 0

    def expect(what, got, expected="ok"):
        nonlocal failures
        right = got.startswith(expected)
        failures += check(table, "limits", what, right, "" if right else got)

    def start(**variables):
        return Program(openmps, "fail", options.host_mib, **variables)

    limited, free = start(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G"), start()
    (free_bytes, total), (_, whole) = (map(int, program.ask("info").split()) for program in (limited, free))
    failures += check(table, "limits", "cuMemGetInfo: free by the limit, total unchanged", free_bytes <= 1 << 30 and total == whole)
    expect("700 MiB of 1 GiB", limited.ask("allocate 700 1"))
    expect("700 more are refused", limited.ask("allocate 700 1"), OUT_OF_MEMORY)
    expect("a client without a limit has them", free.ask("allocate 1500 1"))
    openmps.command("limit", "--client", str(limited.pid), "--memory", "2G")
    expect("raised while it runs", limited.ask("allocate 700 1"))
    expect("it computes", limited.ask("work"))
    openmps.command("limit", "--group", "tenant", "--memory", "1G")
    one, two = start(OPENMPS_GROUP="tenant"), start(OPENMPS_GROUP="tenant")
    expect("of a group: one has 700 MiB", one.ask("allocate 700 1"))
    expect("the other is refused as much", two.ask("allocate 700 1"), OUT_OF_MEMORY)
    expect("the one frees", one.ask("free"))
    expect("the other has it", two.ask("allocate 700 1"))
    for program in (limited, free, one, two):
        program.end()
    return failures


def told(openmps, directory, options, table):
    """What programs are told as the GPU's memory, and frameworks that take a part of that."""
    failures = 0

    def expect(what, right, detail=""):
        nonlocal failures
        failures += check(table, "told", what, right, "" if right else detail)

    def totals(openmps, **variables):
        program = Program(openmps, "fail", options.host_mib, **variables)
        said = program.ask("info").split(), program.ask("total")
        program.end()
        (free, total), device = map(int, said[0]), int(said[1])
        return free, total, device

    _, whole, _ = totals(openmps)
    quarter = whole // 4 // MIB
    openmps.command("limit", "--group", "quarter", "--memory", f"{quarter}M")
    socket = directory / "socket"
    openmps.command("socket", str(socket), "--group", "tenant", "--memory", f"{quarter}M")
    by_socket = {"CUDA_MPS_PIPE_DIRECTORY": str(socket)}
    for kind, variables in [("program's", {"OPENMPS_MEMORY_LIMIT": f"{quarter}M"}), ("group's", {"OPENMPS_GROUP": "quarter"})]:
        seen = totals(openmps, **variables)
        expect(f"a {kind} limit is the total", seen[1:] == (quarter * MIB,) * 2 and seen[0] <= quarter * MIB, str(seen))
    tenant = Puppet([sys.executable, TENANT], dict(os.environ, LD_LIBRARY_PATH=openmps.library(), **by_socket))
    seen = [*map(int, tenant.ask("info").split()), int(tenant.ask("total"))]
    expect("a socket's limit is the total", seen[1:] == [quarter * MIB] * 2 and seen[0] <= quarter * MIB, str(seen))
    tenant.end()
    pinned = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={quarter}M"}
    seen = totals(openmps, **pinned)
    expect("the original's limit leaves the total", seen[1:] == (whole,) * 2 and seen[0] <= quarter * MIB, str(seen))
    (directory / "other").mkdir()
    other = OpenMps(options.target / "dist", directory / "other")
    seen = totals(other, OPENMPS_MEMORY_TOTAL="limit", **pinned)
    expect("and is the total where the daemon says so", seen[1:] == (quarter * MIB,) * 2, str(seen))
    other.quit()
    for name in FRAMEWORKS:
        if importlib.util.find_spec(name) is None:
            print(f"told   {name} is not installed: skipped", flush=True)
            continue
        command = [openmps.executable, "run", "--memory", f"{quarter}M", "--", sys.executable, FRAMEWORK, name]
        try:
            done = subprocess.run(command, env=openmps.environment, text=True, capture_output=True, timeout=FRAMEWORK_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            expect(f"{name} under a quarter of the GPU", False, f"no end after {FRAMEWORK_LIMIT_S} s")
            continue
        lines = done.stdout.split("\n")
        said = next((int(line.split()[1]) for line in lines if line.startswith("total ")), 0)
        # JAX rounds what it takes.
        right = done.returncode == 0 and "ok" in lines and abs(said - quarter * MIB) <= quarter * MIB // 50
        expect(f"{name} under a quarter of the GPU", right, f"exit {done.returncode}, total {said}: {done.stderr.strip()[-600:]}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    parser.add_argument("--share-mib", type=int, help="what each program wants [60 %% of what is free]")
    parser.add_argument("--host-mib", type=int, default=90 << 10, help="host memory for what is moved out [92160]")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each program [2]")
    parser.add_argument("--policies", default="limits,told,fail,queue,spill")
    options = parser.parse_args()
    failures, table = 0, []
    for policy in options.policies.split(","):
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            openmps = OpenMps(options.target / "dist", directory)
            if policy == "limits":
                failed = limits(openmps, options, table)
            elif policy == "told":
                failed = told(openmps, directory, options, table)
            else:
                failed = one_policy(openmps, directory, policy, options, table)
            failures += failed
            openmps.quit()
            if failed:
                print((openmps.logs / "server.log").read_text()[-4000:])
    print(f"{len(table) - failures} passed, {failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
