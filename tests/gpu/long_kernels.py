#!/usr/bin/env python3
"""Who waits for a stranger's long kernel: programs that start, clients that load code, clients at work.

Build first (`cargo xtask build`), then, on a machine with a GPU, its driver and nvcc:

    python3 tests/gpu/long_kernels.py [--quick] [--only openmps] [--out DIRECTORY]

Beside a kernel that runs for 9 s, and beside an endless one that is killed (under NVIDIA's MPS told to end), on one SM, on half of them and on all, natively, under NVIDIA's MPS where it is
installed, and under OpenMPS: the first result of a program that starts, a kernel that a client at work calls for the first time, code that it loads, eight
programs that start at once, and a client of small kernels (`infer`), with and without the kernel. The kernel of 9 s is told to end once everything is
measured. With --torch also PyTorch, imported before the kernel begins. Under OpenMPS the server's counters must show every program and its kernels. Prints a table
of goals, what was measured, met or missed; exits with 1 when something failed, not when a goal is missed. A run is bounded by --budget-s: what has no time left is
left out, and said. The folder of --out gets all numbers, what `openmps ps --json` said beside each kernel, and the logs.
"""

import argparse
import array
import contextlib
import importlib.util
import json
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import sharing

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE / "long_kernels"
# How long a kernel may be waited for to begin, a program to be ready, and everybody after the kernel's end.
BEGIN_LIMIT_S, READY_LIMIT_S, AFTER_LIMIT_S = 20, 30, 8
# An executor waits so long for what a client has left behind that was killed.
KILLED_LIMIT_S = 10
# A call that has not returned after so long, or after this part of the kernel, is left waiting, and the next is begun.
PATIENCE_S, PATIENCE_PART = 1.5, 0.2
ALONE_S, BEFORE_OTHERS_S, BESIDE_S = 1.0, 0.7, 3.0
# Of an endless one: the bound within which it ends even if nobody can kill it.
ENDLESS_S = 60
PROGRAMS = 8
KERNELS_OF_INFER = 20
SHOWN = {"none": "no MPS", "nvidia": "NVIDIA's MPS", "openmps": "OpenMPS"}
KERNELS = {"one": "on 1 SM", "half": "on half the SMs", "all": "on all SMs", "full": "that fills all SMs"}
# Name, what it is, its unit and how many of them a second has, the most that is well.
ROWS = [
    ("start", "first result of a program that starts", "s", 1, 0.5),
    ("known", "a client at work: a kernel it has called before", "s", 1, None),
    ("new", "a client at work: a kernel it calls for the first time", "s", 1, 0.3),
    ("module", "a client at work: a module it loads, with its first kernel", "s", 1, 0.3),
    ("eight", f"{PROGRAMS} programs at once: first result of the last", "s", 1, 1.0),
    ("torch_start", "PyTorch, imported before: first result", "s", 1, 0.5),
    ("torch_new", "PyTorch at work: a kernel it calls for the first time", "s", 1, 0.3),
    ("infer_alone_p999", "`infer` without the kernel: p99.9", "ms", 1e3, None),
    ("infer_p50", "`infer` beside it: p50", "ms", 1e3, None),
    ("infer_p999", "`infer` beside it: p99.9", "ms", 1e3, 3.0),
    ("infer_longest", "`infer` beside it: longest iteration", "ms", 1e3, 50.0),
]
# As a program: `start` works at the first line of standard input, `worker` before it as well.
TORCH = """
import sys, time, torch
def first():
    return (torch.ones(1000, device="cuda") * 2).sum().item()
if sys.argv[1] == "worker":
    first()
print("ready", flush=True)
for line in sys.stdin:
    begin = time.monotonic()
    found = first() if line.strip() == "start" else torch.sort(torch.arange(1000., 0., -1., device="cuda"))[0][0].item()
    if found not in (2000.0, 1.0):
        sys.exit(f"a result is {found}")
    print(line.strip(), begin, time.monotonic(), flush=True)
"""


class Failed(Exception):
    """A row of which nothing counts, and why."""


