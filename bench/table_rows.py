"""What `table.py` prints: every promise beside what was measured, and all medians."""

import equal_clients as equal
import torch_clients
from table_measurements import EQUAL_CLIENTS, MANY_CLIENTS, RANKS, TORCH_PROCESSES, TORCH_SCRIPTS, on_cores, torch_name

WHO = {"openmps": "OpenMPS", "nvidia": "NVIDIA's MPS", "none": "native"}
NVIDIA = "a GPU and NVIDIA's MPS"
# More PyTorch processes leave no processor for others; of the rest, those whose p99 is promised to be well below NVIDIA's.
FEW_PROCESSES, P99_WELL_BELOW = 8, [(8, "resnet18"), (8, "transformer")]


class Results:
    """What was measured, by name; the names of what failed."""

    def __init__(self, found, failed=()):
        self.found, self.failed = found, set(failed)
        by_load = {}
        for name, said in found.items():
            if isinstance(said, list):
                for row in said:
                    by_load.setdefault((row["model"], row["processes"]), []).append(row)
        order = list(TORCH_SCRIPTS)
        # Medians over the runs, where a load has several measurements.
        self.torch_rows = [row for load in sorted(by_load, key=lambda load: (order.index(load[0]), load[1]))
                           for row in torch_clients.summary(by_load[load])]

    def cell(self, measurement, clients, peer):
        """One peer's cell of a workload, or nothing."""
        for row in self.found.get(measurement, {}).get("rows", []):
            if row["clients"] == clients:
                return next((cell for cell in row["cells"] if cell["peer"] == peer), None)
        return None

    def value(self, measurement, clients, peer, name="kernels_per_second"):
        cell = self.cell(measurement, clients, peer)
        return cell[name] if cell else None

    def call_ns(self, measurement, call, peer):
        for row in self.found.get(measurement, {}).get("calls", []):
            if row["call"] == call:
                return next((cell["time_ns"] for cell in row["cells"] if cell["peer"] == peer), None)
        return None

    def torch(self, model, processes, peer, name):
        for row in self.torch_rows:
            if (row["model"], row["processes"], row["peer"]) == (model, processes, peer):
                return row[name]
        return None

    def kept(self, measurement, kind, peer, name, **where):
        """A number of a row of a peer's that a script's measurement of a kind has."""
        for row in self.found.get(measurement, {}).get(kind, []):
            if row["peer"] == peer and all(row[key] == value for key, value in where.items()):
                return row.get(name)
        return None

    def largest(self, measurement):
        return max((row["clients"] for row in self.found.get(measurement, {}).get("rows", [])), default=0)

    def workloads(self):
        """The medians of each workload, by clients and peer, as `--json` has them. Times are those of one iteration; nothing where there is no wait."""
        kept = ["kernels_per_second", "iteration_p50_ns", "iteration_p99_ns", "iteration_p999_ns"]
        return [{"workload": name, "clients": row["clients"], "peer": cell["peer"], **{key: cell[key] for key in kept}}
                for name, said in self.found.items() if isinstance(said, dict) for row in said.get("rows", []) for cell in row["cells"]]

    def has_failed(self, measurement):
        """Whether it has, or one of the runs that it consists of."""
        return any(name == measurement or name.startswith(f"{measurement}, run ") for name in self.failed)


def over(value, other):
    return value / other if value and other else None


