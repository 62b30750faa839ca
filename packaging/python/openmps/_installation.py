"""Where the command and the libraries of this package are."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path


def executable() -> Path:
    """The `openmps` command that came with this package; one on the PATH where none did."""
    for file in importlib.metadata.files("openmps") or ():
        if file.name == "openmps" and file.parent.name == "bin":
            found = Path(os.path.normpath(file.locate()))
            if found.exists():
                return found
    found_on_path = shutil.which("openmps")
    if found_on_path is None:
        raise FileNotFoundError("the openmps command is missing: install the package again")
    return Path(found_on_path)


def library_directory() -> Path:
    """Where libcuda.so.1 of OpenMPS is, which programs under it find first."""
    return executable().parent.parent / "lib" / "openmps"
