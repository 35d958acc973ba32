#!/bin/bash
# truepeer's chart on a real Kubernetes of three nodes, under load by way of a NodePort of each: a node is drained, one is not
# ready, a new version comes, and an uninstall while one is dead. No header reaches a server, and nothing is left. Needs
# what kube.sh needs. TRUEPEER_BEFORE: a checkout of an earlier state with its programs under target/debug, from whose
# chart the new version comes; TRUEPEER_BEFORE_SET: values of that chart. Otherwise both are this state's.
set -Eeuo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
. scripts/containers/images.sh
. scripts/containers/cluster.sh
. scripts/containers/machines.sh
. scripts/containers/checks.sh
. scripts/containers/under_load.sh
truepeer=$(realpath "${TRUEPEER:-$target/debug/truepeer}")
agent=$(realpath "${TRUEPEER_AGENT:-$target/debug/truepeer-agent}")
# As soon as two posts of a kubelet are missing.
kube_controllers=(--node-monitor-grace-period=12s --node-monitor-period=1s)
addresses=(10.0.0.1 10.0.2.2 10.0.3.2)

node_needs kube-nodes
for program in kubelet helm; do
  [ -x "$kube/$program" ] || { check_skip kube-nodes "Kubernetes is not built: make kube"; checks_end; exit 0; }
done
for program in "$truepeer" "$agent"; do
  [ -x "$program" ] || { echo "kube-nodes: no $program: cargo build, or name one by TRUEPEER and TRUEPEER_AGENT"; exit 1; }
done
mkdir -p "$target/logs"
trap node_end EXIT
make_images
make_agent_image
before=${TRUEPEER_BEFORE:-}
if [ -n "$before" ]; then truepeer=$before/target/debug/truepeer agent=$before/target/debug/truepeer-agent make_agent_image agent-before; fi

k() { node_run kubectl "$@"; }
state() {
  [ $BASH_SUBSHELL = 0 ] && [ -n "${node_pid:-}" ] && [ -z "${told:-}" ] || return 0
  told=1
  k get nodes
  k get pods -A -o wide
  k get events -A --sort-by=.lastTimestamp | tail -15
  k get pod -l app=web -o jsonpath='{range .items[*]}{.spec.nodeName}{" "}{.status.conditions[?(@.type=="truepeer.dev/attached")].message}{"\n"}{end}'
  k -n truepeer logs -l app.kubernetes.io/name=truepeer-agent --tail 10 --prefix
}
trap 'state >&2' ERR
ready() { k rollout status "$@" --timeout=90s >/dev/null; }

drained() {
  load_begins "${addresses[@]}"
  k drain node-c --ignore-daemonsets --delete-emptydir-data --timeout=90s >/dev/null 2>&1
  ready deployment/web
  check_is "drained: no server is on the node" "$(k get pod -l app=web --field-selector spec.nodeName=node-c -o name)" ""
  k uncordon node-c >/dev/null
  k rollout restart deployment/web >/dev/null
  ready deployment/web
  load_is_over drained
}

# The kubelet hangs; pods and agent go on. Then the agent is killed, too.
not_ready() {
  load_begins "${addresses[@]}"
  on c node_run pkill -STOP -x kubelet
  k wait --for=condition=Ready=unknown --timeout=60s node/node-c >/dev/null
  on c node_run pkill -KILL -x truepeer-agent
  sleep 3
  on c node_run pkill -CONT -x kubelet
  k wait --for=condition=Ready --timeout=60s node/node-c >/dev/null
  ready deployment/web
  ready -n truepeer daemonset/truepeer-agent
  load_is_over "not ready"
}

upgraded() {
  local machine
  node_run ctr -n k8s.io images tag docker.io/library/truepeer-agent:0.1.0 docker.io/library/truepeer-agent:0.1.1 >/dev/null
  for machine in b c; do
    on $machine node_run ctr -n k8s.io images tag docker.io/library/truepeer-agent:0.1.0 docker.io/library/truepeer-agent:0.1.1 >/dev/null
  done
  load_begins "${addresses[@]}"
  node_run helm upgrade truepeer deploy/helm/truepeer -n truepeer --reset-values "${values[@]}" --set image.tag=0.1.1 --wait --timeout 120s >/dev/null
  node_wait 60 sh -c '[ "$(kubectl -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o name | wc -l)" = 3 ]'
  check_is "upgraded: each node has the new one" "$(k -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o jsonpath='{.items[*].spec.containers[0].image}')" "truepeer-agent:0.1.1 truepeer-agent:0.1.1 truepeer-agent:0.1.1"
  if [ -n "$before" ]; then new_tables; fi
  load_is_over upgraded
}

# With other tables than before, pods stay as they are until they are restarted.
new_tables() {
  check_is "upgraded: pods stay ready" "$(k get pod -l app=web -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}')" "True True True True True True"
  k rollout restart deployment/web >/dev/null
  ready deployment/web
  node_wait 60 sh -c '[ "$(kubectl get pod -l app=web -o name | wc -l)" = 6 ]' # the old ones have ended
  check_is "upgraded: restarted pods are the new version's" "$(k get pod -l app=web -o jsonpath='{.items[*].status.conditions[?(@.type=="truepeer.dev/attached")].message}' | grep -c 'another version')" 0
}

