#!/usr/bin/env python3
"""Draws the plots of the documents from what was measured: the same bytes for the same numbers.

    python3 bench/plots.py                  # docs/pictures/*.svg, of the files in docs/data
    python3 bench/plots.py --data DIR --output DIR

`table.json` is what `bench/table.py --json` writes, and `beside.json` has figures of other commands
in the same form. After a new measurement put the file there, run this, and look at the pictures.
What was not measured is left out.
"""

import argparse
import functools
import json
import math
import pathlib
import re

from svg import CAPTION_LINE, MARGIN, SMALL, Picture, text_width, ticks, wrapped

ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA, PICTURES = ROOT / "docs/data", ROOT / "docs/pictures"
BOTH = ["table.json", "beside.json"]
# Of a picture, and from one of its panels to the next.
WIDTH, PANEL = 920, 302
PEERS = {"none": "native", "nvidia": "NVIDIA MPS", "openmps": "OpenMPS"}
# Shape and dashes tell peers apart where colours cannot.
MARKS = {"none": ("square", "2 3"), "nvidia": ("diamond", "7 3"), "openmps": ("circle", "")}
# Of these units less is better.
TIMES_AND_SIZES = ["us", "ms", "MiB", "%"]
# Powers of ten on an axis.
MOST_POWERS = 6
# Nearer to each other than this two peers are told to be equal.
EQUAL = 0.05

WORKLOADS = {"infer": "20 kernels, then a wait", "lat": "one launch, then a wait",
             "empty": "empty kernels, no wait"}
MODELS = {"resnet18": "ResNet-18 inference", "transformer": "transformer inference",
          "training": "training"}
# Rows of the files by the beginning of their names, and what the summary calls them. README.md
# shows those that its table has, too, and docs/performance.md all.
SUMMARY = [
    (r"GPU memory of one more client: one launch", "Memory of one more client", "main"),
    (r"GPU memory of one more client: chains", "Memory of one more client, with chains", "main"),
    (r"client start, ", "Start of a client, to its first kernel's end", "main"),
    (r"`empty`, 8 clients, ", "Empty kernels, no wait (empty, 8 clients)", ""),
    (r"`tiny`, 8 clients, ", "Short kernels, no wait (tiny, 8 clients)", ""),
    (r"`infer`, 8 clients, ", "20 kernels, then a wait (infer, 8 clients)", "main"),
    (r"`lat`, 8 clients, ", "One launch, then a wait (lat, 8 clients)", "main"),
    (r"`lat`, 8 clients on 8 cores", "One launch, then a wait (lat), 8 cores", ""),
    (r"`infer` beside one that starts clients", "p99.9 beside clients that start (infer)", ""),
    (r"clients with work in flight that a fault", "Clients in flight that a fault ended", "main"),
    (r"pause after a fault.*median", "Pause of the others after a fault, median", "main"),
    (r"pause after a fault.*p99", "Pause of the others after a fault, p99", "main"),
    (r"MPI halo exchange.*staged", "MPI halo exchange, 8 ranks, staged", "main"),
    (r"MPI halo exchange.*device buffers", "MPI halo exchange, 8 ranks, device buffers", ""),
]
# Model, processes, what was measured.
SUMMARY_PYTORCH = [
    ("resnet18", 8, "per_second", "main"), ("resnet18", 8, "p99_ms", "main"),
    ("resnet18", 16, "p99_ms", ""), ("transformer", 8, "per_second", ""),
    ("transformer", 8, "p99_ms", ""), ("transformer", 16, "per_second", ""),
    ("training", 8, "per_second", "main"), ("training", 16, "per_second", "main")]


def amount(value):
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def tick_label(value):
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def times(ratio):
    """A ratio as it is written: 0.024x, 0.57x, 5.8x, 470x."""
    digits = 0 if ratio >= 10 else 1 if ratio >= 2 else 2 if ratio >= 0.1 else 3
    return f"{ratio:.{digits}f}x"


