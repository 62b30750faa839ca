"""What `table.py` measures: calls of `openmps bench` and of the PyTorch scripts, each with a name, and the file in which what they said is kept."""

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import peers

BENCH = pathlib.Path(__file__).resolve().parent
# No measurement takes longer; what it started has so long to end once it was told to.
LIMIT_S = 170
END_LIMIT_S = 10
MANY_CLIENTS = [16, 48, 200]
EQUAL_CLIENTS = [8, 16, 32, 64]
RANKS = [2, 4, 8]
# As many clients are measured on so many processors, too: one for each, where a larger host has more.
FEW_CORES = 8
EQUAL, MPI = "equal_clients", "../tests/gpu/mpi"
TORCH_SCRIPTS = {"resnet18": "torch_inference", "transformer": "torch_inference", "training": "torch_training"}
TORCH_PROCESSES = [1, 4, 8, 16]
# Of more processes all runs, of all peers, would take longer than one measurement may.
MOST_IN_ONE_MEASUREMENT = 8
STATE_FORMAT = 2


class Measurement:
    """One call, and where what it said stands in the state."""

    def __init__(self, part, name, *arguments, variables=None, script=None, cores=None, softcuda=False):
        self.part, self.name, self.arguments = part, name, [str(argument) for argument in arguments]
        self.variables, self.script, self.cores, self.softcuda = variables or {}, script, cores, softcuda


def on_cores(workload, cores):
    """The name of a workload's measurement on a part of the processors."""
    return f"{workload} on {cores} core{'s' * (cores > 1)}"


def torch_name(model, processes):
    """What the names of a model's measurements with so many processes begin with."""
    return f"{model}, {processes} process{'es' * (processes > 1)}"


def nvcc():
    """CUDA's compiler, or nothing."""
    found = shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    return pathlib.Path(found) if found else None


def is_possible(one, options):
    """Whether a script has here what it needs, which is a GPU and more."""
    if not one.script:
        return True
    if one.script == EQUAL:
        needed = nvcc()
    elif one.script == MPI:
        needed = all((options.target / path).exists() for path in ["programs/mpi/jacobi", "openmpi/mpirun", "openmpi-cuda/mpirun"])
    else:
        needed = importlib.util.find_spec("torch")
    return bool(needed) and not options.softcuda


def equal_measurements(options, repeat, sharing):
    """Clients that do the same; of very many OpenMPS alone."""
    seconds = 1 if options.quick else 3

    def equal(workload, clients, who):
        return Measurement("equal", f"{workload}, {clients} equal", "--workloads", workload, "--clients", clients, "--peers", who, "--seconds", seconds,
                           "--repeat", repeat, script=EQUAL)

    counts = EQUAL_CLIENTS[:1] if options.quick else EQUAL_CLIENTS
    found = [equal(workload, clients, sharing) for workload in ["infer", "lat"] for clients in counts]
    return found + [equal("infer", MANY_CLIENTS[-1], "openmps")] * (not options.quick)


def mpi_measurements(options, repeat, sharing):
    """Strong scaling of ranks that wait for each other."""
    return [Measurement("mpi", f"jacobi, {ranks} ranks", "--target", options.target, "--side", 512, "--ranks", ranks, "--rounds", repeat, "--peers", sharing,
                        "--steps", 200 if options.quick else 2000, script=MPI) for ranks in (RANKS[:1] if options.quick else RANKS)]


def torch_measurements(options, repeat):
    """One for each model and number of processes, or several of one run each."""
    default = [1] if options.quick else TORCH_PROCESSES
    found = []
    for model, script in TORCH_SCRIPTS.items():
        for processes in options.processes or default:
            seconds = 1 if options.quick else options.torch_seconds
            arguments = ["--models", model, "--processes", processes, "--seconds", seconds]
            name = torch_name(model, processes)
            if processes <= MOST_IN_ONE_MEASUREMENT:
                found.append(Measurement("torch", name, *arguments, "--repeat", repeat, script=script))
            else:
                found += [Measurement("torch", f"{name}, run {run}", *arguments, "--repeat", 1, script=script)
                          for run in range(1, repeat + 1)]
    return found


def few_cores(options):
    """On how many processors, and with how many clients, the measurements of the part `cores` are made."""
    return (1, 2) if options.quick else (FEW_CORES, FEW_CORES)


