#!/bin/sh
# Ends the Slurm that up.sh started in this directory, and waits for its end. Usage: down.sh DIRECTORY
set -u
bed=$(realpath -m "$1")
pids=$(cat "$bed"/run/*.pid 2> /dev/null)
[ -z "$pids" ] || kill $pids 2> /dev/null
for _ in $(seq 600); do
    alive=
    for pid in $pids; do [ -e "/proc/$pid" ] && alive=$pid; done
    [ -z "$alive" ] && exit 0
    sleep 0.1
done
kill -9 $pids 2> /dev/null
exit 1
