"""A well-behaved PyTorch client of `openmps bench chaos`: busy half of the time, idle for the rest, every word compared. Arguments: board, index."""

import mmap
import os
import random
import struct
import sys
import threading
import time

import torch

WORDS = 1 << 16
SETTLE_S = 0.1
board_file = os.open(sys.argv[1], os.O_RDWR)
board = mmap.mmap(board_file, 4096)
slot = 64 + int(sys.argv[2]) * 32
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
phase = "busy"
survived = [*struct.unpack_from("QQ", board), 0, "busy", struct.unpack_from("Q", board, 24)[0]]


def add(place, value):
    at = slot + 8 * place
    struct.pack_into("Q", board, at, struct.unpack_from("Q", board, at)[0] + value)


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def rests():
    return struct.unpack_from("Q", board, 16)[0] == 1


def notice():
    global survived
    struct.pack_into("Q", board, slot, time.monotonic_ns())
    number, at = struct.unpack_from("QQ", board)
    if number != survived[0]:
        tell()
        survived = [number, at, 0, phase, struct.unpack_from("Q", board, 24)[0]]


def tell():
    if survived[0]:
        say(f"p {survived[0]} {survived[2]} {survived[3]} {survived[4]}")


def round_trip():
    global values
    began = time.monotonic_ns()
    for _ in range(20):
        values = (values * 3 + index) & 0xFFFFFF
    got = values.cpu()
    ended = time.monotonic_ns()
    notice()
    survived[2] = max(survived[2], ended - max(began, survived[1]))
    global expected
    for _ in range(20):
        expected = (expected * 3 + host_index) & 0xFFFFFF
    wrong = int((got != expected).sum())
    add(1, 60)
    add(2, WORDS)
    add(3, wrong)
    if wrong:
        expected = got.clone()


try:
    host_index = torch.arange(WORDS, dtype=torch.int64)
    expected = host_index.clone()
    index = host_index.cuda()
    values = index.clone()
    round_trip()
    say("ready")
    while True:
        phase = "busy"
        until = time.monotonic() + random.uniform(0.15, 0.3)
        while time.monotonic() < until:
            round_trip()
        # Its libraries have variables, which are saved a moment after the work has ended: only then nothing is in flight.
        settled = time.monotonic() + SETTLE_S
        until = settled + random.uniform(0.15, 0.3)
        told = False
        while time.monotonic() < until or (rests() and not ends.is_set()):
            time.sleep(0.01)
            phase = "idle" if time.monotonic() > settled else "busy"
            if phase == "idle" and rests() and not told:
                told = True
                say("rests")
            notice()
            torch.cuda.synchronize()
        if ends.is_set():
            tell()
            break
except Exception as error:
    say(f"e 1 {phase} {type(error).__name__}")
    sys.stderr.write(str(error).split("\n")[0] + "\n")
    os._exit(3)
