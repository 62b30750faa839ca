#!/bin/sh
# Installs OpenMPS for one user, without root: install.sh [--prefix DIRECTORY] [--uninstall]
# The prefix is ~/.local unless another is given; its bin should be in PATH.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${HOME:?}/.local
action=install
while [ $# -gt 0 ]; do
    case $1 in
        --prefix)
            prefix=${2:?--prefix needs a directory}
            shift
            ;;
        --uninstall) action=uninstall ;;
        *)
            echo "usage: $0 [--prefix DIRECTORY] [--uninstall]" >&2
            exit 2
            ;;
    esac
    shift
done
list=$prefix/share/openmps/installed

uninstall() {
    [ -f "$list" ] || return 0
    while IFS= read -r file; do rm -f "$prefix/$file"; done < "$list"
    rm -f "$list"
    # The innermost first; those that others use stay.
    for directory in lib/openmps/bin lib/openmps share/openmps share/doc/openmps; do
        rmdir "$prefix/$directory" 2> /dev/null || true
    done
}

if [ "$action" = uninstall ]; then
    [ -f "$list" ] || { echo "OpenMPS is not installed in $prefix" >&2; exit 1; }
    uninstall
    echo "removed OpenMPS from $prefix"
    exit 0
fi
uninstall
mkdir -p "$prefix/share/openmps"
(cd "$here" && find bin lib share \( -type f -o -type l \)) > "$list"
while IFS= read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    # A running program keeps the file that it has.
    cp -P "$here/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
done < "$list"
echo "installed OpenMPS in $prefix"
case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) echo "put its commands into your PATH: export PATH=$prefix/bin:\$PATH" ;;
esac
