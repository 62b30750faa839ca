#!/usr/bin/env python3
"""Molecular dynamics with OpenMM: nanoseconds a day of processes that share a GPU, natively, under NVIDIA's MPS and under OpenMPS, and how alike they fare.

    pip install openmm openmm-cuda-13        # not part of this repository
    python3 bench/openmm_clients.py --processes 1,2,4,8,16

Each process simulates a protein in water (`test.pdb` of OpenMM's own package, or --pdb) with PME, constraints of bonds with hydrogen and steps of 4 fs, 50 at a time, and reads the energy
after each 50. All begin together. Its energy must be a number and stay near what it was. Prints medians of the repeats; exits with 1 when something failed.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

import lanes
import peers
import torch_clients

STEPS, STEP_FS = 50, 4
# Of the potential energy, at a temperature that is held.
MOST_DRIFT = 0.1
GOALS = {1: 1.0, 2: 1.05, 4: 1.1, 8: 1.2, 16: 1.25}
FAIR = 0.8


def client(platform, pdb, seconds):
    """One process."""
    import openmm
    from openmm import app, unit

    pdb = pathlib.Path(pdb) if pdb else pathlib.Path(app.__file__).parent / "data/test.pdb"
    found = app.PDBFile(str(pdb))
    system = app.ForceField("amber99sb.xml", "tip3p.xml").createSystem(
        found.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometer, constraints=app.HBonds, hydrogenMass=1.5 * unit.amu)
    integrator = openmm.LangevinMiddleIntegrator(300 * unit.kelvin, 1 / unit.picosecond, STEP_FS * unit.femtosecond)
    integrator.setRandomNumberSeed(7)
    chosen = openmm.Platform.getPlatformByName(platform)
    simulation = app.Simulation(found.topology, system, integrator, chosen, {"Precision": "mixed"} if platform == "CUDA" else {})
    simulation.context.setPositions(found.positions)
    simulation.minimizeEnergy(maxIterations=20)
    simulation.context.setVelocitiesToTemperature(300 * unit.kelvin, 7)

    def energy():
        return simulation.context.getState(getEnergy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)

    simulation.step(2 * STEPS)
    first = energy()
    print("ready", flush=True)
    sys.stdin.readline()
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        simulation.step(STEPS)
        last = energy()
        steps += STEPS
    took = time.perf_counter() - began
    is_right = math.isfinite(last) and abs(last - first) < MOST_DRIFT * abs(first)
    print(json.dumps({"ns_per_day": steps * STEP_FS * 1e-6 / took * 86400, "is_right": is_right, "energies": [first, last], "atoms": system.getNumParticles(),
                      "version": openmm.version.version}), flush=True)


def together(peer, processes, options):
    """What so many do at once."""
    command = [sys.executable, __file__, "--client", options.platform, str(options.pdb or ""), str(options.seconds)]
    with lanes.clients(peer, command, processes) as running:
        outcomes = lanes.answers(running, "go")
    if not all(one["is_right"] for one in outcomes):
        raise RuntimeError(f"energies are wrong: {[one['energies'] for one in outcomes]}")
    rates = [one["ns_per_day"] for one in outcomes]
    return {"ns_per_day": sum(rates), "slowest_over_fastest": min(rates) / max(rates), "atoms": outcomes[0]["atoms"], "version": outcomes[0]["version"]}


def summary(runs):
    """Rows of medians. `runs`: by processes and peer."""
    return [{"processes": processes, "peer": peer, "ns_per_day": statistics.median(run["ns_per_day"] for run in of),
             "slowest_over_fastest": statistics.median(run["slowest_over_fastest"] for run in of), "atoms": of[0]["atoms"], "version": of[0]["version"]}
            for (processes, peer), of in sorted(runs.items())]


def table(rows):
    lines = ["| OpenMM, processes | peer | ns/day | slowest over fastest | beside NVIDIA's MPS | goal | |", "|---" * 7 + "|"]
    rates = {(row["processes"], row["peer"]): row["ns_per_day"] for row in rows}
    for row in rows:
        nvidia, goal = rates.get((row["processes"], "nvidia")), GOALS.get(row["processes"])
        ratio = row["ns_per_day"] / nvidia if nvidia else None
        is_ours = row["peer"] == "openmps" and ratio is not None and goal is not None
        verdict = ("met" if ratio >= goal and row["slowest_over_fastest"] >= FAIR else "missed") if is_ours else ""
        lines.append(f"| {row['processes']} | {row['peer']} | {row['ns_per_day']:.0f} | {row['slowest_over_fastest']:.2f} | {f'{ratio:.2f}x' if ratio else '-'} | "
                     f"{f'{goal:.2f}x, {FAIR}' if is_ours else '-'} | {verdict} |")
    return lines


def main():
    if sys.argv[1:2] == ["--client"]:
        platform, pdb, seconds = sys.argv[2:]
        return client(platform, pdb, float(seconds))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=pathlib.Path, default=torch_clients.ROOT / "target/dist", help="an installation, as `cargo xtask build` makes it")
    parser.add_argument("--processes", default="1,2,4,8,16", help="how many at once [1,2,4,8,16]")
    parser.add_argument("--peers", default=",".join(peers.available()), help="of none,nvidia,openmps [those that are there]")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each run lasts [4]")
    parser.add_argument("--repeat", type=int, default=3, help="how often everything is measured, peers in turn [3]")
    parser.add_argument("--pdb", type=pathlib.Path, help="another system, of amber99sb and tip3p")
    parser.add_argument("--platform", default="CUDA", help="of OpenMM [CUDA]")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin no run after so long")
    parser.add_argument("--json", type=pathlib.Path, help="write the medians to this file")
    options = parser.parse_args()
    options.dist, began = options.dist.resolve(), time.monotonic()
    runs, failed, left_out = {}, [], 0
    for repeat in range(options.repeat):
        for name in options.peers.split(","):
            with peers.Peer(name, options.dist) as peer:
                for processes in map(int, options.processes.split(",")):
                    if time.monotonic() - began > options.budget_s:
                        left_out += 1
                        continue
                    try:
                        runs.setdefault((processes, name), []).append(together(peer, processes, options))
                        print(f"{name} {processes} repeat {repeat + 1}: {runs[processes, name][-1]['ns_per_day']:.0f} ns/day", file=sys.stderr, flush=True)
                    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
                        failed.append(f"{name}, {processes} processes: {error}")
    rows = summary({key: of for key, of in runs.items() if of})
    if rows:
        print(f"OpenMM {rows[0]['version']}, {rows[0]['atoms']} atoms")
    print("\n".join(table(rows)))
    if options.json:
        options.json.write_text(json.dumps({"openmm": rows, "failed": failed}, indent=1))
    for line in failed + ([f"{left_out} runs were left out, there was no time"] if left_out else []):
        print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
