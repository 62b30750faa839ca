#!/usr/bin/env python3
"""Why some requests take much longer than most: what the slowest hundredth of PyTorch's requests has that the middle half has not, under NVIDIA's MPS
and under OpenMPS, beside each other.

    python3 bench/torch_tail.py                                     # ResNet-18, 8 processes: a minute
    python3 bench/torch_tail.py --switch OPENMPS_STANDBY=0          # ... and OpenMPS once more with a setting of its server
    python3 bench/torch_tail.py --raw found.json --json report.json # keep what was recorded, and what it says
    python3 bench/torch_tail.py --again found.json                  # the same report of what was kept
    python3 bench/torch_tail.py --model burst --processes 2         # without PyTorch, and without a GPU

Each process records of each request when it began, when all was posted and when it ended, where its thread was meanwhile, and what interrupted it; a
process of its own (`thread_times.py`) looks at the server's threads. `tail_analysis.py` compares. Then OpenMPS runs once more with `openmps trace` at one
of the processes, which shows the gaps between kernels, and slows that run down. Exits with 1 when checksums differ.
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import pathlib
import platform
import resource
import select
import subprocess
import sys
import tempfile
import time

import peers
import tail_analysis
import torch_clients
from tail_analysis import NS_PER_MS, Request

BENCH = pathlib.Path(__file__).resolve().parent
SCRIPTS = {"resnet18": "torch_inference", "transformer": "torch_inference", "training": "torch_training", "burst": "driver_burst"}
# Clients work for so long before one of them is traced.
BEFORE_TRACE_S = 0.5
LIMIT_S = 120
# Lines of the server's log, and driver calls, that are told.
MOST_LINES, MOST_CALLS = 5, 4


# --- One client.

class Collections:
    """The time that Python's garbage collection has taken."""

    def __init__(self):
        self.took_ns, self.began_ns = 0, 0
        gc.callbacks.append(self.note)

    def note(self, phase, _):
        now = time.monotonic_ns()
        if phase == "start":
            self.began_ns = now
        else:
            self.took_ns += now - self.began_ns


def delay_counter():
    """Says for how long this thread has been runnable without a processor, ns; `None` where the system does not count that."""
    try:
        counts = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: None
    return lambda: int(os.pread(counts, 64, 0).split()[1])


def device_calls():
    """How often PyTorch's allocator has asked the driver for memory or given it back; `None` without PyTorch."""
    torch = sys.modules.get("torch")
    if not torch:
        return None
    counts = torch.cuda.memory_stats()
    return counts.get("num_device_alloc", 0) + counts.get("num_device_free", 0)


def is_told():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def client(model, seconds):
    """Gets ready, works for so long or until it is told to stop, and writes all its requests as JSON: the fields of `Request` from the second on."""
    post, wait, checksum = importlib.import_module(SCRIPTS[model]).make(model, "cuda")
    found = torch_clients.get_ready(post, wait, checksum)
    delay, collections, calls = delay_counter(), Collections(), device_calls()
    usage, since = lambda: resource.getrusage(resource.RUSAGE_THREAD), lambda after, before: None if after is None else after - before
    requests, until = [], time.monotonic_ns() + int(seconds * 1e9)
    while time.monotonic_ns() < until and not is_told():
        usage_before, collected, delay_before, cpu_before = usage(), collections.took_ns, delay(), time.thread_time_ns()
        start = time.monotonic_ns()
        post()
        posted, cpu_posted, delay_posted = time.monotonic_ns(), time.thread_time_ns(), delay()
        wait()
        end, cpu_after, delay_after, usage_after = time.monotonic_ns(), time.thread_time_ns(), delay(), usage()
        requests.append([start, posted, end, cpu_posted - cpu_before, cpu_after - cpu_posted, since(delay_posted, delay_before),
                         since(delay_after, delay_posted), usage_after.ru_nvcsw - usage_before.ru_nvcsw,
                         usage_after.ru_nivcsw - usage_before.ru_nivcsw, usage_after.ru_minflt - usage_before.ru_minflt,
                         collections.took_ns - collected])
    print(json.dumps({"requests": requests, "checksum": found, "device_calls": since(device_calls(), calls)}), flush=True)
    # Until it has been seen what the server counted of it.
    sys.stdin.readline()


# --- One run.

@dataclasses.dataclass
class Plan:
    """A peer, and what is set for its daemon."""

    peer: str
    variables: dict

    def label(self):
        return " ".join([self.peer, *(f"{name}={value}" for name, value in self.variables.items())])


