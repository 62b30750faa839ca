#!/usr/bin/env python3
"""Sessions that go to and fro between a device's two contexts, and whether all that they have goes along.

Build first (`cargo xtask build`), then, on a machine with a GPU, its driver, a C compiler, CUDA's headers and PyTorch:

    python3 tests/gpu/moves.py [--torch 2] [--wanderers 6] [--seconds 60] [--out DIRECTORY]

Two programs hold a context each, in turns, with a kernel of some 0.4 s. The other clients load code all the time, so each goes to the context that is not held.
The wanderers (`programs/driver_api/wanderer.c`) have memory, pinned memory, streams, graphs, a pool and timed events. The PyTorch programs have tensors of known
contents, a graph, and call operations for the first time. All of them check every word. With --rest-s the programs that hold rest as long, so that
sessions come together again. Prints how many moves there were, and what was wrong; exits with 1 when a word was wrong, a client was lost, or nobody moved.
"""

import argparse
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from openmps import OpenMps

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "programs/driver_api"
END_LIMIT_S = 60
# Beyond --seconds: for programs to begin, and to come to their end. What hangs is killed then.
SLACK_S = 240
# The second program that holds is there after so long, beside a kernel of the first.
BEGINS_WITHIN_S = 12
HOLD = """
import sys, time, torch
torch.cuda._sleep(1000)
torch.cuda.synchronize()
begin = time.monotonic()
torch.cuda._sleep(int(2e8))
torch.cuda.synchronize()
per_second = 2e8 / (time.monotonic() - begin)
print("ready", flush=True)
for line in sys.stdin:
    torch.cuda._sleep(int(float(line) * per_second))
    torch.cuda.synchronize()
    print("held", flush=True)
"""
# Tensors whose contents are known, operations that are new, a graph, pinned memory, events.
CHECKS = """
import itertools, os, random, sys, time, torch
seed, end = int(sys.argv[1]), sys.argv[2]
random.seed(seed)
kept, wrong, rounds, longest = [], 0, 0, 0.0
def check(what, right):
    global wrong
    if not right:
        wrong += 1
        print(f"{what} is wrong in round {rounds}", file=sys.stderr, flush=True)
names = ["sin", "cos", "exp", "log1p", "sqrt", "abs", "neg", "sign", "floor", "ceil", "tanh", "sigmoid", "erf", "square", "atan", "sinh", "cosh", "exp2", "expm1",
         "log2", "log10", "rsqrt", "reciprocal", "round", "trunc", "frac", "asinh", "erfc", "lgamma", "digamma", "sinc", "deg2rad", "rad2deg", "logit", "cumsum",
         "cumprod", "sort", "argsort", "flip", "isnan", "isinf", "isfinite", "signbit", "softmax", "log_softmax", "logsumexp", "std", "var", "median", "mode", "amax",
         "amin", "prod", "mean", "norm", "argmax", "argmin", "logcumsumexp", "diff", "unique", "nonzero", "count_nonzero", "aminmax", "bincount", "histc"]
new = [(name, kind) for name in names for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8)]
random.shuffle(new)
with_dimension = {"cumsum", "cumprod", "softmax", "log_softmax", "logsumexp", "logcumsumexp", "mode"}
def call(name, kind, device):
    values = torch.arange(1, 33, device=device).to(kind)
    function = getattr(torch, name)
    found = function(values, 0) if name in with_dimension else function(values)
    return (found if isinstance(found, torch.Tensor) else found[0]).double().cpu()
stream = torch.cuda.Stream()
source, target = torch.ones(4096, device="cuda"), torch.zeros(4096, device="cuda")
with torch.cuda.stream(stream):
    for _ in range(3):
        target.copy_(source * 2 + 1)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    target.copy_(source * 2 + 1)
layer = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
optimizer = torch.optim.Adam(layer.parameters())
print("ready", flush=True)
while not os.path.exists(end):
    began = time.monotonic()
    rounds += 1
    size = random.choice([1000, 5000, 100_000, 1_000_000, 8_000_000])
    first, stride = random.randrange(1000), random.randrange(1, 9)
    kept.append([torch.arange(size, device="cuda") * stride + first, first, stride])
    for one in kept:
        one[0] += 1
        one[1] += 1
    tensor, first, stride = random.choice(kept)
    check("a tensor", torch.equal(tensor, torch.arange(len(tensor), device="cuda") * stride + first))
    if len(kept) > 12:
        kept.pop(random.randrange(len(kept)))
    if rounds % 50 == 0:
        torch.cuda.empty_cache()
    source.fill_(rounds)
    graph.replay()
    check("a graph", bool((target == rounds * 2 + 1).all()))
    pinned = torch.full((3000,), rounds).pin_memory()
    check("pinned memory", int(pinned.to("cuda", non_blocking=True).sum()) == 3000 * rounds)
    begin, done = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    loss = layer(torch.ones(64, 256, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done.record()
    done.synchronize()
    check("a time", begin.elapsed_time(done) >= 0)
    check("a loss", bool(torch.isfinite(loss)))
    if new:
        name, kind = new.pop()
        try:
            right = call(name, kind, "cpu")
        except (RuntimeError, TypeError, NotImplementedError):
            right = None
        if right is not None:
            try:
                found = call(name, kind, "cuda")
            except (TypeError, NotImplementedError):
                found = None
            except RuntimeError as error:
                if "CUDA error" in str(error):
                    raise
                found = None
            if found is not None:
                close = 0.1 if kind in (torch.float16, torch.bfloat16) else 1e-3
                check(f"{name} of {kind}", torch.allclose(found, right, rtol=close, atol=close, equal_nan=True))
    longest = max(longest, time.monotonic() - began)
print(f"rounds {rounds} wrong {wrong} longest_s {longest:.3f}", flush=True)
sys.exit(wrong > 0)
"""


