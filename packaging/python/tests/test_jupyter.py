import json
import os
import subprocess
import sys

import openmps
from conftest import WORK

CELLS = """
get_ipython().run_line_magic("load_ext", "openmps")
import sys
sys.path.insert(0, {directory!r})
from work import Cuda
{before}
get_ipython().run_line_magic("openmps", "--version")
get_ipython().run_cell_magic("openmps", "trace {file}", "cuda = Cuda() if 'cuda' not in globals() else cuda; cuda.work(6)")
"""


def notebook(tmp_path, before, environment):
    cells = CELLS.format(directory=str(WORK.parent), before=before, file=tmp_path / "cell.json")
    script = tmp_path / "cells.ipy"
    script.write_text(cells)
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--quick", str(script)],
        env={**environment, "IPYTHONDIR": str(tmp_path / "ipython")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_cell_is_traced(tmp_path):
    said = notebook(tmp_path, "cuda = Cuda(); cuda.work(1)", openmps.env(softcuda=True))
    assert "cell.json has what the cell did" in said, said
    assert said.startswith("openmps 0."), said
    events = json.loads((tmp_path / "cell.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) >= 6, events


def test_a_kernel_that_is_no_client_is_told_so(tmp_path):
    said = notebook(tmp_path, "", dict(os.environ))
    assert "Cannot find MPS control daemon" in said, said
    said = notebook(tmp_path, "", openmps.env(softcuda=True))
    assert "this kernel is no client of OpenMPS" in said, said
    assert not (tmp_path / "cell.json").exists()
