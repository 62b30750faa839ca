"""What the PyTorch benches share: clients that start together, work for a while and say what they did; peers in turn; a table."""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import peers

ROOT = pathlib.Path(__file__).resolve().parents[1]
READY_LIMIT_S = 120


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def get_ready(post, wait, checksum):
    """A client warms up, says `ready` and waits until it is told to work; its checksum."""
    for _ in range(10):
        post()
        wait()
    found = checksum()
    print("ready", flush=True)
    sys.stdin.readline()
    return found


def client(post, wait, checksum, seconds):
    """One client: gets ready, works, and writes what it found as JSON. Its checksum is computed twice, so that a result that went wrong under load shows."""
    before = get_ready(post, wait, checksum)
    times, began = [], time.perf_counter()
    while (now := time.perf_counter()) - began < seconds:
        post()
        wait()
        times.append(time.perf_counter() - now)
    took = time.perf_counter() - began
    # While others still work, or have just ended.
    after = checksum()
    print(json.dumps({"requests": len(times), "seconds": took, "p50_ms": percentile(times, 0.5) * 1e3,
                      "p99_ms": percentile(times, 0.99) * 1e3, "checksums": sorted({before, after})}), flush=True)


def used_mib():
    """Memory of the first GPU that anybody uses; nothing where that cannot be asked."""
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"],
                               capture_output=True, text=True, timeout=20, check=True)
        return int(asked.stdout.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


@contextlib.contextmanager
def clients(peer, command, processes):
    """So many clients at once under a peer, all of them ready."""
    # One thread each: the processors are the clients', not the mathematics library's.
    environment = dict(peer.environment, OMP_NUM_THREADS="1")
    running = [subprocess.Popen(peer.command(*command), env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for _ in range(processes)]
    try:
        for one in running:
            line = one.stdout.readline()
            if line.strip() != "ready":
                raise RuntimeError(f"a client of {peer.name} ended early")
        yield running
    finally:
        for one in running:
            one.stdin.close()
        for one in running:
            try:
                one.wait(timeout=READY_LIMIT_S)
            except subprocess.TimeoutExpired:
                one.kill()


def tell(running, what):
    """Tells all of them: `go`, at first."""
    for one in running:
        one.stdin.write(f"{what}\n")
        one.stdin.flush()


def together(peer, program, model, processes, seconds):
    """What so many clients do at once under a peer."""
    command = [sys.executable, program, "--client", "--models", model, "--seconds", str(seconds)]
    with clients(peer, command, processes) as running:
        memory_mib = used_mib()
        tell(running, "go")
        outcomes = [json.loads(one.stdout.readline()) for one in running]
    return {"peer": peer.name, "model": model, "processes": processes,
            "per_second": sum(found["requests"] / found["seconds"] for found in outcomes),
            "p50_ms": statistics.median(found["p50_ms"] for found in outcomes),
            "p99_ms": max(found["p99_ms"] for found in outcomes),
            "memory_mib": memory_mib, "checksums": sorted({value for found in outcomes for value in found["checksums"]})}


def summary(runs):
    """Medians over the repeats."""
    rows = []
    keys = dict.fromkeys((run["model"], run["processes"], run["peer"]) for run in runs)
    for model, processes, peer in keys:
        of = [run for run in runs if (run["model"], run["processes"], run["peer"]) == (model, processes, peer)]
        row = {"model": model, "processes": processes, "peer": peer,
               "checksums": sorted({value for run in of for value in run["checksums"]})}
        for name in ["per_second", "p50_ms", "p99_ms", "memory_mib"]:
            values = [run[name] for run in of if run[name] is not None]
            row[name] = statistics.median(values) if values else None
        rows.append(row)
    return rows


def table(rows):
    """Lines of a table of medians."""
    lines = ["| PyTorch | processes | peer | per second | p50 ms | p99 ms | GPU memory, MiB | checksums |", "|---|---|---|---|---|---|---|---|"]
    for row in rows:
        memory = "-" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}"
        lines.append(f"| {row['model']} | {row['processes']} | {row['peer']} | {row['per_second']:.0f} | {row['p50_ms']:.2f} | "
                     f"{row['p99_ms']:.2f} | {memory} | {' '.join(row['checksums'])} |")
    return lines


def differing(rows):
    """Of each model whose checksums are not the same everywhere: a line that says who had which."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        of = [row for row in rows if row["model"] == model]
        if len({value for row in of for value in row["checksums"]}) > 1:
            told = ", ".join(f"{row['peer']} with {row['processes']} had {' and '.join(row['checksums'])}" for row in of)
            lines.append(f"the checksums of {model} differ: {told}")
    return lines


def main(program, description, models, make):
    """`make(model, device)` gives what posts a request, what waits for its end, and a checksum."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="an installation, as `cargo xtask build` makes it")
    parser.add_argument("--models", default=",".join(models), help=f"of {','.join(models)} [all]")
    parser.add_argument("--processes", default="1,4,8,16", help="how many clients at once [1,4,8,16]")
    parser.add_argument("--peers", default=",".join(peers.available()), help="of none,nvidia,openmps [those that are there]")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each run lasts [3]")
    parser.add_argument("--repeat", type=int, default=3, help="how often everything is measured, peers in turn [3]")
    parser.add_argument("--json", type=pathlib.Path, help="write the medians to this file")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        return client(*make(options.models, "cuda"), options.seconds)
    runs = []
    for repeat in range(options.repeat):
        for name in options.peers.split(","):
            with peers.Peer(name, options.dist) as peer:
                for model in options.models.split(","):
                    for processes in map(int, options.processes.split(",")):
                        runs.append(together(peer, program, model, processes, options.seconds))
                        print(f"{name} {model} {processes} repeat {repeat + 1}: {runs[-1]['per_second']:.0f}/s", file=sys.stderr)
    rows = summary(runs)
    print("\n".join(table(rows)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    wrong = differing(rows)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else os.EX_OK
