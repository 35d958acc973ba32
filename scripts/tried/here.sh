#!/bin/bash
# Uses a truepeer in each way (use.py) in namespaces of this machine: here.sh HOW TRUEPEER [WAY,...]. HOW is what the row of docs/tried.md
# says of it: "static tarball". Needs root and HAProxy, or HAPROXY with the command of one (`make servers` unpacks one).
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
[ "$(id -u)" = 0 ] || { echo "SKIP tried: needs root"; exit 77; }
how=${1:?how it was installed} truepeer=$(realpath "${2:?the program}")
servers=$target/servers/root
export HAPROXY="${HAPROXY:-env LD_LIBRARY_PATH=$servers/usr/lib/$(uname -m)-linux-gnu:$servers/lib/$(uname -m)-linux-gnu $servers/usr/sbin/haproxy}"
unshare --net --mount --propagation private bash -ec '
  scripts/new-network.sh tried
  scripts/tried/own-mounts.sh
  exec python3 scripts/tried/use.py "$@"
' bash --where "$(. /etc/os-release; echo "Debian $VERSION_ID in namespaces"),$how" ${3:+--only "$3"} "$truepeer"
