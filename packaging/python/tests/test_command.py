import subprocess
import sys
from pathlib import Path

import openmps
from conftest import WORK


def said(*line):
    return subprocess.run(line, stdin=subprocess.DEVNULL, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_script_runs_in_one_line():
    assert said(sys.executable, "-m", "openmps", "run", "--softcuda", WORK, "2") == "2 kernels on OpenMPS Software GPU\n"


def test_the_command_is_beside_python_with_its_manual_and_completions():
    prefix = Path(sys.prefix)
    assert openmps.executable() == prefix / "bin/openmps"
    assert openmps.library_directory() == prefix / "lib/openmps"
    assert said(openmps.executable(), "--version") == f"openmps {openmps_version()}\n"
    for place in ("man/man1/openmps-run.1.gz", "bash-completion/completions/openmps", "zsh/vendor-completions/_openmps"):
        assert (prefix / "share" / place).stat().st_size > 100, place


def openmps_version():
    from importlib.metadata import version

    return version("openmps")


def test_the_library_is_found_by_both_names():
    script = "import ctypes; print(ctypes.CDLL('libcuda.so').cuInit(0), len({l.split()[-1] for l in open('/proc/self/maps') if 'libcuda.so.1' in l}))"
    assert said(openmps.executable(), "run", "--softcuda", sys.executable, "-c", script) == "0 1\n"


def test_options_without_a_word_are_known():
    import re

    from openmps.__main__ import FLAGS

    for command in ("run", "trace"):
        options = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)(.*)$", said(openmps.executable(), command, "--help"), re.M)
        alone = {name for name, rest in options if not rest.startswith(" <") and rest != ""} | {
            name for name, rest in options if rest == ""
        }
        assert options and alone <= FLAGS, (command, alone)
        assert not FLAGS & ({name for name, _ in options} - alone), command
