#!/usr/bin/env python3
"""What loaded code costs each further client: device memory of PyTorch processes under OpenMPS beyond what they have allocated.

    python3 bench/torch_code.py                    # ResNet-18 and the transformer, 1 and 8 processes, code loaded when it is first called
    CUDA_MODULE_LOADING=EAGER python3 bench/torch_code.py

*Allocated* is what the server has granted the clients, *the rest* what the device lacks besides: the executor's context, and of each client code, streams and
chains of launches. Sharing code between clients could save a further client's rest at most. Needs a GPU and PyTorch.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import peers
import torch_clients

BENCH = pathlib.Path(__file__).resolve().parent
ASK_LIMIT_S = 20


def granted_mib(peer):
    """What the server has granted, of all clients."""
    asked = subprocess.run([peer.dist / "bin/openmps", "status", "--json"], env=peer.environment, text=True, capture_output=True,
                           timeout=ASK_LIMIT_S, check=True)
    servers = json.loads(asked.stdout)["servers"]
    return sum(device["granted_bytes"] for server in servers for device in server["snapshot"]["devices"]) / 2**20


def measured(dist, model, processes):
    """MiB of the device that so many clients take which have done some requests: all of it, and what was granted."""
    before = torch_clients.used_mib()
    command = [sys.executable, BENCH / "torch_inference.py", "--client", "--models", model, "--seconds", "0"]
    # An executor that stands by has a context of its own.
    with peers.Peer("openmps", dist, {"OPENMPS_STANDBY": "0"}) as peer, torch_clients.clients(peer, command, processes) as running:
        found = torch_clients.used_mib() - before, granted_mib(peer)
        torch_clients.tell(running, "go")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=torch_clients.ROOT / "target/dist", help="an installation, as `cargo xtask build` makes it")
    parser.add_argument("--models", default="resnet18,transformer", help="of resnet18,transformer [both]")
    parser.add_argument("--processes", type=int, default=8, help="how many clients, beside one [8]")
    options = parser.parse_args()
    if torch_clients.used_mib() is None:
        parser.error("what a GPU's memory holds cannot be asked here: nvidia-smi says nothing")
    print("| model | processes | used, MiB | allocated | the rest | the rest of a further client |\n|---|---|---|---|---|---|")
    for model in options.models.split(","):
        rests = {}
        for processes in [1, options.processes]:
            used, granted = measured(options.dist, model, processes)
            rests[processes] = used - granted
            further = (rests[processes] - rests[1]) / (processes - 1) if processes > 1 else None
            print(f"| {model} | {processes} | {used} | {granted:.0f} | {rests[processes]:.0f} | {'-' if further is None else f'{further:.1f}'} |")


if __name__ == "__main__":
    main()