def measurements(options):
    """All that there are, in order."""
    quick, soft = options.quick, options.softcuda
    repeat = options.repeat or (1 if quick else 3)
    clients = "1,2" if quick else ("1,4" if soft else "1,4,8,16")
    millis = options.duration_ms or (50 if quick else 700)

    def bench(part, name, workload, number, duration_ms, *more, **keywords):
        return Measurement(part, name, "--workload", workload, "--clients", number, "--repeat", repeat, "--duration-ms",
                           duration_ms, *more, **keywords)

    # The software GPU takes long for what a client of `tiny` has queued by the time it looks at the clock.
    kinds = [kind for kind in ["infer", "empty", "tiny", "lat"] if kind != "tiny" or not (quick and soft)]
    found = [bench("kernels", workload, workload, clients, millis) for workload in kinds]
    found += [bench("kernels", "mixed", "mixed", "1" if quick else "1,4" if soft else "1,8", millis)]
    cores, few = few_cores(options)
    # Native clients take turns: only who shares as we do is compared.
    sharing = "openmps" if soft or not peers.nvidia_mps() else "nvidia,openmps"
    if len(os.sched_getaffinity(0)) >= cores:
        found += [bench("cores", on_cores(workload, cores), workload, few, millis, "--peers", sharing, cores=cores)
                  for workload in ["infer", "lat"]]
    found += [bench("calls", "post", "post", 1, millis), bench("calls", "start", "start", 1, 100),
              bench("memory", "memory", "memory", 1, 58 if quick else 3 * millis)]
    found += [bench("beside", f"beside {neighbour}", "infer", 1, 4 * millis, "--beside", neighbour)
              for neighbour in ["reload", "load", "starts"]]
    # Of OpenMPS alone: a native driver's processes take turns, and NVIDIA's MPS refuses more than 60.
    most = [2, 4] if quick else MANY_CLIENTS[:1] if soft else MANY_CLIENTS
    found += [bench("many", f"many {number}", "infer", number, 2 * millis, "--peers", "openmps",
                    variables={"OPENMPS_CONTEXTS_PER_DEVICE": "250"}) for number in most]
    found += [bench("softcuda", "work", "work", "1,4", 200 if quick else 3 * millis, "--peers", "openmps", cores=2, softcuda=True)]
    found += equal_measurements(options, repeat, sharing) + mpi_measurements(options, repeat, sharing) + torch_measurements(options, repeat)
    return found


class Failed(Exception):
    """A measurement of which nothing counts, and why."""


def run_to_end(command, **how):
    """Runs a command within `LIMIT_S`: its exit code and what it wrote to standard error. If it takes longer, all that it started is ended: a daemon
    left over would share the device with the next measurement."""
    process = subprocess.Popen(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, **how)
    try:
        _, told = process.communicate(timeout=LIMIT_S)
    except BaseException:
        for end in [signal.SIGINT, signal.SIGKILL]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, end)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_LIMIT_S)
        raise
    return process.returncode, told


def measure(one, options):
    """Runs a measurement; its JSON, which counts only if the command ended well."""
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "out.json"
        if one.script:
            command = [sys.executable, BENCH / f"{one.script}.py", "--dist", options.dist, *one.arguments, "--json", output]
        else:
            driver = ["--softcuda"] if options.softcuda or one.softcuda else []
            command = [options.dist / "bin/openmps", "bench", *driver, *one.arguments, "--json", output]
        cores = (lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:one.cores])) if one.cores else None
        try:
            code, told = run_to_end(command, env=dict(os.environ, **one.variables), preexec_fn=cores)
        except subprocess.TimeoutExpired:
            raise Failed(f"took longer than {LIMIT_S} s") from None
        if code != 0:
            raise Failed(f"exit code {code}: {told.strip().splitlines()[-1] if told.strip() else 'nothing was said'}")
        try:
            return json.loads(output.read_text())
        except (OSError, ValueError) as error:
            raise Failed(f"no report: {error}") from None


class State:
    """What was measured: JSON by part and name, in a file that an interrupted run goes on with."""

    def __init__(self, path):
        self.path, self.parts = path, {}

    @classmethod
    def kept(cls, path):
        """What the file has; empty if there is none.

        Raises `ValueError` for a file that is something else."""
        state = cls(path)
        if path.exists():
            found = json.loads(path.read_text())
            if not isinstance(found, dict) or found.get("format") != STATE_FORMAT:
                raise ValueError("not what this version of the script writes")
            state.parts = found["parts"]
        return state

    def has(self, one):
        return one.name in self.parts.get(one.part, {})

    def keep(self, one, said):
        self.parts.setdefault(one.part, {})[one.name] = said
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"format": STATE_FORMAT, "parts": self.parts}))

    def forget(self, part):
        self.parts.pop(part, None)

    def by_name(self):
        """All of it; names differ between parts, too."""
        return {name: said for part in self.parts.values() for name, said in part.items()}
