#!/usr/bin/env python3
"""The same random commands for NVIDIA's control utility and for ours, and what they answer.

    python3 tests/control/compare.py --original PATH/nvidia-cuda-mps-control [--ours target/dist/bin/nvidia-cuda-mps-control]

The original is in Debian's package `nvidia-cuda-mps` (component non-free): `apt-get download` and `dpkg-deb -x` give it; driver 535 there.
Both daemons start without a GPU, in directories of their own; no server runs, so what is compared is the shell itself. Every
command goes to both; standard output and exit status must be equal, or the difference must be one of those listed in JUSTIFIED.
Prints each kind of difference with its number and an example; exits with 1 if one is not justified.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Words that commands are made of.
PIDS = ["0", "1", "975", "99999", "-1", "4294967296", "x", "12x"]
PERCENTAGES = ["1", "25", "33.3", "50", "100", "0", "-5", "100.5", "1e1", "abc", "50%", "", "nan", "7x"]
DEVICES = ["0", "1", "7", "-1", "x", "GPU-1234", "1x"]
LIMITS = ["0", "1G", "512M", "3MB", "10", "1.5G", "3X", "-1", "G", "99999999999G", "abc"]
PRIORITIES = ["0", "1", "2", "-1", "x", "1x", "01"]
COMMANDS = [
    ("get_server_list",), ("get_server_status", PIDS), ("get_client_list", PIDS), ("ps",), ("ps", ["-p"], PIDS),
    ("set_default_active_thread_percentage", PERCENTAGES), ("get_default_active_thread_percentage",),
    ("set_active_thread_percentage", PIDS, PERCENTAGES), ("get_active_thread_percentage", PIDS),
    ("set_default_device_pinned_mem_limit", DEVICES, LIMITS), ("get_default_device_pinned_mem_limit", DEVICES),
    ("set_device_pinned_mem_limit", PIDS, DEVICES, LIMITS), ("get_device_pinned_mem_limit", PIDS, DEVICES),
    ("set_default_client_priority", PRIORITIES), ("get_default_client_priority",),
    ("shutdown_server", PIDS), ("shutdown_server", PIDS, ["-f"]), ("terminate_client", PIDS, PIDS),
    ("get_device_client_list",), ("get_device_client_list", PIDS), ("start_server",), ("start_server", ["-uid"]),
    ("nonsense",), ("",), ("GET_SERVER_LIST",), ("get_server_list", ["extra"]),
]


def is_odd(word):
    """Whether a word is no plain number, size or UUID."""
    return not re.fullmatch(r"\d{1,9}(\.\d+)?[GM]?B?", word)


# What may differ, and why. The first that fits is counted.
JUSTIFIED = [
    ("535 has no get_server_status; 580 has, and ours answers as 580 does",
     lambda line, old, new: line.startswith("get_server_status")),
    ("535 reads the digits that a wrong number begins with, or takes it for 0; ours refuses it",
     lambda line, old, new: any(is_odd(word) for word in line.split()[1:])),
]


class Daemon:
    """A control daemon and the way to ask it."""

    def __init__(self, program, directory):
        self.program = program
        directory.mkdir()
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory), CUDA_MPS_LOG_DIRECTORY=str(directory))
        self.process = subprocess.Popen([program, "-f"], env=self.environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while self.ask("get_default_client_priority")[1] != 0:
            if time.monotonic() > deadline:
                sys.exit(f"{program} does not answer")
            time.sleep(0.05)

    def ask(self, line):
        done = subprocess.run([self.program], input=line + "\n", env=self.environment, text=True, capture_output=True,
                              timeout=30, check=False)
        return done.stdout, done.returncode

    def quit(self):
        self.ask("quit")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def random_line(choose):
    name, *arguments = choose.choice(COMMANDS)
    return " ".join([name, *(choose.choice(words) for words in arguments)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", required=True)
    parser.add_argument("--ours", default=str(ROOT / "target/dist/bin/nvidia-cuda-mps-control"))
    parser.add_argument("--commands", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    choose = random.Random(options.seed)
    print(f"seed {options.seed}")
    equal, kinds = 0, collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        original = Daemon(options.original, directory / "original")
        ours = Daemon(options.ours, directory / "ours")
        for _ in range(options.commands):
            line = random_line(choose)
            old, new = original.ask(line), ours.ask(line)
            if old == new:
                equal += 1
                continue
            why = next((why for why, fits in JUSTIFIED if fits(line, old, new)), "NOT JUSTIFIED")
            kinds[why].append((line, old, new))
            # A state that one took and the other refused would show again and again.
            for reset in ("set_default_active_thread_percentage 100", "set_default_client_priority 0"):
                original.ask(reset)
                ours.ask(reset)
            for device in DEVICES:
                original.ask(f"set_default_device_pinned_mem_limit {device} 0")
                ours.ask(f"set_default_device_pinned_mem_limit {device} 0")
        original.quit()
        ours.quit()
    print(f"{options.commands} commands, {equal} equal")
    for why, differences in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(differences)}: {why}")
        shown = differences if why == "NOT JUSTIFIED" else differences[:1]
        for line, old, new in shown[:30]:
            print(f"  {line!r}\n    original {old!r}\n    ours     {new!r}")
    sys.exit(1 if "NOT JUSTIFIED" in kinds else 0)


if __name__ == "__main__":
    main()