def number(value):
    """Three digits, or as many as stand before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


class Row:
    """A promise, or with no goal only what was found. `found` is what is held against the goal, both written as `shown` says; `values` is what it was
    made of, by who did it, in `unit`; `sources` are the measurements that it needs."""

    def __init__(self, name, goal, found, values, unit, sources, at_most=False, shown="{:.2f}x", needs="a measurement"):
        self.name, self.goal, self.found, self.values, self.unit = name, goal, found, values, unit
        self.sources, self.at_most, self.shown, self.needs = sources, at_most, shown, needs
        self.is_failed = False

    def verdict(self):
        if self.is_failed:
            return "failed"
        if self.found is None:
            return "not measured"
        if self.goal is None:
            return "no goal"
        return "met" if (self.found <= self.goal if self.at_most else self.found >= self.goal) else "missed"

    def line(self):
        verdict = self.verdict()
        goal = "-" if self.goal is None else self.shown.format(self.goal) + (" or less" if self.at_most else " or more")
        if verdict in ["failed", "not measured"]:
            return f"| {self.name} | {goal} | {'failed' if self.is_failed else f'needs {self.needs}'} | |"
        values = {who: value for who, value in self.values.items() if value is not None}
        # What is no ratio is OpenMPS's own value.
        parts = [] if self.is_amount() else [f"{number(values.pop('openmps'))} {self.unit}"]
        parts += [f"{WHO.get(who, who)} {number(value)}" for who, value in values.items() if who != "openmps"]
        told = f" ({', '.join(parts)})" if parts else ""
        return f"| {self.name} | {goal} | {self.shown.format(self.found)}{told} | {verdict if self.goal else ''} |"

    def is_amount(self):
        return not self.shown.endswith("x")

    def for_programs(self):
        """What `--json` writes. `measured` is what is held against the goal; `ratio` is that over the goal."""
        measured = None if self.is_failed else self.found
        return {"name": self.name, "goal": self.goal, "good_is": "at most" if self.at_most else "at least", "measured": measured,
                "ratio": over(measured, self.goal), "verdict": self.verdict(), "values": self.values, "values_unit": self.unit}


def beside(pick, others, scale=1.0):
    """What `pick` gives for OpenMPS and for others, by who, divided by `scale`."""
    return {peer: over(pick(peer), scale) for peer in ["openmps", *others]}


def rates(results, measurement, workload, clients, peer, goal, where=""):
    """A workload's rate beside a peer's."""
    values = beside(lambda who: results.value(measurement, clients, who), [peer], 1e3)
    name = f"`{workload}`, {clients} client{'s' * (clients > 1)}{where}, rate beside {WHO[peer]}"
    return Row(name, goal, over(values["openmps"], values[peer]), values, "k/s", [measurement],
               needs=NVIDIA if peer == "nvidia" else "a measurement")


def small_kernels(results, cores, few):
    """Kernels of one to many clients, on all processors and on some."""
    eight = 8 if results.largest("infer") >= 8 else results.largest("infer") or 8
    on_few = lambda workload, goal: rates(results, on_cores(workload, cores), workload, few, "nvidia", goal,
                                    f" on {cores} core{'s' * (cores > 1)}")
    lat = beside(lambda peer: results.value("lat", 1, peer, "iteration_p50_ns"), ["none"], 1e3)
    return [rates(results, "infer", "infer", eight, "nvidia", 1.5), on_few("infer", None), rates(results, "infer", "infer", 1, "none", 1.15),
            rates(results, "empty", "empty", eight, "nvidia", 3.0), rates(results, "tiny", "tiny", eight, "nvidia", 1.0),
            Row("`lat`, 1 client, time of a launch and a wait beside native", 1.05, over(lat["openmps"], lat["none"]), lat, "us", ["lat"],
                at_most=True),
            rates(results, "lat", "lat", eight, "nvidia", 1.0), rates(results, "lat", "lat", 16, "nvidia", 0.9), on_few("lat", 0.9)]


def calls(results):
    """What single calls cost, in the client."""
    launch = beside(lambda peer: results.call_ns("post", "cuLaunchKernel, one of 64", peer), ["none"], 1e3)
    start = beside(lambda peer: results.call_ns("start", "cuInit to the end of the first kernel", peer), ["none", "nvidia"], 1e6)
    return (Row("posting a launch, in the client", 0.3, launch["openmps"], launch, "us", ["post"], at_most=True, shown="{:.2f} us"),
            Row("client start, `cuInit` to the end of the first kernel, server up", 20.0, start["openmps"], start, "ms", ["start"],
                at_most=True, shown="{:.1f} ms"))


def footprint(results, workload, peer):
    """MiB of the device that each further client takes, which has allocated nothing itself."""
    most = results.largest(workload)
    one, all_of_them = (results.value(workload, clients, peer, "free_bytes") for clients in [1, most])
    return (one - all_of_them) / (most - 1) / 2**20 if one and all_of_them and most > 1 else None


def footprints(results, softcuda):
    """GPU memory of one more client; the software GPU's says nothing."""
    rows = []
    for workload, what in [("lat", "one launch at a time"), ("infer", "chains of launches, which the driver keeps on the device")]:
        values = {peer: None if softcuda else footprint(results, workload, peer) for peer in ["openmps", "nvidia"]}
        rows.append(Row(f"GPU memory of one more client: {what}", 2.0, values["openmps"], values, "MiB", [workload], at_most=True,
                        shown="{:.1f} MiB", needs="a GPU"))
    return rows


