"""The checked-in pictures are what the scripts make of the checked-in data, and can be read: they
are XML, and no text leaves the picture or lies on another, whatever was measured."""

import copy
import gzip
import itertools
import json
import pathlib
import re
import tempfile
import unittest
from xml.etree import ElementTree

import plots
import svg
import trace_picture

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
TAG = "{http://www.w3.org/2000/svg}"
# Parts of the size above and below the base line.
ABOVE, BELOW = 0.73, 0.22
STREAM = trace_picture.STREAMS
# Those that `cargo test -p openmps top` makes, and holds against their data.
OF_OTHERS = {"top.svg"}


def boxes(picture):
    """Where each text of a picture lies at most: left, top, right, bottom, text."""
    found = []
    for one in ElementTree.fromstring(picture).iter(f"{TAG}text"):
        size, x, y = (float(one.get(name)) for name in ["font-size", "x", "y"])
        width = svg.text_width(one.text, size, "bold" in one.get("class").split())
        left = x - {"start": 0, "middle": width / 2, "end": width}[one.get("text-anchor")]
        found.append((left, y - ABOVE * size, left + width, y + BELOW * size, one.text))
    return found


def faults(picture):
    """What is wrong with the texts of a picture."""
    root = ElementTree.fromstring(picture)
    width, height = float(root.get("width")), float(root.get("height"))
    found = [f"{box[4]!r} leaves the picture" for box in boxes(picture)
             if box[0] < 0 or box[1] < 0 or box[2] > width or box[3] > height]
    for one, other in itertools.combinations(boxes(picture), 2):
        if min(one[2], other[2]) > max(one[0], other[0]) \
                and min(one[3], other[3]) > max(one[1], other[1]):
            found.append(f"{one[4]!r} lies on {other[4]!r}")
    return found


def slice_of(name, category, ts, dur, tid=8, **args):
    return {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur,
            "args": args}


