#!/usr/bin/env python3
"""Programs and tests that nobody here wrote: natively, then under OpenMPS, several at once, with results by program and by test.

Nothing of others is in this repository. Get the sources yourself, read them, and name their folder:

    python3 tests/gpu/suites.py programs --sources DIR --list LIST [--seconds 240] [--nvidia]
    python3 tests/gpu/suites.py tests --sources DIR [--seconds 240] [--sm-percent 50] test_cuda.py test_nn.py -- -k "not slow"

*Programs*, such as CUDA samples (github.com/NVIDIA/cuda-samples) and HeCBench (github.com/zjin-lcf/HeCBench): LIST has a line for each program, of four or five fields with tabs between:
its name, its folder in DIR, the command that builds it (or nothing), the command that runs it there, and a word that it must print. {nvcc}, {arch} (sm_90), {source} (the folder) and {build}
(a folder of its own; with --built DIR below DIR, where it stays) are replaced; no shell is used. Each runs natively, --at-once at a time in the order of the list; those that succeed run under OpenMPS in the same way, and with --nvidia under NVIDIA's MPS.
A program that prints FAIL is wrong, whatever it ends with.
The list of what is worse under OpenMPS, by result or by more than three times and a second more, shall be empty. With --all-right the times do not count, and what was not built, is wrong
natively or was left out stands there too: for lists of what is known to be right, such as suites/hecbench-softcuda.tsv.

*Tests*, such as PyTorch's (folder `test` of the version that is installed), CuPy's, numba's or Triton's, by pytest with pytest-xdist, --at-once at a time: natively, under OpenMPS, and with
--sm-percent under a share. What passes natively and fails under OpenMPS is run once more, both ways, alone; what took much longer is named. What follows `--` goes to pytest.
Leave out tests that make the GPU fault on purpose (`-- -k "not invalid_probs"`): a fault can cost tests beside it, which `docs/faults.md` explains.

Build OpenMPS first (`cargo xtask build`). Under OpenMPS every program must have been its client; what its servers lost is printed, too. --seconds bounds the whole run: what there was no time for is
left out, and counted. --out is a folder for all results. Exits with 1 when something that is right natively is not right, or was no client.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import sharing

HERE = pathlib.Path(__file__).resolve().parent
# Parts of the time: for building, and for what is run once more.
BUILD_PART, AGAIN_PART = 0.4, 0.1
BUILD_LIMIT_S = 120
# More than so many times as long, and so much longer, is worse.
SLOWER, SLOWER_S = 3.0, 1.0
MOST_LINES, MOST_AGAIN = 40, 400
OUTPUT_KEPT, LOG_KEPT = 2000, 2000000
# What programs print whose results are wrong, though they may end with 0; such a run counts as if it had ended with this.
WRONG, PRINTED_WRONG = re.compile(r"\b(FAIL|FAILED|Fail|Failed|Error:|CUDA error)\b"), 255

# Of a source folder, what a program is built of.
SOURCES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".inl"}
BUILT = "built.json"

Entry = collections.namedtuple("Entry", "name folder build run says", defaults=[""])
# `code` is nothing for what did not end within the limit.
Ran = collections.namedtuple("Ran", "code seconds is_client output")


class Budget:
    """The seconds that are left of a number of them."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()

    def part(self, of):
        """A part of what is left."""
        return Budget(self.left() * of)


def entries(text):
    """The lines of a list; `#` begins a remark."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            fields = [field.strip() for field in line.split("\t")]
            if len(fields) not in (4, 5) or not fields[3]:
                raise ValueError(f"line {number}: four or five fields with tabs between are expected")
            found.append(Entry(*fields))
    return found


def command_of(text, values):
    """Words of a command, with what stands in braces replaced in each."""
    words = shlex.split(text)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", str(value)) for word in words]
    return words


def ended(process, limit_s):
    """Exit code and output; all that it has started is ended with it."""
    try:
        output = process.communicate(timeout=max(0.1, limit_s))[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10)


# ---- Programs ----

def newest_source(folder):
    """When the newest of a folder's sources was written; nothing if there are none."""
    return max((path.stat().st_mtime for path in folder.rglob("*") if path.suffix in SOURCES), default=None)