def line_of(process, word):
    """Waits for the line of a program that holds or checks."""
    line = process.stdout.readline()
    if line.strip() != word:
        raise RuntimeError(f"a program said {line!r} and not {word}: {process.stderr.read()[-2000:]}")


def relocations(daemon):
    """By process id, how often a client has gone to another context."""
    clients = json.loads(daemon.command("ps", "--json"))["clients"]
    return {client["pid"]: sum(device["relocations"] for device in client["devices"]) for client in clients}


class Turns(threading.Thread):
    """Lets the holders hold in turns until it is ended, and notes what keeps clients where they are."""

    def __init__(self, holders, daemon, options):
        super().__init__()
        self.holders, self.daemon_there, self.options = holders, daemon, options
        self.ends, self.stays, self.failure = threading.Event(), collections.Counter(), None

    def run(self):
        try:
            while not self.ends.wait(self.options.rest_s):
                for holder in self.holders:
                    tell(holder, self.options.hold_s)
                    time.sleep(0.5 * self.options.hold_s)
                    self.look()
                    line_of(holder, "held")
        except (RuntimeError, OSError) as error:
            self.failure = error

    def look(self):
        clients = json.loads(self.daemon_there.command("ps", "--json"))["clients"]
        for client in clients:
            for device in client["devices"]:
                if device["waits_for"] or device["stays_for"]:
                    self.stays[f"{device['waits_for']} ({device['stays_for']})"] += 1


def tell(holder, seconds):
    holder.stdin.write(f"{seconds}\n")
    holder.stdin.flush()


def wanderer(directory, compiler, include):
    """The compiled program."""
    program = directory / "wanderer"
    stubs = pathlib.Path(include).parent / "lib64/stubs"
    subprocess.run([compiler, "-O1", "-w", SOURCE / "wanderer.c", "-o", program, "-I", include, "-L", stubs, "-lcuda", "-lm"], check=True)
    return program


def moves(options, daemon, directory):
    """Whether all is well. Nothing that was started is left."""
    started = []

    def start(*command, **how):
        started.append(daemon.start(*command, **how))
        return started[-1]

    def end_all():
        for process in started:
            process.kill()

    limit = threading.Timer(options.seconds + SLACK_S, end_all)
    limit.start()
    try:
        return held_in_turns(options, daemon, directory, start)
    finally:
        limit.cancel()
        end_all()
        for process in started:
            process.wait()


def held_in_turns(options, daemon, directory, start):
    """Whether all is well beside two programs that hold a context each, in turns."""
    for name, text in (("hold.py", HOLD), ("checks.py", CHECKS)):
        (directory / name).write_text(text)
    holders = []
    for _ in range(2):
        # The second one starts beside the first one's kernel, so in the other context.
        if holders:
            tell(holders[0], BEGINS_WITHIN_S)
            time.sleep(1)
        holders.append(start(sys.executable, directory / "hold.py", stdin=subprocess.PIPE))
        line_of(holders[-1], "ready")
    line_of(holders[0], "held")
    turns = Turns(holders, daemon, options)
    turns.start()
    try:
        return checks(options, daemon, directory, start, turns)
    finally:
        turns.ends.set()
        turns.join()
        for holder in holders:
            holder.stdin.close()


def checks(options, daemon, directory, start, turns):
    """Whether all is well with those who check."""
    end = directory / "end"
    checking = {f"PyTorch {number}": start(sys.executable, directory / "checks.py", str(number), end) for number in range(options.torch)}
    for process in checking.values():
        line_of(process, "ready")
    if options.wanderers:
        program = wanderer(directory, options.cc, options.include)
        checking |= {f"wanderer {number}": start(program, "until", end) for number in range(options.wanderers)}
    began = time.monotonic()
    while time.monotonic() - began < options.seconds and turns.failure is None and all(process.poll() is None for process in checking.values()):
        time.sleep(0.1)
    moved = relocations(daemon)
    end.write_text("")
    total, is_well = 0, turns.failure is None
    for name, process in checking.items():
        try:
            said, errors = process.communicate(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
        times = moved.get(process.pid, 0)
        total += times
        # The server must have had it as a client.
        is_well &= process.returncode == 0 and process.pid in moved
        print(f"{name}: {times} moves, exit {process.returncode}; {said.strip().splitlines()[-1:]} {errors.strip()[-600:]}")
    waited = ", ".join(f"{what}: {times}" for what, times in turns.stays.most_common())
    print(f"{total} moves in {time.monotonic() - began:.0f} s; seen to wait (and what kept them): {waited or 'nobody'}")
    if turns.failure:
        print(f"a program that holds failed: {turns.failure}")
    return is_well and total > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--torch", type=int, default=2, help="PyTorch programs [2]")
    parser.add_argument("--wanderers", type=int, default=6, help="programs of the driver's interface [6]")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hold-s", type=float, default=0.4, help="how long a context is held at a time [0.4]")
    parser.add_argument("--rest-s", type=float, default=0, help="how long neither is, after each turn [0]")
    parser.add_argument("--cc", default=shutil.which("cc") or "gcc")
    parser.add_argument("--include", default="/usr/local/cuda/include", help="CUDA's headers")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for the daemon's logs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="openmps-moves-") as directory:
        directory = pathlib.Path(directory)
        daemon = OpenMps((options.target / "dist").resolve(), directory)
        try:
            return 0 if moves(options, daemon, directory) else 1
        finally:
            daemon.quit()
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                for path in sorted(daemon.logs.glob("*")):
                    (options.out / path.name).write_text(path.read_text(errors="replace")[-400000:])


if __name__ == "__main__":
    sys.exit(main())
