#!/usr/bin/env python3
"""Draws a trace of `openmps trace` as a picture: a row for each thread's driver calls, and one for
each stream's kernels and copies, over time.

    openmps trace -o run.json -- ./program
    python3 bench/trace_picture.py run.json -o run.svg
    python3 bench/trace_picture.py run.json -o run.svg --from-us 1500 --for-us 800
    python3 bench/trace_picture.py --plain run.json -o shared.json   # without folders, for others

Without arguments it draws `docs/data/trace.json`, the example of the documents. Times begin with
the part that is drawn, which is the work of devices from the first call for it on, unless options
say otherwise. For more than a few processes, open the trace at ui.perfetto.dev.
"""

import argparse
import gzip
import json
import pathlib

from svg import CAPTION_LINE, MARGIN, SMALL, Picture, fitted, text_width, ticks, wrapped

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRACE, PICTURE = ROOT / "docs/data/trace.json", ROOT / "docs/pictures/trace.svg"
# Pixels: of the picture, of a row, left of the rows, and between processes.
WIDTH, ROW, LEFT, GAP = 920, 22, 128, 6
# Tracks from here on are streams', as the writer of traces numbers them.
STREAMS = 1 << 28
KERNEL_COLOURS = ["openmps", "nvidia", "green", "purple"]
COLOURS = {"copy": "yellow", "fill": "yellow", "graph": "sky", "driver": "call", "nvtx": "none"}
# Of texts on these colours; those on others have the paper's.
ON = {"call": "ink", "yellow": "dark", "sky": "dark"}
# So much of the time before the first work of a device is shown, and after the last.
EDGE = 0.04
# What is shorter than this is drawn as wide.
LEAST_PX = 0.7


def row_of(one):
    """The row of a slice in its process."""
    return one["tid"], one["cat"] == "nvtx"


class Trace:
    """A trace file's processes, tracks and slices."""

    def __init__(self, told):
        events = told["traceEvents"]
        self.slices = sorted((event for event in events if event["ph"] == "X"),
                             key=lambda event: (event["ts"], event["dur"], event["tid"]))
        names = {(event["name"], event["pid"], event["tid"]): event["args"].get("name")
                 for event in events if event["ph"] == "M"}
        self.commands = {pid: name for (what, pid, _), name in names.items()
                         if what == "process_name"}
        self.tracks = {(pid, tid): name for (what, pid, tid), name in names.items()
                       if what == "thread_name"}
        self.lost = int(told.get("otherData", {}).get("lost_records", 0))

    def work(self):
        """Slices of devices."""
        return [one for one in self.slices if one["tid"] >= STREAMS and one["cat"] != "nvtx"]

    def rows(self, pid):
        """The tracks of a process that have slices: threads first, then streams in their order.
        The calls of a thread and its NVTX ranges, which hold calls, are apart: the second of each
        pair says whether a row is of ranges."""
        return sorted({row_of(one) for one in self.slices if one["pid"] == pid},
                      key=lambda row: (row[0], not row[1]))

    def title(self, pid, row, devices):
        """What stands before a row."""
        tid, is_of_ranges = row
        if is_of_ranges:
            return "NVTX ranges"
        if tid < STREAMS:
            return self.tracks.get((pid, tid), "driver calls")
        device, _, stream = self.tracks.get((pid, tid), "stream").rpartition(": ")
        return f"{' '.join(device.split()[:2])}: {stream}" if devices > 1 else stream

    def devices(self):
        """Names of the devices, in the order of the tracks."""
        names = [name.rpartition(": ")[0] for (_, tid), name in sorted(self.tracks.items())
                 if tid >= STREAMS and name.startswith("GPU ")]
        return list(dict.fromkeys(names))


def part(trace, from_us, for_us):
    """The beginning and the length of what is drawn, in microseconds."""
    work = trace.work() or trace.slices
    if not work:
        raise SystemExit("the trace has neither calls nor work of a device")
    # From the call that asked for the first work on.
    first = min(one["ts"] - one.get("args", {}).get("queued_us", 0) for one in work)
    last = max(one["ts"] + one["dur"] for one in work)
    edge = (last - first) * EDGE
    begin = max(first - edge, 0) if from_us is None else from_us
    length = (last + edge - begin) if for_us is None else for_us
    if length <= 0:
        raise SystemExit(f"nothing lies behind {begin:g} us of the trace")
    return begin, length


