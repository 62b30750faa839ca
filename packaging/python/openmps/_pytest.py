"""A plugin for pytest: ``--openmps-softcuda`` runs a suite on the software GPU.

It does nothing unless that option is given.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

# What programs of Python look for a driver by, beside the name libcuda.so.1.
_NAMES_OF_OTHERS = ("NUMBA_CUDA_DRIVER",)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("openmps")
    group.addoption(
        "--openmps-softcuda",
        action="store_true",
        help="run CUDA on the software GPU of OpenMPS, in this process and in those that it starts",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before any of the suite's files is imported."""
    if early_config.known_args_namespace.openmps_softcuda:
        become_softcuda()


def pytest_report_header(config: pytest.Config) -> list[str]:
    if not config.getoption("openmps_softcuda"):
        return []
    return [f"openmps: CUDA is the software GPU ({os.environ['OPENMPS_NATIVE_DRIVER']})"]


def become_softcuda() -> None:
    """Makes the library of OpenMPS this process's libcuda.so.1: one that is loaded under that name
    is what all later uses of the name find."""
    import openmps

    library = openmps.library_directory() / "libcuda.so.1"
    others = _loaded_drivers() - {library.resolve()}
    if others:
        raise pytest.UsageError(
            f"--openmps-softcuda: {min(others)} is loaded already: a plugin or sitecustomize imports "
            "CUDA before the suite does. Leave it out (-p no:NAME), or start pytest with "
            "`openmps run --softcuda -- pytest`"
        )
    os.environ.update(openmps.env(softcuda=True, native=True))
    for name in _NAMES_OF_OTHERS:
        os.environ[name] = str(library)
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise pytest.UsageError(f"--openmps-softcuda: {error}") from None


def _loaded_drivers() -> set[Path]:
    """The driver libraries that this process has."""
    found: set[Path] = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields: list[Any] = line.split(maxsplit=5)
            if len(fields) == 6 and os.path.basename(fields[5].strip()).startswith("libcuda.so"):
                found.add(Path(fields[5].strip()).resolve())
    return found
