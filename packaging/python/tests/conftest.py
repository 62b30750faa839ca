"""Each test has directories of its own for the daemon, which ends with the test."""

import subprocess
import sys
from pathlib import Path

import pytest

import openmps

WORK = Path(__file__).with_name("work.py")


@pytest.fixture(autouse=True)
def own_daemon(tmp_path, monkeypatch):
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "mps"))
    (tmp_path / "mps").mkdir()
    yield
    try:
        openmps.quit()
    except openmps.NoDaemonError:
        pass


@pytest.fixture
def client():
    """A client that has run 5 kernels and waits."""
    process = subprocess.Popen(
        [sys.executable, str(WORK), "5"],
        env=openmps.env(softcuda=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "5 kernels on OpenMPS Software GPU\n"
    yield process
    process.communicate(timeout=60)
    assert process.returncode == 0
