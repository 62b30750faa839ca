# Boots systemd in the root file system $1, in the control group $2. Everything that is mounted ends with the name spaces.
set -eu
root=$1
echo $$ > "$2/cgroup.procs"
exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -euc '
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
# Settings of the kernel are the host'"'"'s: systemd leaves alone what it cannot write.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for place in run dev; do mount -t tmpfs -o mode=755 tmpfs "$root/$place"; done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
cd "$root"
pivot_root . mnt
exec env -i container=openmps-check PATH="$PATH" chroot . sh -c "umount -l /mnt; exec /lib/systemd/systemd --system --unit=openmps-check.service --log-target=journal"
' sh "$root"
