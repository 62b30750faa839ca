"""The device plugin under a real kubelet: what must hold, and how long it takes. As root, on Debian 12, with what build.sh needs.

    tests/testbeds/k8s/build.sh WORK && tests/testbeds/k8s/measure.py WORK/bin DIRECTORY

Needs `cargo xtask programs` and `cargo test -p openmps-tests --no-run` (the program in the pods is the tests' puppet). The GPUs are software. Prints a line for each
thing that held, and the figures as JSON; ends with 1 at the first that did not.
"""

import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE.parents[2] / os.environ.get("CARGO_TARGET_DIR", "target")
DIST = TARGET / "dist"
PERCENT = "openmps.dev/sm-percent"
PATIENCE_S = 180

binaries, work = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
node = work / "node"
figures = {}


def puppet():
    """The tests' program that takes orders."""
    for profile in ("debug", "release"):
        if (TARGET / profile / "puppet").exists():
            return TARGET / profile / "puppet"
    sys.exit("no puppet: run `cargo test -p openmps-tests --no-run`")


def kubectl(*arguments, check=True, text=None):
    command = [binaries / "kubectl", "--kubeconfig", node / "kubeconfig", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, input=text, check=False)
    if check and done.returncode:
        raise RuntimeError(f"kubectl {arguments}: {done.stderr}")
    return done.stdout


def until(what, holds):
    """Waits; the time in milliseconds."""
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > PATIENCE_S:
            raise RuntimeError(f"still not after {PATIENCE_S} s: {what}")
        time.sleep(0.02)
    took = (time.monotonic() - start) * 1000
    print(f"ok: {what} ({took:.0f} ms)", flush=True)
    return round(took)


def allocatable():
    state = json.loads(kubectl("get", "node", "node0", "-o", "json", check=False) or "{}")
    return int(state.get("status", {}).get("allocatable", {}).get(PERCENT, "0"))


class Process:
    """One of OpenMPS's, in the background."""

    def __init__(self, name, *arguments):
        self.name, self.arguments = name, arguments
        self.log = work / f"{name}.log"
        self.start()

    def start(self):
        environment = {
            "PATH": os.environ["PATH"],
            "CUDA_MPS_PIPE_DIRECTORY": str(work / "control"),
            "CUDA_MPS_LOG_DIRECTORY": str(work / "log"),
            "OPENMPS_NATIVE_DRIVER": str(DIST / "lib/openmps/libsoftcuda.so"),
            "OPENMPS_PROVISIONING": "multiuser",
            "OPENMPS_SOFT_DEVICES": "2",
            "OPENMPS_SOFT_SMS": "100",
        }
        command = [DIST / "bin/openmps", *self.arguments]
        with open(self.log, "a") as log:
            self.child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def end(self, how):
        self.child.send_signal(how)
        self.child.wait(PATIENCE_S)

    def said(self):
        return self.log.read_text()


def pod(name, units, orders, linger=""):
    """Starts a pod whose program gets these orders."""
    orders = "\\n".join(orders)
    command = f"printf '{orders}\\n' | /bin/program; echo ended $?; {linger}"
    spec = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": "local.test/program:1",
                "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", command],
                "resources": {"limits": {PERCENT: units}},
            }],
        },
    }
    kubectl("create", "-f", "-", text=json.dumps(spec))


def log_of(name):
    """What the pod's program has written, as the kubelet keeps it (its name means nothing to resolvers, so that `kubectl logs` finds no way)."""
    lines = []
    for file in glob.glob(f"/var/log/pods/default_{name}_*/main/0.log"):
        lines += [line.split(" ", 3)[3] for line in pathlib.Path(file).read_text().splitlines()]
    return "".join(f"{line}\n" for line in lines)


def phase(name):
    return kubectl("get", "pod", name, "-o", "jsonpath={.status.phase}", check=False)


def reason_of(name):
    return kubectl("get", "pod", name, "-o", "jsonpath={.status.message} {.status.reason}", check=False)


