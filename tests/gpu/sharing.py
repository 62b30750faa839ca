"""The ways to share a device that scripts beside this compare, each with directories of its own: no daemon, NVIDIA's, ours."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

from openmps import OpenMps

NAMES = ["none", "nvidia", "openmps"]
CONTROL = "nvidia-cuda-mps-control"
ASK_LIMIT_S = 30


def has_nvidia_mps():
    """Whether NVIDIA's control program is here; ours answers to the same name, and is not meant."""
    found = shutil.which(CONTROL)
    return bool(found) and pathlib.Path(found).resolve().name == CONTROL and os.path.exists("/dev/nvidiactl")


class Nothing:
    """No daemon."""

    name = "none"

    def __init__(self, directory, softcuda=None):
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nobody"))
        self.front = [softcuda / "bin/openmps", "run", "--softcuda", "--native", "--"] if softcuda else []

    def start(self, *command, variables=None, **how):
        """Starts a program; its process id is the client's."""
        return subprocess.Popen([*self.front, *map(str, command)], env=dict(self.environment, **(variables or {})), text=True, **how)

    def check(self, pids):
        """Whether these were clients."""
        return True

    def close(self):
        pass


class Nvidia(Nothing):
    """NVIDIA's daemon."""

    name = "nvidia"

    def __init__(self, directory):
        super().__init__(directory)
        self.pipe = directory / "nvidia"
        names = {"CUDA_MPS_PIPE_DIRECTORY": self.pipe, "CUDA_MPS_LOG_DIRECTORY": directory / "nvidia-log"}
        for path in names.values():
            path.mkdir()
        self.environment = dict(os.environ, **{name: str(path) for name, path in names.items()})
        subprocess.run([CONTROL, "-d"], env=self.environment, check=True, timeout=ASK_LIMIT_S, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)

    def close(self):
        noted = self.pipe / "nvidia-cuda-mps-control.pid"
        pid = int(noted.read_text()) if noted.exists() else None
        try:
            subprocess.run([CONTROL], input="quit -t 2\n", env=self.environment, text=True, capture_output=True, timeout=ASK_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class Ours(Nothing):
    """Our daemon."""

    name = "openmps"

    def __init__(self, dist, directory, softcuda=False, variables=None):
        self.daemon = OpenMps(dist, directory)
        # What the first program under it has is what it starts with.
        self.daemon.environment.update(variables or {})
        self.environment = self.daemon.environment
        self.front = [self.daemon.executable, "run", *(["--softcuda"] if softcuda else []), "--"]

    def check(self, pids):
        return set(pids) <= set(self.daemon.clients())

    def close(self):
        self.daemon.quit()


def available(names=tuple(NAMES)):
    """Of these ways to share, those that are here."""
    return [name for name in names if name != "nvidia" or has_nvidia_mps()]


def make(name, dist, directory, softcuda=False, variables=None):
    """One of them, in an empty directory that exists."""
    if name == "nvidia":
        return Nvidia(directory)
    if name == "openmps":
        return Ours(dist, directory, softcuda, variables)
    return Nothing(directory, dist if softcuda else None)
