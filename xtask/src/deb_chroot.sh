# Runs as root in a fresh Debian: installs the package as an administrator does, uses it, removes it, and looks for what is left.
# /package has openmps.deb and, as `program`, a CUDA program.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# Everything but what apt and dpkg write for themselves.
files() {
    find / -xdev \( -path /proc -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log/apt -o -path /package \) \
        -prune -o -print | sort
}
step() {
    echo "- $1"
}

step "install, with what it depends on"
files > /package/before
apt-get -o APT::Sandbox::User=root install -y --no-install-recommends /package/openmps.deb > /package/apt.log 2>&1 || {
    cat /package/apt.log
    exit 1
}
openmps --version
openmps man run > /dev/null
openmps config --check /etc/openmps/config.toml

step "openmps run, which starts a daemon"
openmps run --softcuda -- /package/program
PATH=$PATH:/usr/lib/openmps/bin
nvidia-cuda-mps-control get_server_list | grep -q '[0-9]'
echo quit | nvidia-cuda-mps-control

step "a daemon by hand"
export OPENMPS_NATIVE_DRIVER=/usr/lib/openmps/libsoftcuda.so
nvidia-cuda-mps-control -d
(eval "$(openmps env)" && /package/program)
echo get_server_list | nvidia-cuda-mps-control | grep -q '[0-9]'
openmps ps > /dev/null
openmps doctor
echo quit | nvidia-cuda-mps-control
test -s /var/log/nvidia-mps/server.log

step "remove: settings stay"
apt-get remove -y openmps >> /package/apt.log 2>&1
test ! -e /usr/bin/openmps
test -e /etc/openmps/config.toml

step "purge: nothing stays"
apt-get purge -y openmps >> /package/apt.log 2>&1
files > /package/after
diff /package/before /package/after