def side(ratio):
    """Whose colour a ratio has: of the one that is ahead, or of neither."""
    return "none" if abs(math.log(ratio)) < EQUAL else "openmps" if ratio > 1 else "nvidia"


def sources(data, names):
    """Lines that say what the numbers of these files hold for."""
    told = [f"docs/data/{name}: {data[name]['machine']}" for name in names if name in data]
    return [line for text in told for line in wrapped(text, WIDTH - 2 * MARGIN, SMALL)]


def heading(picture, title, subtitle):
    picture.text(MARGIN, 28, title, 17, is_bold=True)
    picture.text(MARGIN, 47, subtitle, 12, colour="soft")


def spread(places, gap, top, bottom):
    """Moves labels apart: what each place becomes, `gap` or more from each other."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = dict(enumerate(places))
    for before, after in zip(order, order[1:]):
        moved[after] = max(moved[after], moved[before] + gap)
    # What has left at the bottom pushes back those above it.
    limit = bottom
    for index in reversed(order):
        moved[index] = max(top, min(moved[index], limit))
        limit = moved[index] - gap
    return [moved[index] for index in range(len(places))]


def rates_panel(picture, left, workload, cells):
    """One workload: a line for each peer, over the number of clients."""
    top, bottom, first, last = 112, 292, left + 52, left + 200
    counts = sorted({cell["clients"] for cell in cells})
    steps = ticks(max(cell["kernels_per_second"] for cell in cells) / 1e3)
    at_x = lambda clients: first + (last - first) * clients / counts[-1]
    at_y = lambda rate: bottom - (bottom - top) * rate / 1e3 / steps[-1]
    picture.text(left, 74, workload, 14, is_bold=True)
    picture.text(left, 91, WORKLOADS[workload], SMALL, colour="soft")
    for step in steps:
        y = at_y(step * 1e3)
        picture.line(first, y, last, y, "soft" if step == 0 else "grid")
        picture.text(first - 6, y + 4, tick_label(step), SMALL, "end", "soft")
    for count in counts:
        picture.line(at_x(count), bottom, at_x(count), bottom + 4, "soft")
        picture.text(at_x(count), bottom + 18, str(count), SMALL, "middle", "soft")
    picture.text((first + last) / 2, bottom + 35, "clients", SMALL, "middle", "soft")
    ends = []
    for peer in PEERS:
        points = sorted((cell["clients"], cell["kernels_per_second"])
                        for cell in cells if cell["peer"] == peer)
        if not points:
            continue
        shape, dashes = MARKS[peer]
        places = [(at_x(clients), at_y(rate)) for clients, rate in points]
        picture.path_through(places, peer, 2.5 if peer == "openmps" else 2, dashes)
        for x, y in places:
            picture.mark(x, y, shape, peer)
        ends.append((peer, points[-1][1], places[-1][1]))
    for (peer, rate, _), y in zip(ends, spread([y for *_, y in ends], 30, top, bottom - 8)):
        picture.text(last + 10, y, PEERS[peer], 12, colour=f"label-{peer}", is_bold=True)
        picture.text(last + 10, y + 13, amount(rate / 1e3), SMALL, colour=f"label-{peer}")


def rates(data):
    """Small launches by the number of clients."""
    cells = data["table.json"].get("workloads", [])
    shown = [name for name in WORKLOADS if any(cell["workload"] == name for cell in cells)]
    caption = sources(data, ["table.json"])
    picture = Picture(WIDTH, 342 + CAPTION_LINE * len(caption),
                      "Rate of small launches by number of clients",
                      "A panel for each workload; lines for native, NVIDIA MPS and OpenMPS: "
                      + "; ".join(f"{name}: {WORKLOADS[name]}" for name in shown))
    heading(picture, "Small launches: rate of all clients together",
            "thousand launches a second; more is better; each panel has its own scale, from zero")
    for index, name in enumerate(shown):
        of = [cell for cell in cells if cell["workload"] == name]
        rates_panel(picture, MARGIN + index * PANEL, name, of)
    picture.caption(350, caption)
    return picture.svg()


def summary_rows(data, which=""):
    """Of all rows, or those that are `main`: label, ratio beside NVIDIA MPS (above 1 OpenMPS is
    ahead), both values, and their unit."""
    found = []
    rows = [row for name in BOTH for row in data.get(name, {}).get("rows", [])]
    for pattern, label, part in SUMMARY:
        found += [(label, row["values"], row["values_unit"])
                  for row in rows if re.match(pattern, row["name"]) and which in part]
    torch = {(row["model"], row["processes"], row["peer"]): row
             for row in data["table.json"].get("pytorch", [])}
    for model, processes, field, part in SUMMARY_PYTORCH:
        values = {peer: torch.get((model, processes, peer), {}).get(field)
                  for peer in ["openmps", "nvidia"] if which in part}
        what, unit = ("rate", "/s") if field == "per_second" else ("p99", "ms")
        found.append((f"PyTorch {MODELS[model]}, {processes} at once: {what}", values, unit))
    ratios = []
    for label, values, unit in found:
        ours, theirs = values.get("openmps"), values.get("nvidia")
        if ours and theirs:
            ratio = theirs / ours if unit in TIMES_AND_SIZES else ours / theirs
            ratios.append((label, ratio, ours, theirs, unit))
    return sorted(ratios, key=lambda row: -row[1])


def summary(data, which=""):
    """How far OpenMPS is ahead of NVIDIA MPS, or behind."""
    rows = summary_rows(data, which)
    caption = sources(data, BOTH)
    top, pitch, first, last = 104, 21, 330, 762
    bottom = top + pitch * len(rows)
    picture = Picture(WIDTH, bottom + 22 + CAPTION_LINE * len(caption), "OpenMPS beside NVIDIA MPS",
                      "Bars to the right of 1x where OpenMPS is ahead, to the left where behind: "
                      + "; ".join(f"{label} {times(ratio)}" for label, ratio, *_ in rows))
    heading(picture, "OpenMPS beside NVIDIA MPS, on the same GPU",
            "times as good: rates are OpenMPS / NVIDIA MPS, times and sizes NVIDIA MPS / OpenMPS; "
            "logarithmic scale")
    # At either side of the longest bars there is room for their ratios.
    logs = [math.log10(row[1]) for row in rows]
    least, most = min([-1, *logs]), max([1, *logs])
    at = lambda log: first + 48 + (last - first - 88) * (log - least) / (most - least)
    every = math.ceil((most - least) / MOST_POWERS)
    for power in range(math.ceil(least), math.floor(most) + 1):
        if power % every == 0:
            picture.line(at(power), top - 6, at(power), bottom)
            picture.text(at(power), top - 12, f"{10.0 ** power:g}x", SMALL, "middle", "soft")
    for anchor, dx, told, peer in [("end", -22, "\u2190 NVIDIA MPS is ahead", "nvidia"),
                                   ("start", 22, "OpenMPS is ahead \u2192", "openmps")]:
        picture.text(at(0) + dx, top - 28, told, SMALL, anchor, f"label-{peer}", True)
    picture.text(WIDTH - MARGIN, top - 12, "OpenMPS : NVIDIA MPS", SMALL, "end", "soft")
    for index, (label, ratio, ours, theirs, unit) in enumerate(rows):
        y, x = top + pitch * index, at(math.log10(ratio))
        picture.text(first - 12, y + 14, label, 12, "end")
        picture.box(min(x, at(0)), y + 3, max(abs(x - at(0)), 1), pitch - 7, side(ratio))
        anchor, x = ("start", max(x, at(0)) + 5) if ratio >= 1 else ("end", x - 5)
        picture.text(x, y + 14, times(ratio), 12, anchor, f"label-{side(ratio)}", True)
        values = f"{amount(ours)} : {amount(theirs)} {unit}"
        picture.text(WIDTH - MARGIN, y + 14, values, SMALL, "end", "soft")
    picture.line(at(0), top - 6, at(0), bottom, "ink", 1.5)
    picture.caption(bottom + 26, caption)
    return picture.svg()


def pytorch_panel(picture, left, top, title, rows, field, scale_title):
    """Bars of one model, by number of processes; above each group the ratio beside NVIDIA MPS."""
    bottom, first, last = top + 150, left + 44, left + 284
    steps = ticks(max(row[field] for row in rows))
    at_y = lambda value: bottom - (bottom - top) * value / steps[-1]
    picture.text(left, top - 34, title, 13, is_bold=True)
    picture.text(left, top - 19, scale_title, SMALL, colour="soft")
    for step in steps:
        y = at_y(step)
        picture.line(first, y, last, y, "soft" if step == 0 else "grid")
        picture.text(first - 6, y + 4, tick_label(step), SMALL, "end", "soft")
    counts = sorted({row["processes"] for row in rows})
    shown = [peer for peer in PEERS if any(row["peer"] == peer for row in rows)]
    group = (last - first) / len(counts)
    wide = min(22, (group - 12) / len(shown))
    for index, count in enumerate(counts):
        middle = first + group * (index + 0.5)
        values = {row["peer"]: row[field] for row in rows if row["processes"] == count}
        for place, peer in enumerate(shown):
            if peer in values:
                x = middle + wide * (place - len(shown) / 2)
                y = at_y(values[peer])
                picture.box(x + 0.5, y, wide - 1, bottom - y, peer)
        picture.text(middle, bottom + 16, str(count), SMALL, "middle", "soft")
        if values.get("openmps") and values.get("nvidia"):
            ratio = values["openmps"] / values["nvidia"]
            ratio = 1 / ratio if field == "p99_ms" else ratio
            y = at_y(max(values.values())) - 5
            picture.text(middle, y, times(ratio), SMALL, "middle", f"label-{side(ratio)}", True)


def pytorch(data):
    """PyTorch's programs by number of processes: rates, and below them p99."""
    rows = [row for row in data["table.json"].get("pytorch", [])
            if row["per_second"] and row["p99_ms"]]
    shown = [name for name in MODELS if any(row["model"] == name for row in rows)]
    caption = sources(data, ["table.json"])
    picture = Picture(WIDTH, 566 + CAPTION_LINE * len(caption), "PyTorch by number of processes",
                      "Bars of the rate and of p99, for each peer and number of processes: "
                      + ", ".join(MODELS[name] for name in shown))
    heading(picture, "PyTorch: one GPU, several processes",
            "by number of processes; above bars: how many times as good as NVIDIA MPS OpenMPS is")
    x = WIDTH - MARGIN
    for peer in reversed([peer for peer in PEERS if peer in {row["peer"] for row in rows}]):
        x -= text_width(PEERS[peer], 12, True)
        picture.text(x, 28, PEERS[peer], 12, colour=f"label-{peer}", is_bold=True)
        picture.box(x - 17, 18, 12, 12, peer)
        x -= 36
    for index, name in enumerate(shown):
        left, of = MARGIN + index * PANEL, [row for row in rows if row["model"] == name]
        done = "steps" if name == "training" else "requests"
        pytorch_panel(picture, left, 118, MODELS[name], of, "per_second",
                      f"{done} a second; more is better")
        pytorch_panel(picture, left, 362, f"{MODELS[name]}: p99", of, "p99_ms",
                      "ms; less is better")
        picture.text(left + 164, 548, "processes", SMALL, "middle", "soft")
    picture.caption(572, caption)
    return picture.svg()


PLOTS = {"rates.svg": rates, "pytorch.svg": pytorch, "beside-nvidia-mps-all.svg": summary,
         "beside-nvidia-mps.svg": functools.partial(summary, which="main")}


def read(directory):
    """The files of a directory, by name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=DATA,
                        help="a directory with table.json [docs/data]")
    parser.add_argument("--output", type=pathlib.Path, default=PICTURES,
                        help="where pictures are written [docs/pictures]")
    options = parser.parse_args()
    data = read(options.data)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, draw in PLOTS.items():
        (options.output / name).write_text(draw(data))


if __name__ == "__main__":
    main()
