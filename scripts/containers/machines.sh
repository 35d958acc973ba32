# Further machines beside that of node.sh, each a node of its cluster: b with 10.0.2.2, c with 10.0.3.2. They run inside the
# first, and end with it; to be sourced after cluster.sh. `on b COMMAND…` runs a command of node.sh or cluster.sh for b.

declare -A machines=() machine_numbers=()

machine_up() { # name, number
  local token=$1-$$ end=$((SECONDS + 20))
  machine_numbers[$1]=$2
  node_start "machine-$1" unshare --mount --net --pid --ipc --uts --fork --kill-child --propagation private \
    scripts/containers/machine.sh "$1" "$token"
  until machines[$1]=$(pgrep -o -f "^/bin/bash scripts/containers/machine.sh $1 $token\$") && [ -e "/proc/${machines[$1]}/root/run/node/up" ]; do
    [ $SECONDS -lt $end ] || { cat "$target/logs/node-machine-$1.log" >&2; return 1; }
    sleep .1
  done
  node_run sh -euc 'pid=$(pgrep -o -f "^/bin/bash scripts/containers/machine.sh $0 $1\$")
    # Kubelets remove the cgroups of pods that they do not know: each has a part of the hierarchy.
    cd /sys/fs/cgroup
    mkdir -p "truepeer-node-$0"
    for each in . "truepeer-node-$0"; do
      for controller in $(cat "$each/cgroup.controllers"); do echo "+$controller" >"$each/cgroup.subtree_control"; done
    done
    ip link add "to-$0" type veth peer name eth0 netns "$pid"
    ip addr add "10.0.$2.1/24" dev "to-$0"
    ip link set "to-$0" up' "$1" "$token" "$2"
  on "$1" node_run sh -euc 'ip addr add "10.0.$0.2/24" dev eth0; ip link set eth0 up; ip route add default via "10.0.$0.1"' "$2"
}

on() { # machine, command…
  local node_pid=${machines[$1]} kube_node=node-$1 kube_suffix=-$1 kube_cgroup=/truepeer-node-$1 number=${machine_numbers[$1]}
  local kube_address=10.0.$number.2 kube_pods=10.244.$((2 * number)).0/23
  shift
  "$@"
}

# A node of the cluster.
machine_joins() { # name
  on "$1" cluster_kubeconfig admin
  on "$1" cluster_containerd
  on "$1" cluster_kubelet
  on "$1" cluster_proxy
  node_wait 60 kubectl wait --for=condition=Ready "node/node-$1" --timeout=1s
}

# As by a loss of power.
machine_dies() { kill -9 "${machines[$1]}"; } # name