class Program:
    """A running program, what it says by the line, and when it was asked for."""

    def __init__(self, kind, *command):
        self.asked, self.command = time.monotonic(), " ".join(map(str, command[-3:]))
        self.process = kind.start(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.lines, self.said, self.errors = queue.Queue(), {}, []
        self.readers = [threading.Thread(target=self._read_lines, daemon=True),
                        threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)]
        for reader in self.readers:
            reader.start()

    def _read_lines(self):
        for line in self.process.stdout:
            self.lines.put(line.split())
        self.lines.put([])

    def wait_for(self, word, until):
        """The line that begins with the word, as numbers; nothing if it does not come in time."""
        while word not in self.said:
            try:
                line = self.lines.get(timeout=max(0.001, until - time.monotonic()))
            except queue.Empty:
                return None
            if not line:
                self.lines.put([])
                raise Failed(f"{self.command} ended early, with {self.process.wait()}: {''.join(self.errors)[-300:].strip()}")
            self.said[line[0]] = list(map(float, line[1:]))
        return self.said[word]

    def tell(self, word=None):
        """A line, or that there are no more."""
        with contextlib.suppress(BrokenPipeError):
            if word is None:
                self.process.stdin.close()
            else:
                self.process.stdin.write(f"{word}\n")
                self.process.stdin.flush()

    def end(self, until):
        """Waits for its end; whether it came in time."""
        try:
            return self.process.wait(timeout=max(0.1, until - time.monotonic())) == 0
        except subprocess.TimeoutExpired:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.tell()
        for reader in self.readers:
            reader.join(timeout=1)
        for pipe in [self.process.stdout, self.process.stderr]:
            with contextlib.suppress(OSError):
                pipe.close()


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


def window(times, begin, end):
    """Of iterations, as begins and ends in turns, those that ran between two moments: how many, p50, p99.9 and the longest in seconds."""
    took = [to - since for since, to in zip(times[::2], times[1::2]) if since < end and to > begin]
    return {"iterations": len(took), "p50": percentile(took, 0.5), "p999": percentile(took, 0.999), "longest": max(took, default=None)}


def beside(call, ended):
    """How long a call took, of its begin and end; nothing if the kernel had ended when it began. What had no end took at least until the kernel's."""
    begin, end = call
    if begin is None or (ended is not None and begin >= ended):
        return None
    return {"s": (ended if end is None else end) - begin, "is_more": end is None}


