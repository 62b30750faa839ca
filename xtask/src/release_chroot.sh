# Runs as root in a fresh Debian: a plain user installs the wheel and the archive, each by itself, and runs a program.
# /package has the wheel, the archive and, as `program`, a CUDA program.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
step() {
    echo "- $1"
}

step "python3-venv, which Debian has"
apt-get -o APT::Sandbox::User=root update > /package/apt.log 2>&1 || true
apt-get -o APT::Sandbox::User=root install -y --no-install-recommends python3-venv >> /package/apt.log 2>&1 || {
    cat /package/apt.log
    exit 1
}
useradd --create-home user
as_user() {
    su user -s /bin/sh -c "set -eu; cd; $1"
}

step "the wheel: from nothing to the first program"
start=$(date +%s)
as_user 'python3 -m venv venv && venv/bin/pip install --quiet --no-index /package/openmps-*.whl'
as_user 'venv/bin/openmps run --softcuda -- /package/program && venv/bin/python -m openmps ps > /dev/null'
took=$(($(date +%s) - start))
echo "  $took s"
test "$took" -lt 60
as_user 'venv/bin/openmps control quit && venv/bin/pip uninstall --quiet --yes openmps && test ! -e venv/bin/openmps'

step "the archive: into the home directory and out of it"
as_user 'tar -xzf /package/openmps-*-x86_64.tar.gz && openmps-*-x86_64/install.sh'
as_user '.local/bin/openmps run --softcuda -- /package/program && .local/bin/openmps control quit'
as_user 'openmps-*-x86_64/install.sh --uninstall && test ! -e .local/bin/openmps'
