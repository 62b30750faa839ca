"""A pytest plugin: `-p each_test`. Appends a line `OUTCOME<TAB>SECONDS<TAB>TEST` to the file EACH_TEST_REPORT as each test ends, so that what ran before an end by force is known."""

import os


def pytest_runtest_logreport(report):
    is_told = report.when == "call" or report.outcome != "passed"
    # With several processes their reports come to the first as well, which has no worker's name.
    if is_told and "PYTEST_XDIST_WORKER" not in os.environ:
        outcome = "skipped" if hasattr(report, "wasxfail") else report.outcome
        with open(os.environ["EACH_TEST_REPORT"], "a", encoding="utf-8") as file:
            file.write(f"{outcome}\t{report.duration:.3f}\t{report.nodeid}\n")
