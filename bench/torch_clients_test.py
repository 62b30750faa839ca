"""What the PyTorch benches share, with clients that compute something else: results that differ are noticed, wherever they do."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import torch_clients

BENCH = pathlib.Path(__file__).resolve().parent
# A bench whose clients' checksums are those that its models are named after, one after the other.
PROGRAM = f"""
import sys, time
sys.path.insert(0, {str(BENCH)!r})
import torch_clients

def make(model, device):
    checksums = iter(model.split("-"))
    return lambda: time.sleep(0.001), lambda: None, lambda: next(checksums)

sys.exit(torch_clients.main(__file__, "", ["4-4"], make))
"""


def row(model, processes, *checksums):
    return {"model": model, "processes": processes, "peer": "openmps", "checksums": list(checksums)}


class Client(unittest.TestCase):
    def test_a_result_that_changed_under_load_shows(self):
        for computed, expected in [(["4", "4"], ["4"]), (["4", "5"], ["4", "5"])]:
            checksums, said = iter(computed), io.StringIO()
            with mock.patch("sys.stdin", io.StringIO("go\n")), contextlib.redirect_stdout(said):
                torch_clients.client(lambda: None, lambda: None, lambda: next(checksums), 0.01)
            ready, outcome = said.getvalue().splitlines()
            self.assertEqual((ready, json.loads(outcome)["checksums"]), ("ready", expected))


class Bench(unittest.TestCase):
    def run_models(self, models):
        with tempfile.TemporaryDirectory() as directory:
            program, report = pathlib.Path(directory) / "program.py", pathlib.Path(directory) / "report.json"
            program.write_text(PROGRAM)
            command = [sys.executable, program, "--peers", "none", "--processes", "2", "--models", models, "--seconds", "0.05",
                       "--repeat", "1", "--json", report]
            done = subprocess.run(command, text=True, capture_output=True, timeout=300, check=False)
            return done, json.loads(report.read_text())

    def test_results_that_agree(self):
        done, rows = self.run_models("4-4,5-5")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([row["checksums"] for row in rows], [["4"], ["5"]])
        self.assertGreater(rows[0]["per_second"], 0)

    def test_results_that_do_not(self):
        done, rows = self.run_models("4-5")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(rows[0]["checksums"], ["4", "5"])
        self.assertIn("the checksums of 4-5 differ: none with 2 had 4 and 5", done.stderr)


class Differing(unittest.TestCase):
    def test_models_are_compared_with_themselves(self):
        self.assertEqual(torch_clients.differing([row("a", 1, "4"), row("a", 8, "4"), row("b", 1, "5")]), [])
        self.assertEqual(torch_clients.differing([row("a", 1, "4"), row("b", 1, "5"), row("a", 8, "6")]),
                         ["the checksums of a differ: openmps with 1 had 4, openmps with 8 had 6"])


if __name__ == "__main__":
    unittest.main()
