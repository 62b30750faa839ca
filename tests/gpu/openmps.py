"""What the scripts beside this need: a daemon of their own, programs run under it and without, and what its servers counted."""

import json
import os
import subprocess

# Of a daemon that is to end, with what its clients get to end by themselves.
QUIT_LIMIT_S = 60


class OpenMps:
    """A daemon in directories of its own."""

    def __init__(self, dist, directory):
        self.executable = dist / "bin/openmps"
        self.logs = directory / "log"
        pipe = directory / "pipe"
        pipe.mkdir()
        self.logs.mkdir()
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(pipe), CUDA_MPS_LOG_DIRECTORY=str(self.logs))

    def library(self):
        """The directory of our `libcuda.so.1`."""
        return str(self.executable.parents[1] / "lib/openmps")

    def start(self, *command, variables=None, stdin=None):
        """Starts a program under OpenMPS; `openmps run` becomes it, so that the process id is the client's."""
        environment = dict(self.environment, **(variables or {}))
        return subprocess.Popen([self.executable, "run", "--", *command], env=environment, text=True,
                                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def status(self):
        """What `openmps status` says."""
        status = subprocess.run([self.executable, "status", "--json"], env=self.environment, text=True,
                                capture_output=True, check=True).stdout
        return json.loads(status)

    def numbers(self, name):
        """All that is called `name` in what `openmps status` says."""
        found = []

        def look(value):
            if isinstance(value, dict):
                found.extend(inner for key, inner in value.items() if key == name)
            for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
                look(inner)

        look(self.status())
        return found

    def clients(self):
        """All clients that servers know, those that have left included, by process id."""
        found = {}

        def look(value):
            if isinstance(value, dict):
                if "pid" in value and "kernels" in value:
                    found[value["pid"]] = value
                for inner in value.values():
                    look(inner)
            elif isinstance(value, list):
                for inner in value:
                    look(inner)

        look(self.status())
        return found

    def command(self, *arguments):
        """What one of our own commands prints; it must succeed."""
        done = subprocess.run([self.executable, *arguments], env=self.environment, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openmps {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def quit(self):
        """Ends the daemon, and after some seconds what is still its client."""
        subprocess.run([self.executable, "control"], input="quit -t 10\n", env=self.environment, text=True,
                       capture_output=True, check=False, timeout=QUIT_LIMIT_S)


def natively(*command, directory, limit_s):
    """A finished run of a program with the system's own driver and no daemon."""
    environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nobody"))
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=limit_s, check=False)
