"""Magics for IPython and Jupyter: ``%openmps ps``, and ``%%openmps trace`` for what a cell does."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from typing import Any

from . import OpenmpsError, clients, executable

# Until a recording has been written.
PATIENCE_S = 60.0

NOT_A_CLIENT = (
    "this kernel is no client of OpenMPS, so there is nothing to record. Start Jupyter with "
    "`openmps run -- jupyter lab`, and use CUDA in a cell before this one"
)


def register(shell: Any) -> None:
    shell.register_magic_function(line_magic, "line", "openmps")
    shell.register_magic_function(_cell_magic(shell), "cell", "openmps")


def line_magic(line: str) -> None:
    """``%openmps ps`` and all other commands that end by themselves."""
    done = subprocess.run(
        [str(executable()), *shlex.split(line)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    print(done.stdout + done.stderr, end="")


def _cell_magic(shell: Any) -> Any:
    def cell_magic(line: str, cell: str) -> None:
        """``%%openmps trace [FILE]``: records the cell's driver calls, kernels and copies."""
        words = shlex.split(line)
        if words[:1] != ["trace"] or len(words) > 2:
            print("usage: %%openmps trace [FILE]")
            return
        output = words[1] if len(words) == 2 else "openmps-trace.json"
        try:
            recording = _record(output)
        except OpenmpsError as error:
            print(f"%%openmps: {error}")
            return
        try:
            shell.run_cell(cell)
        finally:
            recording.send_signal(signal.SIGINT)
            said = recording.communicate(timeout=PATIENCE_S)[0]
        if recording.returncode != 0:
            print(said, end="")
            return
        print(f"openmps: {output} has what the cell did: open it in ui.perfetto.dev")

    return cell_magic


def _record(output: str) -> subprocess.Popen[str]:
    """Starts to record this process."""
    pid = os.getpid()
    if all(client["pid"] != pid for client in clients()):
        raise OpenmpsError(NOT_A_CLIENT)
    line = [str(executable()), "trace", f"--client={pid}", f"--output={output}"]
    recording = subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert recording.stdout is not None
    # It says so when it has begun, or why it cannot.
    first = recording.stdout.readline()
    if "Ctrl-C ends that" not in first:
        said = first + recording.communicate(timeout=PATIENCE_S)[0]
        raise OpenmpsError(said.strip(), line, recording.returncode)
    return recording
