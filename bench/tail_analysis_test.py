"""Requests whose cause of being slow is known: the analysis names it, and no other."""

import dataclasses
import random
import unittest

import tail_analysis
from tail_analysis import NS_PER_MS, Request

PROCESSES = 8
REQUESTS = 1500
SLOW_MS = 2.5


def run(is_slow, slow_request, seed=1):
    """Requests of some 1.8 ms one after the other; of those that `is_slow` names (process, index, ms since the run began) `slow_request` changes what
    it likes, and they last `SLOW_MS` longer."""
    source, requests = random.Random(seed), []
    for process in range(PROCESSES):
        now = int(source.uniform(0, 2) * NS_PER_MS)
        for index in range(REQUESTS):
            total = int(source.gauss(1.8, 0.05) * NS_PER_MS)
            posting = total // 3
            one = Request(process, now, now + posting, now + total, posting, 100_000, 0, 0, 1, 0, 0, 0)
            if is_slow(process, index, now / NS_PER_MS):
                one = slow_request(one)
            requests.append(one)
            now = one.end_ns + 1000
    return requests


def waits(one):
    """Something takes long after all was posted."""
    return dataclasses.replace(one, end_ns=one.end_ns + int(SLOW_MS * NS_PER_MS))


def any_hundredth(seed):
    source = random.Random(seed)
    return lambda *_: source.random() < 0.01