def trace_of(*slices, command="/home/somebody/program"):
    named = {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": command}}
    track = {"ph": "M", "name": "thread_name", "pid": 7, "tid": STREAM + 1,
             "args": {"name": "GPU 0 NVIDIA X: stream 1"}}
    return {"traceEvents": [named, track, *slices], "otherData": {"lost_records": "3"}}


class CheckedIn(unittest.TestCase):
    def made(self):
        """Every picture that there should be, by name."""
        data = plots.read(plots.DATA)
        made = {name: draw(data) for name, draw in plots.PLOTS.items()}
        return {**made, trace_picture.PICTURE.name: trace_picture.example()}

    def test_pictures_are_what_the_scripts_make_of_the_data(self):
        made = self.made()
        self.assertEqual({path.name for path in plots.PICTURES.iterdir()}, set(made) | OF_OTHERS)
        for name, picture in made.items():
            # Not assertEqual: nobody wants to read the difference.
            self.assertTrue((plots.PICTURES / name).read_text() == picture,
                            f"docs/pictures/{name} is not made of docs/data: run bench/plots.py "
                            "and bench/trace_picture.py, and look at it")

    def test_texts_can_be_read(self):
        for name, picture in self.made().items():
            self.assertGreater(len(boxes(picture)), 10, name)
            self.assertEqual(faults(picture), [], name)

    def test_each_is_on_a_page_and_described(self):
        shown = {pathlib.Path(target).name: told for page in PAGES for told, target
                 in re.findall(r"!\[([^\]]*)\]\(([^)]*\.svg)\)", page.read_text())}
        for path in plots.PICTURES.iterdir():
            self.assertGreater(len(shown.get(path.name, "")), 20, f"{path.name}: no description")

    def test_the_data_name_no_folders(self):
        trace = trace_picture.Trace(trace_picture.read(trace_picture.TRACE))
        self.assertEqual([name for name in trace.commands.values() if "/" in name], [])


class Plots(unittest.TestCase):
    def setUp(self):
        self.data = copy.deepcopy(plots.read(plots.DATA))
        self.table = self.data["table.json"]

    def drawn(self):
        return {name: draw(self.data) for name, draw in plots.PLOTS.items()}

    def scale(self, factor):
        """Makes everything of OpenMPS so much as it was."""
        for row in self.table["rows"]:
            row["values"]["openmps"] = (row["values"].get("openmps") or 1) * factor
        for cell in self.table["workloads"]:
            cell["kernels_per_second"] *= factor
        for row in self.table["pytorch"]:
            row["per_second"] *= factor if row["peer"] == "openmps" else 1

    def assert_readable(self):
        for name, picture in self.drawn().items():
            self.assertEqual(faults(picture), [], name)

    def test_what_was_not_measured_is_left_out(self):
        del self.data["beside.json"], self.table["pytorch"]
        self.assert_readable()
        self.assertNotIn("MPI", self.drawn()["beside-nvidia-mps.svg"])
        self.table["workloads"] = [cell for cell in self.table["workloads"]
                                   if cell["peer"] != "nvidia"]
        for row in self.table["rows"]:
            row["values"].pop("nvidia", None)
        self.assert_readable()
        del self.table["workloads"]
        self.table["rows"] = []
        self.assert_readable()

    def test_native_programs_have_bars_where_they_were_measured(self):
        self.table["pytorch"] += [dict(row, peer="none") for row in self.table["pytorch"]
                                  if row["peer"] == "nvidia"]
        self.assertIn(">native<", self.drawn()["pytorch.svg"])
        self.assert_readable()

    def test_extremes_have_room(self):
        for factor in [1e-3, 1e4]:
            self.scale(factor)
            self.assert_readable()

    def test_rows_that_failed_are_left_out(self):
        for row in self.table["rows"]:
            row["values"] = dict.fromkeys(row["values"])
        for row in self.table["pytorch"]:
            row["per_second"] = row["p99_ms"] = None
        self.assert_readable()

    def test_less_time_is_as_good_as_a_higher_rate(self):
        values = {"openmps": 2, "nvidia": 5}
        self.table["rows"] = [
            {"name": "client start, so", "values": values, "values_unit": "ms"},
            {"name": "`lat`, 8 clients, so", "values": values, "values_unit": "k/s"}]
        self.table["pytorch"] = []
        rows = plots.summary_rows({"table.json": self.table})
        self.assertEqual([round(row[1], 2) for row in rows], [2.5, 0.4])

    def test_scales_begin_at_zero_and_hold_the_largest(self):
        self.assertEqual(svg.ticks(5.85), [0, 2, 4, 6])
        self.assertEqual(svg.ticks(1e-3)[0], 0)
        for largest in [0.07, 1, 99, 100, 101, 12345]:
            self.assertGreaterEqual(svg.ticks(largest)[-1] * (1 + 1e-9), largest)

    def test_labels_that_meet_are_moved_apart(self):
        moved = plots.spread([100, 101, 40], 30, 0, 110)
        self.assertEqual(moved, [80, 110, 40])


class Traces(unittest.TestCase):
    def drawn(self, told, **how):
        picture = trace_picture.draw(trace_picture.Trace(told), **how)
        self.assertEqual(faults(picture), [])
        return picture

    def test_calls_kernels_and_ranges_have_rows(self):
        picture = self.drawn(trace_of(
            slice_of("step", "nvtx", 100, 900), slice_of("cuLaunchKernel", "driver", 100, 50),
            slice_of("k<&>", "kernel", 300, 700, STREAM + 1, grid="1x2x3", queued_us=200)))
        shown = [box[4] for box in boxes(picture)]
        for told in ["NVTX ranges", "driver calls", "stream 1", "program, process 7", "k<&>",
                     "GPU 0 NVIDIA X; 3 records lost"]:
            self.assertIn(told, shown)
        self.assertIn("k&lt;&amp;&gt;: 700 us, grid 1x2x3", picture)
        self.assertNotIn("somebody", picture)

    def test_a_part_holds_what_lies_in_it(self):
        told = trace_of(*(slice_of(f"kernel_{index}", "kernel", index * 100, 90, STREAM + 1)
                          for index in range(10)))
        picture = self.drawn(told, from_us=250, for_us=200)
        shown = set(re.findall(r"kernel_\d", picture))
        self.assertEqual(shown, {"kernel_2", "kernel_3", "kernel_4"})
        with self.assertRaises(SystemExit):
            self.drawn(told, from_us=5000)

    def test_many_kernels_and_calls_stay_a_small_picture(self):
        calls = [slice_of("cuLaunchKernel", "driver", index, 0.9) for index in range(20_000)]
        kernels = [slice_of(f"kernel_with_a_long_name_{index % 50}", "kernel", index, 1, STREAM + 1)
                   for index in range(20_000)]
        self.assertLess(len(self.drawn(trace_of(*calls, *kernels))), 1_000_000)

    def test_an_empty_trace_is_refused(self):
        with self.assertRaises(SystemExit):
            self.drawn(trace_of())

    def test_compressed_files_are_read_and_folders_taken_out(self):
        told = trace_of(slice_of("cuInit", "driver", 1, 2))
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "run.json.gz"
            path.write_bytes(gzip.compress(json.dumps(told).encode()))
            plain = trace_picture.plain(trace_picture.read(path))
        self.assertNotIn("somebody", plain)
        self.assertEqual(json.loads(plain)["traceEvents"][2], told["traceEvents"][2])


if __name__ == "__main__":
    unittest.main()
