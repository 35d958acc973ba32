#!/bin/bash
# Executes the commands of kubectl and helm that pages tell users, as they stand there, on a real Kubernetes of one node: the
# agent in a namespace of the user's choice, the pods in another one. Each must do what its page says, and none is left
# out. Needs what kube.sh needs. deliver.sh executes those of docker.
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
  command=$(sed "s/-n truepeer/-n ${namespace:-$agents}/; s/namespace \(truepeer\|NAME\) /namespace ${namespace:-$agents} /" <<<"$command")
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

# From nothing to a pod that sees its client, and what the page says to look at.
with_helm() {
  is_done $kubernetes "helm install"
  is_done $kubernetes "kubectl apply -f deploy/kubernetes/web.yaml"
  is_done $kubernetes "kubectl rollout status deployment/web"
  client_is "$kubernetes: the pod sees its client" "${client[*]}"
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
uninstalled_at_the_second_try
without_helm
check_is "no command of the pages is left out" "$(sort -u "$target/logs/kube-pages-executed" | diff - <(sort -u <<<"$commands"))" ""
node_end
checks_end
