#!/bin/bash
# A Kubernetes of one node on loopback, as root, without systemd and registry.  Usage: up.sh BINARIES DIRECTORY PROGRAM
# PROGRAM goes into the image of the pods, with the libraries that it needs. Then: kubectl --kubeconfig DIRECTORY/kubeconfig ...
# Pods need hostNetwork: true and imagePullPolicy: Never.
set -euo pipefail
B=$(realpath "$1"); D=$(realpath -m "$2"); P=$(realpath "$3"); H=$(dirname "$(realpath "$0")")
mkdir -p "$D"/{cni,kubelet,log,run} /var/lib/kubelet/device-plugins; cd "$D"
start() { local n=$1; shift; setsid "$@" > "log/$n.log" 2>&1 & echo $! > "run/$n.pid"; }
# --- images: two tags of one layer
R=$D/rootfs; mkdir -p "$R"/{bin,tmp,dev,proc,sys,etc}; cp /bin/busybox "$R/bin/"; cp "$P" "$R/bin/program"; for a in sh sleep env sort ls cat grep; do ln -sf busybox "$R/bin/$a"; done
for l in $(ldd "$P" /lib/x86_64-linux-gnu/libgcc_s.so.1 | grep -o "/lib[^ ]*\.so[^ ]*" | tr -d : | sort -u) /lib/x86_64-linux-gnu/{libgcc_s.so.1,libm.so.6,libdl.so.2,libpthread.so.0,librt.so.1}; do mkdir -p "$R$(dirname "$l")"; cp -L "$l" "$R$l"; done
python3 "$H/images.py" "$R" "$D"
# --- containerd
echo '{"cniVersion":"0.4.0","name":"lo","plugins":[{"type":"loopback"}]}' > cni/10-lo.conflist
cat > containerd.toml <<E
version = 2
root = "$D/containerd/root"
state = "$D/containerd/state"
[grpc]
  address = "$D/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "local.test/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$D/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
E
start containerd containerd -c containerd.toml
for _ in $(seq 50); do [ -S containerd.sock ] && ctr -a containerd.sock version >/dev/null 2>&1 && break; sleep .2; done
for i in pause program; do ctr -a containerd.sock -n k8s.io images import "$i.tar" >/dev/null; done
# --- control plane
[ -f sa.key ] || openssl genrsa -out sa.key 2048 2>/dev/null
echo 'testtoken,admin,admin,system:masters' > tokens.csv
cat > kubeconfig <<E
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: testtoken}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
E
U=http://127.0.0.1
start etcd etcd --data-dir etcd --listen-client-urls $U:12379 --advertise-client-urls $U:12379 --listen-peer-urls $U:12380 --initial-advertise-peer-urls $U:12380 --initial-cluster default=$U:12380
start apiserver "$B/kube-apiserver" --etcd-servers $U:12379 --bind-address 127.0.0.1 --secure-port 6443 --cert-dir certs --token-auth-file tokens.csv --service-account-key-file sa.key --service-account-signing-key-file sa.key --service-account-issuer https://test.local --service-cluster-ip-range 10.0.0.0/24 --authorization-mode RBAC --disable-admission-plugins ServiceAccount,TaintNodesByCondition --allow-privileged
K="$B/kubectl --kubeconfig $D/kubeconfig"
for _ in $(seq 100); do $K get --raw /readyz >/dev/null 2>&1 && break; sleep .3; done
start scheduler "$B/kube-scheduler" --kubeconfig kubeconfig --leader-elect=false
# --- kubelet
cat > kubelet.yaml <<E
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: 127.0.0.1
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
syncFrequency: 2s
nodeStatusUpdateFrequency: 2s
evictionHard: {nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "0%"}
E
start kubelet "$B/kubelet" --config kubelet.yaml --kubeconfig kubeconfig --root-dir "$D/kubelet" --container-runtime remote --container-runtime-endpoint "unix://$D/containerd.sock" --pod-infra-container-image local.test/pause:1 --hostname-override node0 --cert-dir pki
for _ in $(seq 100); do $K get node node0 2>/dev/null | grep -q ' Ready' && break; sleep .3; done
$K get node node0 --no-headers
