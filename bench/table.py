#!/usr/bin/env python3
"""What OpenMPS promises about speed, measured on this machine: one table of goal, measured, met or missed.

Build first (`cargo xtask build`), then

    python3 bench/table.py                 # everything, in parts of less than 8 minutes: when it says so, run it again with --resume
    python3 bench/table.py --part memory   # one part
    python3 bench/table.py --quick         # seconds instead of minutes; the numbers mean little
    python3 bench/table.py --softcuda      # where there is no GPU: rows that need one say so

Every measurement is a call of `openmps bench`, in which the same program runs natively, under NVIDIA's MPS where that is installed, and under
OpenMPS, the peers in turn, three times; what is compared are medians of one such call. The PyTorch rows come from the scripts beside this one.
What was measured is kept in a file (--state), so that an interrupted run goes on where it was.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import peers

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCH = pathlib.Path(__file__).resolve().parent
# One invocation stops to begin measurements after so long; none takes longer than the rest of 8 minutes.
BUDGET_S = 300
LIMIT_S = 170
MANY = [16, 48, 200]


class Measurement:
    """One call, and where it stands in the state."""

    def __init__(self, part, name, *arguments, variables=None, script=None, needs_gpu=False, cores=None, softcuda=False):
        self.part, self.name, self.arguments = part, name, arguments
        self.variables, self.script, self.needs_gpu = variables or {}, script, needs_gpu
        self.cores, self.softcuda = cores, softcuda


def measurements(options):
    """All that there are, in order."""
    quick, soft = options.quick, options.softcuda
    repeat = str(options.repeat or (1 if quick else 3))
    clients = "1,2" if quick else ("1,4" if soft else "1,4,8,16")
    millis = options.duration_ms or (50 if quick else 700)

    def bench(part, name, workload, number, duration_ms, *more, **keywords):
        return Measurement(part, name, "--workload", workload, "--clients", number, "--repeat", repeat, "--duration-ms",
                           str(duration_ms), *more, **keywords)

    # The software GPU takes long for what a client of `tiny` has queued by the time it looks at the clock.
    kinds = [kind for kind in ["infer", "empty", "tiny", "lat"] if kind != "tiny" or not (quick and soft)]
    found = [bench("kernels", workload, workload, clients, millis) for workload in kinds]
    found += [bench("kernels", "mixed", "mixed", "1" if quick else "1,4" if soft else "1,8", millis),
              bench("calls", "post", "post", "1", millis), bench("calls", "start", "start", "1", 100),
              bench("memory", "memory", "memory", "1", 58 if quick else 3 * millis)]
    found += [bench("beside", f"beside {neighbour}", "infer", "1", 4 * millis, "--beside", neighbour)
              for neighbour in ["reload", "load", "starts"]]
    # Of OpenMPS alone: a native driver's processes take turns, and NVIDIA's MPS refuses more than 60.
    most = [2, 4] if quick else MANY[:1] if soft else MANY
    found += [bench("many", f"many {number}", "infer", str(number), 2 * millis, "--peers", "openmps",
                    variables={"OPENMPS_CONTEXTS_PER_DEVICE": "250"}) for number in most]
    found += [bench("softcuda", "work", "work", "1,4", 200 if quick else 3 * millis, "--peers", "openmps", cores=2, softcuda=True)]
    processes = options.processes or ("1" if quick else "1,8")
    for script, models in [("torch_inference", "resnet18,transformer"), ("torch_training", "training")]:
        for model in models.split(","):
            found.append(Measurement("torch", model, "--models", model, "--processes", processes, "--repeat", repeat, "--seconds",
                                     "1" if quick else str(options.torch_seconds), script=script, needs_gpu=True))
    return found


class Failed(Exception):
    pass


def measure(one, options):
    """Runs a measurement; its JSON."""
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "out.json"
        if one.script:
            command = [sys.executable, BENCH / f"{one.script}.py", "--dist", options.dist, *one.arguments, "--json", output]
        else:
            driver = ["--softcuda"] if options.softcuda or one.softcuda else []
            command = [options.dist / "bin/openmps", "bench", *driver, *one.arguments, "--json", output]
        cores = (lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:one.cores])) if one.cores else None
        try:
            done = subprocess.run(command, env=dict(os.environ, **one.variables), text=True, capture_output=True, timeout=LIMIT_S,
                                  preexec_fn=cores, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f"took longer than {LIMIT_S} s") from None
        if done.returncode != 0 and not output.exists():
            raise Failed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}")
        return json.loads(output.read_text())


class Results:
    """What the state says, by name."""

    def __init__(self, state):
        self.state = state

    def cell(self, measurement, clients, peer):
        """One peer's cell of a workload, or nothing."""
        for row in self.state.get(measurement, {}).get("rows", []):
            if row["clients"] == clients:
                return next((cell for cell in row["cells"] if cell["peer"] == peer), None)
        return None

    def value(self, measurement, clients, peer, name="kernels_per_second"):
        cell = self.cell(measurement, clients, peer)
        return cell[name] if cell else None

    def call_ns(self, measurement, call, peer):
        for row in self.state.get(measurement, {}).get("calls", []):
            if row["call"] == call:
                return next((cell["time_ns"] for cell in row["cells"] if cell["peer"] == peer), None)
        return None

    def torch(self, model, processes, peer, name):
        for row in self.state.get(model, []):
            if (row["model"], row["processes"], row["peer"]) == (model, processes, peer):
                return row[name]
        return None

    def largest(self, measurement):
        return max((row["clients"] for row in self.state.get(measurement, {}).get("rows", [])), default=0)


