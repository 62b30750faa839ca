"""The pure parts of `suites.py`: lists, commands, reports, and what counts as worse."""

import math
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import suites
from suites import Entry, Ran


class Lists(unittest.TestCase):
    def test_four_fields_or_five(self):
        self.assertEqual(suites.entries("# a remark\n\nadd\tsrc/add\t{nvcc} a.cu\t{build}/a 5\nrun\tsrc\t\t./run\n"),
                         [Entry("add", "src/add", "{nvcc} a.cu", "{build}/a 5"), Entry("run", "src", "", "./run")])
        self.assertEqual(suites.entries("add\tsrc\t\t./add\tPASS\n"), [Entry("add", "src", "", "./add", "PASS")])
        for line in ["add src a b", "add\tsrc\t\t", "add\tsrc\t\t./add\tPASS\tmore"]:
            with self.assertRaisesRegex(ValueError, "line 1"):
                suites.entries(line)

    def test_words_are_replaced_and_not_split_again(self):
        self.assertEqual(suites.command_of("{nvcc} -I '{source}/a b' {x}", {"nvcc": "/n v/nvcc", "source": "/s"}),
                         ["/n v/nvcc", "-I", "/s/a b", "{x}"])


class Programs(unittest.TestCase):
    def test_what_is_worse(self):
        ran = lambda seconds, code=0, is_client=True: Ran(code, seconds, is_client, "a\nlast words\n")
        self.assertIsNone(suites.worse(ran(1.0), ran(2.9)))
        # Three times as long, but no second more.
        self.assertIsNone(suites.worse(ran(0.1), ran(1.0)))
        self.assertEqual(suites.worse(ran(1.0), ran(3.5)), "3.5 s, natively 1.0")
        self.assertEqual(suites.worse(ran(1.0), ran(1.0, 1)), "exit 1: last words")
        self.assertEqual(suites.worse(ran(1.0), ran(22.0, None)), "did not end: last words")
        self.assertEqual(suites.worse(ran(1.0), ran(1.0, is_client=False)), "was no client of the server")

    def test_times_may_not_count(self):
        self.assertIsNone(suites.worse(Ran(0, 1.0, True, ""), Ran(0, 90.0, True, ""), math.inf))

    def test_what_is_printed(self):
        plain, says = Entry("a", "", "", "./a"), Entry("a", "", "", "./a", "PASS")
        self.assertFalse(suites.is_wrong(plain, ""))
        self.assertTrue(suites.is_wrong(plain, "a\nFAIL\n"))
        self.assertFalse(suites.is_wrong(says, "a: PASS\n"))
        for output in ["", "BYPASSED", "PASS, then FAIL"]:
            self.assertTrue(suites.is_wrong(says, output))

    def test_of_a_list_that_is_right_everything_counts(self):
        ran = lambda code: Ran(code, 1.0, True, "a\nlast words\n")
        listed = [Entry(name, "", "", "./a") for name in ["right", "unbuilt", "wrong", "late", "later"]]
        found = {"none": {"right": ran(0), "wrong": ran(255), "late": ran(0)}, "openmps": {"right": ran(0)}}
        self.assertEqual(suites.not_right(listed, {"unbuilt": "a.cu\na.cu(1): error: no b\n1 error\n"}, found),
                         ["unbuilt was not built: a.cu(1): error: no b", "wrong, none: exit 255: last words",
                          "late was left out: there was no time", "later was left out: there was no time"])

    def test_what_was_built_is_built_again_for_other_sources_or_commands(self):
        with tempfile.TemporaryDirectory() as directory:
            place = pathlib.Path(directory)
            source = place / "a.cu"
            source.write_text("")
            values, counted = {"source": place, "build": place}, place / "counted"
            entry = Entry("a", "", f"sh -c 'echo >> {counted}'", "./a")
            count = lambda: len(counted.read_text().splitlines())
            for _ in range(2):
                self.assertEqual(suites.build(entry, values, 60), (True, ""))
                self.assertEqual(count(), 1)
            os.utime(source, (1, source.stat().st_mtime + 1))
            self.assertEqual(suites.build(entry, values, 0.5), (False, "there was no time"))
            suites.build(entry, values, 60)
            self.assertEqual(count(), 2)
            suites.build(entry._replace(build=f"sh -c 'echo b >> {counted}'"), values, 60)
            self.assertEqual(count(), 3)

    def test_one_failure_of_several_runs_counts(self):
        runs = [Ran(0, seconds, True, "") for seconds in [3.0, 1.0, 2.0]]
        self.assertEqual(suites.median_of(runs).seconds, 2.0)
        self.assertEqual(suites.median_of(runs + [Ran(1, 9.0, True, "")]).code, 1)

    def test_times_are_of_what_is_right_everywhere(self):
        ran = lambda seconds, code=0: Ran(code, seconds, True, "")
        found = {"none": {"a": ran(1.0), "b": ran(2.0), "c": ran(5.0, 1)}, "openmps": {"a": ran(1.5), "b": ran(2.0, 1)}}
        lines, bad = suites.summary(found, ["none", "openmps"])
        self.assertEqual(lines[2:], ["| none | 3 | 2 | 1 | 1.0 |", "| openmps | 2 | 1 | 1 | 1.5 |"])
        self.assertEqual(bad, ["b, openmps: exit 1: "])


class Tests(unittest.TestCase):
    def test_a_failure_of_the_teardown_counts(self):
        self.assertEqual(suites.outcomes("passed\t0.1\ta.py::x[1-\u00b5]\nfailed\t0.1\ta.py::x[1-\u00b5]\nskipped\t0.0\tb\n"),
                         {"a.py::x[1-\u00b5]": "failed", "b": "skipped"})

    def test_what_took_longer(self):
        native = suites.times("passed\t1.0\ta\npassed\t0.1\tb\nfailed\t0.1\tc\npassed\t2.0\td\n")
        shared = suites.times("passed\t3.5\ta\npassed\t1.0\tb\npassed\t9.0\tc\npassed\t7.0\td\n")
        self.assertEqual(suites.slower(native, shared), ["d: 7.0 s, natively 2.0", "a: 3.5 s, natively 1.0"])


if __name__ == "__main__":
    unittest.main()
