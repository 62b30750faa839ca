#!/usr/bin/env python3
"""Tools on a real GPU: cuda-gdb, compute-sanitizer and PyTorch's profiler, natively and under OpenMPS beside a client.

Build first (`cargo xtask build`), then, on a machine with a GPU and the CUDA toolkit:

    python3 tests/gpu/tools.py

Under OpenMPS the debugger must wait for the client and then stop in the kernel, the checker must find the wild write while the client is attached,
and neither may be a client; the profiler in an attached program sees no kernels, and the program is none the worse. What is
not installed is skipped and said. Prints a table; exits with 1 when anything failed.
"""

import argparse
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from openmps import OpenMps, natively

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 120


def holder(openmps, victim):
    """A client that stays until its input ends."""
    held = subprocess.Popen([openmps.executable, "run", "--", victim, "hold"], env=openmps.environment, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if held.stdout.readline() != "computed\n":
        sys.exit("the client did not start")
    return held


def finish(running):
    """Both outputs of a process, as one text."""
    try:
        return "".join(running.communicate(timeout=LIMIT_S))
    except subprocess.TimeoutExpired:
        running.kill()
        return "no end\n" + "".join(running.communicate())


def attached(openmps, victim, word):
    """Whether the server has ever had `victim WORD` as a client."""
    return any(f"{victim} {word}" in str(client) for client in openmps.clients().values())


def sanitizer(openmps, victim, directory):
    command = ["compute-sanitizer", victim, "bad"]
    alone = natively(*command, directory=directory, limit_s=LIMIT_S)
    found = "Invalid __global__ write"
    if found not in alone.stdout + alone.stderr:
        return f"natively it finds nothing: {(alone.stdout + alone.stderr)[-400:]!r}"
    held = holder(openmps, victim)
    beside = finish(openmps.start(*command))
    held.stdin.close()
    held.wait(LIMIT_S)
    if found not in beside:
        return f"it finds nothing: {beside[-600:]!r}"
    return "the program was attached" if attached(openmps, victim, "bad") else None


def debugger(openmps, victim, directory):
    command = ["cuda-gdb", "-batch", "-ex", "set breakpoint pending on", "-ex", "break store", "-ex", "run", "-ex", "info cuda kernels",
               "-ex", "delete", "-ex", "continue", "--args", victim, "good"]
    stopped = "hit Breakpoint"
    alone = natively(*command, directory=directory, limit_s=LIMIT_S)
    if stopped not in alone.stdout:
        return f"natively it does not stop: {(alone.stdout + alone.stderr)[-400:]!r}"
    held = holder(openmps, victim)
    running = openmps.start(*command)
    deadline, log = time.monotonic() + LIMIT_S, openmps.logs / "control.log"
    while "without a server, once all clients have left" not in log.read_text():
        if time.monotonic() > deadline or running.poll() is not None:
            held.stdin.close()
            return f"it did not wait: {finish(running)[-600:]!r}"
        time.sleep(0.1)
    waited = running.poll() is None
    held.stdin.close()
    held.wait(LIMIT_S)
    output = finish(running)
    if not waited or stopped not in output or "computed" not in output:
        return f"it does not stop in the kernel: {output[-600:]!r}"
    return "the program was attached" if attached(openmps, victim, "good") else None


def profiler(openmps, _victim, directory):
    command = [sys.executable, HERE / "tools/profiled.py"]
    alone = natively(*command, directory=directory, limit_s=LIMIT_S)
    if "profiled" not in alone.stdout or "profiled 0" in alone.stdout:
        return f"natively it sees nothing: {(alone.stdout + alone.stderr)[-400:]!r}"
    beside = openmps.start(*command)
    output = finish(beside)
    if beside.returncode != 0 or "profiled 0" not in output:
        return f"attached: exit {beside.returncode}: {output[-600:]!r}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    options = parser.parse_args()
    cases = [("compute-sanitizer", sanitizer, shutil.which("compute-sanitizer")), ("cuda-gdb", debugger, shutil.which("cuda-gdb")),
             ("torch.profiler", profiler, importlib.util.find_spec("torch"))]
    failures, rows = 0, []
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        victim = directory / "victim"
        subprocess.run(["nvcc", "-g", "-G", "-o", victim, HERE / "tools/victim.cu"], check=True)
        openmps = OpenMps(options.target / "dist", directory)
        for name, case, installed in cases:
            if not installed:
                rows.append(f"{name:18} skipped: not installed")
                continue
            begun = time.monotonic()
            wrong = case(openmps, victim, directory)
            failures += wrong is not None
            rows.append(f"{name:18} {wrong or 'works'}  ({time.monotonic() - begun:.0f} s)")
            print(rows[-1], flush=True)
        openmps.quit()
        if failures:
            log = openmps.logs / "control.log"
            print(log.read_text()[-3000:] if log.exists() else "no daemon was started")
    print("\n".join(rows))
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
