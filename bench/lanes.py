#!/usr/bin/env python3
"""What a setting of OpenMPS's server does to small kernels and to PyTorch: the same work with each of its values, in turns, medians.

    python3 bench/lanes.py                                       # whole-device lanes: none, and four: 4 minutes at most
    python3 bench/lanes.py --setting OPENMPS_STANDBY=0 --setting OPENMPS_STANDBY=1 --peer

Launches with a wait (`lat`) and chains of small kernels (`infer`) with 8 and 16 clients, by `openmps bench`; where PyTorch is, a transformer's inference and a small training
loop (those of torch_inference.py and torch_training.py) with 1, 4 and 8 of 8 processes at work. With --peer NVIDIA's MPS takes its turns, too. Needs a GPU, or --softcuda. Exits
with 1 when something failed, or when PyTorch's results differ.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import peers
import table_measurements
import torch_clients

BENCH = pathlib.Path(__file__).resolve().parent
SETTINGS = ["OPENMPS_LANES=0", "OPENMPS_LANES=4"]
MODELS = {"transformer": "torch_inference", "training": "torch_training"}
NVIDIA = "NVIDIA's MPS"
# Of a set of clients, from their start to their end.
LIMIT_S = 100
# A round that took so long is taken to take so long again, and this much more.
SLACK = 1.1


def client(makes):
    """One client: makes all models, says `ready`, and then for each line `MODEL SECONDS` works and says what it did, for `checksum MODEL` its checksum."""
    made = {}
    for model, make in makes.items():
        made[model] = make(model, "cuda")
        post, wait, checksum = made[model]
        for _ in range(10):
            post()
            wait()
        made[model] = post, wait, checksum, checksum()
    print("ready", flush=True)
    for line in sys.stdin:
        first, second = line.split()
        if first == "checksum":
            _, _, checksum, before = made[second]
            print(json.dumps(sorted({before, checksum()})), flush=True)
            continue
        post, wait, _, _ = made[first]
        times, began = [], time.perf_counter()
        while (now := time.perf_counter()) - began < float(second):
            post()
            wait()
            times.append(time.perf_counter() - now)
        took = time.perf_counter() - began
        print(json.dumps({"rate": len(times) / took, "p50_ms": torch_clients.percentile(times, 0.5) * 1e3,
                          "p99_ms": torch_clients.percentile(times, 0.99) * 1e3}), flush=True)


def said(running):
    """The next line of each client."""
    lines = [one.stdout.readline().strip() for one in running]
    if not all(lines):
        raise RuntimeError("a client ended early, or was ended because it took too long")
    return lines


@contextlib.contextmanager
def clients(peer, command, processes):
    """So many clients, ready. None of them outlives the limit."""
    environment = dict(peer.environment, OMP_NUM_THREADS="1")
    running = [subprocess.Popen(peer.command(*command), env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for _ in range(processes)]
    limit = threading.Timer(LIMIT_S, lambda: [one.kill() for one in running])
    limit.start()
    try:
        said(running)
        yield running
    finally:
        for one in running:
            with contextlib.suppress(BrokenPipeError):
                one.stdin.close()
        for one in running:
            one.wait()
            one.stdout.close()
        limit.cancel()


def answers(running, line):
    """What so many clients say to a line."""
    torch_clients.tell(running, line)
    return list(map(json.loads, said(running)))


def torch_round(peer, program, models, processes, seconds):
    """Rows of one peer, and its checksums by model: the clients stay, and some or all of them work."""
    rows, checksums = {}, {}
    command = [sys.executable, program, "--client", *models]
    with clients(peer, command, max(processes)) as running:
        for model in models:
            for number in processes:
                outcomes = answers(running[:number], f"{model} {seconds}")
                rows[f"PyTorch {model}", number] = {"rate": sum(one["rate"] for one in outcomes),
                                                    "p50_ms": statistics.median(one["p50_ms"] for one in outcomes),
                                                    "p99_ms": max(one["p99_ms"] for one in outcomes)}
            checksums[model] = sorted({value for found in answers(running, f"checksum {model}") for value in found})
    return rows, checksums


def kernel_round(options, peer, variables):
    """Rows of `openmps bench`, of one run each."""
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "out.json"
        command = [options.dist / "bin/openmps", "bench", *(["--softcuda"] if options.softcuda else []), "--workload", options.workloads,
                   "--clients", options.clients, "--repeat", "1", "--duration-ms", str(options.duration_ms), "--peers", peer, "--json", output]
        code, told = table_measurements.run_to_end(command, env=dict(os.environ, **variables))
        if code != 0:
            raise RuntimeError(told.strip().splitlines()[-1] if told.strip() else f"exit {code}")
        rows = json.loads(output.read_text())["rows"]
    return {(row["workload"], row["clients"]): {"rate": cell["kernels_per_second"], "p50_ms": (cell["iteration_p50_ns"] or 0) / 1e6,
                                               "p99_ms": (cell["iteration_p99_ns"] or 0) / 1e6} for row in rows for cell in row["cells"]}


def medians(rounds):
    """Of rounds, dictionaries by row of dictionaries by number: the medians of each."""
    keys = list(dict.fromkeys(key for one in rounds for key in one))
    of = lambda key: [one[key] for one in rounds if key in one]
    return {key: {name: statistics.median(found[name] for found in of(key)) for name in of(key)[0]} for key in keys}


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(found):
    """Lines. `found`: by who, medians by row. The last column is the second one's rate over the first's."""
    names = list(found)
    lines = [f"| | clients | {' | '.join(f'{name}: rate, p50, p99 ms' for name in names)} | {names[1] if len(names) > 1 else ''} over {names[0]} |",
             "|---" * (len(names) + 3) + "|"]
    for key in dict.fromkeys(key for rows in found.values() for key in rows):
        cells = [found[name].get(key) for name in names]
        told = " | ".join(f"{number(cell['rate'])}/s, {cell['p50_ms']:.4f}, {cell['p99_ms']:.4f}" if cell else "-" for cell in cells)
        both = len(cells) > 1 and cells[0] and cells[1] and cells[0]["rate"]
        lines.append(f"| {key[0]} | {key[1]} | {told} | {f'''{cells[1]['rate'] / cells[0]['rate']:.2f}x''' if both else '-'} |")
    return lines


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=torch_clients.ROOT / "target/dist", help="an installation, as `cargo xtask build` makes it")
    parser.add_argument("--setting", action="append", help=f"VARIABLE=VALUE, with commas between several; twice or more [{' and '.join(SETTINGS)}]")
    parser.add_argument("--peer", action="store_true", help="NVIDIA's MPS, too, where it is installed")
    parser.add_argument("--workloads", default="lat,infer", help="of `openmps bench` [lat,infer]")
    parser.add_argument("--clients", default="8,16", help="how many of them [8,16]")
    parser.add_argument("--duration-ms", type=int, default=500, help="how long each of their runs lasts [500]")
    parser.add_argument("--processes", default="1,4,8", help="of PyTorch [1,4,8]")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long PyTorch works at a time [1.5]")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--budget-s", type=float, default=235, help="begin no round that might end after so long [235]")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work; without PyTorch")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for all rounds")
    options = parser.parse_args()
    options.dist = options.dist.resolve()
    if not (options.dist / "bin/openmps").exists():
        parser.error(f"there is no {options.dist}/bin/openmps: run `cargo xtask build`, or name an installation with --dist")
    return options


def measure(options, who, variables, models, repeat):
    """A round of one: its rows and checksums. What fails is said, and left out."""
    logs = options.out and options.out / f"{who}-{repeat + 1}"
    peer, rows, checksums, failed = ("nvidia" if who == NVIDIA else "openmps"), {}, {}, []
    try:
        rows.update(kernel_round(options, peer, variables))
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
        failed.append(f"{who}, openmps bench: {error}")
    if models:
        try:
            with peers.Peer(peer, options.dist, variables, logs) as running:
                more, checksums = torch_round(running, __file__, models, list(map(int, options.processes.split(","))), options.seconds)
                rows.update(more)
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            failed.append(f"{who}, PyTorch: {error}")
    return rows, checksums, failed


def main():
    if sys.argv[1:2] == ["--client"]:
        return client({model: importlib.import_module(MODELS[model]).make for model in sys.argv[2:]})
    options, began = arguments(), time.monotonic()
    settings = {setting: dict(part.split("=", 1) for part in setting.split(",")) for setting in options.setting or SETTINGS}
    if options.peer and peers.nvidia_mps():
        settings[NVIDIA] = {}
    models = [] if options.softcuda or not importlib.util.find_spec("torch") else list(MODELS)
    rounds, checksums, failed, longest = {who: [] for who in settings}, {}, [], 0.0
    for repeat in range(options.repeat):
        start = time.monotonic()
        if start - began + SLACK * longest > options.budget_s:
            failed.append(f"only {repeat} of {options.repeat} rounds: there was no time")
            break
        # In turns, so that the first is not always the same.
        for who in list(settings)[repeat % len(settings):] + list(settings)[:repeat % len(settings)]:
            rows, sums, wrong = measure(options, who, settings[who], models, repeat)
            rounds[who].append(rows)
            failed += wrong
            for model, values in sums.items():
                checksums.setdefault(model, {}).setdefault(" ".join(values), []).append(who)
            print(f"{time.monotonic() - began:.0f} s: round {repeat + 1}, {who}", file=sys.stderr, flush=True)
        longest = max(longest, time.monotonic() - start)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        kept = {who: [{f"{name}, {clients}": row for (name, clients), row in one.items()} for one in each] for who, each in rounds.items()}
        (options.out / "lanes.json").write_text(json.dumps({"rounds": kept, "checksums": checksums, "failed": failed}, indent=1))
    print("\n".join(table({who: medians(each) for who, each in rounds.items()})))
    failed += [f"the checksums of {model} differ: {found}" for model, found in checksums.items() if len(found) > 1]
    for line in failed:
        print(line)
    print(f"{time.monotonic() - began:.0f} s, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