# An agent that hangs once it is told to leave, when those of other nodes have begun to detach: all attach again, and the release comes
# back by the way that docs/kubernetes.md tells.
uninstall_fails() {
  local uninstalling status=0 leaving='truepeer-agent kubernetes.*--leave' said=$target/logs/nodes-uninstall-fails
  # Before the kubelet restarts the one that hangs.
  node_run helm upgrade truepeer deploy/helm/truepeer -n truepeer --reuse-values --set uninstall.timeout=25s --wait --timeout 60s >/dev/null
  load_begins "${addresses[@]}"
  node_run helm uninstall truepeer -n truepeer --timeout 180s >"$said" 2>&1 &
  uninstalling=$!
  on c node_wait 60 pgrep -f "$leaving"
  on c node_run pkill -STOP -f "$leaving"
  wait $uninstalling || status=$?
  sed 's/^/  /' "$said"
  check_is "an uninstall fails: helm names the node" "$status $(grep -o 'still attached on .*node node-c' "$said" | grep -o node-c)" "1 node-c"
  check_is "an uninstall fails: no agent is told to leave" "$(k -n truepeer get daemonset truepeer-agent -o jsonpath='{.spec.template.spec.containers[0].args}' | grep -c -e --leave)" 0
  node_run helm rollback truepeer 2 -n truepeer --wait --timeout 120s >/dev/null
  ready -n truepeer daemonset/truepeer-agent
  ready deployment/web
  load_is_over "an uninstall fails"
}

# One that loses its power stays "NotReady", with an agent that nobody can ask.
uninstalled_with_a_dead_node() {
  local machine
  # Agents on all nodes, and each node that lives has taints: but for those of a dead one, the job would prefer that.
  node_run helm upgrade truepeer deploy/helm/truepeer -n truepeer --reuse-values --set 'tolerations[0].operator=Exists' --wait --timeout 60s >/dev/null
  k taint node node node-b example.org/others=:NoSchedule example.org/rather=:PreferNoSchedule >/dev/null
  load_begins "${addresses[@]}"
  machine_dies c
  k wait --for=condition=Ready=unknown --timeout=60s node/node-c >/dev/null
  node_wait 60 sh -c 'kubectl get node node-c -o jsonpath="{.spec.taints[*].effect}" | grep NoExecute'
  check_is "a dead node: helm uninstall succeeds" "$(node_run helm uninstall truepeer -n truepeer --timeout 120s >"$target/logs/nodes-uninstall" 2>&1; echo $?)" 0
  sed 's/^/  /' "$target/logs/nodes-uninstall"
  check_is "a dead node: helm names the node that is left out" "$(grep -o 'node node-c is not ready: what is attached there stays' "$target/logs/nodes-uninstall" | sort -u)" "node node-c is not ready: what is attached there stays"
  check_is "a dead node: the job ran where others must not" "$(k -n truepeer get events --sort-by=.metadata.creationTimestamp -o jsonpath='{range .items[?(@.reason=="Scheduled")]}{.message}{"\n"}{end}' |
    sed -n 's/^Successfully assigned truepeer.truepeer-detach-.* to //p' | tail -1 | grep -cx -e node -e node-b)" 1
  sleep 2 # the senders go on for a while
  load_is_over "a dead node"
  k delete node node-c >/dev/null
  k delete namespace truepeer --timeout=120s >/dev/null
  check_is "a dead node: nothing is left in the cluster" "$(k get namespace,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding -o name | grep truepeer || true)" ""
  check_is "a dead node: no condition is left" "$(k get pod -l app=web -o jsonpath='{.items[?(@.spec.nodeName!="node-c")].status.conditions[?(@.type=="truepeer.dev/attached")].status}')" ""
  for machine in a b; do
    check_is "a dead node: no pin is left on $machine" "$(on $machine node_run find /sys/fs/bpf/truepeer -mindepth 1 2>/dev/null)" ""
  done
}

node_up v2
cluster_up
machines[a]=$node_pid machine_numbers[a]=1
machine_up b 2
machine_up c 3
machine_joins b
machine_joins c
echo "kube-nodes: three nodes are ready"
values=(--set 'image.repository=truepeer-agent,allowSenders={private}')
node_run helm install truepeer "${before:-.}/deploy/helm/truepeer" -n truepeer --create-namespace --wait --timeout 90s "${values[@]}" \
  ${before:+--set "image.tag=0.0.1${TRUEPEER_BEFORE_SET:+,$TRUEPEER_BEFORE_SET}"} >/dev/null
k apply -f deploy/kubernetes/web.yaml >/dev/null
k scale deployment web --replicas=6 >/dev/null
ready deployment/web
check_is "each node has a server" "$(k get pod -l app=web -o jsonpath='{.items[*].spec.nodeName}' | tr ' ' '\n' | sort -u | tr '\n' ' ')" "node node-b node-c "
drained
not_ready
upgraded
uninstall_fails
uninstalled_with_a_dead_node
node_end
checks_end
