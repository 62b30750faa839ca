# Runs as root under a fresh Debian's systemd: the package's service, and programs of two users.
# /package has openmps.deb and, as `program`, a CUDA program. Each run leaves run-NAME and status-NAME there.
set -eu
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/openmps/bin

step() {
    echo "- $1"
}
tell() {
    status=$?
    if [ $status != 0 ]; then
        systemctl status --no-pager --full openmps || true
        journalctl --no-pager --quiet | tail -n 40 || true
        tail -n 20 /var/log/nvidia-mps/*.log /package/run-* || true
        dmesg 2> /dev/null | grep -i -E 'audit|seccomp' | tail -n 5 || true
    fi
}
trap tell EXIT

# run NAME UID [VARIABLE=VALUE...]: the program as that user, and what it printed.
run() {
    name=$1 uid=$2
    shift 2
    setpriv --reuid="$uid" --regid="$uid" --clear-groups env -i PATH="$PATH" "$@" timeout 60 sh -c '
        eval "$(openmps env)"
        echo $$
        id -u
        exec /package/program' > "/package/run-$name" 2>&1
}
# Waits until the server has taken leave of the program, and keeps what the daemon says.
count() {
    pid=$(head -n 1 "/package/run-$1")
    for _ in $(seq 100); do
        openmps status --json > "/package/status-$1"
        if sed -n '/"departed"/,$p' "/package/status-$1" | grep "\"pid\": $pid," > /dev/null; then return; fi
        sleep 0.1
    done
    echo "run $1 was not counted"
    return 1
}
expect() {
    if [ "$2" != "$3" ]; then
        echo "$1 is \"$2\" instead of \"$3\""
        return 1
    fi
}

step "install"
dpkg -i /package/openmps.deb > /package/dpkg.log
echo OPENMPS_NATIVE_DRIVER=/usr/lib/openmps/libsoftcuda.so > /etc/default/openmps
systemd-analyze verify --man=no openmps.service

step "the service, and users one after the other"
systemctl enable --quiet --now openmps
expect "the service" "$(systemctl is-active openmps)" active
run first 20001
count first
run second 20002
count second

# What daemon and servers log is in the journal, too.
journalctl --sync
journalctl --no-pager --quiet --unit=openmps > /package/journal
grep "Starting control daemon" /package/journal > /dev/null
grep "Server has started" /package/journal > /dev/null

mv /var/log/nvidia-mps/control.log /var/log/nvidia-mps/control.log.1
systemctl reload openmps
for _ in $(seq 100); do
    if [ -e /var/log/nvidia-mps/control.log ]; then break; fi
    sleep 0.1
done
test -e /var/log/nvidia-mps/control.log

step "what it may do"
pid=$(systemctl show --property=MainPID --value openmps)
of() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$pid/status"; }
# CAP_KILL, CAP_SETGID, CAP_SETUID.
expect "the daemon's capabilities" "$(of CapEff) $(of CapBnd)" "00000000000000e0 00000000000000e0"
expect "no new privileges, system calls" "$(of NoNewPrivs) $(of Seccomp)" "1 2"
inside() { nsenter --target "$pid" --mount "$@"; }
for place in /etc /usr /var/lib /boot /run /sys/fs/cgroup; do
    if inside touch "$place/openmps-was-here" 2> /dev/null; then
        echo "the daemon may write $place"
        exit 1
    fi
done
for place in /tmp /dev/shm /run/openmps /var/log/nvidia-mps; do
    inside touch "$place/openmps-was-here"
    rm "$place/openmps-was-here"
done
server=$(nvidia-cuda-mps-control get_server_list)
pid=$server
expect "the server's user and capabilities" "$(of Uid | cut -f 1) $(of CapEff)" "20002 0000000000000000"
systemd-analyze security --no-pager --threshold=35 openmps.service > /package/exposure || {
    cat /package/exposure
    exit 1
}
tail -n 1 /package/exposure | sed 's/^[^O]*/  /'

step "users at the same time, metrics, a socket for a container"
cat >> /etc/default/openmps << 'SETTINGS'
OPENMPS_PROVISIONING=concurrent
OPENMPS_METRICS=unix:/run/openmps/metrics
OPENMPS_PROFILES="quarter sm-percent=25"
SETTINGS
systemctl restart openmps
test -S /run/openmps/metrics
run one 20001 &
one=$!
run other 20002
wait "$one"
count one
count other
expect "servers" "$(nvidia-cuda-mps-control get_server_list | wc -l)" 2
openmps socket /run/openmps/container --group container --sm-percent 50
run group 20001 CUDA_MPS_PIPE_DIRECTORY=/run/openmps/container
count group

# A profile's limits are a control group's: the daemon sees where its clients are.
run profile 20002 CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps/profiles/quarter
count profile

step "whoever cleans /tmp"
touch /tmp/old
echo "d /tmp 1777 root root 0" > /etc/tmpfiles.d/tmp.conf
systemd-tmpfiles --clean
test ! -e /tmp/old
test -S /tmp/nvidia-mps/openmps-control
test -e /tmp/nvidia-mps/nvidia-cuda-mps-control.pid

step "servers that hang, and the end of the service"
for server in $(nvidia-cuda-mps-control get_server_list); do
    kill -STOP "$server"
    nvidia-cuda-mps-control shutdown_server "$server" -f
done
# The daemon, which is not their user, kills them.
for _ in $(seq 300); do
    if [ -z "$(nvidia-cuda-mps-control get_server_list)" ]; then break; fi
    sleep 0.1
done
expect "servers" "$(nvidia-cuda-mps-control get_server_list)" ""
systemctl restart openmps
expect "the service" "$(systemctl is-active openmps) $(systemctl show --property=NRestarts --value openmps)" "active 0"
run last 20002
count last
systemctl stop openmps
expect "its end" "$(systemctl show --property=Result --value openmps)" success
test ! -e /tmp/nvidia-mps/openmps-control
test -d /run/openmps/container
test -s /var/log/nvidia-mps/control.log

step "purge"
rmdir /run/openmps/container
dpkg --purge openmps >> /package/dpkg.log 2>&1
expect "the service" "$(systemctl is-enabled openmps 2> /dev/null || echo gone)" gone
test ! -e /run/openmps
echo right > /package/result
