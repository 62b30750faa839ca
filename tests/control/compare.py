#!/usr/bin/env python3
"""The same random commands for NVIDIA's control utility and for ours, and what they answer.

    python3 tests/control/compare.py --original PATH/nvidia-cuda-mps-control [--ours target/dist/bin/nvidia-cuda-mps-control]

The original is in Debian's package `nvidia-cuda-mps` (component non-free): `apt-get download` and `dpkg-deb -x` give it; driver 535 in bookworm, 550
in trixie.
Both daemons run without a GPU, each in directories of its own. Neither can have a working server then, but there are three worlds in which
both can be met, and each gets its share of the commands:

    none      no server was asked for
    starting  a server that never gets past its start: for the original a program of that name which sleeps, for ours a driver library whose
              initialisation sleeps (a C compiler is needed)
    failing   every server ends at once with status 1: such a program, and such a library

Each command goes to both as one line on standard input (535 takes none as arguments); standard output and exit status must be equal, or the
difference must be one of those listed in JUSTIFIED. At the end of each world `quit` is compared too. Prints each kind of difference with its number
and an example; exits with 1 if one is not justified.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVER_NAME = "nvidia-cuda-mps-server"

# Words that commands are made of; SERVER is the process id of the daemon's own server.
SERVER = "SERVER"
PIDS = [SERVER, SERVER, SERVER, "0", "1", "975", "99999", "-1", "4294967296", "x", "12x"]
PERCENTAGES = ["1", "25", "33.3", "50", "100", "0", "-5", "100.5", "1e1", "abc", "50%", "", "nan", "7x"]
DEVICES = ["0", "1", "7", "-1", "x", "GPU-1234", "1x"]
LIMITS = ["0", "1G", "512M", "3MB", "10", "1.5G", "3X", "-1", "G", "99999999999G", "abc"]
PRIORITIES = ["0", "1", "2", "-1", "x", "1x", "01"]
UIDS = ["0", "12345", "x", ""]
COMMANDS = [
    ("get_server_list",), ("get_server_status",), ("get_server_status", PIDS), ("get_client_list", PIDS), ("ps",), ("ps", ["-p"], PIDS),
    ("ps", ["-p1", "-p99999"]),
    ("set_default_active_thread_percentage", PERCENTAGES), ("get_default_active_thread_percentage",),
    ("set_active_thread_percentage", PIDS, PERCENTAGES), ("get_active_thread_percentage", PIDS),
    ("set_default_device_pinned_mem_limit", DEVICES, LIMITS), ("get_default_device_pinned_mem_limit", DEVICES),
    ("set_device_pinned_mem_limit", PIDS, DEVICES, LIMITS), ("get_device_pinned_mem_limit", PIDS, DEVICES),
    ("set_default_client_priority", PRIORITIES), ("set_default_client_priority",), ("get_default_client_priority",),
    ("shutdown_server", ["1", "975", "x"]), ("shutdown_server", ["1", "975"], ["-f"]), ("terminate_client", PIDS, PIDS),
    ("get_device_client_list",), ("get_device_client_list", PIDS), ("start_server",), ("start_server", ["-uid"]),
    ("start_server", ["-uid"], UIDS),
    ("nonsense",), ("",), ("GET_SERVER_LIST",), ("get_server_list", ["extra"]),
]


def is_odd(word):
    """Whether a word is no plain number, size or UUID."""
    return not re.fullmatch(r"\d{1,9}(\.\d+)?|\d{1,9}[GM]B?", word)


def names_server(line):
    return SERVER in line.split()


def is_new(line):
    return line.split()[0:1] and line.split()[0] in ("get_server_status", "device_query")


# What may differ, and why: (world or None, reason, whether it fits a line). The first that fits is counted.
JUSTIFIED = [
    (None, "535 has no get_server_status; 580 has, and ours answers as 580 does", is_new),
    (None, "535 reads the digits that a wrong number begins with, or takes it for 0; ours refuses it",
     lambda line: any(is_odd(word) for word in line.split()[1:] if word not in (SERVER, "-uid", "-p", "-f"))),
    ("starting", "535 has no limits of a server that is starting: it drops what is set and prints nothing; ours keeps them from the start",
     lambda line: names_server(line) and re.match(r"[sg]et_(active_thread_percentage|device_pinned_mem_limit)", line)),
    ("failing", "535's front end loses its connection, now and then, while the daemon sees its server end",
     lambda line: line.startswith("start_server -uid ")),
]


class Daemon:
    """A control daemon and the way to ask it."""

    def __init__(self, program, directory, environment):
        self.program = program
        directory.mkdir()
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory), CUDA_MPS_LOG_DIRECTORY=str(directory),
                                **environment)
        self.process = subprocess.Popen([program, "-f"], env=self.environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while self.ask("get_default_client_priority")[1] != 0:
            if time.monotonic() > deadline:
                sys.exit(f"{program} does not answer")
            time.sleep(0.05)

    def ask(self, line):
        """Standard output and exit status of the front end; the server's number is written as SERVER."""
        server = self.server() if names_server(line) or line == "get_server_list" else None
        words = [server if word == SERVER and server else word for word in line.split()]
        sent = " ".join(words) if names_server(line) else line
        done = subprocess.run([self.program], input=sent + "\n", env=self.environment, text=True, capture_output=True,
                              timeout=60, check=False)
        output = re.sub(rf"\b{server}\b", SERVER, done.stdout) if server else done.stdout
        return output, done.returncode

    def server(self):
        """The process id of the only server, if there is one."""
        done = subprocess.run([self.program], input="get_server_list\n", env=self.environment, text=True, capture_output=True,
                              timeout=60, check=False)
        return (done.stdout.split() or [None])[0]

    def start_server(self):
        self.ask("start_server -uid 0")

    def settle(self, wanted):
        """Waits until there is a server, or none."""
        deadline = time.monotonic() + 30
        while (self.server() is not None) != wanted:
            if time.monotonic() > deadline:
                sys.exit(f"{self.program}: {'no' if wanted else 'a'} server")
            time.sleep(0.02)

    def quit(self, line):
        answer = self.ask(line)
        try:
            status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            status = "still there"
        return answer, status

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


