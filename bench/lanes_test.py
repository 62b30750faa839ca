"""`lanes.py` with clients that compute something else: who works, what is said, medians and the table."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import lanes
import peers

BENCH = pathlib.Path(__file__).resolve().parent
PROGRAM = f"""
import sys, time
sys.path.insert(0, {str(BENCH)!r})
import lanes

def make(model, device):
    return lambda: time.sleep(0.001), lambda: None, lambda: model

lanes.client({{model: make for model in sys.argv[2:]}})
"""


class Client(unittest.TestCase):
    def test_it_does_what_it_is_told(self):
        checksums, said = iter(["4", "5"]), io.StringIO()
        make = lambda *_: (lambda: None, lambda: None, lambda: next(checksums))
        with mock.patch("sys.stdin", io.StringIO("m 0.01\nchecksum m\n")), contextlib.redirect_stdout(said):
            lanes.client({"m": make})
        ready, outcome, checksum = said.getvalue().splitlines()
        self.assertEqual(ready, "ready")
        self.assertGreater(json.loads(outcome)["rate"], 0)
        # A result that went wrong under load shows.
        self.assertEqual(json.loads(checksum), ["4", "5"])


class Rounds(unittest.TestCase):
    def test_some_of_the_clients_work(self):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "program.py"
            program.write_text(PROGRAM)
            with peers.Peer("none", None) as peer:
                rows, checksums = lanes.torch_round(peer, program, ["a", "b"], [1, 2], 0.2)
        self.assertEqual(checksums, {"a": ["a"], "b": ["b"]})
        self.assertEqual(list(rows), [("PyTorch a", 1), ("PyTorch a", 2), ("PyTorch b", 1), ("PyTorch b", 2)])
        self.assertTrue(all(row["rate"] > 0 for row in rows.values()), rows)

    def test_a_client_that_hangs_is_ended(self):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "program.py"
            program.write_text("import time; print('ready', flush=True); time.sleep(100)")
            with peers.Peer("none", None) as peer, mock.patch.object(lanes, "LIMIT_S", 1), self.assertRaisesRegex(RuntimeError, "too long"):
                lanes.torch_round(peer, program, ["a"], [1], 0.2)

    def test_medians_are_of_rounds_that_have_the_row(self):
        rounds = [{("lat", 8): {"rate": 1.0}}, {("lat", 8): {"rate": 5.0}, ("lat", 16): {"rate": 7.0}}, {("lat", 8): {"rate": 2.0}}]
        self.assertEqual(lanes.medians(rounds), {("lat", 8): {"rate": 2.0}, ("lat", 16): {"rate": 7.0}})
        self.assertEqual(lanes.medians([{}, {}]), {})


class Table(unittest.TestCase):
    def test_the_second_is_held_against_the_first(self):
        row = lambda rate: {"rate": rate, "p50_ms": 0.01, "p99_ms": 0.02}
        lines = lanes.table({"A=0": {("lat", 8): row(400.0), ("lat", 16): row(10.0)}, "A=4": {("lat", 8): row(600.0)}})
        self.assertEqual(lines[2], "| lat | 8 | 400/s, 0.0100, 0.0200 | 600/s, 0.0100, 0.0200 | 1.50x |")
        self.assertEqual(lines[3], "| lat | 16 | 10/s, 0.0100, 0.0200 | - | - |")


if __name__ == "__main__":
    unittest.main()