@contextlib.contextmanager
def watched(pid, interval_ms):
    """Looks at the threads of a process and its descendants meanwhile; what was seen is in the list when it ends."""
    seen = []
    command = [sys.executable, BENCH / "thread_times.py", str(pid), "--interval-ms", str(interval_ms)]
    watcher = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    watcher.stdout.readline()
    try:
        yield seen
    finally:
        told, _ = watcher.communicate(timeout=LIMIT_S)
        seen += [json.loads(told)] if watcher.returncode == 0 else []


def counters(peer):
    """What OpenMPS counts of the first device; nothing under other peers."""
    if peer.name != "openmps":
        return {}
    told = subprocess.run([peer.dist / "bin/openmps", "status", "--json"], env=peer.environment, text=True, capture_output=True,
                          timeout=LIMIT_S, check=True)
    for server in json.loads(told.stdout)["servers"]:
        for device in server["snapshot"]["devices"]:
            return {name: value for name, value in device.items() if type(value) in (int, list)}
    return {}


def changes(before, after):
    """What the counters have gained, where they have."""
    found = {}
    for name, value in after.items():
        if type(value) is int and value != before.get(name, 0):
            found[name] = value - before.get(name, 0)
        if type(value) is list and value and all(type(one) is int for one in value) and value != before.get(name):
            found[name] = [one - earlier for one, earlier in zip(value, before.get(name) or [0] * len(value))]
    return found


def server_log(peer):
    """Lines of the server's log."""
    path = pathlib.Path(peer.directory.name) / "server.log"
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def held_back():
    """What kept all of this machine's, or container's, threads from a processor so far: ms in which a limit of processor time had them stopped, ms in
    which any of them was runnable without one. `None` where the system does not say."""
    stopped_ms = None
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        folder = {"": "/sys/fs/cgroup", "cpu": "/sys/fs/cgroup/cpu", "cpu,cpuacct": "/sys/fs/cgroup/cpu,cpuacct"}.get(controllers)
        # In a container the path may be the host's, and its own group be the root.
        for place in [f"{folder}{path}", folder]:
            with contextlib.suppress(OSError, TypeError):
                counts = dict(row.split() for row in pathlib.Path(place, "cpu.stat").read_text().splitlines())
                found = [int(counts[name]) / per_ms for name, per_ms in [("throttled_usec", 1e3), ("throttled_time", 1e6)] if name in counts]
                stopped_ms = max([*found, stopped_ms or 0.0]) if found else stopped_ms
    waited_ms = None
    with contextlib.suppress(OSError, ValueError):
        waited_ms = int(pathlib.Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e3
    return {"stopped by a limit of processor time": stopped_ms, "some thread had no processor": waited_ms}


def outcomes(running):
    found = [json.loads(one.stdout.readline()) for one in running]
    return {"clients": [one["requests"] for one in found], "checksums": sorted({one["checksum"] for one in found}),
            "device_calls": sum(one["device_calls"] or 0 for one in found)}


def client_command(options, seconds):
    return [sys.executable, BENCH / "torch_tail.py", "--client", "--model", options.model, "--seconds", str(seconds)]


def measured(plan, options):
    """One run under a peer."""
    with peers.Peer(plan.peer, options.dist, plan.variables | options.driver) as peer:
        with torch_clients.clients(peer, client_command(options, options.seconds), options.processes) as running:
            before, lines, held_before = counters(peer), len(server_log(peer)), held_back()
            with watched(peer.daemon.pid, options.interval_ms) as seen:
                torch_clients.tell(running, "go")
                found = outcomes(running)
            held = {name: after - held_before[name] for name, after in held_back().items() if None not in (after, held_before[name])}
            gained = changes(before, counters(peer))
            said = server_log(peer)[lines:]
    return found | {"label": plan.label(), "watched": seen[0] if seen else None, "counters": gained, "log": said, "held_back_ms": held,
                    "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}"}


def traced(plan, options):
    """One more run, of which one client is traced for a while; what the trace says of that client's kernels and calls."""
    with peers.Peer(plan.peer, options.dist, plan.variables | options.driver) as peer, tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "trace.json"
        with torch_clients.clients(peer, client_command(options, LIMIT_S), options.processes) as running:
            torch_clients.tell(running, "go")
            time.sleep(BEFORE_TRACE_S)
            # `openmps run` becomes the program: the process started is the client.
            pid = running[0].pid
            command = [peer.dist / "bin/openmps", "trace", "--client", str(pid), "--seconds", str(max(1, round(options.trace_seconds))),
                       "-o", path]
            done = subprocess.run(command, env=peer.environment, text=True, capture_output=True, timeout=LIMIT_S, check=False)
            torch_clients.tell(running, "stop")
            requests = outcomes(running)["clients"][0]
        if done.returncode != 0 or not path.exists():
            print(f"no trace: {done.stderr.strip()}", file=sys.stderr)
            return None
        trace = json.loads(path.read_text())
    began_ns = int(trace["otherData"]["began_monotonic_ns"])
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event["pid"] == pid]
    at = lambda us: began_ns + int(us * 1e3)
    kernels = sorted([at(event["ts"]), at(event["ts"] + event["dur"]), event["args"]["in_server_us"]] for event in events
                     if event["cat"] == "kernel")
    calls = sorted([at(event["ts"]), event["dur"], event["name"]] for event in events if event["cat"] == "driver")
    return {"requests": requests, "kernels": kernels, "calls": calls, "lost_records": trace["otherData"]["lost_records"]}


