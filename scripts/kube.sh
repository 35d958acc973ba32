#!/bin/bash
# truepeer's chart on a real Kubernetes of one node, in namespaces of its own: pods behind HAProxy and dnsdist by their addresses
# and by NodePort, probes, the readiness gate, restarts under load, an uninstall that leaves nothing. Needs root, the
# programs of engines.txt (`make engines`) and Kubernetes' (`make kube` builds them). kube.sh [v2|hybrid] [PODS].
set -Eeuo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
. scripts/containers/images.sh
. scripts/containers/cluster.sh
. scripts/containers/checks.sh
. scripts/containers/under_load.sh
truepeer=$(realpath "${TRUEPEER:-$target/debug/truepeer}")
agent=$(realpath "${TRUEPEER_AGENT:-$target/debug/truepeer-agent}")
layouts=${1:-v2}
pods=${2:-0}

node_needs kube
for program in kubelet helm; do
  [ -x "$kube/$program" ] || { check_skip kube "Kubernetes is not built: make kube"; checks_end; exit 0; }
done
for program in "$truepeer" "$agent"; do
  [ -x "$program" ] || { echo "kube: no $program: cargo build, or name one by TRUEPEER and TRUEPEER_AGENT"; exit 1; }
done
mkdir -p "$target/logs"
trap node_end EXIT
make_images
make_agent_image

k() { node_run kubectl "$@"; }
ask=(python3 scripts/containers/ask.py)
from_lb() { node_run ip netns exec lb "${ask[@]}" "$@"; }
from_client() { node_run ip netns exec client "${ask[@]}" "$@" | cut -d' ' -f1; }
load() { node_run ip netns exec lb python3 scripts/containers/load.py "$@"; }
pod_address() { k get pod -l "app=$1" -o jsonpath='{.items[0].status.podIP}'; }
ready() { k rollout status "deployment/$1" --timeout="${2:-60s}" >/dev/null; }
# What the cluster says when a command has failed.
state() {
  [ $BASH_SUBSHELL = 0 ] && [ -n "${node_pid:-}" ] && [ -z "${told:-}" ] || return 0
  told=1
  k get pods -A -o wide
  k get events -A --sort-by=.lastTimestamp | tail -15
  k -n truepeer logs daemonset/truepeer-agent --tail 10
}
trap 'state >&2' ERR
# What must be gone after the uninstall.
objects() { k get namespace,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding -o name | grep truepeer; node_run find /sys/fs/bpf/truepeer -mindepth 1 2>/dev/null || true; }

# A client behind the load balancer: 198.51.100.77.
start_senders() {
  node_run sh -euc '
    ip netns add client
    ip -n lb link add client type veth peer name eth0 netns client
    ip -n lb addr add 198.51.100.1/24 dev client
    ip -n lb link set client up
    ip -n client addr add 198.51.100.77/24 dev eth0
    ip -n client link set eth0 up
    cat >/run/node/haproxy.cfg' <<CONFIG
defaults
  mode tcp
  timeout connect 2s
  timeout client 5s
  timeout server 5s
  default-server check inter 300ms
listen pod
  bind :8001
  server pod $(pod_address web):80 send-proxy-v2
listen node-port
  bind :8002
  server node 10.0.0.1:30080 send-proxy check-send-proxy
CONFIG
  node_run sh -c 'cat >/run/node/dnsdist.conf' <<CONFIG
setLocal("198.51.100.1:53")
setACL("198.51.100.0/24")
setSecurityPollSuffix("")
newServer({address="$(pod_address dns)", useProxyProtocol=true, healthCheckMode="up", name="pod"})
CONFIG
  sed 's/:53"/:54"/; s/address="[^"]*"/address="10.0.0.1:30053"/' <(node_run cat /run/node/dnsdist.conf) | node_run sh -c 'cat >/run/node/dnsdist-node.conf'
  # kube-proxy opens a NodePort a moment after its pod is ready; what a sender's datagrams find closed stays closed for them.
  node_wait 10 sh -c "ip netns exec lb ${ask[*]} udp 10.0.0.1 30053 203.0.113.9 5109 v2 | grep -v Error" || true
  node_start haproxy ip netns exec lb haproxy -f /run/node/haproxy.cfg -db
  node_start dnsdist ip netns exec lb dnsdist --supervised --disable-syslog -C /run/node/dnsdist.conf
  node_start dnsdist-node ip netns exec lb dnsdist --supervised --disable-syslog -C /run/node/dnsdist-node.conf
  node_wait 10 ip netns exec client sh -c 'for port in 8001 8002; do python3 scripts/containers/ask.py tcp 198.51.100.1 $port | grep -q "^[0-9.]* [0-9]*$" || exit 1; done'
}