class Measured:
    """One kernel beside its neighbours, of one way to share."""

    def __init__(self, kind, program, image, shape, options, directory):
        self.kind, self.program, self.image, self.shape, self.options, self.directory = kind, program, image, shape, options, directory
        self.running, self.watched = [], None

    def begin(self, *arguments):
        self.running.append(Program(self.kind, *arguments))
        return self.running[-1]

    def close(self):
        for one in self.running:
            one.kill()

    def measure(self, seconds, is_endless):
        now, infer_file = time.monotonic, self.directory / "infer"
        # Who waits for one call cannot make the other.
        worker, loader, infer = (self.begin(self.program, mode, file)
                                 for mode, file in [("worker", self.image), ("worker", self.image), ("infer", infer_file)])
        torch_worker, torch_starter = (self.begin(sys.executable, self.directory / "torch_program.py", mode) if self.options.torch else None
                                       for mode in ["worker", "start"])
        for one in filter(None, [worker, loader, infer, torch_worker, torch_starter]):
            if one.wait_for("ready", now() + READY_LIMIT_S) is None:
                raise Failed(f"{one.command} was not ready within {READY_LIMIT_S} s")
        alone_from = now()
        time.sleep(ALONE_S)
        hog = self.begin(self.program, "hog", self.shape, ENDLESS_S if is_endless else seconds)
        if (running := hog.wait_for("running", now() + BEGIN_LIMIT_S)) is None:
            raise Failed(f"the long kernel did not begin within {BEGIN_LIMIT_S} s")
        limit = running[0] + seconds
        time.sleep(BEFORE_OTHERS_S)
        others_from = now()
        calls = [("start", self.begin(self.program, "start", self.image), "first")]
        self.patiently(calls[-1:], limit)
        asked = [("", worker, "known"), ("", worker, "new"), ("", loader, "module")]
        for prefix, one, word in asked + ([("torch_", torch_starter, "start"), ("torch_", torch_worker, "new")] if torch_worker else []):
            one.tell(word)
            calls.append((prefix + word, one, word))
            self.patiently(calls[-1:], limit)
        self.watch()
        eight = [("eight", self.begin(self.program, "start", self.image), "first") for _ in range(PROGRAMS)]
        for call in calls + eight:
            call[1].wait_for(call[2], limit)
        time.sleep(max(0, min(limit, running[0] + BESIDE_S) - now()))
        ended = self.end(hog, is_endless)
        after = ended + AFTER_LIMIT_S + KILLED_LIMIT_S * is_endless
        for one, word in [(one, word) for _, one, word in calls + eight]:
            one.wait_for(word, after)
        for one in filter(None, [worker, loader, infer, torch_worker, torch_starter]):
            one.tell()
        if bad := [one for one in self.running if one is not hog and not one.end(after + 2)]:
            raise Failed("; ".join(f"{one.command} did not end well within {now() - ended:.0f} s: {one.process.poll()} {''.join(one.errors)[-200:].strip()}"
                                   for one in bad))
        times = array.array("d", infer_file.read_bytes())
        return {**self.calls(calls, eight, ended), **self.infer(times, alone_from, running[0], others_from, ended), "kernel_s": ended - running[0],
                "counters": self.counters(hog, worker, infer, len(times) // 2), "ps": self.watched}

    def patiently(self, calls, limit):
        for _, one, word in calls:
            one.wait_for(word, min(limit, time.monotonic() + min(PATIENCE_S, PATIENCE_PART * self.options.seconds)))

    def end(self, hog, is_endless):
        """Ends the kernel; when it had ended, as far as is known."""
        if is_endless and self.kind.name != "nvidia":
            hog.process.kill()
            hog.process.wait()
            return time.monotonic()
        # NVIDIA's MPS leaves it open what becomes of the others when a client is killed at work.
        hog.tell("end")
        ended = hog.wait_for("ended", time.monotonic() + AFTER_LIMIT_S)
        if ended is None:
            raise Failed("the long kernel did not end when it was told to")
        return ended[0]

    def watch(self):
        """What `openmps ps` says beside the kernel."""
        if self.kind.name == "openmps":
            try:
                self.watched = json.loads(self.kind.daemon.command("ps", "--json"))
            except (RuntimeError, ValueError) as error:
                self.watched = str(error)

    def calls(self, calls, eight, ended):
        """How long each took beside the kernel. Programs count from when they were asked for."""
        def of(one, word):
            said = one.said.get(word)
            if word == "first":
                return one.asked, said[0] if said else None
            return (said[0], said[1]) if said else (None, None)

        found = {name: beside(of(one, word), ended) for name, one, word in calls}
        each = [beside(of(one, word), ended) for _, one, word in eight]
        found["each_of_eight"] = each
        found["eight"] = max(each, key=lambda one: one["s"]) if all(each) else None
        found["start_inside"] = {word: said[0] - calls[0][1].said["main"][0] for word, said in calls[0][1].said.items()}
        return found

    def infer(self, times, alone_from, running, others_from, ended):
        alone, whole = window(times, alone_from, running), window(times, running, ended)
        value = lambda seconds: None if seconds is None else {"s": seconds, "is_more": False}
        return {"infer": {"alone": alone, "beside": whole, "beside, nobody starts": window(times, running, others_from)},
                "infer_alone_p999": value(alone["p999"]), "infer_p50": value(whole["p50"]), "infer_p999": value(whole["p999"]),
                "infer_longest": value(whole["longest"])}

    def counters(self, hog, worker, infer, iterations):
        """What the server did not count, by program."""
        if self.kind.name != "openmps":
            return []
        known, missing = self.kind.daemon.clients(), []
        for one in self.running:
            least = {hog: 1, worker: 4, infer: KERNELS_OF_INFER * iterations}.get(one, 2)
            found = known.get(one.process.pid)
            if found is None or found["kernels"] < least:
                missing.append(f"{one.command}: {'not attached' if found is None else found['kernels']} of {least} kernels")
        return missing


def show(value, per_s):
    """A value as the table has it."""
    if value is None:
        return "-"
    number = value["s"] * per_s
    return f"{'> ' if value['is_more'] else ''}{number:.{3 if number < 10 else 1 if number < 100 else 0}f}"


def verdict(value, per_s, goal):
    if goal is None:
        return ""
    if value is None:
        return "not measured"
    return "met" if not value["is_more"] and value["s"] * per_s <= goal else "missed"


def table(found, kinds):
    """Lines of it. `found`: by kernel, then by way to share, what `measure` gave or why it gave nothing."""
    lines = [f"| kernel | | goal | {' | '.join(SHOWN[kind] for kind in kinds)} | |", "|---" * (len(kinds) + 4) + "|"]
    for kernel, by_kind in found.items():
        for kind, said in by_kind.items():
            if isinstance(said, str):
                lines.append(f"| {kernel} | {SHOWN[kind]}: {said} |" + " |" * (len(kinds) + 2))
        for name, what, unit, per_s, goal in ROWS:
            values = {kind: said.get(name) for kind, said in by_kind.items() if isinstance(said, dict)}
            if any(values.values()):
                cells = " | ".join(show(values.get(kind), per_s) for kind in kinds)
                told = "-" if goal is None else f"<= {goal:g} {unit}"
                judged = verdict(values["openmps"], per_s, goal) if "openmps" in values else ""
                lines.append(f"| {kernel} | {what}, {unit} | {told} | {cells} | {judged} |")
    return lines


def build(directory, options):
    """The program and the module that it loads."""
    arch = [] if options.softcuda else ["-arch=native"]
    compiled = [subprocess.Popen([options.nvcc, "-O2", *arch, *flags, *options.nvcc_flag, "-o", directory / name, SOURCES / source])
                for name, source, flags in [("beside", "beside.cu", ["-std=c++17"]), ("module.fatbin", "module.cu", ["-fatbin"])]]
    if any([one.wait(timeout=120) for one in compiled]):
        sys.exit("nvcc failed")
    (directory / "torch_program.py").write_text(TORCH)
    return directory / "beside", directory / "module.fatbin"


def keep_logs(openmps, name, out):
    """The end of the daemon's logs, in one file of all rows."""
    with open(out / "openmps.log", "a") as kept:
        for path in sorted(openmps.logs.glob("*")):
            kept.write(f"==== {name}: {path.name}\n{path.read_text(errors='replace')[-20000:]}\n")


def row(name, label, shape, is_endless, program, image, options):
    """One kernel under one way to share."""
    with tempfile.TemporaryDirectory(prefix="openmps-long-") as directory:
        directory = pathlib.Path(directory)
        shutil.copy(program.parent / "torch_program.py", directory)
        kind = sharing.make(name, options.target / "dist", directory, options.softcuda)
        measured = Measured(kind, program, image, shape, options, directory)
        try:
            return measured.measure(options.seconds, is_endless)
        except Failed as failure:
            return f"failed: {failure}"
        finally:
            measured.close()
            kind.close()
            if name == "openmps" and options.out:
                keep_logs(kind.daemon, label, options.out)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--nvcc-flag", action="append", default=[], help="one more of its arguments; can be given again")
    parser.add_argument("--only", action="append", choices=sharing.NAMES, help="only this way to share; can be given again")
    parser.add_argument("--shapes", default="one,half,all", help="of one,half,all,full: on how many SMs [one,half,all]")
    parser.add_argument("--seconds", type=float, help="how long the kernel runs, and after how long the endless one is killed [9]")
    parser.add_argument("--quick", action="store_true", help="one kernel, on one SM, of 5 s")
    parser.add_argument("--torch", action="store_true", help="PyTorch, too")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work")
    parser.add_argument("--budget-s", type=float, help="begin no row that might end after so long [235, with --quick 58]")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for all numbers and logs")
    options = parser.parse_args()
    options.seconds = options.seconds or (5 if options.quick else 9)
    options.budget_s = options.budget_s or (58 if options.quick else 235)
    options.target = options.target.resolve()
    if options.torch and not importlib.util.find_spec("torch"):
        parser.error(f"{sys.executable} has no torch")
    return options


def main():
    options, began = arguments(), time.monotonic()
    kinds = sharing.available(options.only or tuple(sharing.NAMES))
    if options.softcuda:
        kinds = [kind for kind in kinds if kind != "nvidia"]
    shapes = ["one"] if options.quick else options.shapes.split(",")
    found = {}
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="openmps-long-") as directory:
        program, image = build(pathlib.Path(directory), options)
        for shape in shapes:
            for is_endless in [False] if options.quick else [False, True]:
                label = f"{'endless' if is_endless else f'{options.seconds:g} s'}, {KERNELS[shape]}"
                for name in kinds:
                    # As long as a row takes where nobody gets anything before the kernel's end.
                    longest = options.seconds + (12 if options.torch else 4) + KILLED_LIMIT_S * (is_endless and name == "openmps")
                    if time.monotonic() - began + longest > options.budget_s:
                        said = "left out, there was no time"
                    else:
                        said = row(name, label, shape, is_endless, program, image, options)
                    found.setdefault(label, {})[name] = said
                    print(f"{time.monotonic() - began:.0f} s: {label}, {name}{f': {said}' if isinstance(said, str) else ''}", file=sys.stderr, flush=True)
                    if options.out:
                        (options.out / "long_kernels.json").write_text(json.dumps(found, indent=1))
    print("\n".join(table(found, kinds)))
    said = [(label, name, value) for label, by_kind in found.items() for name, value in by_kind.items()]
    missing = [f"{label}, {name}: {line}" for label, name, value in said if isinstance(value, dict) for line in value["counters"]]
    failed = [f"{label}, {name}: {value}" for label, name, value in said if isinstance(value, str) and value.startswith("failed")]
    for line in missing + failed:
        print(line)
    print(f"{time.monotonic() - began:.0f} s, {len(missing) + len(failed)} failed")
    sys.exit(1 if missing or failed else 0)


if __name__ == "__main__":
    main()