class Causes(unittest.TestCase):
    def conclusions(self, requests, threads=()):
        return set(tail_analysis.analyse(requests, threads)["conclusions"])

    def test_a_stall_of_all_at_once(self):
        source = random.Random(3)
        stalls = [source.uniform(0, 2700) for _ in range(15)]
        requests = run(lambda _, __, at: any(at <= stall < at + 1.8 for stall in stalls), waits)
        found = tail_analysis.analyse(requests)
        self.assertGreater(found["coincidence"]["together"], 0.9)
        self.assertLess(found["coincidence"]["by_chance"], 0.6)
        self.assertEqual(set(found["conclusions"]), {"waiting", "asleep", "together"})

    def test_alone_without_a_processor(self):
        def delayed(one):
            return dataclasses.replace(waits(one), wait_delay_ns=int(SLOW_MS * NS_PER_MS), involuntary_switches=1)

        found = tail_analysis.analyse(run(any_hundredth(5), delayed))
        self.assertEqual(set(found["conclusions"]), {"waiting", "delayed", "alone"})
        self.assertAlmostEqual(found["compare"]["runnable, not running, waiting"]["excess"], 1.0, delta=0.1)
        self.assertAlmostEqual(found["distribution_ms"]["p50"], 1.8, delta=0.05)

    def test_every_hundredth_request(self):
        found = tail_analysis.analyse(run(lambda process, index, _: index % 100 == 13 * process % 100, waits))
        self.assertEqual(found["every_requests"]["period"], 100)
        self.assertIn("every requests", found["conclusions"])

    def test_every_25_ms(self):
        def is_slow(process, _, at):
            # One process's after the other's.
            number, since = divmod(at, 25)
            return since < 1.8 and process == number % PROCESSES

        found = tail_analysis.analyse(run(is_slow, waits))
        self.assertAlmostEqual(found["every_ms"]["period"], 25, delta=0.2)
        self.assertIn("every ms", found["conclusions"])

    def test_nothing_periodic_is_found_in_chance(self):
        for seed in range(10):
            found = tail_analysis.analyse(run(any_hundredth(seed), waits, seed))
            self.assertIsNone(found["every_requests"], seed)
            self.assertIsNone(found["every_ms"], seed)
            self.assertIn("alone", found["conclusions"], seed)

    def test_slow_in_posting(self):
        def posts(one):
            more = int(SLOW_MS * NS_PER_MS)
            return dataclasses.replace(one, posted_ns=one.posted_ns + more, end_ns=one.end_ns + more, post_cpu_ns=one.post_cpu_ns + more)

        self.assertEqual(self.conclusions(run(any_hundredth(6), posts)), {"posting", "alone"})

    def test_slow_while_something_is_learnt(self):
        requests = run(lambda _, index, __: index < 80 and index % 4 == 0, waits)
        found = tail_analysis.analyse(requests)
        self.assertIn("beginning", found["conclusions"])
        self.assertGreater(found["distribution_ms"]["p99"], 3)
        self.assertLess(found["later_p99_ms"], 3)

    def test_one_process_fares_worse(self):
        source = random.Random(8)
        self.assertIn("uneven", self.conclusions(run(lambda process, *_: process == 2 and source.random() < 0.08, waits)))

    def test_a_thread_of_the_server_without_a_processor(self):
        requests = run(any_hundredth(9), waits)
        ended = sorted(one.end_ns for one in requests if one.total_ns > 3 * NS_PER_MS)
        delay_ns, samples, late = 0, [], 0
        for at in range(0, 2800):
            while late < len(ended) and ended[late] < at * NS_PER_MS:
                late, delay_ns = late + 1, delay_ns + int(SLOW_MS * NS_PER_MS)
            samples.append([int(at * NS_PER_MS), int(at * NS_PER_MS / 2), delay_ns])
        # What is seen after the request has ended is not the request's: the thread's samples are a little later here.
        threads = [{"process": "openmps", "name": "session 3", "samples": [[at - int(NS_PER_MS), *rest] for at, *rest in samples]}]
        found = tail_analysis.analyse(requests, threads)
        self.assertIn("delayed openmps: session", found["conclusions"])
        self.assertAlmostEqual(found["threads"]["openmps: session"]["middle"]["running"], 0.5, delta=0.2)

    def test_a_thread_of_the_server_that_is_at_work_then_only(self):
        # It begins and ends something of 4 ms now and then, and all that is under way then takes longer.
        begins = [50 + 180 * number for number in range(15)]
        requests = run(lambda _, __, at: any(at <= begin < at + 1.8 for begin in begins), waits)
        samples, ran_ns = [], 0
        for at in range(0, 2800):
            ran_ns += int(NS_PER_MS) * any(begin <= at < begin + 4 for begin in begins)
            samples.append([int((at + 1) * NS_PER_MS), ran_ns, 0])
        threads = [{"process": "openmps", "name": "warming", "samples": samples}]
        self.assertIn("busy openmps: warming", self.conclusions(requests, threads))
        steady = [{"process": "openmps", "name": "monitor", "samples": [[at, at // 2, 0] for at, _, _ in samples]}]
        self.assertNotIn("busy openmps: monitor", self.conclusions(requests, steady))

    def test_few_requests_without_a_scheduler_that_counts(self):
        requests = [Request(0, at, at + 10, at + 100, 5, 5, None, None, 0, 0, 0, 0) for at in range(0, 1000, 100)]
        found = tail_analysis.analyse(requests)
        self.assertEqual(found["slow"], 1)
        self.assertNotIn("runnable, not running, waiting", found["compare"])


class Kernels(unittest.TestCase):
    def test_gaps_of_a_request(self):
        ms = int(NS_PER_MS)
        one = Request(0, 0, ms, 10 * ms, 0, 0, 0, 0, 0, 0, 0, 0)
        kernels = [(-ms, 0, 0.0), (2 * ms, 3 * ms, 5.0), (3 * ms, 4 * ms, 7.0), (7 * ms, 8 * ms, 4000.0), (10 * ms, 11 * ms, 0.0)]
        [row] = tail_analysis.kernels_of([one], kernels)
        self.assertEqual(row, {"total": 10.0, "before the first kernel": 2.0, "kernels": 3.0, "between kernels": 3.0, "longest gap": 3.0,
                               "after the last kernel": 2.0, "longest in the server": 4.0, "number of kernels": 3})
        self.assertEqual(tail_analysis.compare_parts([row])["between kernels"], {"slow": 3.0, "middle": 3.0})
        self.assertEqual(tail_analysis.compare_parts([]), {})

    def test_calls_of_slow_requests(self):
        ms = int(NS_PER_MS)
        requests = [Request(0, 2 * index * ms, 0, 2 * index * ms + ms + index, 0, 0, 0, 0, 0, 0, 0, 0) for index in range(20)]
        calls = [(one.start_ns + 10, 300.0, "cuLaunchKernel") for one in requests] + [(requests[-1].start_ns + 20, 500.0, "cuMemFree_v2")]
        means = tail_analysis.compare_parts(tail_analysis.calls_of(requests, calls))
        self.assertEqual(means["cuMemFree_v2"], {"slow": 0.5, "middle": 0.0})
        self.assertAlmostEqual(means["cuLaunchKernel"]["slow"], means["cuLaunchKernel"]["middle"])


if __name__ == "__main__":
    unittest.main()
