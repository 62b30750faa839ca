#!/usr/bin/env python3
"""What a promised share of SMs is worth on a real GPU, beside NVIDIA's MPS in the same run: promised, told, seen by the kernels, and the throughput.

Build first (`cargo xtask build`, and `cargo xtask programs`), then, on a machine with a GPU and its driver:

    python3 tests/gpu/share_table.py            # in parts of less than 8 minutes: when it says so, run it again

For 10, 25, 33, 50 and 75 per cent, one, two and four clients at once. What the kernels saw is the number of SMs that they name, on all kinds of streams and in
graphs (`multiprocessors`); the throughput is that of `openmps bench --workload fill`, where every client is as wide as the GPU. Peers take turns within each
measurement, and the whole is repeated (--repeat); the table has medians. What was measured is kept in --state, and not measured again with the same build. Where NVIDIA's MPS is not
installed its columns are empty. `--softcuda` is for trying the script: it has short kernels instead, and its rates mean nothing. Needs Python 3 alone; exits with 1 when a client of
OpenMPS was told, or saw, other than what it was promised.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from shares import LIMIT_S, ROOT, rows, share

sys.path.insert(0, str(ROOT / "bench"))
import peers  # noqa: E402

PERCENTAGES = [10, 25, 33, 50, 75]
CLIENTS = [1, 2, 4]
PEERS = ["nvidia", "openmps"]
BENCH_LIMIT_S = 170
# No measurement is begun after so long.
BUDGET_S = 300
EVERYTHING = 100


def peer_environment(running, percentage):
    return dict(running.environment, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=str(percentage))


def see(program, peer, dist, percentage, clients):
    """(told, [seen in each way]) of each client, all at once; or what went wrong."""
    with peers.Peer(peer, dist) as running:
        # The first client starts the server, whose limits are those of that moment.
        subprocess.run(running.command(program), env=running.environment, capture_output=True, timeout=LIMIT_S, check=False)
        started = [subprocess.Popen(list(map(str, running.command(program))), env=peer_environment(running, percentage), text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(clients)]
        found = []
        for process in started:
            out, err = process.communicate(timeout=LIMIT_S)
            context = rows(out)
            if process.returncode != 0 or len(context) != 1:
                return {"wrong": f"exit {process.returncode}: {err.strip()[-200:]}"}
            _, told, streams, graphs = context[0]
            found.append([told, streams + graphs])
        return {"clients": found}


def throughput(options, names, percentage):
    """Kernels per second of all clients, and each client's part of what one has with all SMs: by number of clients and peer."""
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "out.json"
        command = [options.dist / "bin/openmps", "bench", "--workload", "lat" if options.softcuda else "fill", "--sm-percent", str(percentage), "--clients",
                   ",".join(map(str, CLIENTS)), "--repeat", "1", "--duration-ms", str(options.duration_ms), "--peers", ",".join(names),
                   "--json", output] + (["--softcuda"] if options.softcuda else [])
        done = subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=BENCH_LIMIT_S, check=False)
        if done.returncode != 0:
            return {"wrong": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
        found = {}
        for row in json.loads(output.read_text())["rows"]:
            if row["sm_percent"] == percentage:
                for cell in row["cells"]:
                    found[f"{row['clients']} {cell['peer']}"] = [cell["kernels_per_second"], cell["of_whole_device"]]
        return found


def plan(options, names):
    """Name and action of every measurement, the repeats outermost, so that no peer and no share has a part of the run for itself."""
    for repeat in range(options.repeat):
        for percentage in PERCENTAGES:
            yield f"throughput {percentage} {repeat}", lambda p=percentage: throughput(options, names, p)
            for clients in CLIENTS if repeat == 0 else []:
                for peer in names:
                    yield (f"seen {percentage} {clients} {peer}",
                           lambda n=peer, p=percentage, c=clients: see(options.program, n, options.dist, p, c))
    yield "seen 100 1 openmps", lambda: see(options.program, "openmps", options.dist, EVERYTHING, 1)


def medians(state, percentage, clients, peer):
    found = [result[f"{clients} {peer}"] for name, result in state.items()
             if name.startswith(f"throughput {percentage} ") and f"{clients} {peer}" in result]
    rate = statistics.median(of[0] for of in found) if found else None
    parts = [of[1] for of in found if of[1] is not None]
    return rate, statistics.median(parts) if parts else None


def seen_text(result):
    if not result:
        return "-", "-"
    if "wrong" in result:
        return "failed", result["wrong"][:40]
    numbers = lambda values: " ".join(str(number) for number in sorted(set(values)))
    return (numbers(told for told, _ in result["clients"]), numbers(number for _, ways in result["clients"] for number in ways))


def table(state):
    """Prints it; returns how many rows are not as promised."""
    all_sms = state.get("seen 100 1 openmps", {}).get("clients", [[0]])[0][0]
    print("| share | clients | promised | OpenMPS: told | saw | NVIDIA MPS: told | saw | OpenMPS kernels/s | of NVIDIA's | a client's part of one with all SMs: OpenMPS | NVIDIA |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    failed = 0
    for percentage in PERCENTAGES:
        promised = share(all_sms, percentage)
        for clients in CLIENTS:
            ours, theirs = (state.get(f"seen {percentage} {clients} {peer}") for peer in ("openmps", "nvidia"))
            right = ours and all(told == promised and set(ways) == {promised} for told, ways in ours.get("clients", [[None, []]]))
            failed += ours is not None and not right
            (rate, part), (peer_rate, peer_part) = (medians(state, percentage, clients, peer) for peer in ("openmps", "nvidia"))
            ratio = f"{rate / peer_rate:.2f}" if rate and peer_rate else "-"
            percent = lambda value: f"{value:.0%}" if value is not None else "-"
            print(f"| {percentage} % | {clients} | {promised} | {' | '.join(seen_text(ours))}{'' if right or not ours else ' (wrong)'} | {' | '.join(seen_text(theirs))} | "
                  f"{f'{rate:.0f}' if rate else '-'} | {ratio} | {percent(part)} | {percent(peer_part)} |")
    for name, result in state.items():
        if "wrong" in result:
            print(f"{name}: {result['wrong']}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    parser.add_argument("--state", type=pathlib.Path, default=ROOT / "target/share-table.json", help="what was measured [target/share-table.json]")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--duration-ms", type=int, default=400)
    parser.add_argument("--softcuda", action="store_true")
    options = parser.parse_args()
    options.dist = options.target / "dist"
    options.program = options.target / "programs/driver-api/multiprocessors"
    if not options.program.exists() or not (options.dist / "bin/openmps").exists():
        sys.exit(f"{options.program} or {options.dist}/bin/openmps is missing: build them first")
    if options.softcuda:
        os.environ["OPENMPS_NATIVE_DRIVER"] = str(options.dist / "lib/openmps/libsoftcuda.so")
    names = [peer for peer in PEERS if peer in peers.available() and not (options.softcuda and peer == "nvidia")]
    # What another build has done, or another setting, is not this table's.
    of = [(options.dist / "bin/openmps").stat().st_mtime_ns, options.softcuda, options.duration_ms]
    kept = json.loads(options.state.read_text()) if options.state.exists() else {}
    state = kept.get("results", {}) if kept.get("of") == of else {}
    began, left = time.monotonic(), 0
    for name, measure in plan(options, names):
        if name in state and "wrong" not in state[name]:
            continue
        if time.monotonic() - began > BUDGET_S:
            left += 1
            continue
        try:
            state[name] = measure()
        except (subprocess.TimeoutExpired, RuntimeError) as error:
            state[name] = {"wrong": str(error)}
        print(f"{name}: {state[name].get('wrong', 'measured')}", file=sys.stderr)
        options.state.write_text(json.dumps({"of": of, "results": state}, indent=1))
    failed = table(state)
    if left:
        print(f"{left} measurements are left: run it again")
    sys.exit(1 if failed or any("wrong" in result for result in state.values()) else 0)


if __name__ == "__main__":
    main()