senders() {
  k apply -f deploy/kubernetes/web.yaml -f deploy/kubernetes/dns.yaml >/dev/null
  ready web
  ready dns
  start_senders
  check_is "$1: HAProxy to the pod's address" "$(from_client tcp 198.51.100.1 8001)" 198.51.100.77
  check_is "$1: HAProxy to a NodePort" "$(from_client tcp 198.51.100.1 8002)" 198.51.100.77
  check_is "$1: dnsdist to the pod's address" "$(from_client udp 198.51.100.1 53)" 198.51.100.77
  check_is "$1: dnsdist to a NodePort" "$(from_client udp 198.51.100.1 54)" 198.51.100.77
  check_is "$1: who is not listed passes" "$(node_run "${ask[@]}" tcp "$(pod_address web)" 80 | cut -d' ' -f1)" 10.244.0.1
  check_is "$1: a listed sender without a header is refused" "$(from_lb tcp "$(pod_address web)" 80)" "ConnectionResetError: [Errno 104] Connection reset by peer"
}

like_web() { # name, what is changed in the Deployment of web.yaml
  sed -e '/^---$/,$d' -e "s/name: web}/name: $1}/; s/app: web}/app: $1}/" -e "$2" deploy/kubernetes/web.yaml | node_run kubectl apply -f - >/dev/null
}
# The likeliest mistakes, each in a Deployment of its own: what kubectl describe shows.
mistakes_begin() {
  like_web wrong-port 's/"80"/"8080"/'
  like_web wrong-sender 's/"10.0.0.7"/"10.0.0.9"/'
  like_web wrong-domain 's#truepeer.dev/\(ports\|allow\)#truepeer.io/\1#'
  like_web wrong-place '/annotations:/,/truepeer.dev.allow/d'
}
said_of() { # app, what its lines contain
  k get events.events.k8s.io -o jsonpath='{range .items[?(@.reportingController=="truepeer.dev/agent")]}{.regarding.name} {.type} {.reason}: {.note}{"\n"}{end}' | grep "^$1-.*$2" || true
}
is_told() { # name, app, what its event says, and a command that provokes it
  local end=$((SECONDS + 20)) said
  until said=$(said_of "$2" "" | grep -o "$3" | head -1); [ -n "$said" ] || [ $SECONDS -ge $end ]; do
    "${@:4}" >/dev/null || true
    sleep 1
  done
  check_is "$1" "$said" "$3"
}
mistakes_are_told() { # after no_warnings, which waits until a server should listen
  is_told "$1: a port without a server is told" wrong-port 'NothingListens: nothing listens on port 8080 of the pod'
  is_told "$1: a sender that is not listed is named" wrong-sender 'UnlistedSender: port 80/tcp, from 10.0.0.7' from_lb tcp "$(pod_address wrong-sender)" 80 203.0.113.9 999 v1
  is_told "$1: another domain is named" wrong-domain 'Refused: truepeer.io/allow: there is no such annotation; did you mean truepeer.dev/allow'
  is_told "$1: annotations of the Deployment are explained" wrong-place 'Refused: the pod waits for truepeer.dev/attached (readinessGates), and has no annotation truepeer.dev/ports'
  k delete deployment wrong-port wrong-sender wrong-domain wrong-place >/dev/null
}

