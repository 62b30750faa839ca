#!/bin/bash
# The container engines' lines of the documents, each run by the real engine. As root. Usage: try.sh DIRECTORY [SUITE]
# DIRECTORY, 2 GB, is made at the first run (root.sh); SUITE, a release of Debian, is sid unless said.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
repository=$(realpath "$here/../../..")
"$here/root.sh" "$1" "${2:-sid}" "${CARGO_TARGET_DIR:-$repository/target}"/deb/openmps_*_amd64.deb > "$1.log" 2>&1 || { tail "$1.log"; exit 1; }
mkdir -p "$1/docs"
cp "$repository"/docs/{containers,recipes}.md "$1/docs"
cp "$here/try.py" "$repository/tests/gpu/puppet.py" "$1"
exec timeout --kill-after=10 900 "$here/enter.sh" "$1" python3 /try.py
