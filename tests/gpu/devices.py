#!/usr/bin/env python3
"""Trust domains, devices and the number of clients on real GPUs.

Build first (`cargo xtask build`, and `cargo xtask test programs`, which builds the programs), then, on a machine with
one GPU or more and its driver:

    python3 tests/gpu/devices.py

Domains: clients that are set apart have executors of their own; a kernel that writes to another domain's memory ends its own domain's clients alone; a
control group is a domain where the daemon is told so. Compute modes are reported and respected, never set. Devices (with two GPUs or more):
CUDA_VISIBLE_DEVICES by index, order and UUID; the program `two_devices` with the same output natively and under OpenMPS; the rate of a copy between
devices beside the native one. Clients: as many as are allowed work at once, by default 48 and set to 200, and the next is refused with 808.
Needs Python 3 alone. Prints a table; exits with 1 when anything failed.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from openmps import OpenMps, natively
from puppet import Puppet

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 120
MIB = 1 << 20
COPY_BYTES = 512 * MIB
COPIES = 20
ILLEGAL_ADDRESS, MAX_CLIENTS_REACHED, UNAVAILABLE = 700, 808, 46
PTX = b""".version 6.0
.target sm_50
.address_size 64
.visible .entry poke(.param .u64 at, .param .u32 value)
{
.reg .b64 %rd; .reg .b32 %r;
ld.param.u64 %rd, [at]; ld.param.u32 %r, [value];
st.global.u32 [%rd], %r;
ret;
}
"""


class Refused(Exception):
    """A call of the driver that did not succeed."""


class Cuda:
    """The driver API, as far as the clients here need it."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code:
            raise Refused(code)

    def read(self, name, kind, *arguments):
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return value

    def open(self, device):
        """A current context; its handle."""
        context = self.read("cuDevicePrimaryCtxRetain", ctypes.c_void_p, device)
        self.call("cuCtxSetCurrent", context)
        return context

    def allocate(self, size_bytes):
        return self.read("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(size_bytes)).value

    def poke(self, address, value):
        module = self.read("cuModuleLoadData", ctypes.c_void_p, PTX)
        function = self.read("cuModuleGetFunction", ctypes.c_void_p, module, b"poke")
        at, what = ctypes.c_uint64(address), ctypes.c_uint32(value)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(at), ctypes.addressof(what))
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        self.call("cuCtxSynchronize")

    def peek(self, address):
        word = ctypes.c_uint32()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(word), ctypes.c_uint64(address), ctypes.c_size_t(4))
        return word.value

    def uuids(self):
        count = self.read("cuDeviceGetCount", ctypes.c_int).value
        return [bytes(self.read("cuDeviceGetUuid", ctypes.c_byte * 16, device)).hex() for device in range(count)]


def copy_rate(cuda):
    """GB/s of copies from device 0 to device 1."""
    contexts, ends = [], []
    for device in range(2):
        contexts.append(cuda.open(device))
        ends.append(ctypes.c_uint64(cuda.allocate(COPY_BYTES)))

    def copy(times):
        started = time.monotonic()
        for _ in range(times):
            cuda.call("cuMemcpyPeerAsync", ends[1], contexts[1], ends[0], contexts[0], ctypes.c_size_t(COPY_BYTES), None)
        cuda.call("cuCtxSynchronize")
        return time.monotonic() - started

    copy(2)
    return COPIES * COPY_BYTES / copy(COPIES) / 1e9


def client():
    """Obeys lines of standard input and answers each with one line."""
    cuda, memory = Cuda(), None
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            answer = "ok"
            if word == "open":
                cuda.call("cuInit", 0)
                cuda.open(int(rest[0]) if rest else 0)
            elif word == "address":
                memory = cuda.allocate(MIB)
                answer = memory
            elif word == "poke":
                cuda.poke(int(rest[0]), 7)
            elif word == "work":
                memory = memory or cuda.allocate(MIB)
                for value in range(int(rest[0])):
                    cuda.poke(memory, value)
                    if cuda.peek(memory) != value:
                        answer = "wrong"
            elif word == "uuids":
                cuda.call("cuInit", 0)
                answer = " ".join(cuda.uuids())
            elif word == "rate":
                cuda.call("cuInit", 0)
                answer = f"{copy_rate(cuda):.1f}"
        except Refused as error:
            answer = f"error {error.args[0]}"
        print(answer, flush=True)


class Client(Puppet):
    """A process that obeys; `openmps` None: natively."""

    def __init__(self, openmps, directory, variables=None):
        command = [sys.executable, __file__, "--client"]
        if openmps:
            command = [openmps.executable, "run", "--", *command]
            environment = openmps.environment
        else:
            environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(directory / "nobody"))
        super().__init__(command, dict(environment, **(variables or {})))


def snapshot(openmps):
    status = subprocess.run([openmps.executable, "status", "--json"], env=openmps.environment, text=True,
                            capture_output=True, check=True).stdout
    return json.loads(status)["servers"][0]["snapshot"]


def used_mib():
    """Memory in use on the first GPU, by nvidia-smi; None without it."""
    try:
        words = subprocess.run(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                               text=True, capture_output=True, check=True).stdout
        return int(words.split()[0])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return None


class Table:
    """What was wanted, what was seen, and whether that is the same."""

    def __init__(self):
        self.failures = 0

    def row(self, what, wanted, seen, fine=None):
        fine = wanted == seen if fine is None else fine
        self.failures += not fine
        print(f"{what:58} {wanted!s:>24} {seen!s:>34}  {'ok' if fine else 'WRONG'}", flush=True)