# --- What it says.

def requests_of(clients):
    return [Request(process, *fields) for process, of in enumerate(clients) for fields in of]


def report(run):
    """The analysis of a recorded run."""
    threads = run["watched"]["threads"] if run["watched"] else []
    requests = requests_of(run["clients"])
    found = tail_analysis.analyse(requests, threads)
    seconds = (max(one.end_ns for one in requests) - min(one.start_ns for one in requests)) / 1e9
    found |= {"label": run["label"], "per_second": len(requests) / seconds, "device_calls": run["device_calls"],
              "counters": run["counters"], "log": run["log"], "held_back_ms": run["held_back_ms"],
              "machine": run["machine"], "watching_busy": run["watched"]["busy"] if run["watched"] else None}
    if run.get("trace"):
        trace = run["trace"]
        whole = [one for one in requests_of([trace["requests"]]) if trace["kernels"] and
                 trace["kernels"][0][0] <= one.start_ns and one.end_ns <= trace["kernels"][-1][1] + NS_PER_MS]
        found["traced_requests"] = len(whole)
        found["traced"] = tail_analysis.compare_parts(tail_analysis.kernels_of(whole, trace["kernels"]))
        found["traced_calls"] = tail_analysis.compare_parts(tail_analysis.calls_of(whole, trace["calls"]))
    return found


def print_rows(title, reports, rows):
    """A table of a column per run; rows are (name, what it is of a report)."""
    print(f"\n| {title} | " + " | ".join(one["label"] for one in reports) + " |\n|---" + "|---" * len(reports) + "|")
    for name, of in rows:
        print(f"| {name} | " + " | ".join(of(one) for one in reports) + " |")


def beside(row, digits=2):
    """Slow and middle, and the part of the excess where there is one."""
    if not row:
        return "-"
    part = f" ({row['excess']:+.0%})" if "excess" in row else ""
    return f"{row['slow']:.{digits}f} {row['middle']:.{digits}f}{part}"