def copies(results, kind, size, goal):
    """How fast copies of a kind are beside the native driver's, each way."""
    rows = []
    for way in ["to the device", "to the host"]:
        call = f"{way}, {kind}, {size}"
        values = beside(lambda peer: results.call_ns("memory", call, peer), ["none"], 1e3)
        rows.append(Row(f"copies {call}, speed beside native", goal, over(values["none"], values["openmps"]), values, "us", ["memory"]))
    return rows


def memory(results):
    """Copies, allocations, loads."""
    rows = copies(results, "pinned", "64 MiB", 0.98) + copies(results, "pageable", "64 MiB", 1.5)
    for call in ["cuMemAlloc, cuMemFree, 64 MiB", "cuModuleLoadData, cuModuleUnload"]:
        values = beside(lambda peer: results.call_ns("memory", call, peer), ["none"], 1e3)
        rows.append(Row(f"{call}, time beside native", 1.0, over(values["openmps"], values["none"]), values, "us", ["memory"], at_most=True))
    return rows


def pytorch(results):
    """Requests of some to many processes beside NVIDIA's MPS."""
    rows = []
    measured = [row["processes"] for row in results.torch_rows]
    for model in TORCH_SCRIPTS:
        for processes in sorted({*TORCH_PROCESSES, *measured}):
            for field, title, unit in [("per_second", "requests per second", "/s"), ("p99_ms", "p99", "ms")]:
                values = beside(lambda peer: results.torch(model, processes, peer, field), ["nvidia"])
                ratio = over(values["openmps"], values["nvidia"])
                is_dense = processes > FEW_PROCESSES or (unit == "ms" and (processes, model) not in P99_WELL_BELOW)
                rows.append(Row(f"PyTorch, {model}, {processes} process{'es' * (processes > 1)}, {title} beside NVIDIA's MPS", 1.0 if is_dense else 1.1,
                                over(1, ratio) if unit == "ms" else ratio, values, unit, [torch_name(model, processes)],
                                needs="a GPU, NVIDIA's MPS and PyTorch"))
    return rows


def equal_clients(results):
    """Clients that do the same get the same, and nobody is left out."""
    rows = []
    source = lambda workload, clients: f"{workload}, {clients} equal"
    value = lambda workload, clients, peer, name: results.kept(source(workload, clients), "equal", peer, name, workload=workload, clients=clients)
    for workload in ["infer", "lat"]:
        for clients in EQUAL_CLIENTS:
            values = beside(lambda peer: value(workload, clients, peer, "slowest_over_fastest"), ["nvidia"])
            rows.append(Row(f"`{workload}`, {clients} clients, the slowest's work over the fastest's", 0.8, values["openmps"], values, "", [source(workload, clients)],
                            shown="{:.2f}", needs="a GPU and nvcc"))
    for workload in ["infer", "lat"]:
        clients = EQUAL_CLIENTS[0]
        values = beside(lambda peer: value(workload, clients, peer, "processor_us_per_launch"), ["nvidia"])
        rows.append(Row(f"`{workload}`, {clients} clients, processor time of a launch, client and server, beside NVIDIA's MPS", 1.0,
                        over(values["openmps"], values["nvidia"]), values, "us", [source(workload, clients)], at_most=True, needs=f"{NVIDIA}, and nvcc"))
    most = MANY_CLIENTS[-1]
    values = {"openmps": value("infer", most, "openmps", "longest_gap_ms")}
    rows.append(Row(f"`infer`, {most} clients, the longest time in which one got nothing", 300, values["openmps"], values, "ms", [source("infer", most)], at_most=True,
                    shown="{:.0f} ms", needs="a GPU and nvcc"))
    return rows


