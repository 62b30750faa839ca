"""What the slowest hundredth of requests has that the middle half has not: pure functions over what was recorded, for `torch_tail.py`.

All times are nanoseconds of CLOCK_MONOTONIC, which the processes of a machine share. The *excess* is by how much the mean slow request is longer
than the mean middle one; each cause is told as its part of that.
"""

import bisect
import cmath
import dataclasses
import math
import random
import re
import statistics

SLOW_PART = 0.01
# A slow request of another process at the same time says something if it is there so much more often than by chance.
TOGETHER_RATIO = 3.0
TOGETHER_PART = 0.3
# Of the excess, from here on a cause is named.
CAUSE_PART = 0.25
# What a kind of thread does more during slow requests than during others: of the time, and times what it does then.
BUSY_PART = 0.1
BUSY_RATIO = 1.5
# The first tenth of a run has a tenth of its slow requests, unless something is still being learnt there.
BEGINNING = 0.1
BEGINNING_RATIO = 3.0
# A phase as even as this comes by chance in one analysis of a thousand, whatever the number of periods looked at.
PERIOD_DOUBT = 1e-3
UNEVEN_DEVIATIONS = 5.0
LONGEST_STEP = 200
FEWEST_SLOW = 8
SHIFTS = 40
NS_PER_MS = 1e6


@dataclasses.dataclass
class Request:
    """One request of a process, and what its thread met in it. `None`: this system does not say."""

    process: int
    start_ns: int
    # All its launches are posted; from then on it waits.
    posted_ns: int
    end_ns: int
    # On a processor.
    post_cpu_ns: int
    wait_cpu_ns: int
    # Runnable, while others had the processor.
    post_delay_ns: int | None
    wait_delay_ns: int | None
    voluntary_switches: int
    involuntary_switches: int
    minor_faults: int
    # In Python's garbage collection.
    collection_ns: int

    @property
    def total_ns(self):
        return self.end_ns - self.start_ns


# What the total of a request is made of, and where its thread was meanwhile.
QUANTITIES = {
    "total": lambda one: one.total_ns,
    "posting": lambda one: one.posted_ns - one.start_ns,
    "waiting": lambda one: one.end_ns - one.posted_ns,
    "on a processor, posting": lambda one: one.post_cpu_ns,
    "on a processor, waiting": lambda one: one.wait_cpu_ns,
    "runnable, not running, posting": lambda one: one.post_delay_ns,
    "runnable, not running, waiting": lambda one: one.wait_delay_ns,
    "asleep": lambda one: asleep_ns(one),
    "garbage collection": lambda one: one.collection_ns,
}
COUNTS = {
    "voluntary switches": lambda one: one.voluntary_switches,
    "involuntary switches": lambda one: one.involuntary_switches,
    "minor faults": lambda one: one.minor_faults,
}


def asleep_ns(one):
    delay_ns = (one.post_delay_ns or 0) + (one.wait_delay_ns or 0)
    return max(0, one.total_ns - one.post_cpu_ns - one.wait_cpu_ns - delay_ns)


def quantile(values, part):
    """The value below which this part lies; the values are sorted."""
    return values[min(len(values) - 1, int(len(values) * part))]


def distribution(requests):
    """Milliseconds."""
    times = sorted(one.total_ns / NS_PER_MS for one in requests)
    named = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    return {name: quantile(times, part) for name, part in named.items()} | {"max": times[-1], "mean": statistics.fmean(times)}


def by_process(requests):
    found = {}
    for one in requests:
        found.setdefault(one.process, []).append(one)
    return {process: sorted(of, key=lambda one: one.start_ns) for process, of in sorted(found.items())}