def over(value, other):
    return value / other if value and other else None


class Row:
    """A promise. `ratio` is compared with `goal`; `at_most` says which side is good."""

    def __init__(self, name, goal, ratio, at_most=False, text=None, shown="{:.2f}x", needs="a GPU and NVIDIA's MPS"):
        self.name, self.goal, self.ratio, self.at_most = name, goal, ratio, at_most
        self.text, self.shown, self.needs = text, shown, needs

    def line(self):
        goal = self.shown.format(self.goal) + (" or less" if self.at_most else " or more")
        if self.ratio is None:
            return f"| {self.name} | {goal} | needs {self.needs} | |"
        is_met = self.ratio <= self.goal if self.at_most else self.ratio >= self.goal
        measured = self.shown.format(self.ratio) + (f" ({self.text})" if self.text else "")
        return f"| {self.name} | {goal} | {measured} | {'met' if is_met else 'missed'} |"


def rates(results, name, clients, peer, goal):
    """A workload's rate beside a peer's."""
    ours, theirs = results.value(name, clients, "openmps"), results.value(name, clients, peer)
    who = {"nvidia": "NVIDIA's MPS", "none": "native"}[peer]
    text = f"{ours / 1e3:.0f}k/s, {who} {theirs / 1e3:.0f}k/s" if ours and theirs else None
    needs = "a GPU and NVIDIA's MPS" if peer == "nvidia" else "a measurement"
    return Row(f"`{name}`, {clients} client{'s' * (clients > 1)}, rate beside {who}", goal, over(ours, theirs), text=text, needs=needs)


def copies(results, kind, size, goal):
    """How fast copies of a kind are beside the native driver's, each way."""
    rows = []
    for way in ["to the device", "to the host"]:
        call = f"{way}, {kind}, {size}"
        ours, native = (results.call_ns("memory", call, peer) for peer in ["openmps", "none"])
        text = f"{ours / 1e3:.0f} us, native {native / 1e3:.0f}" if ours and native else None
        rows.append(Row(f"copies {call}, speed beside native", goal, over(native, ours), text=text, needs="a measurement"))
    return rows


def footprint(results, workload, peer):
    """MiB of the device that each further client takes, which has allocated nothing itself."""
    most = results.largest(workload)
    one, all_of_them = (results.value(workload, clients, peer, "free_bytes") for clients in [1, most])
    return (one - all_of_them) / (most - 1) / 2**20 if one and all_of_them and most > 1 else None


