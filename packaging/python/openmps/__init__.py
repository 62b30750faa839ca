"""Share a GPU between CUDA programs, from Python.

Everything here runs the `openmps` command that came with this package, and reads the JSON that
commands print with ``--json``. Documents are dictionaries with the fields of docs/schema.json; their
types are in `openmps.documents`.

>>> import openmps, sys
>>> done = openmps.run([sys.executable, "-c", "print('hello')"], softcuda=True, capture_output=True, text=True)
>>> done.stdout
'hello\\n'
>>> openmps.status()["daemon_pid"] > 0
True
>>> openmps.clients()
[]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping, Sequence, cast

from . import documents
from ._installation import executable, library_directory

__all__ = [
    "NoDaemonError",
    "OpenmpsError",
    "clients",
    "devices",
    "documents",
    "env",
    "executable",
    "library_directory",
    "limit",
    "quit",
    "run",
    "status",
    "trace",
]


class OpenmpsError(Exception):
    """A command failed. The text says what was wrong and what to do, as the command did."""

    def __init__(self, message: str, command: Sequence[str] = (), returncode: int | None = None) -> None:
        super().__init__(message)
        self.command = list(command)
        self.returncode = returncode


class NoDaemonError(OpenmpsError):
    """No daemon answers where one was looked for."""


def clients() -> list[documents.Client]:
    """The processes that run under OpenMPS, as ``openmps ps --json`` has them."""
    return cast("documents.ps", _document("ps"))["clients"]


def devices() -> list[documents.Gpu]:
    """The GPUs of all servers, as ``openmps top --json`` has them; none before the first client."""
    return cast("documents.top", _document("top"))["gpus"]


def status() -> documents.status:
    """The daemon, its servers and their devices, as ``openmps status --json`` has them."""
    return cast("documents.status", _document("status"))


def limit(
    *,
    pid: int | None = None,
    group: str | None = None,
    server: int | None = None,
    user: int | None = None,
    memory: str | None = None,
    sm_percent: float | None = None,
    weight: int | None = None,
    device: int | None = None,
) -> documents.change:
    """Changes what running clients may use: of a process, of a group, of a server or of a user.

    ``memory`` is a size like "4G", and "0" for no limit. What could not be done for a client is in
    ``refused`` of the answer.
    """
    if memory is None and sm_percent is None and weight is None:
        raise TypeError("limit() needs memory, sm_percent or weight")
    options = _options(
        client=pid, group=group, server=server, user=user,
        memory=memory, sm_percent=sm_percent, weight=weight, device=device,
    )  # fmt: skip
    return cast("documents.change", _document("limit", *options))


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    softcuda: bool = False,
    native: bool = False,
    gpu: str | None = None,
    memory: str | None = None,
    sm_percent: float | None = None,
    isolate: bool | str = False,
    priority: str | None = None,
    group: str | None = None,
    reservation: str | None = None,
    weight: int | None = None,
    latency: bool = False,
    guard: bool | str = False,
    check: bool = True,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a program under OpenMPS to its end, and starts the daemon if there is none.

    The settings are the options of ``openmps run``; all others go to `subprocess.run`. The program's
    exit status is its own: with ``check`` one that is not 0 is a `subprocess.CalledProcessError`.

    >>> import sys
    >>> run([sys.executable, "-c", "raise SystemExit(3)"], softcuda=True, check=False).returncode
    3
    """
    words = _options(
        softcuda=softcuda, native=native, gpu=gpu, memory=memory, sm_percent=sm_percent,
        isolate=isolate, priority=priority, group=group, reservation=reservation, weight=weight,
        latency=latency, guard=guard,
    )  # fmt: skip
    line = [str(executable()), "run", *words, "--", *(os.fspath(word) for word in command)]
    return subprocess.run(line, check=check, **options)


def env(base: Mapping[str, str] | None = None, **settings: Any) -> dict[str, str]:
    """An environment in which programs run under OpenMPS, for `subprocess`; starts the daemon if
    there is none. The settings are those of `run`. Without ``base`` it is this process's own.

    >>> variables = env(softcuda=True, memory="1G")
    >>> variables["OPENMPS_MEMORY_LIMIT"]
    '1G'
    """
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    try:
        done = run(
            [sys.executable, "-I", "-S", "-c", script],
            env=None if base is None else dict(base),
            capture_output=True,
            text=True,
            **settings,
        )
    except subprocess.CalledProcessError as error:
        raise _error(error.cmd, error.returncode, error.stderr) from None
    return cast("dict[str, str]", json.loads(done.stdout))


def trace(
    command: Sequence[str | os.PathLike[str]] = (),
    *,
    output: str | os.PathLike[str],
    pid: int | None = None,
    seconds: int | None = None,
    softcuda: bool = False,
    **options: Any,
) -> Path:
    """Records what a program's driver calls, kernels and copies take, or those of a client that
    runs (``pid``, for ``seconds``); returns the file, which ui.perfetto.dev shows."""
    words = _options(output=os.fspath(output), client=pid, seconds=seconds, softcuda=softcuda)
    line = [str(executable()), "trace", *words, *(["--"] if command else [])]
    line.extend(os.fspath(word) for word in command)
    if pid is None:
        subprocess.run(line, check=True, **options)
    else:
        _said(line)
    return Path(output)


def quit() -> None:
    """Ends the daemon when its clients have ended, as ``openmps control quit`` does."""
    _said([str(executable()), "control", "quit"])


def _options(**values: Any) -> list[str]:
    """Settings as words of a command line: what is None or False is left out."""
    words: list[str] = []
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words


def _document(*words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    return cast("dict[str, Any]", json.loads(_said([str(executable()), *words, "--json"])))


def _said(line: list[str]) -> str:
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise _error(line, done.returncode, done.stderr)
    return done.stdout


def _error(line: Sequence[str], returncode: int, stderr: str) -> OpenmpsError:
    message = stderr.strip()
    if message.startswith("openmps: "):
        message = message[len("openmps: ") :]
    kind = NoDaemonError if "Cannot find MPS control daemon" in message else OpenmpsError
    return kind(message or f"{line[0]} ended with {returncode}", line, returncode)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext openmps``"""
    from ._jupyter import register

    register(shell)