def slow_and_middle(requests):
    """The slowest hundredth of all, and the middle half."""
    ordered = sorted(requests, key=lambda one: one.total_ns)
    count = max(1, round(len(ordered) * SLOW_PART))
    return ordered[-count:], ordered[len(ordered) // 4: max(len(ordered) * 3 // 4, 1)]


def mean(values):
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def compare(slow, middle):
    """Of each quantity its mean among the slow and the middle, ms, and its part of the excess; of each count its means."""
    rows = {}
    excess_ns = mean(map(QUANTITIES["total"], slow)) - mean(map(QUANTITIES["total"], middle))
    for name, of in QUANTITIES.items():
        means = mean(map(of, slow)), mean(map(of, middle))
        if None not in means:
            part = (means[0] - means[1]) / excess_ns if excess_ns > 0 else 0.0
            rows[name] = {"slow": means[0] / NS_PER_MS, "middle": means[1] / NS_PER_MS, "excess": part}
    for name, of in COUNTS.items():
        rows[name] = {"slow": mean(map(of, slow)), "middle": mean(map(of, middle))}
    return rows


def with_company(intervals):
    """Of (process, start, end): how many overlap one of another process."""
    ordered = sorted(intervals, key=lambda one: one[1])
    found, running = set(), []
    for one in ordered:
        running = [other for other in running if other[2] > one[1]]
        others = [other for other in running if other[0] != one[0]]
        if others:
            found.add(one)
            found.update(others)
        running.append(one)
    return len(found)


def coincidence(slow, requests):
    """Which part of slow requests has a slow one of another process at the same time, and which part would by chance: with each process's time
    turned by an amount of its own."""
    intervals = [(one.process, one.start_ns, one.end_ns) for one in slow]
    began, ended = min(one.start_ns for one in requests), max(one.end_ns for one in requests)
    length, source, chances = ended - began, random.Random(7), []
    for _ in range(SHIFTS):
        turned_by = {process: source.randrange(length) for process in {one.process for one in requests}}
        turned = []
        for process, start, end in intervals:
            start_turned = began + (start - began + turned_by[process]) % length
            turned.append((process, start_turned, start_turned + end - start))
        chances.append(with_company(turned) / len(slow))
    return {"together": with_company(intervals) / len(slow), "by_chance": statistics.fmean(chances),
            "processes": len({one.process for one in slow}), "moments": len(moments(slow))}


def is_together(coincidence):
    """Whether more of the slow requests coincide than chance explains."""
    together, by_chance = coincidence["together"], coincidence["by_chance"]
    if by_chance * TOGETHER_RATIO > 1:
        # Many slow ones at any time.
        return together > (1 + by_chance) / 2
    return together >= max(TOGETHER_PART, TOGETHER_RATIO * by_chance)


def moments(slow):
    """The slow requests that overlap each other, as one moment each: the time by which all of them have begun, or one of them has ended."""
    found, until = [], None
    for one in sorted(slow, key=lambda one: one.start_ns):
        if until is None or one.start_ns >= until:
            found.append(one.start_ns)
            until = one.end_ns
        else:
            found[-1] = one.start_ns
            until = min(until, one.end_ns)
    return found


def evenness(groups, period):
    """How much the positions of each group keep one phase of a period: of positions by chance some 1 for each group; of even ones their number."""
    return sum(abs(sum(cmath.exp(2j * math.pi * position / period) for position in group)) ** 2 / len(group) for group in groups)


def doubt(value, groups):
    """How probable so much evenness, or more, is for positions by chance: the tail of a sum of so many exponential variables."""
    term, total = math.exp(-value), 0.0
    for order in range(groups):
        total += term
        term *= value / (order + 1)
    return total


def best_period(groups, periods):
    """The period that the positions keep best, with its evenness (0 to 1), or nothing. Its divisors are kept as well: the longest is told."""
    groups = [group for group in groups if len(group) >= 3]
    count = sum(map(len, groups))
    if count < FEWEST_SLOW or not periods:
        return None
    values = [evenness(groups, period) for period in periods]
    most = max(values)
    if doubt(most, len(groups)) * len(periods) > PERIOD_DOUBT:
        return None
    # Neighbours of a good period are good, too: only what is better than both counts.
    peaks = [(period, value) for before, value, after, period in zip([0.0, *values], values, [*values[1:], 0.0], periods)
             if value >= max(before, after, 0.8 * most)]
    period, value = max(peaks)
    return {"period": period, "evenness": value / count}


def period_in_requests(slow, requests):
    """Every how many requests of a process a slow one comes, if so."""
    slow_ids, groups = {id(one) for one in slow}, []
    for of in by_process(requests).values():
        groups.append([index for index, one in enumerate(of) if id(one) in slow_ids])
    return best_period(groups, range(2, LONGEST_STEP + 1))


def period_in_time(slow, requests):
    """Every how many milliseconds there is a slow moment, whosever, if so."""
    began, ended = min(one.start_ns for one in requests), max(one.end_ns for one in requests)
    length = (ended - began) / NS_PER_MS
    times = [(at - began) / NS_PER_MS for at in moments(slow)]
    shortest = 2 * statistics.median(one.total_ns for one in requests) / NS_PER_MS
    # From four periods in the run on, in steps that a phase over its length can tell apart.
    frequencies = range(8, int(2 * length / shortest))
    return best_period([times], [2 * length / number for number in frequencies])


def end_of_beginning(requests):
    began, ended = min(one.start_ns for one in requests), max(one.end_ns for one in requests)
    return began + (ended - began) * BEGINNING


def at_the_beginning(slow, requests):
    """Which part of the slow requests is in the first tenth of the run."""
    until = end_of_beginning(requests)
    return sum(one.start_ns < until for one in slow) / len(slow)


def later(requests):
    """Those after the first tenth of the run."""
    until = end_of_beginning(requests)
    return [one for one in requests if one.start_ns >= until] or requests


def unevenness(slow, requests):
    """By how many standard deviations the process with most slow requests has more of them than its part."""
    of_process = by_process(slow)
    most = 0.0
    for process, of in by_process(requests).items():
        expected = len(slow) * len(of) / len(requests)
        most = max(most, (len(of_process.get(process, [])) - expected) / math.sqrt(expected))
    return most


def kind(thread):
    """A thread's name without numbers: the sessions' are one kind."""
    return re.sub(r"[\s\-]*\d+", "", f"{thread['process']}: {thread['name']}")


def server_threads(threads, requests):
    """Of each kind of thread of the server, per ms of the given requests: how much it was on a processor, and how much it was runnable while others
    had it (all threads of the kind together, ms); and the most that one of them waited in one of the requests, on average, ms."""
    kinds, length_ms = {}, sum(one.total_ns for one in requests) / NS_PER_MS
    for thread in threads:
        samples = thread["samples"]
        times = [sample[0] for sample in samples]
        row = kinds.setdefault(kind(thread), {"running": 0.0, "delayed": 0.0, "most": {}})
        for one in requests:
            # What ended in the request; counts of a sample are of all time before it.
            first, last = bisect.bisect_right(times, one.start_ns) - 1, bisect.bisect_right(times, one.end_ns) - 1
            if last <= max(first, 0):
                continue
            before, after = samples[max(first, 0)], samples[last]
            delayed = (after[2] - before[2]) / NS_PER_MS
            row["running"] += (after[1] - before[1]) / NS_PER_MS
            row["delayed"] += delayed
            row["most"][id(one)] = max(row["most"].get(id(one), 0.0), delayed)
    return {name: {"running": row["running"] / length_ms, "delayed": row["delayed"] / length_ms,
                   "most_delayed_ms": sum(row["most"].values()) / len(requests)} for name, row in sorted(kinds.items())}


def conclusions(found):
    """What the figures say, by name; each a sentence with its figures."""
    said, rows = {}, found["compare"]
    excess_ms = rows["total"]["slow"] - rows["total"]["middle"]
    part = lambda name: rows[name]["excess"] if name in rows else 0.0

    def cause(key, name, text):
        if part(name) >= CAUSE_PART:
            said[key] = f"{part(name):.0%} of the {excess_ms:.2f} ms more is {text}"

    cause("posting", "posting", "before all launches were posted")
    cause("waiting", "waiting", "the wait for the device and the server, after all launches were posted")
    cause("asleep", "asleep", "time in which the client's thread sleeps")
    cause("collection", "garbage collection", "Python's garbage collection")
    delayed = part("runnable, not running, posting") + part("runnable, not running, waiting")
    if delayed >= CAUSE_PART:
        said["delayed"] = f"{delayed:.0%} of the {excess_ms:.2f} ms more is time in which the client's thread has no processor"
    together = found["coincidence"]
    if together["processes"] > 1:
        figures = (f"{together['together']:.0%} of the slow requests overlap a slow one of another process, "
                   f"{together['by_chance']:.0%} would by chance")
        often = is_together(together)
        said["together" if often else "alone"] = figures + (": many stall together" if often else ": most come alone")
    if found["beginning"] >= BEGINNING_RATIO * BEGINNING:
        said["beginning"] = f"{found['beginning']:.0%} of the slow requests are in the first {BEGINNING:.0%} of the run"
    if found["every_requests"]:
        every = found["every_requests"]
        said["every requests"] = f"a slow request comes every {every['period']} requests of a process (evenness {every['evenness']:.2f})"
    if found["every_ms"]:
        every = found["every_ms"]
        said["every ms"] = f"a slow moment comes every {every['period']:.1f} ms (evenness {every['evenness']:.2f})"
    if found["uneven"] > UNEVEN_DEVIATIONS:
        said["uneven"] = (f"some processes fare worse: p99 lies between {min(found['processes_p99_ms']):.2f} and "
                          f"{max(found['processes_p99_ms']):.2f} ms")
    for name, row in found["threads"].items():
        more_ms = row["slow"]["most_delayed_ms"] - row["middle"]["most_delayed_ms"]
        if more_ms >= CAUSE_PART * excess_ms:
            said[f"delayed {name}"] = (f"a thread `{name}` of the server has no processor for {row['slow']['most_delayed_ms']:.2f} ms of a slow "
                                       f"request, {row['middle']['most_delayed_ms']:.2f} ms of a middle one")
        busy, usual = row["slow"]["running"], row["middle"]["running"]
        if busy >= BUSY_PART + BUSY_RATIO * usual:
            said[f"busy {name}"] = f"threads `{name}` of the server are at work for {busy:.2f} of the time of slow requests, {usual:.2f} of that of middle ones"
    return said


def analyse(requests, threads=()):
    """All of the above, as JSON has it."""
    slow, middle = slow_and_middle(requests)
    nothing = {"running": 0.0, "delayed": 0.0, "most_delayed_ms": 0.0}
    at_once = coincidence(slow, requests)
    during = {"slow": server_threads(threads, slow), "middle": server_threads(threads, middle)}
    names = sorted({*during["slow"], *during["middle"]})
    found = {
        "requests": len(requests), "slow": len(slow), "distribution_ms": distribution(requests), "later_p99_ms": distribution(later(requests))["p99"],
        "processes_p99_ms": [distribution(of)["p99"] for of in by_process(requests).values()],
        "uneven": unevenness(slow, requests), "compare": compare(slow, middle), "coincidence": at_once, "beginning": at_the_beginning(slow, requests),
        # What stalls several at once does not count one's requests, and makes them alike.
        "every_requests": None if is_together(at_once) else period_in_requests(slow, requests), "every_ms": period_in_time(slow, requests),
        "threads": {name: {which: of.get(name, nothing) for which, of in during.items()} for name in names},
    }
    return found | {"conclusions": conclusions(found)}


def kernels_of(requests, kernels):
    """What a traced process's kernels, (start, end, microseconds in the server) in order, did in each request; those without a kernel are left out.
    Milliseconds: until the first begins, kernels, gaps between them, the longest gap, from the last one's end to the request's; and the most that
    a kernel was in the server before it began."""
    starts, rows = [kernel[0] for kernel in kernels], []
    for one in requests:
        of = kernels[bisect.bisect_left(starts, one.start_ns): bisect.bisect_left(starts, one.end_ns)]
        if not of:
            continue
        gaps, busy_ns, until = [], 0, of[0][0]
        for start, end, _ in of:
            gaps.append(max(0, start - until))
            busy_ns += max(0, end - max(start, until))
            until = max(until, end)
        rows.append({"total": one.total_ns / NS_PER_MS, "before the first kernel": (of[0][0] - one.start_ns) / NS_PER_MS,
                     "kernels": busy_ns / NS_PER_MS, "between kernels": sum(gaps) / NS_PER_MS,
                     "longest gap": max(gaps) / NS_PER_MS, "after the last kernel": (one.end_ns - until) / NS_PER_MS,
                     "longest in the server": max(kernel[2] for kernel in of) / 1e3, "number of kernels": len(of)})
    return rows


def calls_of(requests, calls):
    """How long a traced process was in each driver call, (start, microseconds, name) in order, in each request: milliseconds by name."""
    starts, rows = [call[0] for call in calls], []
    for one in requests:
        row = {"total": one.total_ns / NS_PER_MS}
        for _, took_us, name in calls[bisect.bisect_left(starts, one.start_ns): bisect.bisect_left(starts, one.end_ns)]:
            row[name] = row.get(name, 0.0) + took_us / 1e3
        rows.append(row)
    return rows


def compare_parts(rows, slow_part=0.05):
    """Means of all parts of requests among the slowest twentieth (a traced second has few requests) and the middle half."""
    if not rows:
        return {}
    ordered = sorted(rows, key=lambda row: row["total"])
    slow, middle = ordered[-max(1, round(len(rows) * slow_part)):], ordered[len(rows) // 4: max(len(rows) * 3 // 4, 1)]
    names = {name: None for row in rows for name in row}
    return {name: {"slow": mean(row.get(name, 0.0) for row in slow), "middle": mean(row.get(name, 0.0) for row in middle)} for name in names}
