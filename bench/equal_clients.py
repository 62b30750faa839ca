#!/usr/bin/env python3
"""Clients that do the same: does each get the same, and what does a launch cost the processor?

Build first (`cargo xtask build`), then, on a machine with a GPU and nvcc:

    python3 bench/equal_clients.py --clients 8,16,32,64 [--workloads infer,lat] [--peers nvidia,openmps]
    python3 bench/equal_clients.py --clients 200 --workloads infer --peers openmps

All clients are ready before a common stretch of time begins. Of it: kernels a second of all, the slowest client's over the fastest's (of the whole, and in the worst second), the longest time
in which a client got nothing, and the processor time of a launch, that of the clients and of the daemon's processes together. NVIDIA's MPS takes 48 clients by default, and
is left out for more than 60. Under OpenMPS the server's counters must show all clients. Prints medians of the repeats; --json keeps them.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import peers
import thread_times
import torch_clients

BENCH = pathlib.Path(__file__).resolve().parent
# From the first client's start to the last one's end, without the time that they work.
LIMIT_S = 60
SLOTS_PER_S = 10
# Clients begin together, and so long before what counts.
WARM_S = 0.3
MOST_OF_NVIDIA = 60
ASK_LIMIT_S = 20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_s(root):
    """Processor time of a process and all that descend from it."""
    total = 0
    for process in thread_times.descendants(root):
        try:
            fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def slowest_over_fastest(rates):
    return min(rates) / max(rates) if rates and max(rates) else None


def seconds_of(slots):
    """Whole seconds of a client, of its tenths."""
    return [sum(slots[at:at + SLOTS_PER_S]) for at in range(0, len(slots) - SLOTS_PER_S + 1, SLOTS_PER_S)]


def summed(outcomes, seconds, daemon_s):
    """What clients did together, of what each says."""
    done = [sum(one["slots"]) for one in outcomes]
    kernels = sum(count * one["kernels_per_iteration"] for count, one in zip(done, outcomes))
    by_second = [slowest_over_fastest(rates) for rates in zip(*(seconds_of(one["slots"]) for one in outcomes))]
    clients_s = sum(one["processor_s"] for one in outcomes)
    return {"kernels_per_second": kernels / seconds, "slowest_over_fastest": slowest_over_fastest(done), "worst_second": min((one for one in by_second if one is not None), default=None),
            "longest_gap_ms": 1e3 * max(one["longest_gap_s"] for one in outcomes), "p50_us": 1e6 * statistics.median(one["p50_s"] for one in outcomes),
            "p99_us": 1e6 * max(one["p99_s"] for one in outcomes),
            "processor_us_per_launch": 1e6 * (clients_s + daemon_s) / kernels if kernels else None,
            "of_that_clients": 1e6 * clients_s / kernels if kernels else None}


def attached(peer):
    """Process ids that the server knows, those that have left included."""
    asked = subprocess.run([peer.dist / "bin/openmps", "status", "--json"], env=peer.environment, text=True, capture_output=True, timeout=ASK_LIMIT_S, check=True)
    found = set()

    def look(value):
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            look(inner)
        if isinstance(value, dict) and value.get("kernels"):
            found.add(value.get("pid"))

    look(json.loads(asked.stdout))
    return found


def together(peer, command, number, seconds):
    """One run of so many clients."""
    running = [subprocess.Popen(peer.command(*command), env=peer.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(number)]
    limit = threading.Timer(LIMIT_S + seconds, lambda: [one.kill() for one in running])
    limit.start()
    try:
        if any(one.stdout.readline().strip() != "ready" for one in running):
            raise RuntimeError(f"{peer.name}: a client did not start")
        begin = time.monotonic() + WARM_S
        torch_clients.tell(running, f"{begin} {begin + seconds}")
        time.sleep(WARM_S)
        before = processor_s(peer.daemon.pid) if peer.daemon else 0
        time.sleep(max(0, begin + seconds - time.monotonic()))
        daemon_s = processor_s(peer.daemon.pid) - before if peer.daemon else 0
        outcomes = [json.loads(one.stdout.readline() or "null") for one in running]
        if None in outcomes:
            raise RuntimeError(f"{peer.name}: a client ended early")
        found = summed(outcomes, seconds, daemon_s)
        if peer.name == "openmps":
            found["not_attached"] = len({one.pid for one in running} - attached(peer))
        return found
    finally:
        for one in running:
            with contextlib.suppress(BrokenPipeError):
                one.stdin.close()
            one.wait()
            one.stdout.close()
        limit.cancel()


def medians(runs):
    names = [name for name in runs[0] if any(run[name] is not None for run in runs)]
    return {name: (max if name == "not_attached" else statistics.median)([run[name] for run in runs if run[name] is not None]) for name in names}


def table(rows):
    lines = ["| workload | clients | peer | kernels/s | p50, p99 us | slowest over fastest | in the worst second | longest without, ms | processor, us a launch | of that clients' |", "|---" * 10 + "|"]
    shown = lambda value, digits: "-" if value is None else f"{value:.{digits}f}"
    for row in rows:
        lines.append(f"| {row['workload']} | {row['clients']} | {row['peer']} | {row['kernels_per_second']:.0f} | {row['p50_us']:.1f}, {row['p99_us']:.1f} | "
                     f"{shown(row.get('slowest_over_fastest'), 2)} | {shown(row.get('worst_second'), 2)} | {row['longest_gap_ms']:.1f} | "
                     f"{shown(row.get('processor_us_per_launch'), 2)} | {shown(row.get('of_that_clients'), 2)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=torch_clients.ROOT / "target/dist", help="an installation, as `cargo xtask build` makes it")
    parser.add_argument("--workloads", default="infer,lat", help="of infer,lat [both]")
    parser.add_argument("--clients", default="8,16,32,64", help="how many at once [8,16,32,64]")
    parser.add_argument("--peers", default=",".join(peers.available()), help="of none,nvidia,openmps [those that are there]")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each run lasts [3]")
    parser.add_argument("--repeat", type=int, default=3, help="how often everything is measured, peers in turn [3]")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--nvcc-flag", action="append", default=[], help="one more of its arguments, in the place of -arch=native; can be given again")
    parser.add_argument("--json", type=pathlib.Path, help="write the medians to this file")
    options = parser.parse_args()
    options.dist = options.dist.resolve()
    runs, failed = {}, []
    with tempfile.TemporaryDirectory(prefix="openmps-bench-") as directory:
        program = pathlib.Path(directory) / "equal_client"
        subprocess.run([options.nvcc, "-O2", "-std=c++17", *(options.nvcc_flag or ["-arch=native"]), BENCH / "equal_client.cu", "-o", program], check=True, timeout=120)
        counts = list(map(int, options.clients.split(",")))
        variables = {"OPENMPS_CONTEXTS_PER_DEVICE": str(max(48, max(counts) + 50))}
        for repeat in range(options.repeat):
            for name in options.peers.split(","):
                with peers.Peer(name, options.dist, variables) as peer:
                    for workload in options.workloads.split(","):
                        for number in counts:
                            if name == "nvidia" and number > MOST_OF_NVIDIA:
                                continue
                            try:
                                found = together(peer, [program, workload], number, options.seconds)
                            except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
                                failed.append(f"{workload}, {number} clients, {name}: {error}")
                                continue
                            runs.setdefault((workload, number, name), []).append(found)
                            print(f"{name} {workload} {number} repeat {repeat + 1}: {found['kernels_per_second']:.0f}/s", file=sys.stderr, flush=True)
    rows = [{"workload": workload, "clients": number, "peer": name, **medians(of)} for (workload, number, name), of in sorted(runs.items())]
    failed += [f"{row['workload']}, {row['clients']} clients: {row['not_attached']} were no clients of the server" for row in rows if row.get("not_attached")]
    print("\n".join(table(rows)))
    if options.json:
        options.json.write_text(json.dumps({"equal": rows, "failed": failed}, indent=1))
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
