import doctest
import importlib
import json
import subprocess
import sys
import typing

import pytest

import openmps
from conftest import WORK


def test_a_client_is_listed_with_its_kernels_and_its_device(client):
    (found,) = openmps.clients()
    assert (found["pid"], found["kernels"]) == (client.pid, 5)
    (device,) = openmps.devices()
    assert device["name"] == "OpenMPS Software GPU"
    (server,) = openmps.status()["servers"]
    assert server["pid"] == found["server_pid"]


def test_documents_have_the_fields_of_their_types(client):
    for kind, document in (
        (openmps.documents.Client, openmps.clients()[0]),
        (openmps.documents.Gpu, openmps.devices()[0]),
        (openmps.documents.status, openmps.status()),
    ):
        known = kind.__required_keys__ | kind.__optional_keys__
        assert set(document) <= known, kind
        if sys.version_info >= (3, 10):
            typing.get_type_hints(kind)


def test_limits_come_into_force(client):
    change = openmps.limit(pid=client.pid, memory="1G", sm_percent=25)
    assert change["refused"] == []
    (found,) = openmps.clients()
    assert found["active_thread_percentage"] == 25
    assert found["devices"][0]["memory_limit_bytes"] == 1 << 30


def test_what_cannot_be_done_is_an_exception_that_says_why(client):
    with pytest.raises(openmps.OpenmpsError, match="1"):
        openmps.limit(pid=1, memory="1G")
    with pytest.raises(openmps.OpenmpsError, match="invalid value 'much'"):
        openmps.limit(pid=client.pid, memory="much")
    with pytest.raises(TypeError):
        openmps.limit(pid=client.pid)


def test_without_a_daemon_that_is_said():
    for ask in (openmps.clients, openmps.devices, openmps.status):
        with pytest.raises(openmps.NoDaemonError, match="no daemon answers"):
            ask()


def test_run_passes_settings_results_and_statuses_on():
    script = "import sys; sys.path.insert(0, sys.argv[1]); from work import Cuda; print(Cuda().memory_bytes())"
    done = openmps.run(
        [sys.executable, "-c", script, WORK.parent], softcuda=True, memory="512M", capture_output=True, text=True
    )
    assert int(done.stdout) == 512 << 20
    with pytest.raises(subprocess.CalledProcessError) as error:
        openmps.run(["sh", "-c", "exit 7"], softcuda=True)
    assert error.value.returncode == 7


def test_env_is_for_subprocesses():
    base = {"PATH": "/usr/bin:/bin", "MINE": "a b\nc"}
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        base[name] = __import__("os").environ[name]
    variables = openmps.env(base, softcuda=True, sm_percent=50)
    assert variables["MINE"] == "a b\nc"
    assert variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert "HOME" not in variables
    with pytest.raises(openmps.OpenmpsError, match="invalid value"):
        openmps.env(softcuda=True, memory="much")


def test_a_program_and_a_client_are_traced(client, tmp_path):
    file = openmps.trace([sys.executable, WORK, "4"], output=tmp_path / "program.json", stdin=subprocess.DEVNULL)
    kernels = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("name") == "step"]
    assert len(kernels) >= 4
    file = openmps.trace(pid=client.pid, seconds=1, output=tmp_path / "client.json")
    assert json.loads(file.read_text())["traceEvents"] is not None


@pytest.mark.parametrize("name", ["openmps", "openmps.__main__"])
def test_examples_in_the_documentation(name):
    result = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert result.attempted > 0 and result.failed == 0
