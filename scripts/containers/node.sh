# A machine of its own for container engines: network, mounts and processes; to be sourced after lib.sh. Needs root.
# The engines are those of engines.txt. Everything they write is in a tmpfs that ends with the machine.

export PATH="$PATH:/usr/local/go/bin"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/truepeer
engines=${TRUEPEER_ENGINES:-$cache/engines}
kube_version=1.34.4
kube=${TRUEPEER_KUBE:-$cache/kube-$kube_version}

# Directory on a tmpfs that outlives a node, as a machine's disk does a reboot; without one it ends with the node.
node_disk=${node_disk-}

# Starts it with one of two layouts of the cgroups. v2: the cgroup2 hierarchy alone, with the controllers that v1 leaves
# to it; hybrid: as on this machine. Another machine, `lb`, is beside it: 10.0.0.7 and fd00:200::7; the node is .1 and ::1.
node_up() { # layout
  node_layout=$1
  unshare --mount --net --pid --ipc --uts --fork --kill-child --propagation private bash -euc '
    scripts/new-network.sh node_up
    hostname node
    mount -t proc proc /proc
    # A mount that is only covered keeps its namespace alive, and is still listed: unmount first.
    cgroups=$(mktemp -d)
    mount --rbind /sys/fs/cgroup "$cgroups"
    umount -lR /sys
    mount -t sysfs sysfs /sys
    if [ "$1" = v2 ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup; else mount --rbind "$cgroups" /sys/fs/cgroup; fi
    umount -lR "$cgroups"
    rmdir "$cgroups"
    mount -t bpf bpf /sys/fs/bpf
    grep -o " /run/[^ ]*" /proc/self/mounts | sort -r | while read -r mount; do umount -l "$mount"; done
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/netns /run/lock /run/node
    [ -z "$2" ] || mount --bind "$2" /run/node
    rm -f /run/node/up
    mkdir -p /run/node/home/.config/containers
    mount -t tmpfs -o mode=755 tmpfs /var/log
    mount --make-rshared /
    sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    ip link set lo up
    ip netns add lb
    ip link add lb0 type veth peer name eth0 netns lb
    ip addr add 10.0.0.1/24 dev lb0
    ip addr add fd00:200::1/64 dev lb0 nodad
    ip link set lb0 up
    ip -n lb addr add 10.0.0.7/24 dev eth0
    ip -n lb addr add fd00:200::7/64 dev eth0 nodad
    ip -n lb link set lo up
    ip -n lb link set eth0 up
    ip -n lb route add default via 10.0.0.1
    ip -n lb route add default via fd00:200::1
    # Engines and Kubernetes expect a default route. No packet leaves by it.
    ip route add default via 10.0.0.7
    ip route add default via fd00:200::7
    touch /run/node/up
    trap "exit 0" TERM
    while :; do sleep 1000 & wait $!; done' node "$1" "$node_disk" >"$target/logs/node.log" 2>&1 </dev/null &
  node_unshare=$!
  for _ in $(seq 100); do
    node_pid=$(cat "/proc/$node_unshare/task/$node_unshare/children" 2>/dev/null | tr -d ' ')
    [ -z "$node_pid" ] || [ ! -e "/proc/$node_pid/root/run/node/up" ] || return 0
    sleep .1
  done
  cat "$target/logs/node.log"
  return 1
}

# Runs a command there.
node_run() {
  nsenter --wdns="$PWD" -t "$node_pid" -m -n -p -i -u -- env -i TERM=dumb PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8 HOME=/run/node/home \
    PATH="$PWD/scripts/containers/bin:$engines/bin:$engines/root/usr/sbin:$engines/root/usr/bin:$engines/root/sbin:$engines/root/bin:$kube:$(dirname "$truepeer"):${agent:+$(dirname "$agent")}:/usr/sbin:/usr/bin:/sbin:/bin" \
    LD_LIBRARY_PATH="$engines/root/usr/lib/x86_64-linux-gnu:$engines/root/lib/x86_64-linux-gnu" \
    XTABLES_LIBDIR="$engines/root/usr/lib/x86_64-linux-gnu/xtables" PYTHONPATH="$engines/root/usr/lib/python3/dist-packages" \
    CONTAINERS_CONF=/run/node/containers.conf CONTAINERS_STORAGE_CONF=/run/node/storage.conf \
    CONTAINERS_REGISTRIES_CONF=/run/node/registries.conf KUBECONFIG=/run/node/admin.conf "$@"
}

# Starts a daemon there; its output goes to target/logs/node-NAME.log.
node_start() { # name, command...
  local name=$1
  shift
  node_run setsid "$@" >"$target/logs/node-$name.log" 2>&1 </dev/null &
  disown # or bash says that it was killed
}

# Waits until a command there succeeds.
node_wait() { # seconds, command...
  local end=$((SECONDS + $1))
  shift
  until node_run "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { echo "waited in vain for: $*" >&2; return 1; }
    sleep .2
  done
}

# Ends it with all its processes, and removes the cgroups that they leave.
node_end() {
  [ -n "${node_pid:-}" ] || return 0
  kill -9 "$node_pid" 2>/dev/null || true
  wait "$node_unshare" 2>/dev/null || true
  local hierarchy name
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    for name in "$hierarchy"/{truepeer-node,truepeer-node-*,docker,libpod_parent,k8s.io,kubepods,machine.slice,buildah-*}; do
      [ ! -d "$name" ] || find "$name" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
  done
  node_pid=
}

# The configuration of podman and buildah.
node_podman() {
  node_run ln -sf "$engines/root/usr/sbin/runc" /run/node/runc # for bin/runc
  node_run sh -c 'cat >/run/node/containers.conf' <<CONF
[containers]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
conmon_path = ["$engines/root/usr/bin/conmon"]
helper_binaries_dir = ["$engines/root/usr/lib/podman"]
[engine.runtimes]
runc = ["$PWD/scripts/containers/bin/runc"]
[network]
network_backend = "netavark"
network_config_dir = "/run/node/networks"
CONF
  node_run sh -c 'cat >/run/node/storage.conf' <<<$'[storage]\ndriver = "overlay"\ngraphroot = "/run/node/storage"\nrunroot = "/run/node/storage-run"'
  node_run sh -c 'cat >/run/node/registries.conf' <<<'unqualified-search-registries = []'
  node_run sh -c 'cat >/run/node/home/.config/containers/policy.json' <<<'{"default":[{"type":"insecureAcceptAnything"}]}'
}

# Docker, with a userland proxy, and IPv6 by ip6tables unless other options are named.
node_docker() { # options of its network
  node_start containerd containerd --root /run/node/containerd --state /run/containerd --address /run/containerd/containerd.sock -l warn
  node_wait 20 test -S /run/containerd/containerd.sock
  [ $# -gt 0 ] || set -- --ipv6 --fixed-cidr-v6 fd00:31::/64 --experimental --ip6tables --userland-proxy-path "$engines/root/usr/sbin/docker-proxy"
  node_dockerd --bip 172.31.0.1/24 --userland-proxy=true "$@"
}

# Docker for builds alone: a cluster is there, with its own network and containerd.
node_docker_beside_cluster() { node_dockerd --bridge none --iptables=false; }

node_dockerd() { # options of its network
  node_start dockerd dockerd --data-root /run/node/docker --exec-root /run/node/docker-run --pidfile /run/node/docker.pid \
    -H unix:///run/docker.sock --containerd /run/containerd/containerd.sock --exec-opt native.cgroupdriver=cgroupfs \
    --cgroup-parent /truepeer-node/docker --init-path "$engines/root/usr/bin/docker-init" \
    --default-runtime plain --add-runtime "plain=$PWD/scripts/containers/bin/runc" --log-level warn "$@"
  node_wait 30 docker version
}