# TCP pods that are well: one whose server starts some seconds after the attach, and a dozen that start at once.
well_begin() {
  like_web slow 's#image: nginx:1.28#&\n          command: [sh, -c, "sleep 5; exec /usr/sbin/nginx -g \\"daemon off;\\""]#; /livenessProbe/d'
  like_web crowd 's/replicas: 1/replicas: 12/'
}

# Events of pods that are well: a server that starts later than the attach, many at once, UDP, processes of the runtime.
no_warnings() {
  local names=dns
  if [ "${2-}" = tcp ]; then
    ready slow
    ready crowd
    names='dns\|slow\|crowd'
  fi
  sleep 31 # so long the agent waits for a server
  check_is "$1: pods that are well have no warning of the agent" "$(said_of "\($names\)" ' Warning ')" ""
  if [ "${2-}" = tcp ]; then
    check_is "$1: thirteen of them were attached" "$(said_of '\(slow\|crowd\)' ' Normal Attached: ports 80; allow 10.0.0.7/32;' | cut -d' ' -f1 | sort -u | wc -l)" 13
    k delete deployment slow crowd >/dev/null
  fi
}

# A node forwards, and so do its kubelet's probes come from its address: without a header.
node_port_of_the_cluster() {
  k create service nodeport web-cluster --tcp=80:80 --node-port=30081 >/dev/null
  k set selector service web-cluster app=web >/dev/null
  is_told "$1: the node in the sender's place is named" web 'UnlistedSender: port 80/tcp, from 10.244.0.1' from_lb tcp 10.0.0.1 30081 203.0.113.9 5109 v1
  k annotate pod -l app=web truepeer.dev/allow=10.0.0.7,10.244.0.1 truepeer.dev/header=10.244.0.1=optional --overwrite >/dev/null
  node_wait 10 sh -c "ip netns exec lb ${ask[*]} tcp 10.0.0.1 30081 203.0.113.9 5109 v1 | grep -q 203.0.113.9" || true
  check_is "$1: a NodePort of the whole cluster, the node may omit the header" "$(from_lb tcp 10.0.0.1 30081 203.0.113.9 5109 v1)" "203.0.113.9 5109"
  check_is "$1: without a header the node is served as itself" "$(node_run "${ask[@]}" tcp "$(pod_address web)" 80 | cut -d' ' -f1)" 10.244.0.1
  sleep 3 # three rounds of probes
  check_is "$1: its probes pass" "$(k get pods -l app=web -o jsonpath='{.items[*].status.containerStatuses[*].restartCount} {.items[*].status.containerStatuses[*].ready}')" "0 true"
}

# A pod with addresses of both families, senders and clients of either.
dual_stack() {
  local four six
  like_web both 's/"10.0.0.7"/"10.0.0.7,fd00:200::7"/'
  ready both
  six=$(k get pod -l app=both -o jsonpath='{.items[0].status.podIPs[*].ip}')
  read -r four six <<<"$six"
  check_is "$1: IPv6 from sender to pod" "$(from_lb tcp "$six" 80 2001:db8::9 5109)" "2001:db8::9 5109"
  check_is "$1: IPv6, an IPv4 client" "$(from_lb tcp "$six" 80 203.0.113.9 5109)" "203.0.113.9 5109"
  check_is "$1: IPv4, an IPv6 client" "$(from_lb tcp "$four" 80 2001:db8::9 5109)" "2001:db8::9 5109"
  k delete deployment both >/dev/null
}

# In a namespace of the user's choice, as helm's users do it.
install() {
  node_run helm install truepeer deploy/helm/truepeer -n truepeer --create-namespace \
    --set image.repository=truepeer-agent --set 'allowSenders={private}' "$@"
}

# As docs/situations/security-review.md says, so that runc and the kubelet hold what follows to the strict profile. The default one is
# that of kube-nodes.sh and kube-pages.sh.
install_strictly() {
  node_run sh -c 'mkdir -p /run/node/kubelet/seccomp/truepeer && cp deploy/kubernetes/seccomp-agent.json /run/node/kubelet/seccomp/truepeer/agent.json'
  install --wait --timeout 60s --set seccompProfile.type=Localhost,seccompProfile.localhostProfile=truepeer/agent.json >/dev/null
  check_is "$1: the kernel filters the agent's system calls" "$(node_run sh -c 'grep Seccomp: /proc/$(pgrep -o -x truepeer-agent)/status' | tr -d '\t')" "Seccomp:2"
}

