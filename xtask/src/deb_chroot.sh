# Runs as root in a fresh Debian: installs the package as an administrator does, uses it, removes it, and looks for what is left.
# /package has openmps.deb, openmps-next.deb of another build and, as `program` and `client`, CUDA programs.
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

step "upgrade to another build while a client runs: it and new ones go on, and commands are told what to do"
nvidia-cuda-mps-control -d
mkfifo /package/orders
(eval "$(openmps env)" && exec /package/client < /package/orders > /package/answers 2>&1) &
client=$!
exec 3> /package/orders
# work COUNT: has the client work, and waits until it has answered so often.
work() {
    echo chain 100 >&3
    for _ in $(seq 600); do
        if [ "$(wc -l < /package/answers)" -ge "$1" ]; then return; fi
        sleep 0.1
    done
    echo "the client does not answer:"
    cat /package/answers
    return 1
}
work 1
apt-get -o APT::Sandbox::User=root install -y /package/openmps-next.deb >> /package/apt.log 2>&1
dpkg --status openmps | grep -q '^Version: .*+next'
work 2
test "$(grep -c '^ok' /package/answers)" -eq 2
(eval "$(openmps env)" && timeout 60 /package/program)
for new in "openmps ps" "nvidia-cuda-mps-control get_server_list"; do
    if (eval "$(openmps env)" && exec timeout 60 $new) > /package/told 2>&1; then
        echo "$new talks to a daemon of another build"
        exit 1
    fi
    grep -q "another build of OpenMPS.*restart it" /package/told || {
        echo "$new says:"
        cat /package/told
        exit 1
    }
done

step "restart the daemon, as it was said: the client ends, what is new works"
daemon=$(cat /tmp/nvidia-mps/nvidia-cuda-mps-control.pid)
kill "$daemon"
for _ in $(seq 600); do
    if [ ! -e "/proc/$daemon/exe" ]; then break; fi
    sleep 0.1
done
test ! -e "/proc/$daemon/exe"
nvidia-cuda-mps-control -d 3>&-
(eval "$(openmps env)" && /package/program)
trap '' PIPE
echo chain 100 >&3 || true
exec 3>&-
for _ in $(seq 600); do
    if ! kill -0 "$client" 2> /dev/null; then break; fi
    sleep 0.1
done
if kill -0 "$client" 2> /dev/null; then
    echo "the client hangs"
    exit 1
fi
tail -n 1 /package/answers
echo quit | nvidia-cuda-mps-control

step "remove: settings stay"
apt-get remove -y openmps >> /package/apt.log 2>&1
test ! -e /usr/bin/openmps
test -e /etc/openmps/config.toml

step "purge: nothing stays"
apt-get purge -y openmps >> /package/apt.log 2>&1
files > /package/after
diff /package/before /package/after
