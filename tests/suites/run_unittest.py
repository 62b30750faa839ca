"""Runs one module of unittest tests: `run_unittest.py MODULE`.

Appends a line `OUTCOME<TAB>TEST` to the file OPENMPS_SUITE_REPORT as each test ends, so that what ran before a crash is
known; OUTCOME is `passed`, `failed` or `skipped`, as in openmps_pytest_report.py. The tests named in OPENMPS_SUITE_EXCLUDED are not run.
"""

import os
import sys
import unittest


class Reporter(unittest.TextTestResult):
    """Writes each outcome once, subtests included in their test."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "passed"

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.outcome = "failed"

    def addError(self, test, err):
        super().addError(test, err)
        if hasattr(test, "_testMethodName"):
            self.outcome = "failed"
        else:
            # A class or module that could not be set up: none of its tests starts.
            report("failed", str(test))

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = "failed"

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome = "failed"

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.outcome = "skipped"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skipped"

    def stopTest(self, test):
        super().stopTest(test)
        report(self.outcome, name(test))


def name(test):
    return f"{type(test).__qualname__}::{test._testMethodName}"


def tests_of(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


def report(outcome, test):
    with open(os.environ["OPENMPS_SUITE_REPORT"], "a", encoding="utf-8") as file:
        file.write(f"{outcome}\t{test}\n")


def main():
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    excluded = os.environ.get("OPENMPS_SUITE_EXCLUDED", "").split()
    wanted = unittest.TestSuite(
        test
        for test in tests_of(suite)
        if not hasattr(test, "_testMethodName") or name(test) not in excluded
    )
    unittest.TextTestRunner(resultclass=Reporter, verbosity=2).run(wanted)


# Tests that spawn processes import this file in them.
if __name__ == "__main__":
    main()
