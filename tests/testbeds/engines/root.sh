#!/bin/bash
# Makes a Debian with container engines and OpenMPS in DIRECTORY, once. As root, with the network.
# Usage: root.sh DIRECTORY SUITE PACKAGE    SUITE: sid has all engines; trixie and bookworm have no Apptainer
set -euo pipefail
root=$(realpath -m "$1") suite=$2 package=$(realpath "$3")
here=$(dirname "$(realpath "$0")")
target=${CARGO_TARGET_DIR:-$(realpath "$here/../../../target")}

if [ ! -e "$root/image.tar" ]; then
    mkdir -p "$root"
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" http://deb.debian.org/debian
    # What the image is made of: the system as it is before the engines are in it.
    image=$(mktemp -d "$root.image.XXXXXX")
    cp -a "$root/." "$image"
    rm -rf "$image"/usr/share/{doc,man,locale} "$image"/var/cache/apt/* "$image"/var/lib/apt/lists/*
    tar -C "$image" --exclude='./dev/*' -cf "$root.tar" .
    rm -rf "$image"
    engines="docker.io podman crun uidmap slirp4netns fuse-overlayfs nftables bubblewrap iproute2 procps python3 fuse3"
    if [ "$suite" = sid ]; then engines="$engines docker-cli passt apptainer squashfs-tools squashfuse"; fi
    if [ "$suite" = trixie ]; then engines="$engines docker-cli passt"; fi
    chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get -o APT::Sandbox::User=root install -y --no-install-recommends $engines
    mv "$root.tar" "$root/image.tar"
fi
cp "$package" "$root/openmps.deb"
chroot "$root" apt-get -o APT::Sandbox::User=root install -y --reinstall --no-install-recommends /openmps.deb

# The programs of the images.
programs=$(mktemp -d)
mkdir -p "$programs/usr/local/bin"
cp "$target"/programs/driver-api/multiprocessors "$target"/debug/puppet "$programs/usr/local/bin"
cp "$root/image.tar" "$root/image-with-programs.tar"
tar -C "$programs" --owner=0 --group=0 -rf "$root/image-with-programs.tar" ./usr/local/bin/{multiprocessors,puppet}
rm -rf "$programs"
chmod 755 "$root" "$root/root"