def build(entry, values, limit_s):
    """Whether it is there, and what was said if not."""
    if not entry.build:
        return True, ""
    command, stamp = command_of(entry.build, values), values["build"] / BUILT
    wanted = json.dumps([command, newest_source(values["source"])])
    if stamp.exists() and stamp.read_text() == wanted:
        return True, ""
    if limit_s < 1:
        return False, "there was no time"
    process = subprocess.Popen(command, cwd=values["source"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    code, output = ended(process, min(limit_s, BUILD_LIMIT_S))
    if code == 0:
        stamp.write_text(wanted)
    return code == 0, "there was no time" if code is None else output[-OUTPUT_KEPT:]


class Runner:
    """Runs programs under one way to share."""

    def __init__(self, kind, limit_s, least_kernels):
        self.kind, self.limit_s, self.least_kernels, self.lock = kind, limit_s, least_kernels, threading.Lock()

    def was_client(self, pid):
        """Whether the process was one, with so many kernels; a server forgets who has left long ago."""
        if self.kind.name != "openmps":
            return True
        with self.lock:
            client = self.kind.daemon.clients().get(pid)
        return client is not None and client["kernels"] >= self.least_kernels

    def run(self, entry, values, budget):
        if budget.left() < 1:
            return None
        start = time.monotonic()
        try:
            process = self.kind.start(*command_of(entry.run, values), cwd=values["source"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, errors="replace", start_new_session=True)
        except OSError as error:
            return Ran(127, 0.0, True, str(error))
        code, output = ended(process, min(self.limit_s, budget.left()))
        if code is None and budget.left() <= 0:
            return None
        if code == 0 and is_wrong(entry, output):
            code = PRINTED_WRONG
        return Ran(code, time.monotonic() - start, self.was_client(process.pid), output[-OUTPUT_KEPT:])


def is_wrong(entry, output):
    """Whether what a program printed says so, or does not say what it must."""
    return bool(WRONG.search(output)) or not re.search(rf"\b{re.escape(entry.says)}\b" if entry.says else "", output)


def failure(ran):
    """How a run failed."""
    told = "did not end" if ran.code is None else f"exit {ran.code}"
    last = ran.output.strip().splitlines()[-1][-100:] if ran.output.strip() else ""
    return f"{told}: {last}"


def worse(native, ours, slower=SLOWER):
    """Why a program's run is worse than natively; nothing if it is not."""
    if native.code == 0 and ours.code != 0:
        return failure(ours)
    if ours.seconds > slower * native.seconds and ours.seconds > native.seconds + SLOWER_S:
        return f"{ours.seconds:.1f} s, natively {native.seconds:.1f}"
    if not ours.is_client:
        return "was no client of the server"
    return None


def median_of(runs):
    """Of one program's runs: the first that failed, or else one with the median time."""
    failed = [run for run in runs if run.code != 0]
    if failed:
        return failed[0]
    middle = statistics.median_low(run.seconds for run in runs)
    return next(run for run in runs if run.seconds == middle)


def not_right(listed, unbuilt, found):
    """Lines: of a list of which all shall be right, what was not built, not right natively, or left out."""
    lines = []
    for entry in listed:
        native = found["none"].get(entry.name)
        if entry.name in unbuilt:
            said = unbuilt[entry.name].strip().splitlines() or ["it said nothing"]
            lines.append(f"{entry.name} was not built: {next((line for line in said if 'error' in line), said[-1])}")
        elif native and native.code != 0:
            lines.append(f"{entry.name}, none: {failure(native)}")
        elif not all(entry.name in runs for runs in found.values()):
            lines.append(f"{entry.name} was left out: there was no time")
    return lines


def summary(found, kinds, slower=SLOWER):
    """Lines: how many were right, and times over what was right in all; then what is worse."""
    right = {kind: [name for name, run in found[kind].items() if run.code == 0] for kind in kinds}
    in_all = set.intersection(*(set(names) for names in right.values())) if right else set()
    lines = ["| | programs | right | of them right everywhere | their times, s |", "|---|---|---|---|---|"]
    for kind in kinds:
        lines.append(f"| {kind} | {len(found[kind])} | {len(right[kind])} | {len(in_all)} | {sum(found[kind][name].seconds for name in in_all):.1f} |")
    bad = []
    for kind in kinds[1:]:
        for name, run in found[kind].items():
            if why := worse(found[kinds[0]][name], run, slower):
                bad.append(f"{name}, {kind}: {why}")
    return lines, bad


def run_programs(options, directory):
    budget = Budget(options.seconds)
    listed, values, unbuilt = entries(options.list.read_text()), {}, {}
    if options.only:
        listed = [entry for entry in listed if entry.name in options.only.split(",")]
    for entry in listed:
        place = (options.built or directory / "built") / entry.name
        place.mkdir(parents=True, exist_ok=True)
        values[entry.name] = {"nvcc": options.nvcc, "arch": options.arch, "source": (options.sources / entry.folder).resolve(), "build": place}
    building = budget.part(BUILD_PART)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = list(pool.map(lambda entry: build(entry, values[entry.name], building.left()), listed))
    unbuilt = {entry.name: said for entry, (is_there, said) in zip(listed, made) if not is_there}
    names = ["none", *sharing.available(["nvidia"] if options.nvidia else []), "openmps"]
    found, lost, left = {name: {} for name in names}, [], [entry for entry in listed if entry.name not in unbuilt]
    print(f"{len(left)} of {len(listed)} programs are there after {options.seconds - budget.left():.0f} s", file=sys.stderr, flush=True)
    for position, name in enumerate(names):
        place = directory / name
        place.mkdir()
        kind = sharing.make(name, options.target / "dist", place, options.softcuda)
        share, runs = budget.part(1 / (len(names) - position)), collections.defaultdict(list)
        runner = Runner(kind, options.limit_s, 1 if options.all_right else 0)
        try:
            for _ in range(options.rounds):
                with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
                    for entry, ran in zip(left, pool.map(lambda entry: runner.run(entry, values[entry.name], share), left)):
                        if ran:
                            runs[entry.name].append(ran)
                if position == 0:
                    # Who is wrong natively, or faults there, has no place beside others, and no second round.
                    left = [entry for entry in left if entry.name in runs and runs[entry.name][-1].code == 0]
            if name == "openmps":
                lost = losses(kind.daemon)
        finally:
            kind.close()
        found[name] = {each: median_of(of) for each, of in runs.items()}
        print(f"{options.seconds - budget.left():.0f} s: {name}, {len(runs)} programs", file=sys.stderr, flush=True)
    lines, bad = summary(found, names, math.inf if options.all_right else SLOWER)
    if options.all_right:
        bad = not_right(listed, unbuilt, found) + bad
    bad += [f"{name}: no program ran" for name in names if not found[name]]
    keep(options, "programs.json", {"built": len(listed) - len(unbuilt), "not_built": unbuilt, "lost": lost,
                                    "runs": {name: {each: run._asdict() for each, run in runs.items()} for name, runs in found.items()}})
    untried = len(listed) - len(unbuilt) - len(found["openmps"]) - sum(run.code != 0 for run in found["none"].values())
    lines.append(f"{len(unbuilt)} were not built, {sum(run.code != 0 for run in found['none'].values())} are wrong natively, {untried} were left out")
    return lines, bad, lost


def losses(daemon):
    """What the servers lost: executors, and programs that faulted."""
    status, lines = daemon.status(), []
    for server in status["servers"]:
        snapshot = server["snapshot"]
        deaths = sum(device["executor_deaths"] for device in snapshot["devices"])
        if deaths:
            lines.append(f"{deaths} executors ended by themselves")
        lines += [f"fault: {json.dumps(fault)[:200]}" for fault in snapshot["faults"]]
    return lines


# ---- Tests ----

def outcomes(text):
    """Of a report: the outcome of each test; a test that failed anywhere has failed."""
    found = {}
    for line in text.splitlines():
        outcome, _, name = line.split("\t", 2)
        if found.get(name) != "failed":
            found[name] = outcome
    return found


def times(text):
    """Of a report: the seconds that each test that passed took."""
    fields = (line.split("\t", 2) for line in text.splitlines())
    return {name: float(seconds) for outcome, seconds, name in fields if outcome == "passed"}


def slower(native, shared):
    """The tests that took too much longer than natively, the slowest first."""
    found = [(shared[name], native[name], name) for name in native.keys() & shared.keys()
             if shared[name] > native[name] * SLOWER and shared[name] > native[name] + SLOWER_S]
    return [f"{name}: {took:.1f} s, natively {natively:.1f}" for took, natively, name in sorted(found, reverse=True)]


def pytest(kind, front, files, at_once, limit_s, options, report):
    """The outcomes of what ran within the limit."""
    spread = ["-n", str(at_once)] if at_once > 1 and importlib.util.find_spec("xdist") else []
    timeout = ["--timeout", str(options.limit_s)] if importlib.util.find_spec("pytest_timeout") else []
    command = [*front, sys.executable, "-m", "pytest", "-q", *(["-x"] if options.first else []), "-p", "each_test", "-p", "no:cacheprovider", *spread, *timeout,
               *options.more, *files]
    path = os.pathsep.join(filter(None, [str(HERE / "suites"), os.environ.get("PYTHONPATH")]))
    environment = dict(kind.environment, EACH_TEST_REPORT=str(report), PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1")
    with open(report.with_suffix(".log"), "a") as log:
        process = subprocess.Popen(list(map(str, command)), env=environment, cwd=options.sources, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
        code, _ = ended(process, limit_s)
    text = report.read_text() if report.exists() else ""
    if options.out:
        (options.out / report.name).write_text(text)
        with open(options.out / "pytest.log", "a") as kept:
            kept.write(f"==== {report.stem}\n{report.with_suffix('.log').read_text(errors='replace')[-LOG_KEPT:]}\n")
    return outcomes(text), times(text), code


def count(found, outcome):
    return sum(value == outcome for value in found.values())


def run_tests(options, directory):
    budget = Budget(options.seconds)
    (directory / "native").mkdir()
    (directory / "openmps").mkdir()
    native = sharing.make("none", options.target / "dist", directory / "native", options.softcuda)
    ours = sharing.make("openmps", options.target / "dist", directory / "openmps", options.softcuda)
    ways = {"native": (native, native.front), "openmps": (ours, ours.front)}
    if options.sm_percent:
        ways[f"openmps-sm-{options.sm_percent}"] = (ours, [*ours.front[:-1], "--sm-percent", str(options.sm_percent), "--"])
    found, took, ends, bad, lost = {}, {}, {}, [], []
    again = options.seconds * AGAIN_PART
    try:
        for position, (name, (kind, front)) in enumerate(ways.items()):
            limit_s = max(1, budget.left() - again) / (len(ways) - position)
            found[name], took[name], ends[name] = pytest(kind, front, options.tests, options.at_once, limit_s, options, directory / f"{name}.tsv")
            print(f"{options.seconds - budget.left():.0f} s: {name}, {len(found[name])} tests", file=sys.stderr, flush=True)
        suspects = [name for name, outcome in found["native"].items() if outcome == "passed" and any(found[way].get(name) == "failed" for way in ways)]
        if suspects and budget.left() > 2:
            for position, way in enumerate(ways):
                limit_s = budget.left() / (len(ways) - position)
                once_more, _, _ = pytest(*ways[way], suspects[:MOST_AGAIN], 1, limit_s, options, directory / f"{way}-again.tsv")
                bad += [f"{way}: {name}" for name in suspects if way != "native" and found[way].get(name) == "failed"
                        and once_more.get(name, "failed") == "failed" and found["native"].get(name) == "passed"]
                if way == "native":
                    for name, outcome in once_more.items():
                        found["native"][name] = outcome
        else:
            bad = [f"{way}: {name}, not tried again" for way in ways for name in suspects if found[way].get(name) == "failed"]
        bad += [f"{way}: no test ran" for way in ways if not found[way]]
        clients = ours.daemon.clients()
        if found.get("openmps") and not any(client["kernels"] for client in clients.values()):
            bad.append("no process under OpenMPS was a client that ran kernels")
        lost = losses(ours.daemon)
    finally:
        ours.close()
    both = [name for name, outcome in found["native"].items() if outcome == "passed"]
    lines = ["| | tests | passed | failed | skipped | of what passes natively: passed | ended |", "|---|---|---|---|---|---|---|"]
    for way in ways:
        passed = sum(found[way].get(name) == "passed" for name in both)
        tried = sum(name in found[way] for name in both)
        told = "no, there was no time" if ends[way] is None else f"yes, {ends[way]}"
        lines.append(f"| {way} | {len(found[way])} | {count(found[way], 'passed')} | {count(found[way], 'failed')} | {count(found[way], 'skipped')} | {passed} of {tried} | {told} |")
    for way in list(ways)[1:]:
        late = slower(took["native"], took[way])
        lines += ["", f"{way}: {len(late)} took more than {SLOWER:.0f} times and {SLOWER_S:.0f} s more than natively", *(f"- {line}" for line in late[:MOST_LINES])]
    keep(options, "tests.json", {"outcomes": found, "worse": bad, "lost": lost})
    return lines, bad, lost


def keep(options, name, value):
    if options.out:
        (options.out / name).write_text(json.dumps(value, indent=1))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["programs", "tests"])
    parser.add_argument("tests", nargs="*", help="files or names of tests, in the folder")
    parser.add_argument("--sources", type=pathlib.Path, required=True, help="the folder that has them")
    parser.add_argument("--list", type=pathlib.Path, help="what to build and run")
    parser.add_argument("--only", help="of the list, with commas between")
    parser.add_argument("--target", type=pathlib.Path, default=HERE.parents[1] / "target", help="the build directory [target]")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="of each program; medians [1]")
    parser.add_argument("--seconds", type=float, default=240, help="of the whole run [240]")
    parser.add_argument("--limit-s", type=float, default=22, help="of one program, or one test [22]")
    parser.add_argument("--sm-percent", type=int, help="tests under this share, too")
    parser.add_argument("--first", action="store_true", help="tests: stop at the first that fails")
    parser.add_argument("--nvidia", action="store_true", help="programs under NVIDIA's MPS, too")
    parser.add_argument("--all-right", action="store_true", help="programs: all of the list must be built and right natively, too; times do not count")
    parser.add_argument("--built", type=pathlib.Path, help="programs: a folder for what is built, which is not built again")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--arch", default="native", help="what {arch} stands for [native]")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for all results")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    options = parser.parse_intermixed_args(given[:cut])
    options.more = given[cut + 1:]
    options.target, options.sources = options.target.resolve(), options.sources.resolve()
    if (options.what == "programs") != bool(options.list) or (options.what == "tests") != bool(options.tests):
        parser.error("programs need --list, tests their files' names")
    if options.built:
        options.built = options.built.resolve()
    if options.out:
        options.out = options.out.resolve()
        options.out.mkdir(parents=True, exist_ok=True)
    return options


def main():
    options, began = arguments(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="openmps-suites-") as directory:
        lines, bad, lost = (run_programs if options.what == "programs" else run_tests)(options, pathlib.Path(directory))
    print("\n".join(lines))
    for title, of in [("worse than natively", bad), ("lost", lost)]:
        print(f"{title}: {len(of)}")
        print("".join(f"- {line}\n" for line in of[:MOST_LINES]), end="")
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
