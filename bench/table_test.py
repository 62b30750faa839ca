"""The table of promises over made-up measurements: what fails is said, and is measured again; what is printed is what was measured."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import table_measurements
import table_rows
from table_measurements import Failed, Measurement, State

BENCH = pathlib.Path(__file__).resolve().parent
# Stands where the executable does. Workloads that the file `wrong` beside it names write their report, and fail.
EXECUTABLE = """#!{python}
import json, pathlib, sys
given = dict(zip(sys.argv[1:], sys.argv[2:]))
cell = dict(kernels_per_second=1000.0, iteration_p50_ns=3000, iteration_p99_ns=4000, iteration_p999_ns=5000, free_bytes=0)
cells = [dict(cell, peer="none"), dict(cell, peer="openmps", kernels_per_second=1500.0)]
rows = [dict(clients=int(clients), cells=cells) for clients in given["--clients"].split(",")]
pathlib.Path(given["--json"]).write_text(json.dumps(dict(rows=rows, calls=[])))
wrong = pathlib.Path(__file__).parent / "wrong"
if wrong.exists() and given["--workload"] in wrong.read_text().split():
    sys.exit("a result was wrong")
"""


def torch_row(model, processes, peer, per_second, checksums=("1.5",), p99_ms=2.0):
    return {"model": model, "processes": processes, "peer": peer, "per_second": per_second, "p50_ms": 1.0, "p99_ms": p99_ms,
            "memory_mib": 100, "checksums": list(checksums)}


def lines(results):
    return [row.line() for row in table_rows.promises(results, False, (8, 8))]


class WithExecutable(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dist = pathlib.Path(directory.name)
        self.executable = self.dist / "bin/openmps"
        self.executable.parent.mkdir()
        self.does(EXECUTABLE.replace("{python}", sys.executable))

    def does(self, script):
        self.executable.write_text(script)
        self.executable.chmod(0o755)


class Measuring(WithExecutable):
    def measured(self):
        one = Measurement("kernels", "lat", "--workload", "lat", "--clients", 1)
        return table_measurements.measure(one, argparse.Namespace(dist=self.dist, softcuda=True))

    def test_a_report_counts(self):
        self.assertEqual(self.measured()["rows"][0]["clients"], 1)

    def test_a_report_of_a_command_that_failed_does_not_count(self):
        (self.dist / "bin/wrong").write_text("lat")
        with self.assertRaisesRegex(Failed, "exit code 1: a result was wrong"):
            self.measured()

    def test_a_command_must_report(self):
        self.does("#!/bin/sh\n")
        with self.assertRaisesRegex(Failed, "no report"):
            self.measured()

    def test_what_takes_too_long_is_ended_with_all_that_it_started(self):
        noted = self.dist / "pid"
        self.does(f"#!/bin/sh\nsleep 1000 &\necho $! > {noted}.new; mv {noted}.new {noted}\nwait\n")
        with mock.patch.multiple(table_measurements, LIMIT_S=1, END_LIMIT_S=1), self.assertRaisesRegex(Failed, "longer than 1 s"):
            self.measured()
        limit = time.monotonic() + 60
        while noted.exists() and is_running(int(noted.read_text())):
            self.assertLess(time.monotonic(), limit)
            time.sleep(0.01)


def is_running(pid):
    try:
        return "sleep" in pathlib.Path(f"/proc/{pid}/comm").read_text() and ") Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


class Script(WithExecutable):
    def table(self, *more):
        command = [sys.executable, BENCH / "table.py", "--softcuda", "--quick", "--part", "kernels", "--dist", self.dist,
                   "--state", self.dist / "state.json", "--json", self.dist / "table.json", *more]
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300, check=False)

    def verdict(self, name):
        rows = json.loads((self.dist / "table.json").read_text())["rows"]
        return next(row for row in rows if row["name"].startswith(name))

    def test_what_failed_is_said_and_measured_again(self):
        (self.dist / "commit").write_text("v1-2-gabc\n")
        (self.dist / "bin/wrong").write_text("infer")
        first = self.table()
        self.assertEqual(first.returncode, 1, first.stderr)
        self.assertIn("kernels, infer: failed: exit code 1: a result was wrong", first.stderr)
        self.assertIn("1 measurements are left, 1 of them failed", first.stderr)
        self.assertIn("| `infer`, 1 client, rate beside native | 1.15x or more | failed | |", first.stdout)
        self.assertEqual(self.verdict("`infer`, 1 client")["verdict"], "failed")
        self.assertIn("commit v1-2-gabc", first.stdout)
        (self.dist / "bin/wrong").unlink()
        again = self.table("--resume")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual([line.split(":")[0] for line in again.stderr.splitlines()], ["kernels, infer"])
        self.assertIn("| `infer`, 1 client, rate beside native | 1.15x or more | 1.50x (1.5 k/s, native 1) | met |", again.stdout)
        found = self.verdict("`infer`, 1 client")
        self.assertEqual((found["goal"], found["measured"], found["verdict"]), (1.15, 1.5, "met"))
        self.assertAlmostEqual(found["ratio"], 1.5 / 1.15)
        self.assertEqual(found["values"], {"openmps": 1.5, "none": 1.0})
        medians = json.loads((self.dist / "table.json").read_text())["workloads"]
        self.assertIn({"workload": "infer", "clients": 1, "peer": "openmps", "kernels_per_second": 1500.0, "iteration_p50_ns": 3000,
                       "iteration_p99_ns": 4000, "iteration_p999_ns": 5000}, medians)

    def test_what_is_no_state_is_refused(self):
        (self.dist / "state.json").write_text('{"infer": {"rows": []}}')
        done = self.table("--resume")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot go on with", done.stderr)


class Rows(unittest.TestCase):
    def test_medians_are_those_of_all_runs(self):
        found = {f"resnet18, 16 processes, run {run}": [torch_row("resnet18", 16, "openmps", rate)]
                 for run, rate in [(1, 10.0), (2, 30.0), (3, 20.0)]}
        results = table_rows.Results(found)
        self.assertEqual(results.torch("resnet18", 16, "openmps", "per_second"), 20.0)
        self.assertIn("| resnet18 | 16 | openmps | 20 | 1.00 | 2.00 | 100 | 1.5 |", table_rows.medians(results))

    def test_more_requests_and_less_time_are_better(self):
        rows = [torch_row("resnet18", 8, "nvidia", 100.0, p99_ms=3.0), torch_row("resnet18", 8, "openmps", 120.0, p99_ms=2.0)]
        told = lines(table_rows.Results({"resnet18, 8 processes": rows}))
        start = "| PyTorch, resnet18, 8 processes, "
        self.assertIn(f"{start}requests per second beside NVIDIA's MPS | 1.10x or more | 1.20x (120 /s, NVIDIA's MPS 100) | met |", told)
        self.assertIn(f"{start}p99 beside NVIDIA's MPS | 1.10x or more | 1.50x (2 ms, NVIDIA's MPS 3) | met |", told)

    def test_eight_processors_have_goals_or_none(self):
        cells = [{"peer": "nvidia", "kernels_per_second": 1e6}, {"peer": "openmps", "kernels_per_second": 9e5}]
        told = lines(table_rows.Results({f"{workload} on 8 cores": {"rows": [{"clients": 8, "cells": cells}]} for workload in ["lat", "infer"]}))
        self.assertIn("| `lat`, 8 clients on 8 cores, rate beside NVIDIA's MPS | 0.90x or more | 0.90x (900 k/s, NVIDIA's MPS 1000) | met |", told)
        self.assertIn("| `infer`, 8 clients on 8 cores, rate beside NVIDIA's MPS | - | 0.90x (900 k/s, NVIDIA's MPS 1000) |  |", told)

    def test_as_many_processes_as_were_measured_have_rows(self):
        rows = [torch_row("training", 32, "nvidia", 100.0), torch_row("training", 32, "openmps", 99.0)]
        told = lines(table_rows.Results({"training, 32 processes, run 1": rows}))
        self.assertIn("| PyTorch, training, 32 processes, requests per second beside NVIDIA's MPS | 1.00x or more | 0.99x (99 /s, NVIDIA's MPS 100) | missed |", told)

    def test_equal_clients_and_ranks(self):
        equal = [{"workload": "lat", "clients": 8, "peer": peer, "kernels_per_second": 1.0, "p50_us": 9.0, "p99_us": 19.0, "slowest_over_fastest": part,
                  "longest_gap_ms": 2.0, "processor_us_per_launch": cost} for peer, part, cost in [("nvidia", 0.97, 10.0), ("openmps", 0.75, 8.0)]]
        ranks = [{"side": 512, "ranks": 4, "halo": "device", "peer": peer, "us_per_step": took} for peer, took in [("nvidia", 70.0), ("openmps", 63.0)]]
        results = table_rows.Results({"lat, 8 equal": {"equal": equal}, "jacobi, 4 ranks": {"mpi": ranks}})
        told = lines(results)
        self.assertIn("| `lat`, 8 clients, the slowest's work over the fastest's | 0.80 or more | 0.75 (NVIDIA's MPS 0.97) | missed |", told)
        self.assertIn("| `lat`, 8 clients, processor time of a launch, client and server, beside NVIDIA's MPS | 1.00x or less | 0.80x (8 us, NVIDIA's MPS 10) | met |", told)
        self.assertIn("| MPI, jacobi, 4 ranks, halos between device buffers, time beside NVIDIA's MPS | 1.00x or less | 0.90x (63 us, NVIDIA's MPS 70) | met |", told)
        all_of_them = table_rows.medians(results)
        self.assertIn("| lat | 8 | openmps | 1 | 9.0, 19.0 | 0.75 | - | 2.0 | 8.00 | - |", all_of_them)
        self.assertIn("| jacobi | 4 | openmps | device | 512 | 63.00 |", all_of_them)

    def test_a_run_that_failed_fails_its_rows(self):
        rows = [torch_row("resnet18", 8, "nvidia", 100.0), torch_row("resnet18", 8, "openmps", 120.0)]
        results = table_rows.Results({"resnet18, 8 processes, run 1": rows}, ["resnet18, 8 processes, run 2"])
        failed = [row.name for row in table_rows.promises(results, False, (8, 8)) if row.verdict() == "failed"]
        self.assertEqual(len(failed), 2, failed)


class Plan(unittest.TestCase):
    def names(self, **given):
        options = argparse.Namespace(quick=False, softcuda=False, repeat=None, duration_ms=None, processes=None, torch_seconds=3.0,
                                     target=pathlib.Path("target"))
        vars(options).update(given)
        return [one.name for one in table_measurements.measurements(options)]

    def test_each_load_of_pytorch_is_a_measurement_or_several(self):
        names = [name for name in self.names() if name.startswith("training")]
        self.assertEqual(names, ["training, 1 process", "training, 4 processes", "training, 8 processes", "training, 16 processes, run 1",
                                 "training, 16 processes, run 2", "training, 16 processes, run 3"])
        self.assertEqual([name for name in self.names(processes=[8]) if "process" in name],
                         ["resnet18, 8 processes", "transformer, 8 processes", "training, 8 processes"])

    def test_names_are_used_once(self):
        for given in [{}, {"quick": True}, {"softcuda": True}]:
            names = self.names(**given)
            self.assertEqual(len(names), len(set(names)))


class Kept(unittest.TestCase):
    def test_a_part_is_forgotten_and_others_stay(self):
        with tempfile.TemporaryDirectory() as directory:
            state = State(pathlib.Path(directory) / "new/state.json")
            state.keep(Measurement("calls", "post"), {"calls": []})
            state.keep(Measurement("torch", "training, 1 process"), [])
            state = State.kept(state.path)
            state.forget("torch")
            self.assertTrue(state.has(Measurement("calls", "post")))
            self.assertEqual(state.by_name(), {"post": {"calls": []}})


if __name__ == "__main__":
    unittest.main()