# What is wrong is said at once, and before anything is made.
helm_refuses() {
  check_is "$1: an install without an image is refused" "$(node_run helm install truepeer deploy/helm/truepeer --set 'allowSenders={private}' 2>&1 | grep -o 'image.repository: where your nodes')" "image.repository: where your nodes"
  check_is "$1: an install that lets pods name anybody unasked is refused" "$(node_run helm install truepeer deploy/helm/truepeer --set image.repository=a 2>&1 | grep -o 'allowSenders: the senders that pods may name')" "allowSenders: the senders that pods may name"
  check_is "$1: a sender that is no prefix is refused" "$(node_run helm install truepeer deploy/helm/truepeer --set image.repository=a --set 'allowSenders={10.0.0.0/99}' 2>&1 | grep -c 'does not match pattern')" 1
  check_is "$1: --wait waits for an image that does not exist" "$(install --set image.tag=none --wait --timeout 8s 2>&1 | grep -c 'INSTALLATION FAILED')" 1
  node_run helm uninstall truepeer -n truepeer --no-hooks --wait >/dev/null
}

# So that what follows can fail.
without_agent() {
  k apply -f deploy/kubernetes/web.yaml >/dev/null
  node_wait 30 kubectl wait --for=condition=ContainersReady pod -l app=web --timeout=1s
  check_is "$1: without the agent the header reaches the server" "$(from_lb tcp "$(pod_address web)" 80 203.0.113.9 999 v1 | grep -o 400)" 400
  check_is "$1: without the agent the gate keeps the pod out of its service" "$(k get pod -l app=web -o jsonpath='{.items[0].status.conditions[?(@.type=="Ready")].reason}')" ReadinessGatesNotReady
  k delete -f deploy/kubernetes/web.yaml --wait=false >/dev/null
  node_wait 20 sh -c '! kubectl get pods --no-headers 2>/dev/null | grep -q web'
}

# Whoever reaches the metrics takes all their places: the kubelet still gets its answers, and a new pod is attached.
flooded_metrics() {
  local agent
  agent=$(k -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o jsonpath='{.items[0].status.podIP}')
  node_run python3 scripts/containers/flood.py "$agent" 9464 64 70 >/dev/null & # longer than three failed probes take
  local flooding=$!
  sleep 5
  k rollout restart deployment/web >/dev/null
  ready web
  check_is "$1: a pod is attached beside 64 connections to the metrics" "$(kill -0 $flooding && k wait --for=condition=truepeer.dev/attached --timeout=1s pod -l app=web >/dev/null; echo $?)" 0
  wait $flooding
  check_is "$1: 64 connections to the metrics for 70 s restart no agent" "$(k -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o jsonpath='{.items[0].status.containerStatuses[0].restartCount} {.items[0].status.containerStatuses[0].ready}')" "0 true"
}

# Twice within a minute, when the kubelet would wait 10 s and more.
killed_twice() {
  local pod supervisor last=none
  pod=$(web)
  supervisor=$(node_run pgrep -o -x truepeer-agent)
  for _ in 1 2; do
    node_wait 10 sh -c "pgrep -P $supervisor -x truepeer-agent | grep -vx $last"
    last=$(node_run pgrep -P "$supervisor" -x truepeer-agent | tail -1)
    node_run pkill -KILL -P "$supervisor" -x truepeer-agent
  done
  k annotate "$pod" truepeer.dev/header=optional --overwrite >/dev/null
  node_wait 5 sh -c "ip netns exec lb ${ask[*]} tcp $(k get "$pod" -o jsonpath='{.status.podIP}') 80 | grep '^10.0.0.7 '" || true
  check_is "$1: 5 s after the second kill an annotation is followed" "$(from_lb tcp "$(k get "$pod" -o jsonpath='{.status.podIP}')" 80 | cut -d' ' -f1)" 10.0.0.7
  check_is "$1: the kubelet has seen no end of the agent" "$(k -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o jsonpath='{.items[0].status.containerStatuses[0].restartCount}')" 0
  k annotate "$pod" truepeer.dev/header- >/dev/null
}

