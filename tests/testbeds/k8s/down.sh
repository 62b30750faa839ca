#!/bin/bash
# Ends what up.sh has started.  Usage: down.sh DIRECTORY
cd "$(realpath -m "$1")" || exit
for name in kubelet scheduler apiserver etcd; do
  [ -f run/$name.pid ] && kill "$(cat run/$name.pid)" 2>/dev/null
done
sleep 1
for task in $(ctr -a containerd.sock -n k8s.io tasks ls -q 2>/dev/null); do
  ctr -a containerd.sock -n k8s.io tasks kill -s 9 "$task" 2>/dev/null
done
sleep 1
kill "$(cat run/containerd.pid)" 2>/dev/null
sleep 1
awk -v d="$PWD" 'index($2,d)==1{print $2}' /proc/mounts | sort -r | while read -r mount; do umount "$mount" 2>/dev/null; done
true
