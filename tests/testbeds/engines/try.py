"""Runs the container engines' lines of docs/containers.md and docs/recipes.md as they stand there, then what holds for containers that run at once.

Inside of enter.sh, by try.sh. The GPU is software. A line counts when the program in the container was right and the server says that its kernels ran there, in the group
of the profile that the line names. Prints a line for each thing that held, and for what could not be tried here; ends with 1 if something did not hold.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

from puppet import Puppet

IMAGE_ARCHIVE = "/image-with-programs.tar"
# The same, unpacked: for what runs without an image.
ROOT = "/var/tmp/image"
# Without limits of its own by the profile `quarter`: 84 SMs of the software GPU.
PROGRAM, QUARTER, WHOLE = "multiprocessors", "primary: 20 SMs", "primary: 84 SMs"
PATIENCE_S = 60
MIB = 1 << 20
USERS = ("one", "two")

failed = []


def say(text):
    print(text, flush=True)


def run(*command, user=None, text=None):
    """A command to its end, as root or as a user with a login."""
    if user:
        command = ("su", "-", user, "-c", shlex.join(command))
    return subprocess.run(command, capture_output=True, text=True, input=text, timeout=300, check=False)


def until(what, holds):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(f"still not after {PATIENCE_S} s: {what}")
        time.sleep(0.05)


def check(what, holds):
    """One thing that must hold: `holds` raises, or answers what was wrong."""
    try:
        wrong = holds()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        wrong = str(error)
    say(f"{'WRONG' if wrong else 'ok'}: {what}{': ' + wrong if wrong else ''}")
    if wrong:
        failed.append(what)


def lines(page, kind):
    """The commands of a page's blocks of a kind: each begins with `$ ` and goes on until the next."""
    found = []
    for block in re.findall(rf"^```console {kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            found.append(command.rstrip("\n"))
    if not found:
        sys.exit(f"the page has no lines of kind {kind}")
    return found


def clients(ended=False):
    """What the daemon's servers say of their clients."""
    state = json.loads(run("openmps", "status", "--json").stdout or "{}")
    return [client for server in state.get("servers", []) for client in server["snapshot"]["departed" if ended else "clients"]]


def tried(line, replacements, user=None):
    """Runs a line; what was wrong."""
    group = "profile:quarter@/" if "quarter" in line else None
    for word, value in replacements.items():
        line = re.sub(rf"\b{word}\b", value, line)
    known = {(client["pid"], client["client_id"]) for client in clients(ended=True)}
    done = run("sh", "-c", line, user=user)
    said = done.stdout + done.stderr
    if done.returncode or (QUARTER if group else WHOLE) not in said or f"{PROGRAM}: ok" not in said:
        return f"ended with {done.returncode}: {said.strip()}"
    fresh = []

    def counted():
        fresh[:] = [client for client in clients(ended=True) if (client["pid"], client["client_id"]) not in known]
        return bool(fresh)

    until("the server has counted the program", counted)
    for client in fresh:
        if client["kernels"] == 0 or not (client["group"] or "").startswith(group or ""):
            return f"the server says {client}"
    return None


class Client(Puppet):
    """The tests' `puppet` in a container."""

    def __init__(self, *command, user=None):
        if user:
            command = ("su", "-", user, "-c", shlex.join(command))
        super().__init__(command)
        self.pid = None

    def open(self):
        """Becomes a client, and learns which."""
        known = {client["pid"] for client in clients()}
        self.must("open")
        (self.pid,) = {client["pid"] for client in clients()} - known

    def must(self, order, wanted="ok"):
        answer = self.ask(order)
        if answer != wanted:
            raise RuntimeError(f"{order}: {answer!r} instead of {wanted!r}")


def two_containers(start, enter, kill, share_a_limit, users=(None, None)):
    """Two containers of the profile `small` (64 MiB): what is one container's is one limit; one is killed at work, the other unharmed."""
    until("clients of before are gone", lambda: not clients())
    first, second = start("first", users[0]), start("second", users[1])
    everyone = [first, second]
    if enter:
        everyone.append(enter("first", users[0]))
    for puppet in everyone:
        puppet.open()
        puppet.must("work 3")
    groups = {client["group"] for client in clients()}
    if any(not group.startswith("profile:small@/") for group in groups) or (len(groups) == 1) != share_a_limit:
        return f"groups {groups}"
    first.must(f"allocate {40 * MIB}")
    if enter:
        everyone[2].must(f"allocate {40 * MIB}", "error 2")
    second.must(f"allocate {40 * MIB}", "error 2" if share_a_limit else "ok")
    first.tell("churn")
    second.tell("work 50")
    kill("first", users[0], first)
    if second.answer() != "ok":
        return "the other container's results are wrong"
    until("the killed container's clients are gone", lambda: len(clients()) == 1)
    second.must("work 3")
    second.end()
    until("all clients are gone", lambda: not clients())
    return None


def engine(name, has_cdi):
    """Docker or Podman: the page's lines, then two containers at once."""
    users = (None,) if name == "docker" else (None, *USERS)
    for user in users:
        whose = f"{name} of {user or 'root'}"
        made = run(name, "import", "--change", f'CMD ["{PROGRAM}"]', IMAGE_ARCHIVE, "image", user=user)
        if made.returncode:
            check(f"{whose}: import", lambda made=made: made.stderr)
            continue
        for line in lines(containers, name):
            if "--device" in line and not has_cdi:
                say(f"not tried: {whose}: {line}: this version has no CDI")
                continue
            check(f"{whose}: {line}", lambda line=line, user=user: tried(line, {"IMAGE": "image", "CMD": PROGRAM}, user))
        check(f"{whose}: the image's own command", lambda user=user: tried(lines(containers, name)[-1].replace(" CMD", ""), {"IMAGE": "image"}, user))
    small = ("-v", "/tmp/nvidia-mps/profiles/small:/run/openmps:ro", "-v", "/usr/lib/openmps/libcuda.so.1:/usr/lib/x86_64-linux-gnu/libcuda.so.1:ro")
    small = ("--device", "openmps.dev/share=small") if has_cdi else (*small, "-e", "CUDA_MPS_PIPE_DIRECTORY=/run/openmps")

    def start(container, user):
        return Client(name, "run", "--rm", "-i", "--name", container, *small, "image", "puppet", user=user)

    def enter(container, user):
        until(f"{container} runs", lambda: run(name, "exec", container, "true", user=user).returncode == 0)
        return Client(name, "exec", "-i", container, "puppet", user=user)

    def kill(container, user, _process):
        run(name, "kill", container, user=user)

    check(f"{name}: two containers of root, one limit each, one killed", lambda: two_containers(start, enter, kill, share_a_limit=False))
    if name == "podman":
        check("podman: two rootless containers of one user have one limit, one killed", lambda: two_containers(start, None, kill, True, (USERS[0], USERS[0])))


def docker():
    pathlib.Path("/etc/docker").mkdir(exist_ok=True)
    version = run("dockerd", "--version").stdout
    has_cdi = int(re.search(r"version (\d+)", version)[1]) >= 25
    if has_cdi:
        pathlib.Path("/etc/docker/daemon.json").write_text('{"features": {"cdi": true}}\n')
    with open("/var/log/dockerd.log", "wb") as log:
        daemon = subprocess.Popen(["dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none"], stdout=log, stderr=log)
    until("dockerd answers", lambda: run("docker", "info").returncode == 0)
    engine("docker", has_cdi)
    line = next(line for line in recipes.splitlines() if line.startswith("docker run") and "LD_LIBRARY_PATH" in line)
    check(f"docker of root: {line}", lambda: tried(line, {"IMAGE": "image"}))
    daemon.terminate()
    daemon.wait(PATIENCE_S)


def podman():
    pathlib.Path("/etc/containers").mkdir(exist_ok=True)
    # Where the kernel's controllers are bound to the old hierarchy there is none for the number of processes, which Podman wants for root's containers.
    settings = "[containers]\npids_limit = 0\nnetns = \"none\"\n[engine]\ncgroup_manager = \"cgroupfs\"\n"
    pathlib.Path("/etc/containers/containers.conf").write_text(settings)
    engine("podman", has_cdi=True)


def apptainer():
    if not pathlib.Path("/usr/bin/apptainer").exists():
        return say("not tried: apptainer is not in this release of Debian")
    run("apptainer", "build", "--force", f"{ROOT}.sif", ROOT)
    (line,) = lines(containers, "apptainer")
    for image in (ROOT, f"{ROOT}.sif"):
        for more in ("", " --containall"):
            written = line.replace("apptainer exec", f"apptainer exec{more}")
            check(f"apptainer of {USERS[0]}: {image}: {written}", lambda image=image, written=written: tried(written, {"IMAGE": image, "CMD": PROGRAM}, USERS[0]))

    def start(_container, user):
        order = line.replace("quarter", "small").replace("\\\n", " ").replace("IMAGE", f"{ROOT}.sif").replace("CMD", "puppet")
        return Client(*shlex.split(order), user=user)

    def kill(_container, user, puppet):
        os.kill(puppet.pid, 9)

    check("apptainer: two containers in one control group have one limit, one killed", lambda: two_containers(start, None, kill, True, (USERS[0], USERS[0])))
    return None


def bubblewrap():
    if not pathlib.Path("/usr/bin/bwrap").exists():
        return say("not tried: bubblewrap is not installed")
    for line in lines(containers, "bubblewrap"):
        check(f"bubblewrap of root: {line}", lambda line=line: tried(line, {"ROOT": ROOT, "CMD": PROGRAM}))
    return None


containers = pathlib.Path("/docs/containers.md").read_text()
recipes = pathlib.Path("/docs/recipes.md").read_text()
# There is no driver here; the daemon says which one it takes instead.
os.environ["OPENMPS_NATIVE_DRIVER"] = "/usr/lib/openmps/libsoftcuda.so"
if not pathlib.Path(ROOT).exists():
    os.mkdir(ROOT)
    run("tar", "-C", ROOT, "-xf", IMAGE_ARCHIVE)
for name in USERS:
    run("useradd", "--create-home", "--shell", "/bin/bash", name)
settings = '[daemon]\nprovisioning = "concurrent"\n[profiles.small]\nsm_percent = 10\nmemory = "64M"\n'
pathlib.Path("/etc/openmps/config.toml").write_text(settings)
for command in lines(containers, "host"):
    check(f"host: {command.splitlines()[0]}", lambda command=command: run("sh", "-c", command).stderr)
say(f"versions: {run('docker', '--version').stdout.strip()}; {run('podman', '--version').stdout.strip()}; {(run('apptainer', '--version').stdout if pathlib.Path('/usr/bin/apptainer').exists() else 'no apptainer').strip()}")
for trial in (docker, podman, apptainer, bubblewrap):
    try:
        trial()
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        failed.append(trial.__name__)
        say(f"WRONG: {trial.__name__}: {error}")
run("nvidia-cuda-mps-control", text="quit -t 5\n")
sys.exit(1 if failed else 0)
