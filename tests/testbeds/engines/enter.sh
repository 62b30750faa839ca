#!/bin/bash
# Runs a command in the root of root.sh, as its root, in namespaces of its own: nothing that it starts or mounts is left. Usage: enter.sh DIRECTORY COMMAND...
set -euo pipefail
root=$(realpath "$1")
shift
exec unshare --mount --pid --fork --kill-child --net --uts --ipc bash -ec '
    root=$1
    shift
    mount --make-rprivate /
    mount --bind "$root" "$root"
    cd "$root"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    # Engines refuse a hierarchy that is half of the old kind. Where controllers are bound to that, containers have groups, and no limits of host memory.
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs dev
    mkdir dev/pts dev/shm dev/net
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    for number in "0 stdin" "1 stdout" "2 stderr"; do ln -s "/proc/self/fd/${number% *}" "dev/${number#* }"; done
    mknod -m 666 dev/null c 1 3
    mknod -m 666 dev/zero c 1 5
    mknod -m 666 dev/full c 1 7
    mknod -m 666 dev/random c 1 8
    mknod -m 666 dev/urandom c 1 9
    mknod -m 666 dev/tty c 5 0
    mknod -m 666 dev/fuse c 10 229
    mknod -m 666 dev/net/tun c 10 200
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    mount -t tmpfs -o mode=1777 tmpfs tmp
    mount -t tmpfs -o mode=755 tmpfs run
    ip link set lo up
    pivot_root . mnt
    umount -l /mnt
    # Rootless engines want to hand mounts on.
    mount --make-rshared /
    exec env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/openmps/bin "$@"
' bash "$root" "$@"
