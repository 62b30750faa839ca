#!/bin/sh
# Starts a Slurm of two nodes on loopback: see README.md.
#
# Usage: up.sh DIRECTORY OPENMPS
#   DIRECTORY  for everything of this Slurm; it must be readable by all users
#   OPENMPS    an installation: its bin/openmps, lib/openmps/libcuda.so.1 and lib/openmps/libsoftcuda.so
# Environment:
#   SLURM_ROOT   Slurm's packages, unpacked (cargo xtask slurm); without it the installed ones are used
#   SPANK        the SPANK plugin, if it is to be loaded
set -eu
bed=$(realpath -m "$1")
openmps=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
# Made by root, used by everybody.
umask 022
mkdir -p "$bed/bin" "$bed/etc" "$bed/run" "$bed/dev" "$bed/spool/ctld"
mkdir -p -m 1777 "$bed/log"

# Slurm's programs, whose packages need not be installed. They are started through the loader, so that no variable is left in jobs' environments.
plugins=/usr/lib/x86_64-linux-gnu/slurm-wlm
if [ -n "${SLURM_ROOT:-}" ]; then
    libraries=$SLURM_ROOT/usr/lib/x86_64-linux-gnu
    plugins=$libraries/slurm-wlm
    for program in sbatch scancel scontrol sinfo squeue srun slurmctld slurmd slurmstepd; do
        for path in "$SLURM_ROOT/usr/bin/$program" "$SLURM_ROOT/usr/sbin/$program"; do
            [ -e "$path" ] || continue
            cat > "$bed/bin/$program" <<END
#!/bin/sh
SLURM_CONF=$bed/etc/slurm.conf exec /lib64/ld-linux-x86-64.so.2 --argv0 $program --library-path $libraries:$plugins $path "\$@"
END
            chmod 755 "$bed/bin/$program"
        done
    done
fi

# A GPU is a device file, by its name's end; Slurm does no more with it than look.
for gpu in 0 1; do ln -sf /dev/null "$bed/dev/nvidia$gpu"; done
# Ports that are free now; should others take them first, Slurm says so.
ports=$(python3 -c '
import socket
sockets = [socket.socket() for _ in range(3)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in sockets])')
set -- $ports
fill() {
    sed -e "s|@BED@|$bed|g" -e "s|@PLUGINS@|$plugins|" -e "s|@HOST@|$(uname -n | cut -d. -f1)|" \
        -e "s|@PORT0@|$1|" -e "s|@PORT1@|$2|" -e "s|@PORT2@|$3|" -e "s|@OPENMPS@|$openmps|g"
}
for file in slurm.conf gres.conf cgroup.conf; do
    fill "$1" "$2" "$3" < "$here/$file" > "$bed/etc/$file"
done
for hook in etc/prolog etc/epilog etc/task_prolog bin/scontrol-of-hooks; do
    fill "$1" "$2" "$3" < "$here/${hook#*/}" > "$bed/$hook"
    chmod 755 "$bed/$hook"
done
if [ -n "${SPANK:-}" ]; then echo "optional $SPANK"; fi > "$bed/etc/plugstack.conf"

export SLURM_CONF="$bed/etc/slurm.conf"
PATH="$bed/bin:$PATH"
slurmctld -c
for node in node0 node1; do
    if [ -n "${SLURM_ROOT:-}" ]; then
        slurmd -N $node -d "$bed/bin/slurmstepd"
    else
        slurmd -N $node
    fi
done
for _ in $(seq 600); do
    [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = 2 ] && exit 0
    sleep 0.1
done
tail -n 20 "$bed"/log/*.log >&2
echo "the nodes are not idle after 60 s" >&2
exit 1
