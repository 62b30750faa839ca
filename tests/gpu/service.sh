#!/bin/bash
# The package's service on a machine with a GPU: a fresh Debian's systemd, with the host's driver library and device nodes in it, and programs of two users at
# once. As root. Usage: service.sh ARCHIVE PACKAGE PROGRAM...   ARCHIVE: target/deb/*-systemd.tar, compressed or not, of `cargo xtask deb --check`; PROGRAM:
# CUDA programs that print `NAME: ok ...`. Prints a line for each, and what the servers counted; then the same with options that the unit leaves off.
set -euo pipefail
archive=$1 package=$2
shift 2
here=$(dirname "$(realpath "$0")")
check=$here/../../xtask/src/deb_systemd
library=$(realpath "$(ldconfig -p | sed -n 's/.*libcuda.so.1 .*x86-64.*=> //p' | head -n 1)")
driver=$(dirname "$library")
bed=$(mktemp -d)
root=$bed/root
groups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
if [ -z "$groups" ]; then
    groups=$bed/groups
    mkdir "$groups"
    mount -t cgroup2 cgroup2 "$groups"
fi
group=$groups$(sed -n 's/^0:://p' /proc/self/cgroup)/openmps-check
leave() {
    sleep 0.5
    find "$group" -depth -type d -exec rmdir {} \;
    if mountpoint -q "$bed/groups"; then umount "$bed/groups"; fi
    rm -rf --one-file-system "$bed"
}
mkdir "$group"
trap leave EXIT
mkdir -p "$root/package/programs"
tar -C "$root" -xf "$archive"
cp "$package" "$root/package/openmps.deb"
cp "$@" "$root/package/programs"
cp "$check/openmps-check.service" "$root/etc/systemd/system"
mkdir -p "$root$driver"
echo "$driver" > "$root/etc/ld.so.conf.d/driver.conf"
# What boot.sh mounts, and the GPU.
gpu="mount --rbind $driver \"\$root$driver\"
for node in /dev/nvidia*; do if [ -c \$node ]; then touch \"\$root\$node\"; mount --bind \$node \"\$root\$node\"; fi; done"
while IFS= read -r line; do
    if [ "$line" = 'cd "$root"' ]; then echo "$gpu"; fi
    printf '%s\n' "$line"
done < "$check/boot.sh" > "$bed/boot.sh"
echo "driver=$library" > "$root/package/script.sh"
cat >> "$root/package/script.sh" << 'INSIDE'
set -u
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/openmps/bin
ldconfig
dpkg -i /package/openmps.deb > /dev/null
printf 'OPENMPS_NATIVE_DRIVER=%s\nOPENMPS_PROVISIONING=concurrent\n' "$driver" > /etc/default/openmps
run() {
    said=$(timeout 60 setpriv --reuid="$1" --regid="$1" --clear-groups env -i PATH="$PATH" sh -c 'eval "$(openmps env)"; exec "$0"' "$2" 2>&1)
    echo "$1 ${2##*/}: $? $(echo "$said" | tail -n 1 | cut -c 1-100)"
}
# try OPTION PROGRAM...: with this option besides, or with none.
try() {
    echo "=== $1"
    mkdir -p /etc/systemd/system/openmps.service.d
    printf '[Service]\n%b\n' "$1" > /etc/systemd/system/openmps.service.d/option.conf
    shift
    systemctl daemon-reload
    systemctl start openmps || systemctl status --no-pager openmps
    grep -E '^(CapEff|NoNewPrivs|Seccomp):' "/proc/$(systemctl show --property=MainPID --value openmps)/status" | xargs
    for program in "$@"; do
        run 20001 "$program" &
        run 20002 "$program"
        wait
    done
    echo "kernels counted: $(openmps status --json | sed -n '/"departed"/,$s/.*"kernels": //p' | xargs)"
    systemctl stop openmps
    systemctl show --property=Result openmps
    tail -n 3 /var/log/nvidia-mps/server.log | cut -c 1-160
}
try '' /package/programs/*
set -- /package/programs/*
for option in ProtectClock=yes MemoryDenyWriteExecute=yes PrivateDevices=yes ProtectProc=invisible 'SystemCallFilter=~@resources'; do try "$option" "$1"; done
try 'CapabilityBoundingSet=~\nNoNewPrivileges=no\nSystemCallFilter=\nProtectSystem=no\nProtectHome=no' "$1"
INSIDE
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin timeout --kill-after=5 280 sh "$bed/boot.sh" "$root" "$group" || echo "booted: $?"
cat "$root/package/said"