def domains(table, dist, directory):
    openmps = OpenMps(dist, directory)
    shared = Client(openmps, directory)
    # The first one starts the daemon.
    table.row("a client that nothing sets apart", "ok", shared.ask("open"))
    mode = snapshot(openmps)["devices"][0]["compute_mode"]
    print(f"compute mode of device 0: {({0: 'DEFAULT', 2: 'PROHIBITED', 3: 'EXCLUSIVE_PROCESS'}).get(mode, mode)}")
    one, other, stranger = (Client(openmps, directory, {"OPENMPS_ISOLATE": name}) for name in ("job", "job", "stranger"))
    if mode == 3:
        table.row("another domain on an exclusive device", f"error {UNAVAILABLE}", one.ask("open"))
        for each in (shared, one, other, stranger):
            each.end()
        return openmps.quit()
    for each in (one, other, stranger):
        table.row("a client in a domain", "ok", each.ask("open"))
    device = snapshot(openmps)["devices"][0]
    found = sorted((domain["name"], domain["clients"]) for domain in device["domains"])
    table.row("domains and their clients", [("job", 2), ("stranger", 1)], found)
    pids = {domain["executor_pid"] for domain in device["domains"]} | {device["executor_pid"]}
    table.row("executors", 3, len(pids - {0}))
    in_job = one.ask("address")
    table.row("a kernel writes to memory of its domain", "ok", other.ask(f"poke {in_job}"))
    table.row("a kernel writes to memory of another domain", f"error {ILLEGAL_ADDRESS}", stranger.ask(f"poke {in_job}"))
    for name, each in (("shared", shared), ("job", one), ("job", other)):
        table.row(f"work afterwards: {name}", "ok", each.ask("work 20"))
    for each in (shared, one, other, stranger):
        each.end()
    openmps.quit()


def devices(table, target, directory):
    dist = target / "dist"
    native = Client(None, directory)
    uuids = native.ask("uuids").split()
    native.end()
    openmps = OpenMps(dist, directory)
    ask = lambda order, **variables: (lambda it: (it.ask(order), it.end())[0])(Client(openmps, directory, variables))
    table.row("devices of a client", uuids, ask("uuids").split(), fine=ask("uuids").split() == uuids)
    if len(uuids) < 2:
        print("one GPU: nothing to copy between")
        return openmps.quit()
    table.row("CUDA_VISIBLE_DEVICES=1,0", "swapped", "swapped" if ask("uuids", CUDA_VISIBLE_DEVICES="1,0").split() == uuids[1::-1] else "not")
    length = next(n for n in range(1, 33) if sum(uuid.startswith(uuids[1][:n]) for uuid in uuids) == 1)
    prefix = f"GPU-{uuids[1][:length]}"
    table.row(f"CUDA_VISIBLE_DEVICES={prefix}", "the second", "the second" if ask("uuids", CUDA_VISIBLE_DEVICES=prefix).split() == [uuids[1]] else "not")
    program = target / "programs/process/two_devices"
    alone = natively(program, directory=directory, limit_s=LIMIT_S)
    running = openmps.start(program)
    out, err = running.communicate(timeout=LIMIT_S)
    for line in alone.stdout.splitlines():
        table.row(f"two_devices: {line}", "also under OpenMPS", "yes" if line in out.splitlines() else f"no: {err.strip()[-200:]}", fine=line in out.splitlines())
    table.row("two_devices natively", 0, alone.returncode)
    counted = openmps.clients().get(running.pid)
    table.row("kernels of this very process", "> 0", counted and counted["kernels"], fine=bool(counted and counted["kernels"]))
    it = Client(None, directory)
    native_rate = float(it.ask("rate"))
    it.end()
    rate = float(ask("rate"))
    table.row("copy from device to device, GB/s", f"native {native_rate:.1f}", f"OpenMPS {rate:.1f}", fine=rate > 0.8 * native_rate)
    openmps.quit()


def capacity(table, dist, directory, most, variables):
    openmps = OpenMps(dist, directory)
    openmps.environment.update(variables)
    first = Client(openmps, directory)
    table.row(f"{most} clients: the first", "ok", first.ask("open"))
    first.ask("work 2")
    before, started = used_mib(), time.monotonic()
    clients = [Client(openmps, directory) for _ in range(most - 1)]
    for order in ("open", "work 20"):
        for each in clients:
            each.tell(order)
        answers = [each.answer() for each in clients]
        table.row(f"{most} clients: {order!r} of all others", most - 1, answers.count("ok"))
    after = used_mib()
    counted = openmps.clients()
    table.row(f"{most} clients: counted with their kernels", most - 1, sum(counted.get(each.pid, {}).get("kernels", 0) >= 20 for each in clients))
    if before is not None and after is not None:
        print(f"GPU memory: {before} MiB with one client, {after} MiB with {most}: {(after - before) / (most - 1):.2f} MiB each")
    print(f"{time.monotonic() - started:.1f} s for {most - 1} clients from their start to the end of their work")
    late = Client(openmps, directory)
    table.row(f"{most} clients: one more", f"error {MAX_CLIENTS_REACHED}", late.ask("open"))
    refused = snapshot(openmps)["devices"][0]["refused_contexts"]
    table.row(f"{most} clients: refusals counted", 1, refused)
    for each in [*clients, first, late]:
        each.end()
    openmps.quit()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target", help="the build directory [target]")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        return client()
    table = Table()
    dist = options.target / "dist"
    steps = [
        lambda directory: domains(table, dist, directory),
        lambda directory: devices(table, options.target, directory),
        lambda directory: capacity(table, dist, directory, 48, {}),
        lambda directory: capacity(table, dist, directory, 200, {"OPENMPS_CONTEXTS_PER_DEVICE": "200"}),
    ]
    for step in steps:
        with tempfile.TemporaryDirectory() as directory:
            step(pathlib.Path(directory))
    print(f"{table.failures} wrong")
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main())
