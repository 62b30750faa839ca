#!/usr/bin/env python3
"""Managed memory on a real GPU: its speed and its contents, natively, under NVIDIA's MPS and under OpenMPS.

Build first (`cargo xtask build`), then, on a machine with a GPU and its driver:

    python3 tests/gpu/managed.py [--dist DIRECTORY]

`add`: a kernel on two arrays of 1 GiB that the host has written, from the second pass on. `there`, `back`: the host writes 1 GiB, a kernel adds to it, the host reads it. `stencil`: two arrays that are swapped for 100 steps; the host reads a
word each step. `pages`: the host reads and writes single pages while kernels run on another array; `attached`: of an array that is attached to the host. `prefetched`: an array comes to
the host by a prefetch, and is read. `beyond`: arrays of twice what the program may have, by a limit of OpenMPS (natively and under NVIDIA's MPS the same arrays without
a limit). Every word is looked at. Each is measured --repeat times, peers in turns, and the table has medians. As root, or with OPENMPS_MANAGED_FAULTS=on in the daemon's environment; otherwise OpenMPS leaves managed memory with the host.
`--softcuda` is for trying the script: small arrays, and rates that mean nothing. Needs Python 3 alone. Exits with 1 when a word was wrong, or OpenMPS was slower than it must be.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = pathlib.Path(__file__).resolve().parent / "managed/worker.py"
sys.path.insert(0, str(ROOT / "bench"))
import peers  # noqa: E402

LIMIT_S = 240
# What is measured: the worker's arguments, and those for trying the script.
MEASURED = {
    "add": (["add", "1024", "10"], ["add", "1", "3"]),
    "there-and-back": (["there-and-back", "1024"], ["there-and-back", "1"]),
    "stencil": (["stencil", "64", "100"], ["stencil", "1", "5"]),
    "pages": (["pages", "256", "2000"], ["pages", "1", "100"]),
    "attached": (["attached", "256", "2000"], ["attached", "1", "100"]),
    "prefetched": (["prefetched", "1024"], ["prefetched", "1"]),
    "beyond": (["beyond", "256", "16"], ["beyond", "4", "10"]),
}
# Half of what `beyond` wants, as the argument of `openmps run --memory`.
HALF = {"beyond": ("2G", "20M")}
# What OpenMPS must have of the native rate; nothing: it must be right.
ROWS = [("add", "then", "GB/s", 0.95), ("add", "first", "GB/s", None), ("there-and-back", "there", "GB/s", 0.8),
        ("there-and-back", "back", "GB/s", 0.8), ("stencil", "steps", "steps/s", 0.9), ("pages", "touches", "touches/s", None),
        ("attached", "touches", "touches/s", None), ("prefetched", "prefetched", "GB/s", 0.8), ("beyond", "seconds", "s", None)]


def measure(peer, options, name):
    """What the worker says; or what went wrong."""
    variables = {}
    if options.softcuda:
        libraries = options.dist / "lib"
        variables = {"OPENMPS_NATIVE_DRIVER": str(libraries / "openmps/libsoftcuda.so")}
        if peer == "none":
            variables = {"LD_LIBRARY_PATH": str(libraries / "softcuda")}
    with peers.Peer(peer, options.dist, variables) as running:
        command = running.command(sys.executable, WORKER, *MEASURED[name][options.softcuda])
        if name in HALF and peer == "openmps":
            command[2:2] = ["--memory", HALF[name][options.softcuda]]
        try:
            done = subprocess.run(list(map(str, command)), env=running.environment, text=True, capture_output=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return {"wrong": f"it took longer than {LIMIT_S} s"}
        if done.returncode != 0:
            return {"wrong": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
        return json.loads(done.stdout)


def shown(value, unit):
    if value is None:
        return "-"
    return f"{value / 1e9:,.1f}" if unit == "GB/s" else f"{value:,.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="the product [target/dist]")
    parser.add_argument("--repeat", type=int, default=3, help="how often each is measured [3]")
    parser.add_argument("--only", help="measurements, with commas between them")
    parser.add_argument("--softcuda", action="store_true", help="try the script without a GPU")
    options = parser.parse_args()
    options.dist = options.dist.resolve()
    names = ["none", "openmps"] if options.softcuda else peers.available()
    chosen = options.only.split(",") if options.only else list(MEASURED)
    found, failed = {}, False
    for _ in range(options.repeat):
        for name in chosen:
            for peer in names:
                result = measure(peer, options, name)
                if "wrong" in result:
                    print(f"{name}, {peer}: {result['wrong']}", file=sys.stderr)
                    failed = True
                found.setdefault((name, peer), []).append(result)
    print(f"| what | unit | {' | '.join('natively' if peer == 'none' else peer for peer in names)} | OpenMPS of native | must be |")
    print("|---" * (len(names) + 4) + "|")
    for name, key, unit, least in ROWS:
        if name not in chosen:
            continue
        of_peer = {peer: [result[key] for result in found[name, peer] if key in result] for peer in names}
        middle = {peer: statistics.median(values) if values else None for peer, values in of_peer.items()}
        ratio = middle["openmps"] / middle["none"] if middle["openmps"] and middle["none"] else None
        is_slow = least is not None and not options.softcuda and (ratio is None or ratio < least)
        failed |= is_slow
        cells = " | ".join(shown(middle[peer], unit) for peer in names)
        print(f"| {name}: {key} | {unit} | {cells} | {f'{ratio:.2f}' if ratio else '-'} | {least or 'right'}{' MISSED' if is_slow else ''} |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
