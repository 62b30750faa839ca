#!/usr/bin/env python3
"""Strong scaling over MPI ranks that share a GPU: without MPS, under NVIDIA's where it is installed, and under OpenMPS.

Build first (`cargo xtask build` and `cargo xtask programs`), then, on a machine with a GPU:

    python3 tests/gpu/mpi.py [--target target] [--side 2048] [--steps 1000]

The program is programs/mpi/jacobi.cu under Debian's Open MPI as `cargo xtask programs` unpacks it into target/openmpi. All runs of one size must find the same; every run under
OpenMPS must have been one of its clients. Prints microseconds per step, medians; exits with 1 when a result is another.
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

from openmps import OpenMps

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 120


class Nvidia:
    """NVIDIA's daemon, in directories of its own."""

    def __init__(self, directory):
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nvidia"), CUDA_MPS_LOG_DIRECTORY=str(directory / "nvidia-log"))
        for name in ["nvidia", "nvidia-log"]:
            (directory / name).mkdir()

    def __enter__(self):
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment, check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", env=self.environment, text=True, capture_output=True, check=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--side", type=int, nargs="+", default=[512, 2048], help="cells per side of the plate")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    mpirun, program = options.target / "openmpi/mpirun", options.target / "programs/mpi/jacobi"
    failures, found = 0, {}

    def run(front, environment, ranks, side):
        """Microseconds per step, and the ranks' process ids."""
        nonlocal failures
        command = [*front, mpirun, "-n", str(ranks), program, str(side), str(options.steps)]
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=LIMIT_S, check=False)
        line = re.search(r"jacobi: ok .* checksum=(\w+) us_per_step=([\d.]+)", done.stdout)
        if done.returncode != 0 or line is None:
            failures += 1
            print(f"{ranks} ranks, {side}: exit {done.returncode}: {(done.stdout + done.stderr)[-600:]}", flush=True)
            return float("nan"), []
        expected = found.setdefault(side, line[1])
        if line[1] != expected:
            failures += 1
            print(f"{ranks} ranks, {side}: {line[1]} instead of {expected}", flush=True)
        return float(line[2]), [int(pid) for pid in re.search(r"jacobi: pids ([\d ]+)", done.stdout)[1].split()]

    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        openmps = OpenMps(options.target / "dist", directory)
        alone = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nobody"))
        nvidia = shutil.which("nvidia-cuda-mps-control")
        kinds = ["none", *(["NVIDIA's"] if nvidia else []), "OpenMPS"]
        rows = {}
        for side in options.side:
            for kind in kinds:
                def measure(front, environment, kind=kind, side=side):
                    nonlocal failures
                    for ranks in options.ranks:
                        times = []
                        for _ in range(options.rounds):
                            us, pids = run(front, environment, ranks, side)
                            times.append(us)
                            if kind == "OpenMPS" and not set(pids) <= set(openmps.clients()):
                                failures += 1
                                print(f"{ranks} ranks: not all were clients")
                        rows[side, ranks, kind] = statistics.median(times)
                if kind == "none":
                    measure([], alone)
                elif kind == "OpenMPS":
                    measure([openmps.executable, "run", "--"], openmps.environment)
                    openmps.quit()
                else:
                    with tempfile.TemporaryDirectory() as theirs, Nvidia(pathlib.Path(theirs)) as daemon:
                        measure([], daemon.environment)
        print(f"{'side':>6} {'ranks':>6} " + " ".join(f"{kind:>12}" for kind in kinds) + "   us per step")
        for side in options.side:
            for ranks in options.ranks:
                print(f"{side:6} {ranks:6} " + " ".join(f"{rows[side, ranks, kind]:12.2f}" for kind in kinds))
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
