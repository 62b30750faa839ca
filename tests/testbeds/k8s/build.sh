#!/bin/bash
# Builds kubelet, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl 1.20.2, offline, from Debian 12's own source package.
# Usage: build.sh DIRECTORY    Needs: golang-go containerd runc etcd-server busybox-static containernetworking-plugins openssl; about five minutes
set -euo pipefail
work=$(realpath -m "$1")
mkdir -p "$work"/{gopath/src/k8s.io,bin,lists/partial,src}
cd "$work/src"

# This machine's Debian sources, switched to source packages.
sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$work/src.sources"
apt="-o Dir::Etc::sourcelist=$work/src.sources -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists -o APT::Sandbox::User=root"
apt-get $apt update -qq
apt-get $apt source --download-only -qq kubernetes
rm -rf "$work/gopath/src/k8s.io/kubernetes"
tar xf kubernetes_*.orig.tar.gz
mv kubernetes-1.20.2 "$work/gopath/src/k8s.io/kubernetes"
cd "$work/gopath/src/k8s.io/kubernetes"
export GOPATH=$work/gopath GOFLAGS= GOCACHE=$work/gocache GOPROXY=off GO111MODULE=off CGO_ENABLED=0

# Kubelets before 1.26 send the plugin's path as :authority, which Rust's HTTP/2 refuses; later ones send this.
sed -i '/func dial(unixSocketPath/,/^}/ s/grpc.DialContext(ctx, unixSocketPath, /grpc.DialContext(ctx, unixSocketPath, grpc.WithAuthority("localhost"), /' pkg/kubelet/cm/devicemanager/endpoint.go

# The API server's OpenAPI table is not in the package.
go build -o "$work/bin/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
in_vendor=vendor/k8s.io
rooms="api apimachinery apiextensions-apiserver kube-aggregator apiserver metrics client-go component-base kubelet kube-proxy kube-scheduler kube-controller-manager cloud-provider"
directories=$(for room in $rooms; do echo "$in_vendor/$room/"; done)
marked=$(grep -rl --include='*.go' '+k8s:openapi-gen=' $directories pkg | xargs -n1 dirname | sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
"$work/bin/openapi-gen" --logtostderr -i "$marked" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h $in_vendor/code-generator/hack/boilerplate.go.txt -r "$work/violations" --output-base "$work/gopath/src"

version=k8s.io/component-base/version
for command in kubelet kube-apiserver kube-controller-manager kube-scheduler kubectl; do
  go build -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" -o "$work/bin/$command" ./cmd/$command
  echo "built $command"
done