def promises(results, softcuda):
    eight = 8 if results.largest("infer") >= 8 else results.largest("infer") or 8
    us = lambda measurement, call, peer: over(results.call_ns(measurement, call, peer), 1e3)
    rows = [rates(results, "infer", eight, "nvidia", 1.5), rates(results, "infer", 1, "none", 1.15),
            rates(results, "empty", eight, "nvidia", 3.0), rates(results, "tiny", eight, "nvidia", 1.0)]
    ours, native = (results.value("lat", 1, peer, "iteration_p50_ns") for peer in ["openmps", "none"])
    rows.append(Row("`lat`, 1 client, time of a launch and a wait beside native", 1.05, over(ours, native), at_most=True,
                    text=f"{ours / 1e3:.2f} us, native {native / 1e3:.2f}" if ours and native else None, needs="a measurement"))
    rows.append(rates(results, "lat", eight, "nvidia", 0.75))
    launch = "cuLaunchKernel, one of 64"
    ours, native = us("post", launch, "openmps"), us("post", launch, "none")
    rows.append(Row("posting a launch, in the client", 0.3, ours, at_most=True, shown="{:.2f} us", needs="a measurement",
                    text=f"native {native:.2f}" if native else None))
    for workload, what in [("lat", "one launch at a time"), ("infer", "chains of launches, which the driver keeps on the device")]:
        ours, theirs = footprint(results, workload, "openmps"), footprint(results, workload, "nvidia")
        rows.append(Row(f"GPU memory of one more client: {what}", 2.0, None if softcuda else ours, at_most=True, shown="{:.1f} MiB",
                        needs="a GPU", text=f"NVIDIA's MPS {theirs:.0f}" if theirs else None))
    start = "cuInit to the end of the first kernel"
    milliseconds = [over(results.call_ns("start", start, peer), 1e6) for peer in ["openmps", "none", "nvidia"]]
    text = ", ".join(f"{who} {value:.1f}" for who, value in zip(["native", "NVIDIA's MPS"], milliseconds[1:]) if value)
    rows.append(Row("client start, `cuInit` to the end of the first kernel, server up", 20.0, milliseconds[0], at_most=True,
                    shown="{:.1f} ms", text=text, needs="a measurement"))
    rows += copies(results, "pinned", "64 MiB", 0.98) + copies(results, "pageable", "64 MiB", 1.5)
    for name in ["cuMemAlloc, cuMemFree, 64 MiB", "cuModuleLoadData, cuModuleUnload"]:
        ours, native = us("memory", name, "openmps"), us("memory", name, "none")
        rows.append(Row(f"{name}, time beside native", 1.0, over(ours, native), at_most=True, needs="a measurement",
                        text=f"{ours:.1f} us, native {native:.1f}" if ours and native else None))
    for model in ["resnet18", "transformer"]:
        for name, title, is_time in [("per_second", "requests per second", False), ("p99_ms", "p99", True)]:
            ours, theirs = (results.torch(model, 8, peer, name) for peer in ["openmps", "nvidia"])
            text = f"{ours:.4g}, NVIDIA's MPS {theirs:.4g}" if ours and theirs else None
            ratio = over(theirs, ours) if is_time else over(ours, theirs)
            rows.append(Row(f"PyTorch, {model}, 8 processes, {title} beside NVIDIA's MPS", 1.1, ratio, text=text,
                            needs="a GPU, NVIDIA's MPS and PyTorch"))
    for neighbour, what in [("reload", "loads modules without variables"), ("load", "loads modules with variables"), ("starts", "starts clients")]:
        ours, theirs = (over(results.value(f"beside {neighbour}", 1, peer, "iteration_p999_ns"), 1e3) for peer in ["openmps", "nvidia"])
        alone = over(results.value("infer", 1, "openmps", "iteration_p999_ns"), 1e3)
        text = f"{ours:.0f} us, NVIDIA's MPS {theirs:.0f}; alone {alone:.0f}" if ours and theirs and alone else None
        rows.append(Row(f"`infer` beside one that {what}, p99.9 beside NVIDIA's MPS", 1.0, over(ours, theirs), at_most=True, text=text))
    least = next((number for number in [MANY[0], 2] if results.value(f"many {number}", number, "openmps")), None)
    for number in [4, *MANY[1:]]:
        ours, few = (results.value(f"many {n}", n, "openmps") if n else None for n in [number, least])
        if ours or number in MANY:
            rows.append(Row(f"`infer`, {number} clients, rate beside that of {least or MANY[0]}", 1.0, over(ours, few), needs="a GPU",
                            text=f"{ours / 1e3:.0f}k/s, {few / 1e3:.0f}k/s" if ours and few else None))
    four, one = (results.value("work", clients, "openmps") for clients in [4, 1])
    rows.append(Row("the software GPU on 2 cores: work done by 4 clients beside 1", 0.9, over(four, one), needs="a measurement"))
    return rows