def random_line(choose):
    name, *arguments = choose.choice(COMMANDS)
    return " ".join([name, *(choose.choice(words) for words in arguments)])


def compare(world, count, choose, programs, directory):
    """Runs a world; returns how many answers were equal, and the differences by reason."""
    equal, kinds = 0, collections.defaultdict(list)
    folder = directory / world
    folder.mkdir()
    environments = prepare(world, folder)
    daemons = [Daemon(program, folder / name, environment)
               for program, name, environment in zip(programs, ("original", "ours"), environments)]

    def differ(line, old, new):
        fits = (why for where, why, test in JUSTIFIED if where in (None, world) and test(line))
        kinds[next(fits, "NOT JUSTIFIED")].append((f"{world}: {line}", old, new))

    try:
        if world == "starting":
            for daemon in daemons:
                daemon.start_server()
                daemon.settle(True)
        for _ in range(count):
            line = random_line(choose)
            if world != "starting":
                if world == "none" and re.match(r"start_server -uid \d", line):
                    line = "start_server -uid"
                line = re.sub(rf"\b{SERVER}\b", "975", line)
            old, new = (daemon.ask(line) for daemon in daemons)
            if world == "failing" and line.startswith("start_server"):
                for daemon in daemons:
                    daemon.settle(False)
            if old == new:
                equal += 1
                if not (line.startswith("set_default") and any(map(is_odd, line.split()[1:]))):
                    continue
            else:
                differ(line, old, new)
            # A state that one took and the other refused, perhaps in silence, would show again and again.
            resets = ["set_default_active_thread_percentage 100", "set_default_client_priority 0"]
            resets += [f"set_default_device_pinned_mem_limit {device} 0" for device in DEVICES]
            for daemon in daemons:
                for reset in resets:
                    daemon.ask(reset)
        # A server that is starting has no clients, so both end it when told to quit; nobody waits for the original, which does not.
        if world != "starting":
            line = choose.choice(["quit", "quit -t 3"])
            old, new = (daemon.quit(line) for daemon in daemons)
            if old[0] == new[0]:
                equal += 1
            else:
                differ(line, old, new)
    finally:
        for daemon in daemons:
            daemon.end()
        end_servers(folder)
    return equal, kinds


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
    parser.add_argument("--commands", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    choose = random.Random(options.seed)
    print(f"seed {options.seed}")
    worlds = ["none", "starting", "failing"] if shutil.which("cc") else ["none"]
    shares = {"none": options.commands // 2, "starting": options.commands * 3 // 8, "failing": options.commands // 8}
    if len(worlds) == 1:
        print("there is no C compiler: only the world without servers")
        shares["none"] = options.commands
    equal, kinds = 0, collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        for world in worlds:
            alike, different = compare(world, shares[world], choose, (options.original, options.ours), pathlib.Path(directory))
            print(f"{world}: {alike} equal, {sum(map(len, different.values()))} not")
            equal += alike
            for why, differences in different.items():
                kinds[why].extend(differences)
    print(f"{equal + sum(map(len, kinds.values()))} commands, {equal} equal")
    for why, differences in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"\n{len(differences)}: {why}")
        shown = differences if why == "NOT JUSTIFIED" else differences[:1]
        for line, old, new in shown[:30]:
            print(f"  {line!r}\n    original {old!r}\n    ours     {new!r}")
    sys.exit(1 if "NOT JUSTIFIED" in kinds else 0)


if __name__ == "__main__":
    main()
