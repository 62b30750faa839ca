"""The pure parts of `openmm_clients.py`."""

import unittest

import openmm_clients


def run(rate, part=0.9):
    return {"ns_per_day": rate, "slowest_over_fastest": part, "atoms": 10, "version": "1"}


class Table(unittest.TestCase):
    def test_rate_and_fairness_are_both_promised(self):
        runs = {(8, "nvidia"): [run(100.0)], (8, "openmps"): [run(90.0), run(130.0), run(120.0)], (16, "nvidia"): [run(100.0)], (16, "openmps"): [run(130.0, 0.3)],
                (3, "openmps"): [run(5.0)]}
        lines = openmm_clients.table(openmm_clients.summary(runs))
        self.assertIn("| 8 | openmps | 120 | 0.90 | 1.20x | 1.20x, 0.8 | met |", lines)
        self.assertIn("| 16 | openmps | 130 | 0.30 | 1.30x | 1.25x, 0.8 | missed |", lines)
        self.assertIn("| 3 | openmps | 5 | 0.90 | - | - |  |", lines)


if __name__ == "__main__":
    unittest.main()
