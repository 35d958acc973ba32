#!/bin/bash
# Uses the image of target/packages in podman, as `podman load` reads it, in each way that a container has (use.py): podman.sh [IMAGE].
# Then removes it. In namespaces of its own. Needs root, and the programs of engines.txt (`make engines`) and `make servers`.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
. scripts/containers/node.sh
. scripts/containers/checks.sh
say() { echo "podman: $*"; }
image=$(realpath "${1:-$(ls target/packages/truepeer-[0-9]*-image.tar | tail -1)}") truepeer=$image
node_needs podman
mkdir -p "$target/logs"
servers=$target/servers/root
haproxy="env LD_LIBRARY_PATH=$servers/usr/lib/$(uname -m)-linux-gnu:$servers/lib/$(uname -m)-linux-gnu $servers/usr/sbin/haproxy"
trap node_end EXIT
node_up v2
node_podman
# use.py has a load balancer of its own.
node_run ip netns del lb
name=$(node_run podman load -q -i "$image" | sed -n 's/^Loaded image: //p')
[ -n "$name" ] || { say "FAILED: podman does not load $image"; exit 1; }
say "$(node_run podman --version) has loaded $name, $(node_run podman image inspect --format '{{.Architecture}}, entry point {{.Config.Entrypoint}}' "$name")"
# Attach needs the root of the cgroups, and maps of the host; the admin socket of a test is below /tmp.
node_run env HAPROXY="$haproxy" python3 scripts/tried/use.py --where "$(. /etc/os-release; echo "Debian $VERSION_ID, podman") $(node_run podman --version | awk '{ print $3 }'),image" \
  --only attach,attach-udp,proxy,splice,udp,https \
  podman run --rm --privileged --network host --cgroupns host --cgroup-parent /truepeer-node/podman \
  -v /sys/fs/bpf:/sys/fs/bpf -v /sys/fs/cgroup:/sys/fs/cgroup -v /tmp:/tmp "$name"
node_run podman rmi "$name" >/dev/null
check_is "no image is left" "$(node_run podman images -q | wc -l)" 0
check_is "no container is left" "$(node_run podman ps -aq | wc -l)" 0
check_is "no pin is left" "$(node_run find /sys/fs/bpf ! -type d ! -name "*.debug" | wc -l)" 0
check_is "no rule is left" "$(node_run ip rule | grep -vc -e 'lookup local' -e 'lookup main' -e 'lookup default')" 0
checks_end
