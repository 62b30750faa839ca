#!/usr/bin/env python3
"""The same random scripts for NVIDIA's control shell and for ours, and what they answer.

    cargo xtask fuzz shell [--release 535|550|555] [--seconds 60] [--seed N]

fetches NVIDIA's shell (Debian's package `nvidia-cuda-mps`, component non-free: driver 550 in trixie, 555 in experimental, 535 in bookworm) and runs
this. By hand:

    python3 tests/control/fuzz.py --original PATH/nvidia-cuda-mps-control --release 550 [--ours target/dist/bin/nvidia-cuda-mps-control]

Both daemons run without a GPU, each in directories of its own. Neither can have a working server then, but there are three worlds in which both can
be met:

    none      no server was asked for
    starting  a server that never gets past its start: for NVIDIA's a program of that name which sleeps, for ours a driver library whose
              initialisation sleeps (a C compiler is needed)
    failing   every server ends at once with status 1: such a program, and such a library

A round is a world with fresh daemons, scripts of up to 20 lines, and `quit`. Behind each line of a script stands one that both answer with its
number, so that the answer of each line is known. What is compared: each answer on standard output, the exit status of each script and of `quit`, that
of the daemon, and in worlds where no server starts or ends what the log says of each line (ours may say more at the end, why it complains). A
difference must be one of those listed in KNOWN, which docs/control.md explains. Prints each kind of difference with its number and an example;
exits with 1 if one is not known.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import grammar
from known import KNOWN

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER_NAME = "nvidia-cuda-mps-server"
LINES_OF_A_ROUND = 300
STAMP = re.compile(rb"\[[^]]*\] ")


class Daemon:
    """A control daemon and the way to ask it."""

    def __init__(self, program, directory, environment):
        self.program = program
        directory.mkdir()
        self.log = directory / "output"
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory), CUDA_MPS_LOG_DIRECTORY=str(directory), **environment)
        self.server_pid = None
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([program, "-f"], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while self.script(b"get_default_client_priority\n")[1] != 0:
            if time.monotonic() > deadline:
                sys.exit(f"{program} does not answer")
            time.sleep(0.02)

    def script(self, text):
        """Standard output and exit status of the front end; SERVER stands for the server's number."""
        if self.server_pid:
            text = text.replace(grammar.SERVER, self.server_pid)
        done = subprocess.run([self.program], input=text, env=self.environment, capture_output=True, timeout=60, check=False)
        return self.without_server(done.stdout), done.returncode

    def without_server(self, text):
        """With SERVER in the place of the server's number."""
        return re.sub(rb"\b%s\b" % self.server_pid, grammar.SERVER, text) if self.server_pid else text

    def answers(self, lines):
        """What each line was answered, and the exit status."""
        output, status = self.script(b"".join(b"%s\n@%d\n" % (line, number) for number, line in enumerate(lines)))
        answers = []
        for number in range(len(lines)):
            answer, mark, output = output.partition(b'Unknown command "@%d"\n' % number)
            answers.append(answer if mark else b"(the script ended here) " + answer)
        return answers, status, output

    def settle(self, wanted):
        """Waits until there is a server, or none."""
        deadline = time.monotonic() + 30
        while bool(found := self.script(b"get_server_list\n")[0].split()) != wanted:
            if time.monotonic() > deadline:
                sys.exit(f"{self.program}: {'no' if wanted else 'a'} server")
            time.sleep(0.01)
        return found

    def start_server(self):
        self.script(b"start_server -uid 0\n")
        self.server_pid = self.settle(True)[0]

    def quit(self, line):
        answer = self.script(line + b"\n")
        try:
            return answer, self.process.wait(30)
        except subprocess.TimeoutExpired:
            return answer, "still there"

    def logged(self):
        """What the log says of each line of each script, by the numbers that stand behind them."""
        found, block = [], []
        for line in self.log.read_bytes().split(b"\n"):
            text = STAMP.sub(b"", line, count=1)
            if text.startswith(b"Cmd:@"):
                found.append(block)
            if text.startswith(b"Cmd:@") or text == b"NEW UI":
                block = []
            elif not text.startswith((b"Cmd:", b'Unknown command "@', b'`@')) and text != b"Accepting connection...":
                block.append(self.without_server(text))
        return found

    def wait_for_log(self, lines):
        """The log is written after the answer."""
        deadline = time.monotonic() + 5
        while len(self.logged()) < lines and time.monotonic() < deadline:
            time.sleep(0.02)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def prepare(world, directory):
    """The environments of both daemons in a world."""
    original, ours = {}, {"OPENMPS_CONFIG": ""}
    if world == "none":
        return original, ours
    programs = directory / "programs"
    programs.mkdir()
    fake = programs / SERVER_NAME
    fake.write_text("#!/bin/sh\nexec sleep 600\n" if world == "starting" else "#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    original["PATH"] = f"{programs}:{os.environ['PATH']}"
    body = "sleep(600);" if world == "starting" else "_exit(1);"
    source = programs / "driver.c"
    source.write_text(f"#include <unistd.h>\n__attribute__((constructor)) static void start(void) {{ {body} }}\n")
    library = programs / "libdriver.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    ours["OPENMPS_NATIVE_DRIVER"] = str(library)
    return original, ours


class Comparison:
    """Counts of what was equal, and the differences by reason."""

    def __init__(self, release):
        self.release, self.lines = release, 0
        self.equal, self.kinds = collections.Counter(), collections.defaultdict(list)

    def add(self, world, what, line, theirs, ours):
        if theirs == ours:
            self.equal[what] += 1
            return
        case = grammar.Case(world, self.release, what, line, theirs, ours)
        why = next((known.why for known in KNOWN if known.fits(case)), "NOT KNOWN")
        self.kinds[why].append(case)

    def add_round(self, world, choose, programs, directory):
        directory.mkdir()
        environments = prepare(world, directory)
        daemons = []
        try:
            for program, name, environment in zip(programs, ("original", "ours"), environments):
                daemons.append(Daemon(program, directory / name, environment))
                if world == "starting":
                    daemons[-1].start_server()
            lines = self.compare_scripts(world, choose, daemons)
            for daemon in daemons:
                daemon.wait_for_log(len(lines))
            # A server that is starting has no clients, so both end it when told to quit; nobody waits for NVIDIA's, which does not.
            if world != "starting":
                line = choose.choice(grammar.QUITS)
                self.add(world, "quit", line, *(daemon.quit(line) for daemon in daemons))
        finally:
            for daemon in daemons:
                daemon.end()
            end_servers(directory)
        if world != "failing":
            self.compare_logs(world, lines, daemons)

    def compare_scripts(self, world, choose, daemons):
        sent = []
        while len(sent) < LINES_OF_A_ROUND:
            lines = grammar.script(choose, world)
            sent += lines
            self.lines += len(lines)
            theirs, ours = (daemon.answers(lines) for daemon in daemons)
            for line, *both in zip(lines, theirs[0], ours[0]):
                self.add(world, "answer", line, *both)
            self.add(world, "end of a script", b"", theirs[1:], ours[1:])
            if world == "failing":
                for daemon in daemons:
                    daemon.settle(False)
        return sent

    def compare_logs(self, world, lines, daemons):
        theirs, ours = (daemon.logged() for daemon in daemons)
        self.add(world, "number of lines in the log", b"", (len(lines), len(lines)), (len(theirs), len(ours)))
        for line, old, new in zip(lines, theirs, ours):
            # Ours says at the end why it complains.
            is_more = new[: len(old)] == old and grammar.are_complaints(new[len(old):])
            self.add(world, "log", line, old, old if is_more else new)


def end_servers(folder):
    """Ends what the daemons of this comparison have started and left, by its environment."""
    mark = f"CUDA_MPS_PIPE_DIRECTORY={folder}".encode()
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if any(variable.startswith(mark) for variable in (entry / "environ").read_bytes().split(b"\0")):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", required=True)
    parser.add_argument("--ours", default=str(ROOT / "target/dist/bin/nvidia-cuda-mps-control"))
    parser.add_argument("--release", type=int, default=550, help="NVIDIA's driver that it is of")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    worlds = ["none", "starting", "failing"] if shutil.which("cc") else ["none"]
    if len(worlds) == 1:
        print("there is no C compiler: only the world without servers")
    deadline, rounds = time.monotonic() + options.seconds, 0
    comparison = Comparison(options.release)
    with tempfile.TemporaryDirectory() as directory:
        while rounds < len(worlds) or time.monotonic() < deadline:
            world = worlds[rounds % len(worlds)]
            folder = pathlib.Path(directory) / f"round{rounds}"
            comparison.add_round(world, random.Random(f"{options.seed} {rounds}"), (options.original, options.ours), folder)
            shutil.rmtree(folder)
            rounds += 1
    kinds = comparison.kinds
    counts = ", ".join(f"{number} x {what}" for what, number in comparison.equal.items())
    print(f"{rounds} rounds, {comparison.lines} lines; equal: {counts}; different: {sum(map(len, kinds.values()))}")
    for why, cases in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(cases)}: {why}")
        for case in cases[:30] if why == "NOT KNOWN" else cases[:1]:
            print(f"  {case.world}, {case.what}: {case.line[:200]!r}\n    original {str(case.theirs)[:300]}\n    ours     {str(case.ours)[:300]}")
    sys.exit(1 if "NOT KNOWN" in kinds else 0)


if __name__ == "__main__":
    main()
