#!/bin/bash
# Executes the commands of kubectl and helm that pages tell users, as they stand there, on a real Kubernetes of one node: the
# agent in a namespace of the user's choice, the pods in another one, behind HAProxy with the page's file. Each must do what its
# page says, also after reboots, and none is left out. Needs what kube.sh needs. deliver.sh executes those of docker.
set -Eeuo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
. scripts/containers/images.sh
. scripts/containers/cluster.sh
. scripts/containers/checks.sh
truepeer=$(realpath "${TRUEPEER:-$target/debug/truepeer}")
agent=$(realpath "${TRUEPEER_AGENT:-$target/debug/truepeer-agent}")
agents=infra # instead of the pages' namespace, truepeer
apps=shop
kubernetes=docs/kubernetes.md
chart=deploy/helm/truepeer
notes=$chart/templates/NOTES.txt

# The node's disk is in mounts of this script's own, so that it ends with it.
if [ -z "${node_disk:-}" ]; then
  export node_disk=$target/kube-disk
  mkdir -p "$node_disk"
  exec unshare --mount --propagation private sh -c 'mount -t tmpfs tmpfs "$node_disk" && exec scripts/kube-pages.sh'
fi
node_needs kube-pages
for program in kubelet helm; do
  [ -x "$kube/$program" ] || { check_skip kube-pages "Kubernetes is not built: make kube"; checks_end; exit 0; }
done
for program in "$truepeer" "$agent"; do
  [ -x "$program" ] || { echo "kube-pages: no $program: cargo build, or name one by TRUEPEER and TRUEPEER_AGENT"; exit 1; }
done
mkdir -p "$target/logs"
trap node_end EXIT
make_images
make_agent_image

k() { node_run kubectl "$@"; }
ask=(python3 scripts/containers/ask.py)
client=(203.0.113.9 5109)
through_service() { node_run ip netns exec lb "${ask[@]}" tcp 10.0.0.1 30080 "${client[@]}" v2; }
state() {
  [ $BASH_SUBSHELL = 0 ] && [ -n "${node_pid:-}" ] && [ -z "${told:-}" ] || return 0
  told=1
  k get pods -A -o wide
  k get events -A --sort-by=.lastTimestamp | tail -15
}
trap 'state >&2' ERR
objects() { k get clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding -o name | grep truepeer; node_run find /sys/fs/bpf/truepeer -mindepth 1 2>/dev/null || true; }

commands=$(scripts/containers/commands.py README.md $(find docs -name '*.md' | sort) $notes $chart/values.yaml)
# A command of a page that begins with these words, with the user's namespace. Prints what it prints.
page() { # page, first words
  local command
  command=$(grep -F -- "$1"$'\t'"$2" <<<"$commands" | head -1 | cut -f2)
  [ -n "$command" ] || { echo "$1 has no command that begins with: $2"; return 1; }
  echo "$1"$'\t'"$command" >>"$target/logs/kube-pages-executed"
  command=$(sed "s/-n truepeer/-n ${namespace:-$agents}/; s/namespace \(truepeer\|NAME\) /namespace ${namespace:-$agents} /; s/ NODE\b/ node/" <<<"$command")
  node_run sh -uc "$command" 2>&1
}
is_done() { # page, first words
  local said
  if said=$(page "$@"); then check_is "$1: $2" 0 0; else check_is "$1: $2" "$said" "exit status 0"; fi
}
# kube-proxy opens the port a moment after the pod is ready.
client_is() { # name, expected
  node_wait 30 sh -c "ip netns exec lb ${ask[*]} tcp 10.0.0.1 30080 ${client[*]} v2 | grep -e '$2'" || true
  check_is "$1" "$(through_service)" "$2"
}