def ranks_of_mpi(results):
    """Time of a step beside NVIDIA's MPS."""
    rows = []
    for ranks in RANKS:
        for halo, what in [("staged", "halos staged through the host"), ("device", "halos between device buffers")]:
            source = f"jacobi, {ranks} ranks"
            values = beside(lambda peer: results.kept(source, "mpi", peer, "us_per_step", ranks=ranks, halo=halo), ["nvidia"])
            rows.append(Row(f"MPI, jacobi, {ranks} ranks, {what}, time beside NVIDIA's MPS", 1.0, over(values["openmps"], values["nvidia"]), values, "us", [source],
                            at_most=True, needs=f"{NVIDIA}, and `cargo xtask programs`"))
    return rows


def neighbours(results):
    """Slow iterations beside clients that do what stalls others."""
    rows = []
    for neighbour, what in [("reload", "loads modules without variables"), ("load", "loads modules with variables"), ("starts", "starts clients")]:
        source = f"beside {neighbour}"
        values = beside(lambda peer: results.value(source, 1, peer, "iteration_p999_ns"), ["nvidia"], 1e3)
        values["alone"] = over(results.value("infer", 1, "openmps", "iteration_p999_ns"), 1e3)
        rows.append(Row(f"`infer` beside one that {what}, p99.9 beside NVIDIA's MPS", 1.0, over(values["openmps"], values["nvidia"]), values,
                        "us", [source], at_most=True, needs=NVIDIA))
    return rows


def many_clients(results):
    """The rate of very many clients beside that of some."""
    rows = []
    rate = lambda clients: over(results.value(f"many {clients}", clients, "openmps"), 1e3)
    least = next((clients for clients in [MANY_CLIENTS[0], 2] if rate(clients)), MANY_CLIENTS[0])
    for clients in [4, *MANY_CLIENTS[1:]]:
        if rate(clients) or clients in MANY_CLIENTS:
            values = {"openmps": rate(clients), f"{least} clients": rate(least)}
            rows.append(Row(f"`infer`, {clients} clients, rate beside that of {least}", 1.0, over(rate(clients), rate(least)), values, "k/s",
                            [f"many {clients}", f"many {least}"], needs="a GPU"))
    return rows


def software_gpu(results):
    """The only row that the GPU has no part in."""
    four, one = (over(results.value("work", clients, "openmps"), 1e3) for clients in [4, 1])
    return Row("the software GPU on 2 cores: work done by 4 clients beside 1", 0.9, over(four, one), {"openmps": four, "1 client": one},
               "k/s", ["work"])


def promises(results, softcuda, few_cores):
    """All rows, in order."""
    post, start = calls(results)
    rows = [*small_kernels(results, *few_cores), post, *footprints(results, softcuda), start, *memory(results), *pytorch(results),
            *neighbours(results), *many_clients(results), *equal_clients(results), *ranks_of_mpi(results), software_gpu(results)]
    for row in rows:
        row.is_failed = any(results.has_failed(source) for source in row.sources)
    return rows


def medians(results):
    """Everything that was measured."""
    lines = ["", "| workload | clients | peer | kernels/s | p50 us | p99 us | p99.9 us |", "|---|---|---|---|---|---|---|"]
    for name, said in results.found.items():
        for row in said.get("rows", []) if isinstance(said, dict) else []:
            for cell in row["cells"]:
                times = " | ".join(f"{cell[key] / 1e3:.1f}" if cell[key] else "-" for key in
                                   ["iteration_p50_ns", "iteration_p99_ns", "iteration_p999_ns"])
                lines.append(f"| {name} | {row['clients']} | {cell['peer']} | {cell['kernels_per_second']:.0f} | {times} |")
    lines += ["", "| call | peer: microseconds |", "|---|---|"]
    for name in ["post", "start", "memory"]:
        for row in results.found.get(name, {}).get("calls", []):
            cells = ", ".join(f"{cell['peer']} {cell['time_ns'] / 1e3:.4g}" for cell in row["cells"])
            lines.append(f"| {row['call']} | {cells} |")
    kept = lambda kind: [row for said in results.found.values() if isinstance(said, dict) for row in said.get(kind, [])]
    lines += ["", *equal.table(kept("equal")), "", "| MPI | ranks | peer | halos | side | us per step |", "|---" * 6 + "|"]
    lines += [f"| jacobi | {row['ranks']} | {row['peer']} | {row['halo']} | {row['side']} | {row['us_per_step']:.2f} |" for row in kept("mpi")]
    return lines + ["", *torch_clients.table(results.torch_rows)]