# The newest pod of the web server.
web() { k get pod -l app=web --sort-by=.metadata.creationTimestamp -o name | tail -1; }
condition_of() { k get "$1" -o jsonpath='{range .status.conditions[?(@.type=="truepeer.dev/attached")]}{.status} {.reason}: {.message}{end}'; } # pod

# What is attached stays. Events end after an hour, as if somebody deleted them.
typo_on_an_attached_pod() {
  local pod
  pod=$(web)
  k annotate "$pod" truepeer.dev/allow=10.0.0.256 --overwrite >/dev/null
  is_told "$1: a typo on an attached pod is told" web 'Warning Refused: truepeer.dev/allow: "10.0.0.256"'
  k delete events.events.k8s.io --all >/dev/null
  check_is "$1: without events its condition tells it" "$(condition_of "$pod" | grep -c '^True Attached: ports 80; allow 10.0.0.7/32;.*; not followed: truepeer.dev/allow: "10.0.0.256"')" 1
  check_is "$1: and what was attached stays" "$(from_lb tcp "$(k get "$pod" -o jsonpath='{.status.podIP}')" 80 203.0.113.9 5109)" "203.0.113.9 5109"
  k annotate "$pod" truepeer.dev/allow=10.0.0.7 --overwrite >/dev/null
}

# Running pods that allow more than the operator now does.
senders_are_narrowed() {
  local pod
  pod=$(web)
  node_run helm upgrade truepeer deploy/helm/truepeer -n truepeer --reuse-values --set 'allowSenders={192.0.2.0/24}' --wait --timeout 60s >/dev/null
  is_told "$1: narrower allowSenders: an event names the pod's sender" web 'Warning Detaching: truepeer.dev/allow: 10.0.0.7/32: expected senders inside 192.0.2.0/24'
  node_wait 60 sh -c "kubectl get $pod -o jsonpath='{.status.conditions[?(@.type==\"truepeer.dev/attached\")].reason}' | grep -x Refused" || true
  check_is "$1: narrower allowSenders: so does the condition" "$(condition_of "$pod")" "False Refused: truepeer.dev/allow: 10.0.0.7/32: expected senders inside 192.0.2.0/24, which --allow-senders of the agent lists"
  check_is "$1: narrower allowSenders: the sender is believed no more" "$(from_lb tcp "$(k get "$pod" -o jsonpath='{.status.podIP}')" 80 203.0.113.9 5109 | grep -o 400)" 400
  node_run helm upgrade truepeer deploy/helm/truepeer -n truepeer --reuse-values --set 'allowSenders={private}' --wait --timeout 60s >/dev/null
  ready web
  check_is "$1: wider again, and its client is seen" "$(from_lb tcp "$(k get "$pod" -o jsonpath='{.status.podIP}')" 80 203.0.113.9 5109)" "203.0.113.9 5109"
}

# The verb of the agent's rule for pods/status, and whether it may then write conditions.
conditions_by() { # verb, yes|no
  k patch clusterrole truepeer-agent --type=json -p '[{"op": "test", "path": "/rules/1/resources/0", "value": "pods/status"},
    {"op": "replace", "path": "/rules/1/verbs", "value": ["'"$1"'"]}]' >/dev/null
  node_wait 10 sh -c "kubectl auth can-i patch pods --subresource=status --as=system:serviceaccount:truepeer:truepeer-agent | grep ^$2"
}