def kernel_colours(slices):
    """A colour for each kernel's name, by the time that they take; the last is shared."""
    times_us = {}
    for one in slices:
        if one["cat"] == "kernel":
            times_us[one["name"]] = times_us.get(one["name"], 0) + one["dur"]
    order = sorted(times_us, key=lambda name: (-times_us[name], name))
    return {name: KERNEL_COLOURS[min(place, len(KERNEL_COLOURS) - 1)]
            for place, name in enumerate(order)}


def legend(picture, y, entries):
    """Colours and what has them, from the left, as many as there is room for."""
    x = MARGIN
    for name, colour in entries:
        name = fitted(name, 200, 12)
        width = 17 + text_width(name, 12)
        if x + width > WIDTH - MARGIN:
            break
        picture.box(x, y - 10, 12, 12, colour, round_px=2)
        picture.text(x + 17, y, name, 12)
        x += width + 20


def legend_entries(kernels, categories):
    """What the colours of a picture mean."""
    last = KERNEL_COLOURS[-1]
    sharing = [name for name, colour in kernels.items() if colour == last]
    entries = [(name, colour) for name, colour in kernels.items() if colour != last]
    if sharing:
        entries.append((sharing[0] if len(sharing) == 1 else "other kernels", last))
    others = [("copy or fill", "copy", {"copy", "fill"}), ("launch of a graph", "graph", {"graph"}),
              ("driver call", "driver", {"driver"}), ("NVTX range", "nvtx", {"nvtx"})]
    return entries + [(name, COLOURS[colour]) for name, colour, of in others if of & categories]


def told(one):
    """What a slice says to the mouse."""
    more = one.get("args", {})
    extra = [f"{key} {more[key]}" for key in ["grid", "block", "bytes", "result"] if key in more]
    return ", ".join([f"{one['name']}: {one['dur']:g} us", *extra])


class Timeline:
    """A part of a trace on its way to become a picture."""

    def __init__(self, trace, begin_us, length_us):
        self.trace, self.begin_us, self.length_us = trace, begin_us, length_us
        self.processes = []
        for pid in trace.commands:
            rows = [(row, self.seen(pid, row)) for row in trace.rows(pid)]
            rows = [(row, slices) for row, slices in rows if slices]
            if rows:
                self.processes.append((pid, rows))
        self.shown = [one for _, rows in self.processes for _, slices in rows for one in slices]
        self.kernels = kernel_colours(self.shown)

    def seen(self, pid, row):
        """The slices of a row that lie in the part, those that hold others before them."""
        end_us = self.begin_us + self.length_us
        found = [one for one in self.trace.slices if one["pid"] == pid and row_of(one) == row
                 and one["ts"] < end_us and one["ts"] + one["dur"] > self.begin_us]
        return sorted(found, key=lambda one: (one["ts"], -one["dur"]))

    def command(self, pid):
        return self.trace.commands[pid].rsplit("/", 1)[-1]

    def x(self, at_us):
        return LEFT + (WIDTH - MARGIN - LEFT) * (at_us - self.begin_us) / self.length_us

    def colour(self, one):
        return self.kernels[one["name"]] if one["cat"] == "kernel" else COLOURS[one["cat"]]

    def axis(self, picture, top, bottom):
        """Milliseconds since the beginning of the part."""
        for step in ticks(self.length_us / 1e3, 10):
            x = self.x(self.begin_us + step * 1e3)
            if x < WIDTH - MARGIN:
                picture.line(x, top - 14, x, bottom)
                label = f"{step:.6f}".rstrip("0").rstrip(".")
                picture.text(x, top - 19, label + " ms" * (step == 0), SMALL, "middle", "soft")

    def row(self, picture, y, slices):
        """The slices of a row. What lies within a pixel of another is drawn as one line."""
        end_px = -1.0
        for one in slices:
            x = max(self.x(one["ts"]), LEFT)
            width = min(self.x(one["ts"] + one["dur"]), WIDTH - MARGIN) - x
            if width <= LEAST_PX and x + LEAST_PX / 2 <= end_px:
                continue
            # A seam between slices that follow each other at once.
            picture.box(x, y + 3, max(width - 0.5, LEAST_PX), ROW - 6, self.colour(one), told(one))
            if x > end_px - 1 and text_width(one["name"], SMALL) + 8 <= width:
                colour = ON.get(self.colour(one), "paper")
                picture.text(x + 4, y + 15, one["name"], SMALL, colour=colour, is_on_box=True)
            end_px = max(end_px, x + max(width, LEAST_PX))

    def process(self, picture, y, pid, rows, devices):
        """A process and its rows; where the next begins."""
        picture.box(MARGIN, y, WIDTH - 2 * MARGIN, ROW - 2, "band", round_px=3)
        name = fitted(f"{self.command(pid)}, process {pid}", 700, 12)
        picture.text(MARGIN + 6, y + 14, name, 12, is_bold=True, is_on_box=True)
        for place, (row, slices) in enumerate(rows, 1):
            title = fitted(self.trace.title(pid, row, devices), LEFT - MARGIN - 10, 12)
            picture.text(LEFT - 10, y + ROW * place + 15, title, 12, "end")
            self.row(picture, y + ROW * place, slices)
        return y + ROW * (len(rows) + 1) + GAP


