#!/usr/bin/env python3
"""Which driver calls stall a context on a real GPU, and how clients fare beside one that makes them.

Build first (`cargo xtask build`), then, on a machine with a GPU, its driver, gcc and nvcc:

    python3 tests/gpu/stalls.py [--calls-only]

First `stalls/stalls.c`: each call of the executor beside a kernel that does not end, with lazy and with eager loading. Then
`stalls/neighbour.c`: clients that infer, load and meet beside each other, natively, under NVIDIA's MPS where it is installed, and under
OpenMPS. Exits with 1 when kernels of a client that wait for each other got stuck under OpenMPS.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from openmps import OpenMps

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = pathlib.Path(__file__).resolve().parent / "stalls"
GROUPS = [["infer"], ["infer", "load"], ["infer", "reload"], ["infer", "meet"], ["meet", "load"], ["infer"] * 4 + ["load"]]
LIMIT_S = 120


def build(directory):
    """The programs and their kernels, as a cubin for this machine's device and as PTX."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = pathlib.Path(nvcc).resolve().parents[1]
    cubin, ptx = directory / "kernels.cubin", directory / "kernels.ptx"
    subprocess.run([nvcc, "-O2", "-cubin", "-arch=native", SOURCES / "kernels.cu", "-o", cubin], check=True)
    subprocess.run([nvcc, "-O2", "-ptx", "-arch=compute_75", SOURCES / "kernels.cu", "-o", ptx], check=True)
    for name in ["stalls", "neighbour"]:
        subprocess.run(["gcc", "-O2", f"-I{toolkit}/include", SOURCES / f"{name}.c", "-o", directory / name,
                        f"-L{toolkit}/lib64/stubs", "-lcuda", "-lpthread"], check=True)
    constant = directory / "constant.cubin"
    subprocess.run([nvcc, "-O2", "-cubin", "-arch=native", "-DWITHOUT_VARIABLES", SOURCES / "kernels.cu", "-o", constant],
                   check=True)
    return cubin, ptx, constant


def together(start, kinds, program, images, milliseconds):
    """Runs clients at once; whether all ended well."""
    running = [start(program, kind, images[kind == "reload"], str(milliseconds)) for kind in kinds]
    well = True
    for process in running:
        out, err = process.communicate(timeout=LIMIT_S)
        print("   ", out.strip(), err.strip())
        well &= process.returncode == 0
    return well


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    parser.add_argument("--milliseconds", type=int, default=3000, help="how long each client works [3000]")
    parser.add_argument("--calls-only", action="store_true", help="only what stalls, natively")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        cubin, ptx, constant = build(directory)
        alone = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nobody"))
        for loading in ["LAZY", "EAGER"]:
            subprocess.run([directory / "stalls", cubin, ptx], env=dict(alone, CUDA_MODULE_LOADING=loading), check=True)
        if options.calls_only:
            return 0

        def popen(environment):
            return lambda *command: subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE,
                                                     stderr=subprocess.PIPE)

        peers = [("native", popen(alone))]
        nvidia = shutil.which("nvidia-cuda-mps-control")
        shared = dict(os.environ)
        if nvidia:
            for name in ["PIPE", "LOG"]:
                (directory / f"nvidia-{name}").mkdir()
                shared[f"CUDA_MPS_{name}_DIRECTORY"] = str(directory / f"nvidia-{name}")
            subprocess.run([nvidia, "-d"], env=shared, check=True)
            peers.append(("NVIDIA MPS", popen(shared)))
        openmps = OpenMps(options.target / "dist", directory)
        peers.append(("OpenMPS", openmps.start))
        for name, start in peers:
            well = True
            for kinds in GROUPS:
                print(f"{name}: {' '.join(kinds)}", flush=True)
                well &= together(start, kinds, directory / "neighbour", (cubin, constant), options.milliseconds)
        if nvidia:
            subprocess.run([nvidia], input="quit\n", env=shared, text=True, check=False)
        openmps.quit()
        return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
