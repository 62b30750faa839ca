#!/usr/bin/env python3
"""Chaos on a real GPU: every kind of fault, kill and attack beside good clients that check every word, under OpenMPS and under NVIDIA's MPS.

Build first (`cargo xtask build`), then, on a machine with a GPU and its driver, where `python3` has PyTorch and the PATH has nvidia-cuda-mps-control:

    python3 tests/gpu/chaos.py

Where there are two GPUs each peer has one of its own, and they run at once; on one they take turns. One command takes at most `--seconds` [480], of which the last
minute is for the clients' end; what it counted is kept in `--state`. The same command again goes on until each peer has had its 10 minutes of faults, and says when
that is so. Prints what was counted, peer beside peer, and writes it as JSON beside the state; what each run said is there, too. Exits with 0 when all is done and OpenMPS kept its promise (no good
client with nothing in flight lost, no wrong word, hang or leak, at least 100 faults in 10 minutes), with 3 when there is more to do, with 1 when the promise is broken. `--torch 0` is the
run without PyTorch, with counts of its own. Without a GPU: `--softcuda --torch 0 --minutes 0.5`, or with two of the software's: `--peers openmps,none`, without any MPS beside.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = 1
# Beyond the time in which faults are made a run takes what its clients need to start and to end.
START_AND_END_S = 50
# Too short for a fault of every kind.
LEAST_MINUTES = 0.2
# In ten minutes.
LEAST_FAULTS_PER_MINUTE = 10
REACH_MS = {"p50": 400, "p99": 800}
MORE_TO_DO = 3
# Kernels that do not end are killed after this: by default it is 10 s, which leaves no time for faults.
KILL_PATIENCE_MS = "500"
# Of clients that are not heard of: the longest fault that NVIDIA's driver tells late takes 3.2 s.
PATIENCE_S = "20"
# Lines of what a run said that are printed.
LAST_LINES = 12


class Peer:
    """A way to share the device, and what was counted of it."""

    def __init__(self, name, options):
        self.name, self.options = name, options
        kind = "torch" if options.torch else "plain"
        self.state = options.state / f"chaos-{name}-{kind}.json"
        self.told = options.state / f"chaos-{name}-{kind}.log"

    def counted(self):
        return json.loads(self.state.read_text()) if self.state.exists() else {}

    def minutes_left(self):
        return self.options.minutes - self.counted().get("seconds", 0) / 60

    def start(self, minutes, gpu):
        """Starts a run; its end is heard of by the state that it leaves."""
        options = self.options
        command = [options.dist / "bin/openmps", "bench", "chaos", "--peer", self.name, "--json", "--state", self.state,
                   "--minutes", str(options.minutes), "--this-run", str(minutes), "--clients", str(options.clients),
                   "--torch", str(options.torch), "--patience-s", PATIENCE_S]
        if options.softcuda:
            command.append("--softcuda")
        # Without quarantine, so that all faults are among others.
        environment = dict(os.environ, OPENMPS_KILL_PATIENCE_MS=KILL_PATIENCE_MS)
        environment.setdefault("OPENMPS_QUARANTINE", "0")
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        print(f"{self.name}: faults for {minutes:.1f} minutes" + (f" on {gpu}" if gpu else ""), flush=True)
        with self.told.open("a") as told:
            return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=told)

    def finish(self, run):
        status = run.wait()
        print(f"{self.name}: exit status {status}; its last words:")
        print("".join(f"    {line}\n" for line in self.told.read_text().splitlines()[-LAST_LINES:]), flush=True)
        if not self.state.exists():
            raise SystemExit(f"the run under {self.name} came to nothing")


def run_all(peers, gpus, seconds):
    """One run of each peer that has something left to do: at once where each has a GPU, else one after the other."""
    ends = time.monotonic() + seconds
    at_once = len(gpus) >= len(peers)
    running = []
    for place, peer in enumerate(peers):
        minutes = min(peer.minutes_left(), (ends - time.monotonic() - START_AND_END_S) / 60)
        if minutes <= 0 or minutes < min(LEAST_MINUTES, peer.minutes_left()):
            continue
        run = peer.start(minutes, gpus[place] if at_once else None)
        if at_once:
            running.append((peer, run))
        else:
            peer.finish(run)
    for peer, run in running:
        peer.finish(run)


def software_uuid(number):
    """Of the software's GPUs (`crates/softcuda/src/device/properties.rs`)."""
    name = bytearray(b"OpenMPS-soft-gpu")
    name[15] = number
    return f"GPU-{uuid.UUID(bytes=bytes(name), version=4)}"