def draw(trace, from_us=None, for_us=None, source=""):
    """The picture of a trace, or of a part of it. `source` is added to the caption."""
    timeline = Timeline(trace, *part(trace, from_us, for_us))
    devices = trace.devices()
    lines = [*devices, *filter(None, [source]), f"{trace.lost} records lost"]
    caption = wrapped("; ".join(lines), WIDTH - 2 * MARGIN, SMALL)
    top = 100
    bottom = top + sum(ROW * (len(rows) + 1) + GAP for _, rows in timeline.processes)
    commands = " and ".join(timeline.command(pid) for pid, _ in timeline.processes)
    picture = Picture(WIDTH, bottom + 26 + CAPTION_LINE * len(caption), f"A trace of {commands}",
                      "Rows of driver calls by thread, and of kernels and copies by stream, "
                      f"over {timeline.length_us / 1e3:.1f} ms")
    title = commands + ": one GPU at the same time" * (len(timeline.processes) > 1)
    picture.text(MARGIN, 28, fitted(title, WIDTH - 3 * MARGIN, 16), 16, is_bold=True)
    categories = {one["cat"] for one in timeline.shown}
    legend(picture, 54, legend_entries(timeline.kernels, categories))
    timeline.axis(picture, top, bottom)
    y = top
    for pid, rows in timeline.processes:
        y = timeline.process(picture, y, pid, rows, len(devices))
    picture.caption(bottom + 26, caption)
    return picture.svg()


def read(path):
    """A trace file, compressed or not."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with opened as file:
        return json.load(file)


def plain(told_by_trace):
    """The trace as text without folders of programs: one event a line, as it was written."""
    for event in told_by_trace["traceEvents"]:
        if event["name"] == "process_name":
            event["args"]["name"] = event["args"]["name"].rsplit("/", 1)[-1]
    rest = {key: value for key, value in told_by_trace.items() if key != "traceEvents"}
    short = lambda value: json.dumps(value, separators=(",", ":"))
    events = ",\n".join(map(short, told_by_trace["traceEvents"]))
    return short(rest)[:-1] + ',"traceEvents":[\n' + events + "\n]}\n"


def example():
    """The picture of the documents."""
    return draw(Trace(read(TRACE)), source="docs/data/trace.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, nargs="?",
                        help="what `openmps trace` has written")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="the file to write")
    parser.add_argument("--from-us", type=float, help="begin so long after the trace did")
    parser.add_argument("--for-us", type=float, help="draw so long a part")
    parser.add_argument("--plain", action="store_true",
                        help="write the trace itself, without folders")
    options = parser.parse_args()
    if options.trace is None:
        PICTURE.write_text(example())
        return
    if options.output is None:
        parser.error("a trace needs -o, the file to write")
    found = read(options.trace)
    options.output.write_text(plain(found) if options.plain
                              else draw(Trace(found), options.from_us, options.for_us))


if __name__ == "__main__":
    main()
