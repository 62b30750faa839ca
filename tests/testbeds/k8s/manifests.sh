#!/bin/bash
# The manifests of deploy/kubernetes on a real API server, controllers, scheduler and kubelet: applied as docs/kubernetes.md says, until a job has run kernels.
# As root, on Debian 12, with what build.sh needs. Usage: manifests.sh BINARIES DIRECTORY    `kubectl apply -k` wants 1.21 or later: BINARIES/kubectl may be a link.
# The image is what the Dockerfile makes, of target/dist. All of it happens in mount, PID and network namespaces of its own.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
if [ -z "${OPENMPS_BED_INSIDE-}" ]; then
    exec env OPENMPS_BED_INSIDE=1 unshare --mount --pid --fork --kill-child --mount-proc --net "$here/manifests.sh" "$@"
fi
binaries=$(realpath "$1")
bed=$(realpath -m "$2")
repository=$(realpath "$here/../../..")
target=${CARGO_TARGET_DIR:-$repository/target}
mkdir -p "$bed"/{cni,kubelet,log} /var/lib/kubelet
cd "$bed"
ip link set lo up
# The API server looks for the node's address by its default route.
ip link add node0 type veth peer name node0-peer
ip address add 10.87.0.1/24 dev node0
ip link set node0 up
ip link set node0-peer up
ip route add default dev node0

# The node's directories, for this namespace alone.
mount --make-rprivate /
mount --bind "$bed/kubelet" /var/lib/kubelet
for directory in /run/openmps /var/lib/openmps /var/log/openmps /var/log/pods; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=755 tmpfs "$directory"
done
mount --make-rshared /

# Pods with addresses of their own.
echo '{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "'"$bed/cni/state"'", "subnet": "10.88.0.0/16"}}]}' > cni/05-ptp.conflist
"$here/up.sh" "$binaries" "$bed" "$target/programs/driver-api/multiprocessors"
kubectl() { "$binaries/kubectl" --kubeconfig "$bed/kubeconfig" "$@"; }
setsid "$binaries/kube-controller-manager" --kubeconfig kubeconfig --leader-elect=false --controllers=daemonset,job,namespace,garbagecollector > log/controllers.log 2>&1 &
trap '"$here/down.sh" "$bed"' EXIT

# What the last stage of the Dockerfile makes: a shell and its tools, the executable, the libraries.
rm -rf image
mkdir -p image/{bin,usr/bin,usr/lib,etc,tmp,run,var,proc,sys,dev}
cp -aL "$target/dist/lib/openmps" image/usr/lib/
cp "$target/dist/bin/openmps" image/usr/bin/openmps
strip --strip-debug image/usr/bin/openmps image/usr/lib/openmps/*.so*
cp "$(command -v busybox)" image/bin/
for program in sh cp mv ln; do ln -sf busybox "image/bin/$program"; done
for library in $(ldd image/usr/bin/openmps image/usr/lib/openmps/libsoftcuda.so image/usr/lib/openmps/libcuda.so.1 | grep -o '/lib[^ ]*\.so[^ ]*' | grep -v : | sort -u); do
    mkdir -p "image$(dirname "$library")"
    cp -L "$library" "image$library"
done
python3 "$here/images.py" image . docker.io/library/openmps:0.1.0 /usr/bin/openmps
ctr -a containerd.sock -n k8s.io images import image.tar > /dev/null

until_true() {
    for _ in $(seq 600); do
        if eval "$2"; then echo "ok: $1"; return; fi
        sleep 0.3
    done
    echo "WRONG: still not: $1"
    kubectl get all,events -A
    exit 1
}

# As docs/kubernetes.md says, with the software GPU.
kubectl apply -k "$repository/deploy/kubernetes/overlays/softcuda"
kubectl label node node0 openmps.dev/node=true
ready='kubectl -n openmps get daemonset openmps -o jsonpath="{.status.numberReady}"'
until_true "the DaemonSet's pod is ready" '[ "$('"$ready"')" = 1 ]'
until_true "the node offers 200 hundredths" 'kubectl get node node0 -o jsonpath="{.status.allocatable}" | grep -q "\"openmps.dev/sm-percent\":\"200\""'
sed -e 's#image: .*#image: local.test/program:1#' -e 's#^\( *\)resources:#\1command: [/bin/program]\n&#' "$repository/deploy/kubernetes/examples/job.yaml" > job.yaml
kubectl apply -f job.yaml
succeeded='kubectl get job vector-add -o jsonpath="{.status.succeeded}"'
until_true "both pods of the example job are right" '[ "$('"$succeeded"')" = 2 ]'
grep -h . /var/log/pods/default_vector-add-*/main/0.log
# The daemon's pod has the node's PID namespace, so that its word on its clients can be had from outside.
CUDA_MPS_PIPE_DIRECTORY=/run/openmps/control "$target/dist/bin/openmps" status --json > status.json
python3 - status.json << 'END'
import json
import sys

servers = json.load(open(sys.argv[1]))["servers"]
ran = [client for server in servers for client in server["snapshot"]["departed"] if client["kernels"] and client["group"]]
groups = {client["group"] for client in ran}
assert len(ran) == len(groups) == 2, servers
for client in ran:
    print(f"ok: {client['kernels']} kernels of {client['command']} ran in the server, in group {client['group']}")
END
kubectl get pods -A -o wide

# The manifests for nodes with GPUs, whose runtime class this node has not: admitted, with their pods' template.
kubectl delete -k "$repository/deploy/kubernetes/overlays/softcuda" --wait=true
printf 'apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: runc\n' | kubectl apply -f -
kubectl apply -k "$repository/deploy/kubernetes/base"
until_true "the controller has made the DaemonSet's pod, and the scheduler has bound it" '[ "$(kubectl -n openmps get pods -o jsonpath="{.items[0].spec.nodeName}")" = node0 ]'
echo "ok: all"
