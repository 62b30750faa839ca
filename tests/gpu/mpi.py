#!/usr/bin/env python3
"""Strong scaling over MPI ranks that share a GPU: without MPS, under NVIDIA's where it is installed, and under OpenMPS.

Build first (`cargo xtask build` and `cargo xtask programs`), then, on a machine with a GPU:

    python3 tests/gpu/mpi.py [--target target] [--side 512 2048] [--steps 2000]

The program is programs/mpi/jacobi.cu: halos staged through pinned memory by Debian's Open MPI (target/openmpi), and between device buffers by the CUDA-aware one
(target/openmpi-cuda), as `cargo xtask programs` puts them there. Kinds take turns within a round, so that all see the same machine. All runs of one size must find the same; every run
under OpenMPS must have been of its clients. Prints microseconds per step, medians of the rounds, the least and the greatest beside them, and how much faster than one rank
without MPS; exits with 1 when a result is another or a run fails.
"""

import argparse
import contextlib
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import sharing

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--side", type=int, nargs="+", default=[512, 2048], help="cells per side of the plate")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dist", type=pathlib.Path, help="an installation of OpenMPS [the build directory's]")
    parser.add_argument("--peers", default=",".join(sharing.NAMES), help="of none,nvidia,openmps: those of them that are there [all]")
    parser.add_argument("--halos", default="staged,device", help="of staged,device [both]")
    parser.add_argument("--json", type=pathlib.Path, help="write the medians to this file")
    options = parser.parse_args()
    program = options.target / "programs/mpi/jacobi"
    halos = {"staged": options.target / "openmpi/mpirun", "device": options.target / "openmpi-cuda/mpirun"}
    halos = {halo: halos[halo] for halo in options.halos.split(",")}
    failures, found = 0, {}

    def run(name, kind, halo, ranks, side):
        """Microseconds per step; None if the run was not right."""
        command = [*kind.front, halos[halo], "-n", str(ranks), program, f"--{halo}", str(side), str(options.steps)]
        try:
            done = subprocess.run(command, env=kind.environment, text=True, capture_output=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"did not end within {LIMIT_S} s"
        line = re.search(r"jacobi: ok .*halo=(\w+) checksum=(\w+) us_per_step=([\d.]+)", done.stdout)
        if done.returncode != 0 or line is None:
            return f"exit {done.returncode}: {(done.stdout + done.stderr)[-600:]}"
        expected = found.setdefault(side, line[2])
        if (line[1], line[2]) != (halo, expected):
            return f"{line[0]}: {halo} {expected} was expected"
        pids = [int(pid) for pid in re.search(r"jacobi: pids ([\d ]+)", done.stdout)[1].split()]
        return float(line[3]) if kind.check(pids) else "not all ranks were clients"

    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        directory = pathlib.Path(directory)
        kinds = {}
        for name, told in [("none", "none"), ("nvidia", "NVIDIA's"), ("openmps", "OpenMPS")]:
            if name in sharing.available(options.peers.split(",")):
                (directory / name).mkdir()
                kinds[told] = sharing.make(name, options.dist or options.target / "dist", directory / name)
                stack.callback(kinds[told].close)
        times = {}
        for side in options.side:
            for ranks in options.ranks:
                for halo in halos:
                    for turn in range(options.rounds):
                        for name in list(kinds)[turn % len(kinds):] + list(kinds)[:turn % len(kinds)]:
                            took = run(name, kinds[name], halo, ranks, side)
                            if isinstance(took, str):
                                failures += 1
                                print(f"{side}, {ranks} ranks, {halo}, {name}: {took}", flush=True)
                            else:
                                times.setdefault((side, ranks, halo, name), []).append(took)
        width = 32
        print(f"{'side':>6} {'ranks':>6} {'halo':>7} " + " ".join(f"{name:>{width}}" for name in kinds) + "   us per step (least to greatest) times one rank alone")
        for side in options.side:
            for halo in halos:
                alone = times.get((side, options.ranks[0], halo, "none"))
                for ranks in options.ranks:
                    cells = []
                    for name in kinds:
                        took = times.get((side, ranks, halo, name))
                        cells.append("failed" if took is None else f"{statistics.median(took):.2f} ({min(took):.2f} to {max(took):.2f})"
                                     + (f" x{statistics.median(alone) / statistics.median(took):.2f}" if alone else ""))
                    print(f"{side:6} {ranks:6} {halo:>7} " + " ".join(f"{cell:>{width}}" for cell in cells))
    if options.json:
        rows = [{"side": side, "ranks": ranks, "halo": halo, "peer": kinds[told].name, "us_per_step": statistics.median(took)}
                for (side, ranks, halo, told), took in times.items()]
        options.json.write_text(json.dumps({"mpi": rows}, indent=1))
    print(f"{failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