# The annotations that let a sender in come while no condition can be written, and go while no agent is there: the kernel has what
# neither they nor the condition say.
narrowed_without_agent() {
  local pod from_node
  pod=$(web)
  from_node="${ask[*]} tcp $(k get "$pod" -o jsonpath='{.status.podIP}') 80 203.0.113.9 5109 v2"
  conditions_by get no
  k annotate "$pod" truepeer.dev/allow=10.0.0.7,10.244.0.1 truepeer.dev/header=10.244.0.1=optional --overwrite >/dev/null
  node_wait 10 sh -c "$from_node | grep -q '^203.0.113.9 5109$'" || true
  check_is "$1: a sender is let in" "$(node_run $from_node)" "203.0.113.9 5109"
  check_is "$1: its condition tells nothing of it" "$(k get "$pod" -o jsonpath='{.status.conditions[?(@.type=="truepeer.dev/attached")].message}' | grep -o 'allow [^;]*')" "allow 10.0.0.7/32"
  node_run pkill -STOP -x kubelet
  node_run pkill -KILL -x truepeer-agent
  conditions_by patch yes
  k annotate "$pod" truepeer.dev/allow=10.0.0.7 truepeer.dev/header- --overwrite >/dev/null
  check_is "$1: without an agent it stays" "$(node_run $from_node)" "203.0.113.9 5109"
  node_run pkill -CONT -x kubelet
  node_wait 60 pgrep -x truepeer-agent
  node_wait 5 sh -c "$from_node | grep -q 400" || true
  check_is "$1: 5 s after the agent's return it is believed no more" "$(node_run $from_node | grep -o 400)" 400
}

# With the token of the agent's pod, as whoever takes it over has it.
taken_over() {
  local pod token
  pod=$(k -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o jsonpath='{.items[0].metadata.name}')
  token=$(k -n truepeer create token truepeer-agent --bound-object-kind Pod --bound-object-name "$pod")
  attack() { # resource, patch
    node_run curl -sk -o /dev/null -w '%{http_code}' -X PATCH -H "Authorization: Bearer $token" -H 'Content-Type: application/strategic-merge-patch+json' \
      "https://10.0.0.1:6443/api/v1/namespaces/default/pods/$(k get pod -l app=web -o jsonpath='{.items[0].metadata.name}')/$1" -d "$2"
  }
  check_is "$1: the agent's token redirects no service" "$(attack status '{"status":{"podIP":"10.0.0.7","podIPs":[{"ip":"10.0.0.7"}]}}')" 422
  check_is "$1: the agent's token changes no label" "$(attack status '{"metadata":{"labels":{"app":"dns"}}}')" 422
  check_is "$1: the agent's token writes no pod" "$(attack '' '{"metadata":{"labels":{"app":"dns"}}}')" 403
  check_is "$1: the agent's token writes its condition" "$(attack status '{"status":{"conditions":[{"type":"truepeer.dev/attached","status":"True"}]}}')" 200
}

# 10,000 connections while a pod starts, at its service's port: none reaches a raw server.
start_race() {
  k delete deployment web --cascade=foreground >/dev/null
  load tcp 10.0.0.1 30080 10000 >"$target/logs/race" 2>&1 &
  local racing=$!
  sleep 1
  k apply -f deploy/kubernetes/web.yaml >/dev/null
  wait $racing
  sed 's/^/  /' "$target/logs/race"
  read -r _ named _ raw _ <"$target/logs/race"
  check_is "$1: of 10000 connections while a pod starts, none is raw" "$((named >= 10000)) $raw" "1 0"
}

restarts_under_load() {
  ready web
  load tcp 10.0.0.1 30080 12s >"$target/logs/restarts" 2>&1 &
  local loading=$! before after ready_since container
  ready_since=$(k get pod -l app=dns -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].lastTransitionTime}')
  sleep 1
  before=$(k -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o name)
  k -n truepeer delete "$before" --wait=false >/dev/null
  k delete pod -l app=web --wait=false >/dev/null
  sleep 5
  check_is "$1: an agent's restart leaves attached pods ready" "$(k get pod -l app=dns -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].lastTransitionTime}')" "$ready_since"
  # The container alone: the pod, its network namespace and its attachment stay.
  ready web
  container=$(k get pod -l app=web --sort-by=.metadata.creationTimestamp -o jsonpath='{.items[*].status.containerStatuses[0].containerID}')
  node_run ctr -n k8s.io tasks kill -s KILL "${container##*/}" >/dev/null
  wait $loading
  sed 's/^/  /' "$target/logs/restarts"
  read -r _ named _ raw _ <"$target/logs/restarts"
  after=$(k -n truepeer get pod -l app.kubernetes.io/name=truepeer-agent -o name)
  check_is "$1: pod, container and agent restarted under load: no wrong name" "$((named > 1000)) $raw" "1 0"
  check_is "$1: the agent was another one afterwards" "$([ "$before" != "$after" ]; echo $?)" 0
  ready web
  check_is "$1: probes have restarted nothing" "$(k get pods -l app=dns -o jsonpath='{.items[*].status.containerStatuses[*].restartCount}')" 0
}

