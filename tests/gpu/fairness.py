#!/usr/bin/env python3
"""Clients that want the same GPU: do they get equal time whatever their kernels' lengths, and does the latency class go ahead?

Build first (`cargo xtask build`, and `cargo xtask programs`), then, on a machine with a GPU and its driver:

    python3 tests/gpu/fairness.py [--peer]

Clients launch kernels that fill the GPU, of different lengths, for a second and a half. What each got is its kernels' own length, measured alone, times the
number that ended while all were there; a row passes when each is within 10 % of its share. Then a client of the latency class asks for a short kernel again and again
beside two that keep the GPU busy: its p99 must be within its p99 alone plus a block of the others' kernels; where SMs are kept for the class
(OPENMPS_LATENCY_SMS), within twice its p99 alone, for requests of few blocks and of many. With --peer the same runs under NVIDIA's
MPS, where nvidia-cuda-mps-control is installed, for comparison. Needs Python 3 alone. Prints a table; exits with 1 when anything failed.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from openmps import OpenMps, natively

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 180
DURATION_MS = 1500
REQUESTS = 2000
# Few: all of them go onto the SM that frees first, where many would run more slowly.
REQUEST_BLOCKS = 8
# Where SMs are kept for the class.
KEPT_SMS = 8
MANY_BLOCKS = 64
# Of a client below normal (CUDA_MPS_CLIENT_PRIORITY=1), whose busy time counts eightfold.
BELOW_NORMAL = 1 / 8
# Few such blocks fit on an SM, so that these are several waves on any GPU.
SHARED_BYTES = 48 << 10
BLOCKS = 2048
WARM_UP = 1000000


class Peer:
    """NVIDIA's MPS in directories of its own."""

    def __init__(self, directory):
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nvidia"),
                                CUDA_MPS_LOG_DIRECTORY=str(directory / "nvidia-log"))
        for name in ("nvidia", "nvidia-log"):
            (directory / name).mkdir()
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment, check=True)

    def start(self, *command, variables=None):
        environment = dict(self.environment, **(variables or {}))
        return subprocess.Popen(list(map(str, command)), env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def quit(self):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", env=self.environment, text=True, capture_output=True, check=False)


def lines(out):
    return [[int(number) for number in line.split()] for line in out.splitlines()]


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


class Bench:
    def __init__(self, program, directory):
        self.program = program
        self.directory = directory
        # An idle GPU's clock is low.
        self.alone(WARM_UP)
        probe = 20000
        self.per_us = probe / self.alone(probe)
        self.table = []
        self.failures = 0

    def alone(self, iterations, blocks=BLOCKS):
        """Microseconds of one kernel with the GPU for itself."""
        run = natively(self.program, "ask", str(iterations), str(blocks), str(SHARED_BYTES), "50",
                       directory=self.directory, limit_s=LIMIT_S)
        if run.returncode != 0:
            sys.exit(f"natively the program fails: {run.stderr}")
        return percentile([end - begin for _, begin, end in lines(run.stdout)], 0.5) / 1000

    def iterations(self, length_us):
        return max(1, round(length_us * self.per_us))

    def busy(self, start, length_us, end, streams=1, weight=1):
        depth = min(200, max(8, 20000 // length_us))
        command = ["busy", self.iterations(length_us), BLOCKS, SHARED_BYTES, streams, depth, *end]
        variables = {"CUDA_MPS_CLIENT_PRIORITY": "1"} if weight == BELOW_NORMAL else {"OPENMPS_WEIGHT": str(weight)}
        return start(self.program, *map(str, command), variables=variables)

    def fair(self, name, start, clients, judged):
        """`clients`: (length in us, streams, weight, or BELOW_NORMAL)."""
        lengths = {length: self.alone(self.iterations(length)) for length, _, _ in clients}
        running = [self.busy(start, length, ("for", DURATION_MS), streams, weight) for length, streams, weight in clients]
        ran = []
        for process in running:
            out, err = process.communicate(timeout=LIMIT_S)
            if process.returncode != 0:
                return self.report(name, clients, [], f"exit {process.returncode}: {err.strip()[-300:]}", judged)
            ran.append(lines(out))
        begin = max(kernels[0][0] for kernels in ran)
        end = min(kernels[-1][1] for kernels in ran)
        if end - begin < DURATION_MS * 500_000:
            return self.report(name, clients, [], "they hardly met", judged)
        got = [sum(1 for _, to in kernels if begin < to <= end) * lengths[client[0]] / 1000
               for client, kernels in zip(clients, ran)]
        weights = sum(weight for _, _, weight in clients)
        fair = [sum(got) * weight / weights for _, _, weight in clients]
        off = max(abs(have - due) / due for have, due in zip(got, fair))
        used = sum(got) / ((end - begin) / 1e6)
        self.report(name, clients, got, None if off <= 0.1 else f"off by {off:.0%}", judged, f"off by {off:.1%}, GPU {used:.0%} used")

    def report(self, name, clients, got, wrong, judged, note=""):
        self.failures += judged and wrong is not None
        shown = ", ".join(f"{length / 1000:g} ms x{streams} w{weight}" for length, streams, weight in clients)
        result = (f"ok ({note})" if wrong is None else f"{wrong}{' (not judged)' if not judged else ''} {note}")
        self.table.append(f"{name:12} {shown:62} {' '.join(f'{ms:.0f}' for ms in got):24} {result}")

    def latency(self, name, start, latency, judged, blocks=REQUEST_BLOCKS, kept=False):
        request_us, load_us = 100, 2000
        variables = {"OPENMPS_LATENCY": "1"} if latency else {}

        def ask():
            """p50 and p99 of the time from the end of what came before until the request's own end, in us."""
            process = start(self.program, "ask", str(self.iterations(request_us)), str(blocks), "0", str(REQUESTS), variables=variables)
            out, err = process.communicate(timeout=LIMIT_S)
            if process.returncode != 0:
                sys.exit(f"{name}: {err}")
            took = [(end - before) / 1000 for before, _, end in lines(out)]
            return percentile(took, 0.5), percentile(took, 0.99)

        alone = ask()
        stop = self.directory / f"stop-{name.replace(' ', '-')}"
        load = [self.busy(start, load_us, ("until", stop)) for _ in range(2)]
        # Until they are at work: a fixed time is no promise, but an idle GPU could only make this row look better.
        time.sleep(3)
        loaded = ask()
        stop.touch()
        for process in load:
            process.communicate(timeout=LIMIT_S)
        # Blocks are not pre-empted; behind one of them it goes ahead of the rest of the kernel. On SMs that are kept it is behind none.
        bound = 2 * alone[1] if kept else alone[1] + self.alone(self.iterations(load_us), blocks=1)
        wrong = None if loaded[1] <= bound else f"p99 {loaded[1]:.0f} us is beyond {bound:.0f}"
        self.failures += judged and wrong is not None
        self.table.append(f"{name:12} request of {blocks} blocks beside two of {load_us} us: p50/p99 alone {alone[0]:.0f}/{alone[1]:.0f}, "
                          f"loaded {loaded[0]:.0f}/{loaded[1]:.0f} us: {wrong or 'ok'}{'' if judged else ' (not judged)'}")


CONTESTS = [
    [(100, 1, 1), (5000, 1, 1)],
    [(1000, 1, 1), (1000, 1, 1)],
    [(100, 4, 1), (5000, 1, 1)],
    [(100, 1, 1), (500, 1, 1), (2000, 2, 1), (5000, 1, 1)],
    [(200, 1, 1), (1000, 1, 3)],
    [(1000, 1, 1), (1000, 1, BELOW_NORMAL)],
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    parser.add_argument("--peer", action="store_true", help="run the same under NVIDIA's MPS, where it is installed")
    options = parser.parse_args()
    program = options.target / "programs/driver-api/contenders"
    if not program.exists():
        sys.exit(f"{program} is missing: build the programs first")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        bench = Bench(program, directory)
        openmps = OpenMps(options.target / "dist", directory)
        for clients in CONTESTS:
            bench.fair("openmps", openmps.start, clients, judged=True)
        bench.latency("latency", openmps.start, latency=True, judged=True)
        bench.latency("no class", openmps.start, latency=False, judged=False)
        openmps.quit()
        aside = directory / "kept"
        aside.mkdir()
        keeping = OpenMps(options.target / "dist", aside)
        # The daemon is started by the first client, and has its environment.
        keeping.environment["OPENMPS_LATENCY_SMS"] = str(KEPT_SMS)
        for blocks in (REQUEST_BLOCKS, MANY_BLOCKS):
            bench.latency(f"{KEPT_SMS} SMs kept {blocks}", keeping.start, latency=True, judged=True, blocks=blocks, kept=True)
        keeping.quit()
        if options.peer:
            if not shutil.which("nvidia-cuda-mps-control"):
                sys.exit("--peer: nvidia-cuda-mps-control is not installed")
            peer = Peer(directory)
            for clients in CONTESTS:
                bench.fair("nvidia", peer.start, clients, judged=False)
            bench.latency("nvidia", peer.start, latency=False, judged=False)
            peer.quit()
        print(f"{'under':12} {'clients: kernel x streams, weight':62} {'ms each got':24} equal to 10 %")
        print("\n".join(bench.table))
        if bench.failures:
            print((openmps.logs / "server.log").read_text()[-4000:])
    print(f"{bench.failures} failed")
    sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
