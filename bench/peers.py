"""The ways to share a device that are compared: no MPS, NVIDIA's, OpenMPS. Each is a daemon in directories of its own, or none."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

NAMES = ["none", "nvidia", "openmps"]
NVIDIA_CONTROL = "nvidia-cuda-mps-control"
START_LIMIT_S = 20


def has_gpu():
    return os.path.exists("/dev/nvidiactl")


def nvidia_mps():
    """NVIDIA's control program; ours answers to the same name, and is not meant."""
    found = shutil.which(NVIDIA_CONTROL)
    return found if found and os.path.realpath(found).endswith(NVIDIA_CONTROL) and has_gpu() else None


def available():
    return [name for name in NAMES if name != "nvidia" or nvidia_mps()]


class Peer:
    """A running peer: `command` wraps what a client runs, `environment` is what it runs in, `variables` of it included. Its logs go to the folder `logs`, if any."""

    def __init__(self, name, dist, variables=None, logs=None):
        self.name, self.dist, self.variables, self.logs = name, dist, variables or {}, logs

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory(prefix="openmps-bench-")
        pipe = pathlib.Path(self.directory.name)
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(pipe), CUDA_MPS_LOG_DIRECTORY=str(pipe), **self.variables)
        self.daemon = None
        if self.name == "nvidia":
            self._start([nvidia_mps(), "-f"], pipe / "control")
        elif self.name == "openmps":
            self._start([self.dist / "bin/openmps", "control", "-f"], pipe / "openmps-control")
        return self

    def _start(self, command, socket):
        self.daemon = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        limit = time.monotonic() + START_LIMIT_S
        while not socket.exists():
            if time.monotonic() > limit or self.daemon.poll() is not None:
                raise RuntimeError(f"{command[0]} did not come up")
            time.sleep(0.01)

    def command(self, *command):
        return [self.dist / "bin/openmps", "run", "--", *command] if self.name == "openmps" else list(command)

    def __exit__(self, *_):
        if self.name == "nvidia":
            subprocess.run([nvidia_mps()], input="quit\n", env=self.environment, text=True, stdout=subprocess.DEVNULL, check=False)
        elif self.daemon:
            self.daemon.terminate()
        if self.daemon:
            try:
                self.daemon.wait(timeout=START_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
        for path in pathlib.Path(self.directory.name).glob("*.log") if self.logs else []:
            self.logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, self.logs)
        self.directory.cleanup()