many_pods() { # name
  local begin=$SECONDS addresses address said wrong=0
  k scale deployment dns --replicas=$((pods - 2)) >/dev/null # with the web server and the agent
  ready dns 300s
  echo "  $pods pods were ready after $((SECONDS - begin)) s"
  addresses=$(k get pod -l app=dns -o jsonpath='{.items[*].status.podIP}')
  for address in $addresses; do
    said=$(from_lb udp "$address" 53 203.0.113.9 5109 | tr -d '\0')
    [ "$said" = "203.0.113.9 5109" ] || { wrong=$((wrong + 1)); echo "  $address answered: $said"; }
  done
  check_is "$1: $pods pods on the node, each sees its client" "$(wc -w <<<"$addresses") $wrong" "$((pods - 2)) 0"
  no_warnings "$1, $pods pods"
  k scale deployment dns --replicas=1 >/dev/null
}

uninstall() {
  node_run helm uninstall truepeer -n truepeer --wait --timeout 120s >/dev/null
  k delete namespace truepeer >/dev/null # --create-namespace leaves it
  check_is "$1: uninstalled, nothing is left" "$(objects)" ""
  check_is "$1: uninstalled, the server is raw again" "$(from_lb tcp "$(pod_address web)" 80 203.0.113.9 999 v1 | grep -o 400)" 400
}

check_is "the chart passes helm lint" "$("$kube/helm" lint --strict deploy/helm/truepeer | grep -o ' 0 chart(s) failed')" " 0 chart(s) failed"
check_is "deploy/kubernetes/agent.yaml is the chart's" "$(scripts/kube-manifest.sh | diff - deploy/kubernetes/agent.yaml | head -5)" ""
rendered() { "$kube/helm" template t deploy/helm/truepeer --kube-version "${1:-$kube_version}" --set image.repository=a --set 'allowSenders={private}' "${@:2}" 2>&1; } # version, values...
check_is "the chart refuses an API server without the admission policy" "$(rendered 1.29.9 | grep -o "admissionPolicy: Kubernetes v1.29.9 has no ValidatingAdmissionPolicy.*admissionPolicy.enabled=false accepts that" | cut -c-16)" "admissionPolicy:"
check_is "the chart takes one by a value, with the profile of AppArmor as an annotation" "$(rendered 1.29.9 --set admissionPolicy.enabled=false | grep -e apparmor -e appArmor | tr -d ' ')" "container.apparmor.security.beta.kubernetes.io/agent:unconfined"
check_is "the chart's values for metrics, limits, SELinux and more options arrive" "$(rendered "" --set metrics.address=127.0.0.1,metrics.tokenSecret.name=s,metrics.dashboard.enabled=true,uninstall.resources.limits.memory=99Mi \
  --set "image.digest=sha256:$(printf '%064d' 7),extraArgs={--probes=@other},seLinuxOptions.type=spc_t,resources.limits.memory=1Gi" |
  grep -c -e '--listen=127.0.0.1:9464$' -e '--metrics-token=/run/metrics-token/token$' -e 'secretName: s}' -e 'grafana_dashboard: "1"' -e 'memory: 99Mi' \
    -e "image: \"a@sha256:0*7\"" -e '"--probes=@other"' -e 'type: spc_t' -e 'memory: 1Gi')" 10
check_is "the chart's schema refuses a misspelt value" "$("$kube/helm" lint deploy/helm/truepeer --set allowSender=private 2>&1 | grep -o 'allowSender.* not allowed' | head -1)" "allowSender' not allowed"