def more(results):
    """What no promise is made about: all medians."""
    lines = ["", "| workload | clients | peer | kernels/s | p50 us | p99 us | p99.9 us |", "|---|---|---|---|---|---|---|"]
    for name in results.state:
        if not isinstance(results.state[name], dict):
            continue
        for row in results.state[name].get("rows", []):
            for cell in row["cells"]:
                times = " | ".join(f"{cell[key] / 1e3:.1f}" if cell[key] else "-" for key in
                                   ["iteration_p50_ns", "iteration_p99_ns", "iteration_p999_ns"])
                lines.append(f"| {name} | {row['clients']} | {cell['peer']} | {cell['kernels_per_second']:.0f} | {times} |")
    lines += ["", "| call | peer: microseconds |", "|---|---|"]
    for name in ["post", "start", "memory"]:
        for row in results.state.get(name, {}).get("calls", []):
            cells = ", ".join(f"{cell['peer']} {cell['time_ns'] / 1e3:.4g}" for cell in row["cells"])
            lines.append(f"| {row['call']} | {cells} |")
    lines += ["", "| PyTorch | processes | peer | per second | p50 ms | p99 ms | GPU memory, MiB |", "|---|---|---|---|---|---|---|"]
    for name in ["resnet18", "transformer", "training"]:
        for row in results.state.get(name, []):
            memory = "-" if row["memory_mib"] is None else f"{row['memory_mib']:.0f}"
            lines.append(f"| {name} | {row['processes']} | {row['peer']} | {row['per_second']:.0f} | {row['p50_ms']:.2f} | "
                         f"{row['p99_ms']:.2f} | {memory} |")
    return lines


def machine(softcuda):
    """What the numbers hold for."""
    gpu = "the software GPU"
    if not softcuda:
        try:
            asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"], text=True,
                                   capture_output=True, timeout=20, check=True)
            gpu = asked.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            gpu = "an unknown GPU"
    return f"{gpu}; {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, {datetime.date.today()}"


def has_torch():
    return subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="an installation, as `cargo xtask build` makes it")
    parser.add_argument("--state", type=pathlib.Path, default=ROOT / "target/bench-table.json", help="where measurements are kept")
    parser.add_argument("--part", action="append", help="only this part: kernels, calls, memory, beside, many, softcuda, torch")
    parser.add_argument("--resume", action="store_true", help="go on with what is in the state; else it begins anew")
    parser.add_argument("--quick", action="store_true", help="few clients, once, for a moment: shows that everything works")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work [where there is no other]")
    parser.add_argument("--repeat", type=int, help="how often everything is measured [3]")
    parser.add_argument("--duration-ms", type=int, help="how long most runs last [700]")
    parser.add_argument("--processes", help="how many PyTorch processes at once [1,8]")
    parser.add_argument("--torch-seconds", type=float, default=3.0, help="how long each of their runs lasts [3]")
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help=f"begin no measurement after so long [{BUDGET_S}]")
    parser.add_argument("--all", action="store_true", help="print every median, too")
    options = parser.parse_args()
    options.softcuda |= not peers.has_gpu()
    options.dist = options.dist.resolve()
    if not (options.dist / "bin/openmps").exists():
        sys.exit(f"there is no {options.dist}/bin/openmps: run `cargo xtask build`, or name an installation with --dist")
    state = json.loads(options.state.read_text()) if (options.resume or options.part) and options.state.exists() else {}
    wanted = [one for one in measurements(options) if not options.part or one.part in options.part]
    if options.part and not options.resume:
        state = {name: value for name, value in state.items() if name not in {one.name for one in wanted}}
    began, left, torch = time.monotonic(), 0, None
    for one in wanted:
        if one.name in state:
            continue
        if one.needs_gpu and (options.softcuda or torch is False):
            continue
        if one.needs_gpu and torch is None:
            torch = has_torch()
            if not torch:
                print(f"{sys.executable} has no torch: its rows are left out", file=sys.stderr)
                continue
        if time.monotonic() - began > options.budget_s:
            left += 1
            continue
        start = time.monotonic()
        try:
            state[one.name] = measure(one, options)
        except Failed as failure:
            print(f"{one.part}, {one.name}: {failure}", file=sys.stderr)
            continue
        options.state.parent.mkdir(parents=True, exist_ok=True)
        options.state.write_text(json.dumps(state))
        print(f"{one.part}, {one.name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    results = Results(state)
    print(f"{machine(options.softcuda)}\n")
    print("| | goal | measured | |\n|---|---|---|---|")
    print("\n".join(row.line() for row in promises(results, options.softcuda)))
    if options.all:
        print("\n".join(more(results)))
    if left:
        print(f"\n{left} measurements are left: run this again with --resume", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