def measure():
    daemon = Process("daemon", "control", "-f")
    started = time.monotonic()
    plugin = Process(
        "plugin", "kubernetes", "device-plugin", "--config", str(work / "plugin.toml"),
        "--pod-resources", str(node / "kubelet/pod-resources/kubelet.sock"),
        "--sockets", str(work / "pods"), "--state", str(work / "state"), "--list-interval-ms", "500")
    until("registered", lambda: "registered with the kubelet" in plugin.said())
    figures["plugin_start_to_registered_ms"] = round((time.monotonic() - started) * 1000)
    until("the node offers 200", lambda: allocatable() == 200)
    figures["plugin_start_to_allocatable_ms"] = round((time.monotonic() - started) * 1000)

    times = []
    for number in range(5):
        name = f"first-{number}"
        begin = time.monotonic()
        pod(name, 10, ["open", "work 1"])
        until(f"{name} has run a kernel", lambda: log_of(name).startswith("ok\nok\n"))
        times.append(round((time.monotonic() - begin) * 1000))
    figures["pod_create_to_first_kernel_ms"] = times

    # Containers that live: 60 and 40 on one GPU, 60 on the other.
    for name, units in (("a", 60), ("b", 40), ("c", 60)):
        pod(name, units, ["open", "allocate 1048576", "work 2", "churn"], "sleep 1000")
        until(f"{name} works", lambda: log_of(name).count("ok") >= 4)
    records = json.loads((work / "state/allocations.json").read_text())["allocations"]
    lives = [one for one in records if len(one["devices"]) in (40, 60)]
    by_gpu = {}
    for one in lives:
        by_gpu[one["gpu"]] = by_gpu.get(one["gpu"], 0) + len(one["devices"])
    assert sorted(by_gpu.values()) == [60, 100], by_gpu
    figures["allocations"] = [{"gpu": one["gpu"], "units": len(one["devices"]), "owner": one["owner"]} for one in lives]
    print("ok: packed as 100 and 60")

    kubectl("delete", "pod", "--wait=true", *[f"first-{number}" for number in range(5)])
    pod("too-many", 101, ["open"])
    until("more than a GPU is not run", lambda: phase("too-many") in ("Failed", "Pending"))
    kubectl("delete", "pod", "too-many", "--wait=true")
    kubectl("delete", "pod", "b", "--wait=true")
    until("b's share is free", lambda: "free again" in plugin.said())
    pod("spread", 80, ["open"])
    until("80 of 40 and 40 are refused", lambda: phase("spread") == "Failed")
    figures["refusal"] = reason_of("spread")
    assert "only several together" in figures["refusal"], figures["refusal"]

    before = plugin.said().count("registered with the kubelet")
    restart_kubelet()
    figures["kubelet_restart_to_registered_ms"] = until(
        "registered with the new kubelet", lambda: plugin.said().count("registered with the kubelet") > before)
    until("the node offers 200 again", lambda: allocatable() == 200)
    assert phase("a") == phase("c") == "Running"
    pod("d", 40, ["open", "work 1"])
    until("d has run a kernel", lambda: log_of("d").startswith("ok\nok\n"))

    plugin.end(signal.SIGKILL)
    until("the node offers nothing", lambda: allocatable() == 0)
    assert phase("a") == phase("c") == "Running"
    plugin.start()
    figures["plugin_restart_to_allocatable_ms"] = until("the node offers 200 again", lambda: allocatable() == 200)

    daemon.end(signal.SIGKILL)
    until("the node offers nothing", lambda: allocatable() == 0)
    assert phase("a") == phase("c") == "Running"
    assert "ended" not in log_of("a") + log_of("c"), "their programs go on"
    daemon.start()
    figures["daemon_restart_to_allocatable_ms"] = until("the node offers 200 again", lambda: allocatable() == 200)
    pod("e", 20, ["open", "work 1"])
    until("e has run a kernel", lambda: log_of("e").startswith("ok\nok\n"))
    plugin.end(signal.SIGTERM)
    daemon.end(signal.SIGTERM)


def restart_kubelet():
    pid_file = node / "run/kubelet.pid"
    pid = int(pid_file.read_text())
    command = [word.decode() for word in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    os.kill(pid, signal.SIGTERM)
    until("the kubelet has ended", lambda: not pathlib.Path(f"/proc/{pid}/exe").exists())
    with open(node / "log/kubelet-2.log", "w") as log:
        child = subprocess.Popen(command, cwd=node, stdout=log, stderr=log, start_new_session=True)
    pid_file.write_text(str(child.pid))


def main():
    for left in (work / "state", work / "pods", *map(pathlib.Path, glob.glob("/var/log/pods/default_*"))):
        shutil.rmtree(left, ignore_errors=True)
    (node / "log").mkdir(parents=True, exist_ok=True)
    for directory in ("control", "log"):
        (work / directory).mkdir(parents=True, exist_ok=True)
    for log in glob.glob(str(work / "*.log")):
        os.remove(log)
    (work / "plugin.toml").write_text(
        f"memory-reserve = '16M'\nlibrary-directory = '{DIST}/lib/openmps'\n"
        f"[resources.'{PERCENT}']\nsm-percent = 1\nmemory = '1%'\n")
    begin = time.monotonic()
    subprocess.run(["bash", HERE / "up.sh", binaries, node, puppet()], check=True)
    figures["node_ready_s"] = round(time.monotonic() - begin, 1)
    try:
        measure()
    finally:
        kubectl("delete", "pod", "--all", "--wait=false", check=False)
        subprocess.run(["bash", HERE / "down.sh", node], check=False)
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