check_is "AppArmor's parser takes deploy/kubernetes/apparmor-agent" "$("$engines/root/sbin/apparmor_parser" -QK --base "$engines/root/etc/apparmor.d" deploy/kubernetes/apparmor-agent 2>&1 | grep -v -e ^Warning -e ^Cache; echo "${PIPESTATUS[0]}")" 0
check_is "the PodMonitor asks with the token of the metrics" "$("$kube/helm" template t deploy/helm/truepeer --kube-version "$kube_version" --set image.repository=a --set 'allowSenders={private}' \
  --set metrics.podMonitor.enabled=true,metrics.podMonitor.labels.release=prometheus,metrics.tokenSecret.name=s --show-only templates/podmonitor.yaml | grep -c -e 'credentials: {name: s, key: token}' -e 'release: prometheus' -e 'port: metrics')" 3

# By the schema, before an agent sees them.
senders_of() { # takes|refuses, senders...
  local sender refused said=
  for sender in "${@:2}"; do
    refused=$("$kube/helm" template t deploy/helm/truepeer --kube-version "$kube_version" --set image.repository=a --set "allowSenders={$sender}" 2>&1 | grep -c 'does not match pattern' || true)
    [ "$refused" = "$([ "$1" = takes ]; echo $?)" ] || said+=" $sender"
  done
  check_is "the chart $1 senders: ${*:2}" "$said" ""
}
senders_of takes any 10.0.0.7 10.0.0.0/8 ::/0 2001:db8::7 ::ffff:10.0.0.7 1:2:3:4:5:6:7:8/64
senders_of refuses lan 10.0.0 010.0.0.7 10.0.0.0/33 1:2 :::: 1::2::3 fd00::/129
check_is "the detach job may take twice its timeout" "$("$kube/helm" template t deploy/helm/truepeer --kube-version "$kube_version" --set image.repository=a,allowSenders={any},uninstall.timeout=900s --show-only templates/detach.yaml | grep activeDeadline)" "  activeDeadlineSeconds: 1920"
check_is "the detach job tolerates what the agents do, but no node that is not ready" "$("$kube/helm" template t deploy/helm/truepeer --kube-version "$kube_version" --set image.repository=a,allowSenders={any} \
  --set-json 'tolerations=[{"operator":"Exists"},{"operator":"Exists","effect":"NoExecute"},{"key":"a","operator":"Exists"}]' --show-only templates/detach.yaml |
  sed -n '/^      tolerations:/,/^      containers:/{s/^ *- //p; s/^          *\(key: a\|operator: .*\)$/\1/p}' | grep -v '^$' | tr '\n' ' ')" \
  "{key: node-role.kubernetes.io/control-plane, operator: Exists} key: a operator: Exists {operator: Exists, effect: NoSchedule} {key: node.kubernetes.io/not-ready, value: never, effect: NoExecute} {key: node.kubernetes.io/unreachable, value: never, effect: NoExecute} "

for layout in $layouts; do
  if [ "$layout" = hybrid ] && ! findmnt -nt cgroup >/dev/null; then check_skip "$layout" "this machine has no cgroups of version 1"; continue; fi
  echo "kube: Kubernetes $kube_version, cgroups $layout"
  node_up "$layout"
  kube_pods6=fd00:244::/64
  cluster_up
  without_agent "$layout"
  helm_refuses "$layout"
  install_strictly "$layout"
  echo "kube: the agent is ready"
  senders "$layout"
  mistakes_begin
  well_begin
  node_port_of_the_cluster "$layout"
  no_warnings "$layout" tcp
  mistakes_are_told "$layout"
  dual_stack "$layout"
  start_race "$layout"
  restarts_under_load "$layout"
  load_begins 10.0.0.1
  taken_over "$layout"
  flooded_metrics "$layout"
  killed_twice "$layout"
  narrowed_without_agent "$layout"
  load_is_over "$layout: attacked"
  typo_on_an_attached_pod "$layout"
  senders_are_narrowed "$layout"
  [ "$pods" = 0 ] || many_pods "$layout"
  uninstall "$layout"
  node_end
done
checks_end