def gpus_of(options):
    """What CUDA_VISIBLE_DEVICES calls the GPUs. By UUID, since NVIDIA's MPS numbers those anew that its daemon sees."""
    if options.softcuda:
        return [software_uuid(number) for number in range(int(os.environ.get("OPENMPS_SOFT_DEVICES", "1")))]
    listed = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], text=True, capture_output=True, check=False)
    return listed.stdout.split()


def percentile_ms(pauses_us, part):
    if not pauses_us:
        return None
    pauses_us = sorted(pauses_us)
    return pauses_us[max(0, -(-len(pauses_us) * part // 100) - 1)] / 1e3


def but_of_traps(counted):
    """Pauses after all other faults: a trap is told by NVIDIA's driver 3.2 s after it happened, and until then nothing of the device's work ends."""
    return [pause for kind, of_kind in counted["faults"].items() if kind != "trap" for pause in of_kind.get("pauses_us", [])]


def summary(counted):
    """What is told of a peer."""
    served, leaks, pauses = counted.get("served") or {}, counted["leaks"], counted["pauses_us"]
    stuck = sum(kind["stuck"] for kind in counted["faults"].values())
    return {
        "minutes of faults": round(counted["seconds"] / 60, 2),
        "faults, kills and attacks": sum(kind["count"] for kind in counted["faults"].values()),
        "good clients (of PyTorch)": f"{counted['good_clients']} ({counted['torch_clients']})",
        "idle: survived a fault": counted["survived"]["idle"],
        "idle: lost": counted["lost"]["idle"],
        "in flight: survived a fault": counted["survived"]["busy"],
        "in flight: lost": counted["lost"]["busy"],
        "pause p50 [ms]": percentile_ms(pauses, 50),
        "pause p99 [ms]": percentile_ms(pauses, 99),
        "pause longest [ms]": percentile_ms(pauses, 100),
        "pause p50 but of traps [ms]": percentile_ms(but_of_traps(counted), 50),
        "pause p99 but of traps [ms]": percentile_ms(but_of_traps(counted), 99),
        "pause longest but of traps [ms]": percentile_ms(but_of_traps(counted), 100),
        "bad inputs (calls, images, commands, messages)": sum(kind.get("inputs", 0) for kind in counted["faults"].values()),
        "kernels of good clients": counted["kernels"],
        "words compared": counted["words"],
        "wrong words": counted["wrong_words"],
        "good clients that hung": counted["hangs"],
        "bad clients that hung": stuck,
        "lost with their first work": counted.get("lost_starting"),
        "starts that were refused": counted["refused_starts"],
        "leaked device memory [B]": leaks["device_bytes"],
        "leaked descriptors": leaks["descriptors"],
        "leaked processes": leaks["processes"],
        "things not as they should be at the end": len(counted.get("left_over", [])),
        "faults of the device, by the server": served.get("device_faults"),
        "executors replaced": served.get("executors_replaced"),
        "of these, ended unexpectedly": served.get("executors_died"),
    }


def table(summaries):
    names = list(summaries)
    lines = [f"{'':<48}" + "".join(f"{name:>16}" for name in names)]
    for row in next(iter(summaries.values()), {}):
        values = ("-" if summaries[name][row] is None else str(summaries[name][row]) for name in names)
        lines.append(f"{row:<48}" + "".join(f"{value:>16}" for value in values))
    return "\n".join(lines)


def kinds_table(counts):
    lines = [f"{'fault':<20}{'peer':<10}{'count':>7}{'inputs':>8}{'stuck':>7}{'p50':>8}{'p99':>8}  what its maker was told (pauses in ms, of clients in flight that lived on)"]
    kinds = dict.fromkeys(kind for counted in counts.values() for kind in counted["faults"])
    for kind in kinds:
        for peer, counted in counts.items():
            made = counted["faults"].get(kind)
            if made:
                answers = ", ".join(f"{answer} x{count}" for answer, count in made["answers"].items())
                p50, p99 = ("-" if pause is None else f"{pause:.0f}" for pause in (percentile_ms(made.get("pauses_us"), part) for part in (50, 99)))
                lines.append(f"{kind:<20}{peer:<10}{made['count']:>7}{made.get('inputs', 0):>8}{made['stuck']:>7}{p50:>8}{p99:>8}  {answers}")
    return "\n".join(lines)


def broken(counted, least_faults):
    """Which promises OpenMPS did not keep."""
    found = []
    told = summary(counted)
    for row in ["idle: lost", "wrong words", "good clients that hung", "bad clients that hung", "leaked device memory [B]",
                "leaked descriptors", "leaked processes"]:
        if told[row]:
            found.append(f"{row}: {told[row]}")
    found.extend(counted.get("left_over", []))
    if (counted.get("served") or {}).get("good_clients") != counted["good_clients"]:
        found.append("not all good clients were attached")
    if told["faults, kills and attacks"] < least_faults:
        found.append(f"fewer than {least_faults:.0f} faults")
    return found


def absent(options, name):
    """Why a peer cannot be run here."""
    if name != "nvidia":
        return None
    if options.softcuda:
        return "NVIDIA's MPS does not run on the software GPU"
    if not shutil.which("nvidia-cuda-mps-control"):
        return "nvidia-cuda-mps-control is not on the PATH"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=ROOT / "target/dist", help="the product [target/dist]")
    parser.add_argument("--state", type=pathlib.Path, default=ROOT / "target/chaos", help="directory of what was counted [target/chaos]")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each peer, all runs together [10]")
    parser.add_argument("--seconds", type=float, default=480.0, help="of this command, about [480]")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--torch", type=int, default=2, help="how many of them are PyTorch programs [2]")
    parser.add_argument("--peers", default="openmps,nvidia")
    parser.add_argument("--softcuda", action="store_true", help="let the software GPU do the work")
    options = parser.parse_args()
    options.state.mkdir(parents=True, exist_ok=True)
    peers = []
    for name in options.peers.split(","):
        why = absent(options, name)
        if why:
            print(f"no run under {name}: {why}")
        else:
            peers.append(Peer(name, options))
    run_all(peers, gpus_of(options), options.seconds)
    counts = {peer.name: counted for peer in peers if (counted := peer.counted())}
    if any(counted["schema"] != SCHEMA for counted in counts.values()):
        raise SystemExit(f"{options.state} is of another version: remove it")
    summaries = {name: summary(counted) for name, counted in counts.items()}
    print(kinds_table(counts), table(summaries), sep="\n\n")
    report = options.state / f"chaos-{'torch' if options.torch else 'plain'}-report.json"
    report.write_text(json.dumps({"schema": SCHEMA, "peers": summaries, "counted": counts}, indent=1))
    print(f"\n{report}")
    # What is left is less than a second when the clock and the run's end differ.
    left = {peer.name: peer.minutes_left() for peer in peers if peer.minutes_left() > 0.02}
    ours = counts.get("openmps")
    # Of a run that is not done, only what cannot become right any more.
    least_faults = 0 if "openmps" in left else LEAST_FAULTS_PER_MINUTE * options.minutes
    faults = broken(ours, least_faults) if ours else []
    for fault in faults:
        print(f"BROKEN: {fault}")
    if ours:
        for what, pauses in [("pauses", ours["pauses_us"]), ("pauses but of traps", but_of_traps(ours))]:
            reached = {name: percentile_ms(pauses, int(name[1:])) for name in REACH_MS}
            print(f"{what}: " + ", ".join(f"{name} {'not measured' if ms is None else f'{ms:.0f} ms'} (within reach: {REACH_MS[name]} ms)" for name, ms in reached.items()))
    if left:
        print("more to do, by the same command: " + ", ".join(f"{name} {minutes:.1f} minutes" for name, minutes in left.items()))
    return 1 if faults else MORE_TO_DO if left else 0


if __name__ == "__main__":
    sys.exit(main())
