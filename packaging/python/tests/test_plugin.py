import os
import subprocess
import sys

import openmps
from conftest import WORK

SUITE = f"""
import sys
sys.path.insert(0, {str(WORK.parent)!r})
import subprocess
from work import Cuda

CUDA = Cuda()  # while the suite is collected

def test_here():
    assert CUDA.device_name() == "OpenMPS Software GPU"
    CUDA.work(3)

def test_in_a_process_of_its_own():
    done = subprocess.run([sys.executable, {str(WORK)!r}], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.stdout == "3 kernels on OpenMPS Software GPU\\n", done
"""


def pytest_says(tmp_path, *options, variables=None):
    (tmp_path / "test_suite.py").write_text(SUITE)
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options, "test_suite.py"]
    done = subprocess.run(
        line, cwd=tmp_path, env={**os.environ, **(variables or {})}, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_a_suite_runs_on_the_software_gpu(tmp_path):
    status, said = pytest_says(tmp_path, "--openmps-softcuda", "-v")
    assert status == 0 and "2 passed" in said, said
    assert "CUDA is the software GPU" in said, said


def test_without_the_option_nothing_changes(tmp_path):
    (tmp_path / "inert").mkdir()
    probe = tmp_path / "inert/test_suite.py"
    probe.write_text("import os, sys\ndef test_it():\n    assert 'libcuda' not in open('/proc/self/maps').read()\n    assert 'openmps' not in sys.modules or True\n    assert 'OPENMPS_NATIVE_DRIVER' not in os.environ\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(probe)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_driver_that_is_there_before_is_refused(tmp_path):
    driver = tmp_path / "libcuda.so.1"
    driver.write_bytes((openmps.library_directory() / "libcuda.so.1").read_bytes())
    (tmp_path / "early.py").write_text(f"import ctypes\nctypes.CDLL({str(driver)!r})\n")
    status, said = pytest_says(tmp_path, "-p", "early", "--openmps-softcuda", variables={"PYTHONPATH": str(tmp_path)})
    assert status == 4 and f"{driver} is loaded already" in said, said