# A marked block of the page, as situations/page.py reads it, and whether an output shows what the page says.
block() { # file, or what it does and its first words
  PYTHONPATH=scripts/situations python3 - $kubernetes "$@" <<'PYTHON'
import pathlib, sys
import page
found = [step for step in page.steps(pathlib.Path(sys.argv[1])) if sys.argv[2] in (step.path, step.does)]
print(next(step.text for step in found if step.path or step.text.startswith(sys.argv[3])), end="")
PYTHON
}
is_shown() { # name, first words of the command, its output
  local missing
  missing=$(PYTHONPATH=scripts/situations python3 - $kubernetes "$2" "$3" <<'PYTHON'
import pathlib, sys
import page
step = next(step for step in page.steps(pathlib.Path(sys.argv[1])) if step.text.startswith(sys.argv[2]))
assert step.shows
print(page.shown(step.shows, sys.argv[3]) or "")
PYTHON
  )
  [ -z "$missing" ] || echo "$3"
  check_is "$1" "$missing" ""
}

# The load balancer with the page's file, and a client behind it.
start_sender() {
  node_run sh -euc '
    ip netns add client
    ip -n lb link add client type veth peer name eth0 netns client
    ip -n lb addr add 203.0.113.1/24 dev client
    ip -n lb addr add 198.51.100.10/32 dev client
    ip -n lb link set client up
    ip -n client addr add 203.0.113.7/24 dev eth0
    ip -n client link set eth0 up
    ip -n client route add default via 203.0.113.1'
  block /etc/haproxy/haproxy.cfg | node_run sh -c 'cat >/run/node/haproxy.cfg'
  node_start haproxy ip netns exec lb haproxy -f /run/node/haproxy.cfg -db
}

# As the page shows it: the client asks, and the pod's log has its address.
is_seen() { # when
  local ask log
  ask="ip netns exec client $(block run curl)"
  node_wait 60 sh -c "$ask && kubectl logs -l app=web | grep -q '^\(::ffff:\)\?203.0.113.7 '" || true
  is_shown "$kubernetes: $1, the client is served" curl "$(node_run sh -c "$ask" | tr -d '\r')"
  log=$(page $kubernetes "kubectl logs -l app=web")
  is_shown "$kubernetes: $1, the pod's log has the client" "kubectl logs" "$log"
  check_is "$kubernetes: $1, no header was taken for a request" "$(grep -c '" 400 ' <<<"$log")" 0
}

# All processes end, and with them mounts, network and kernel programs; the disk stays.
reboot() {
  node_end
  node_up v2
  check_is "$kubernetes: a reboot leaves nothing attached" "$(node_run truepeer attach status --all | head -1)" "nothing is attached"
  cluster_up
  k config set-context --current --namespace=$apps >/dev/null
  start_sender
}
rebooted() {
  local pod
  is_done $kubernetes "kubectl drain"
  check_is "$kubernetes: a drained node has no server" "$(k get pod -l app=web --field-selector spec.nodeName=node -o name)" ""
  reboot
  is_done $kubernetes "kubectl uncordon"
  k rollout status deployment/web --timeout=120s >/dev/null
  is_seen "after a reboot"
  pod=$(k get pod -l app=web -o name)
  reboot
  node_wait 120 sh -c "[ \"\$(kubectl get $pod -o jsonpath='{.status.containerStatuses[0].restartCount}')\" = 1 ]"
  node_wait 120 sh -c '! truepeer attach status --all | grep "nothing is attached"'
  is_seen "after a loss of power"
  check_is "$kubernetes: after a loss of power it is the same pod" "$(k get pod -l app=web -o name)" "$pod"
}

