"""The pure parts of `equal_clients.py`."""

import unittest

import equal_clients


def one(slots, kernels=20, gap=0.1, processor=0.5):
    return {"slots": slots, "kernels_per_iteration": kernels, "longest_gap_s": gap, "processor_s": processor, "p50_s": 1e-4, "p99_s": 2e-4}


class Summed(unittest.TestCase):
    def test_the_whole_and_the_worst_second(self):
        # In the second second the first client gets half of what the other gets.
        found = equal_clients.summed([one([2] * 10 + [1] * 10), one([2] * 20, gap=0.3)], 2.0, 0.4)
        self.assertEqual(found["kernels_per_second"], 700)
        self.assertEqual(found["slowest_over_fastest"], 0.75)
        self.assertEqual(found["worst_second"], 0.5)
        self.assertAlmostEqual(found["longest_gap_ms"], 300)
        self.assertAlmostEqual(found["processor_us_per_launch"], 1e6 * 1.4 / 1400)
        self.assertAlmostEqual(found["of_that_clients"], 1e6 / 1400)

    def test_nothing_was_done(self):
        found = equal_clients.summed([one([0] * 5), one([0] * 5)], 0.5, 0.0)
        self.assertIsNone(found["slowest_over_fastest"])
        self.assertIsNone(found["processor_us_per_launch"])
        self.assertEqual(len(equal_clients.table([{"workload": "lat", "clients": 2, "peer": "none", **equal_clients.medians([found])}])), 3)

    def test_medians(self):
        runs = [{"a": 1, "not_attached": 0}, {"a": 3, "not_attached": 1}, {"a": None, "not_attached": 0}]
        self.assertEqual(equal_clients.medians(runs), {"a": 2, "not_attached": 1})


if __name__ == "__main__":
    unittest.main()