def print_reports(reports):
    print(reports[0]["machine"])
    rows = [("requests a second", lambda one: f"{one['per_second']:.0f}")]
    rows += [(f"{name}, ms", lambda one, name=name: f"{one['distribution_ms'][name]:.2f}") for name in reports[0]["distribution_ms"]]
    rows.append(("p99 after the first tenth of the run, ms", lambda one: f"{one['later_p99_ms']:.2f}"))
    rows.append(("p99 of each process, ms", lambda one: " ".join(f"{value:.1f}" for value in one["processes_p99_ms"])))
    print_rows("requests", reports, rows)
    names = {name: None for one in reports for name in one["compare"]}
    rows = [(name + ", ms" * (name in tail_analysis.QUANTITIES), lambda one, name=name: beside(one["compare"].get(name))) for name in names]
    print_rows("mean of the slowest hundredth, of the middle half (part of the excess)", reports, rows)
    names = sorted({name for one in reports for name in one["threads"]})
    row = lambda one, name, which: {at: one["threads"][name][at][which] for at in ["slow", "middle"]} if name in one["threads"] else None
    rows = [(f"{name}: {text}", lambda one, name=name, which=which: beside(row(one, name, which), 3)) for name in names
            for which, text in [("running", "on a processor, ms per ms"), ("delayed", "waiting for one, ms per ms"),
                                ("most_delayed_ms", "the most that one waited in a request, ms")]]
    print_rows("threads of the server: during slow requests, during middle ones", reports, rows)
    reports_traced = [one for one in reports if one.get("traced")]
    if reports_traced:
        names = reports_traced[0]["traced"]
        rows = [(name, lambda one, name=name: beside(one["traced"][name])) for name in names]
        rows.append(("requests traced", lambda one: str(one["traced_requests"])))
        print_rows("a traced client: mean of the slowest twentieth, of the middle half, ms (short kernels are timed in groups: gaps lie between those)",
                   reports_traced, rows)
    for one in reports:
        print(f"\n{one['label']}:")
        for text in one["conclusions"].values():
            print(f"- {text}")
        if one["device_calls"]:
            print(f"- PyTorch's allocators called the driver {one['device_calls']} times")
        calls = {name: means for name, means in one.get("traced_calls", {}).items() if name != "total"}
        most = sorted(calls.items(), key=lambda item: item[1]["middle"] - item[1]["slow"])
        for name, means in most[:MOST_CALLS]:
            print(f"- traced: {name} takes {beside(means)} ms of a slow and of a middle request")
        for name, value in one["held_back_ms"].items():
            print(f"- {name}: {value:.0f} ms of the run")
        for name, value in one["counters"].items():
            # One launch in eight is timed.
            text = {"launch_counts": "launches that the driver took 1, 2, 4, 8 us and so on to accept, one in eight"}.get(name, name)
            print(f"- counted, {text}: {value}")
        for line in one["log"][:MOST_LINES]:
            print(f"- logged: {line}")
        if one["watching_busy"] is not None:
            print(f"- looking at the server's threads took {one['watching_busy']:.0%} of a processor")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=torch_clients.ROOT / "target/dist", help="an installation, as `cargo xtask build` makes it")
    parser.add_argument("--model", choices=SCRIPTS, default="resnet18", help="what each process does; `burst` needs no PyTorch [resnet18]")
    parser.add_argument("--processes", type=int, default=8, help="how many at once [8]")
    parser.add_argument("--peers", default=",".join(name for name in peers.available() if name != "none"), help="of nvidia,openmps [those that are there]")
    parser.add_argument("--switch", action="append", default=[], metavar="NAME=VALUE", help="one more run of OpenMPS, with this in its environment")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each run lasts [6]")
    parser.add_argument("--interval-ms", type=float, default=1.0, help="between two looks at the server's threads [1]")
    parser.add_argument("--trace-seconds", type=float, default=1.0, help="how long a client is traced in a run of its own; 0: none is [1]")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work, as it does where there is no GPU")
    parser.add_argument("--json", type=pathlib.Path, help="write what is found to this file")
    parser.add_argument("--raw", type=pathlib.Path, help="write all that was recorded to this file")
    parser.add_argument("--again", type=pathlib.Path, help="measure nothing: report what was recorded in such a file")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.dist = options.dist.resolve()
    is_soft = options.softcuda or not peers.has_gpu()
    options.driver = {"OPENMPS_NATIVE_DRIVER": str(options.dist / "lib/openmps/libsoftcuda.so")} if is_soft else {}
    return options


def recorded(options):
    """All runs, peers in turn."""
    plans = [Plan(name, {}) for name in options.peers.split(",")]
    plans += [Plan("openmps", dict([switch.split("=", 1)])) for switch in options.switch]
    runs = []
    for plan in plans:
        runs.append(measured(plan, options))
        print(f"{plan.label()}: {sum(map(len, runs[-1]['clients']))} requests", file=sys.stderr)
    # Last, and of OpenMPS as it is: the others are not to see the trace.
    for plan, run in zip(plans, runs):
        if plan == Plan("openmps", {}) and options.trace_seconds > 0:
            run["trace"] = traced(plan, options)
    return runs


def main():
    options = arguments()
    if options.client:
        return client(options.model, options.seconds)
    runs = json.loads(options.again.read_text()) if options.again else recorded(options)
    if options.raw:
        options.raw.write_text(json.dumps(runs))
    reports = [report(run) for run in runs]
    print_reports(reports)
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1))
    if len({value for run in runs for value in run["checksums"]}) > 1:
        print("the checksums differ", file=sys.stderr)
        return 1
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
