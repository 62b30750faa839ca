"""A pytest plugin: `-p openmps_pytest_report`.

Appends a line `OUTCOME<TAB>TEST` to the file OPENMPS_SUITE_REPORT as each test ends, so that what ran before a crash is
known; OUTCOME is `passed`, `failed` or `skipped`. TEST is `CLASS::FUNCTION` or `FUNCTION`: the cases of a parametrised function
have one name, and CuPy's parametrised classes the name of their source. The tests named in OPENMPS_SUITE_EXCLUDED are not run.
"""

import os


def pytest_runtest_logreport(report):
    if report.when == "call":
        outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome
    elif report.outcome == "passed":
        return
    else:
        outcome = report.outcome
    with open(os.environ["OPENMPS_SUITE_REPORT"], "a", encoding="utf-8") as file:
        file.write(f"{outcome}\t{name(report.nodeid)}\n")


def name(nodeid):
    names = nodeid.split("[", 1)[0].split("::")[1:]
    if len(names) > 1:
        names[0] = names[0].split("_param_", 1)[0]
    return "::".join(names)


def pytest_collection_modifyitems(config, items):
    excluded = os.environ.get("OPENMPS_SUITE_EXCLUDED", "").split()
    left_out = [item for item in items if name(item.nodeid) in excluded]
    if left_out:
        items[:] = [item for item in items if name(item.nodeid) not in excluded]
        config.hook.pytest_deselected(items=left_out)


def pytest_collectreport(report):
    if report.failed:
        with open(os.environ["OPENMPS_SUITE_REPORT"], "a", encoding="utf-8") as file:
            file.write(f"failed\t{report.nodeid or 'module'}\n")
