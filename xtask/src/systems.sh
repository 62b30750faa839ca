# Runs as root in a fresh Debian of another release: /opt/openmps has the portable build, /package/program needs glibc 2.17.
set -eu
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps
mkdir -p /tmp/mps
# Small images do not have it.
find / -xdev -name 'libgcc_s*' -delete
echo "- $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), $(ls -l /lib/x86_64-linux-gnu/libc.so.6 | grep -o 'libc.*')"
/opt/openmps/bin/openmps run --softcuda -- /package/program before > /tmp/said
test "$(grep -c '^ran ' /tmp/said)" -eq 4
/opt/openmps/bin/openmps doctor /package/program > /dev/null
/opt/openmps/bin/openmps control quit
