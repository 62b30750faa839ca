"""The pure parts of `long_kernels.py`: what counts as beside a kernel, and the table."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import long_kernels


class Beside(unittest.TestCase):
    def test_a_call_that_returned(self):
        self.assertEqual(long_kernels.beside((10.0, 10.25), 20.0), {"s": 0.25, "is_more": False})
        # It waited until the kernel's end, and some time more.
        self.assertEqual(long_kernels.beside((10.0, 21.0), 20.0), {"s": 11.0, "is_more": False})

    def test_a_call_that_did_not(self):
        self.assertEqual(long_kernels.beside((10.0, None), 20.0), {"s": 10.0, "is_more": True})

    def test_a_call_that_came_after_the_kernel(self):
        self.assertIsNone(long_kernels.beside((20.5, 20.6), 20.0))
        self.assertIsNone(long_kernels.beside((None, None), 20.0))


class Window(unittest.TestCase):
    def test_iterations_that_overlap_it_count(self):
        times = [0.0, 1.0, 1.0, 1.5, 1.5, 4.0, 4.0, 4.1]
        self.assertEqual(long_kernels.window(times, 1.2, 3.0), {"iterations": 2, "p50": 2.5, "p999": 2.5, "longest": 2.5})
        self.assertEqual(long_kernels.window(times, 5.0, 6.0), {"iterations": 0, "p50": None, "p999": None, "longest": None})


class Table(unittest.TestCase):
    def test_goals(self):
        value = lambda s, is_more=False: {"s": s, "is_more": is_more}
        self.assertEqual(long_kernels.verdict(value(0.4), 1, 0.5), "met")
        self.assertEqual(long_kernels.verdict(value(0.6), 1, 0.5), "missed")
        self.assertEqual(long_kernels.verdict(value(0.4, True), 1, 0.5), "missed")
        self.assertEqual(long_kernels.verdict(value(0.004), 1e3, 3.0), "missed")
        self.assertEqual(long_kernels.verdict(None, 1, 0.5), "not measured")
        self.assertEqual(long_kernels.verdict(value(9), 1, None), "")

    def test_lines(self):
        found = {"9 s, on 1 SM": {"none": {"start": {"s": 0.234, "is_more": False}}, "openmps": {"start": {"s": 8.3, "is_more": True}}},
                 "endless, on 1 SM": {"none": "left out, there was no time", "openmps": {"infer_p50": {"s": 0.0001234, "is_more": False}}}}
        lines = long_kernels.table(found, ["none", "openmps"])
        self.assertEqual({line.count("|") for line in lines}, {7})
        self.assertEqual(lines[2], "| 9 s, on 1 SM | first result of a program that starts, s | <= 0.5 s | 0.234 | > 8.300 | missed |")
        self.assertIn("no MPS: left out, there was no time", lines[3])
        self.assertIn("| - | - | 0.123 |  |", lines[4])


if __name__ == "__main__":
    unittest.main()