# From nothing to a pod that sees its client, and what the page says to look at.
with_helm() {
  is_done $kubernetes "helm install"
  is_done $kubernetes "kubectl apply -f deploy/kubernetes/web.yaml"
  is_done $kubernetes "kubectl rollout status deployment/web"
  client_is "$kubernetes: the pod sees its client" "${client[*]}"
  start_sender
  is_seen "as installed"
  is_done $kubernetes "kubectl label namespace"
  is_done $chart/values.yaml "kubectl label namespace"
  is_done $kubernetes "kubectl annotate pod"
  is_done $notes "kubectl annotate pod"
  is_done $notes "kubectl wait"
  local page
  for page in $kubernetes $notes; do
    check_is "$page: kubectl describe pod shows gate, condition and event" "$(page $page 'kubectl describe pod' | grep -c -e 'truepeer.dev/attached  *True' -e 'Normal  *Attached')" 3
  done
  check_is "$kubernetes: kubectl logs has the attachment" "$(page $kubernetes 'kubectl logs -n truepeer daemonset' | grep -c ' attached name=shop/web-')" 1
  check_is "$kubernetes: kubectl get pods lists who lists whom" "$(page $kubernetes 'kubectl get pods -A' | grep -c "^$apps  *web-.* 10.0.0.7$")" 1
}

# An agent that hangs: the uninstall fails and changes nothing. The way back, and again.
uninstalled_at_the_second_try() {
  node_run pkill -STOP -x truepeer-agent
  k wait -n $agents --for=condition=Ready=false --timeout=60s pod -l app.kubernetes.io/name=truepeer-agent >/dev/null
  check_is "$kubernetes: helm uninstall fails where an agent is not ready" "$(page $kubernetes 'helm uninstall' >"$target/logs/kube-pages-uninstall"; echo $?)" 1
  check_is "$kubernetes: helm itself says why" "$(grep -c 'nothing was changed.*node node' "$target/logs/kube-pages-uninstall")" 1
  check_is "$kubernetes: the job's log names the node" "$(page $kubernetes 'kubectl logs -n truepeer job' | grep -c 'nothing was changed.*node node')" 1
  client_is "$kubernetes: and the pod sees its client all the same" "${client[*]}"
  check_is "$kubernetes: helm history lists the release" "$(page $kubernetes 'helm history' | grep -c ^1)" 1
  is_done $kubernetes "helm rollback"
  check_is "$kubernetes: the release is deployed again" "$(node_run helm status truepeer -n $agents | grep STATUS)" "STATUS: deployed"
  node_run pkill -CONT -x truepeer-agent
  k wait -n $agents --for=condition=Ready --timeout=60s pod -l app.kubernetes.io/name=truepeer-agent >/dev/null
  is_done $kubernetes "helm uninstall"
  check_is "$kubernetes: after the uninstall nothing is left" "$(objects)" ""
  node_wait 30 sh -c "! kubectl get pod -n $agents -o name | grep ." || true
  check_is "$kubernetes: but the namespace" "$(k get namespace $agents -o name; k get all -n $agents -o name)" namespace/$agents
  k delete namespace $agents >/dev/null
}

# Its manifests have a namespace of their own.
without_helm() {
  local namespace=truepeer
  is_done $kubernetes "kubectl apply -f deploy/kubernetes/agent.yaml"
  k wait --for=condition=truepeer.dev/attached --timeout=60s pod -l app=web >/dev/null
  client_is "$kubernetes: without helm the pod sees its client" "${client[*]}"
  # The kubelet asks for the first time when it may, and the job changes nothing where an agent is not ready.
  k rollout status -n $namespace daemonset/truepeer-agent --timeout=60s >/dev/null
  is_done $kubernetes "kubectl apply -f deploy/kubernetes/detach.yaml"
  is_done $kubernetes "kubectl wait"
  check_is "$kubernetes: after the wait nothing is attached" "$(node_run truepeer attach status --all | head -1)" "nothing is attached"
  is_done $kubernetes "kubectl delete"
  node_wait 30 sh -c '! kubectl get namespace truepeer'
  check_is "$kubernetes: after kubectl delete nothing is left" "$(objects)" ""
}

: >"$target/logs/kube-pages-executed"
node_up v2
cluster_up
k create namespace $apps >/dev/null
k config set-context --current --namespace=$apps >/dev/null
with_helm
rebooted
uninstalled_at_the_second_try
without_helm
check_is "no command of the pages is left out" "$(sort -u "$target/logs/kube-pages-executed" | diff - <(sort -u <<<"$commands"))" ""
node_end
checks_end
