#!/bin/bash
# truepeer-agent on containers of real Docker and Podman, in namespaces of their own: labels, restarts of a container and of
# the engine. Needs what engines.sh needs. agent-engines.sh [docker|podman].
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
. scripts/containers/images.sh
. scripts/containers/checks.sh
truepeer=$(realpath "${TRUEPEER:-$target/debug/truepeer}")
agent=$(realpath "${TRUEPEER_AGENT:-$target/debug/truepeer-agent}")
runs=${1:-docker podman}

node_needs agent-engines
for program in "$truepeer" "$agent"; do
  [ -x "$program" ] || { echo "agent-engines: no $program: build it, or name it by TRUEPEER or TRUEPEER_AGENT"; exit 1; }
done
mkdir -p "$target/logs"
trap node_end EXIT
make_images go

labels=(--label truepeer.dev/ports=80 --label "truepeer.dev/allow=10.0.0.7")
client=(203.0.113.9 5109)
ask() { node_run ip netns exec lb python3 scripts/containers/ask.py tcp "$address" 80 "${client[@]}" v1 2>&1 || true; }

# Tells every command the same way, whatever the engine.
run_engine() { if [ "$engine" = docker ]; then node_run docker "$@"; else node_run podman "$@"; fi; }

address_of() { run_engine inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' web; }

# Waits until the load balancer's header is removed, or no longer is, and prints the last answer.
answer_is() { # expected
  local end=$((SECONDS + 15)) answer
  until
    address=$(address_of 2>/dev/null || true)
    answer=$(ask)
    [ "$answer" = "$1" ] || [ $SECONDS -ge $end ]
  do sleep .2; done
  echo "$answer"
}

metric() { node_run curl -s http://127.0.0.1:9464/metrics | sed -n "s/^$1 //p"; }
metric_is() { # metric, expected
  local end=$((SECONDS + 10)) value
  until value=$(metric "$1"); [ "$value" = "$2" ] || [ $SECONDS -ge $end ]; do sleep .2; done
  echo "$value"
}

start_engine() {
  case $engine in
    docker) node_docker ;;
    podman) node_podman; node_run mkdir -p /run/podman
      node_start podman podman system service --time=0 unix:///run/podman/podman.sock
      node_wait 20 test -S /run/podman/podman.sock ;;
  esac
}

end_engine() {
  case $engine in
    docker) node_run sh -c 'kill $(cat /run/node/docker.pid)'
      node_wait 20 sh -c '! test -e /run/node/docker.pid'
      node_run sh -c 'kill $(pgrep -x containerd)'; node_wait 20 sh -c '! pgrep -x containerd' ;;
    podman) node_run sh -c 'kill $(pgrep -x podman)'; node_run rm -f /run/podman/podman.sock ;;
  esac
}

import() {
  local archive="tar -C $images/go -c ." change
  change="CMD $(image_command go)"
  if [ "$engine" = docker ]; then node_run sh -c "$archive | docker import -c '$change' - go" >/dev/null
  else node_run sh -c "$archive | podman import -q -c '$change' - localhost/go" >/dev/null 2>&1; fi
}

create() { # more options
  if [ "$engine" = docker ]; then node_run docker run -d --name web "$@" go >/dev/null
  else node_run podman run -d --cgroup-parent /truepeer-node/podman --network two --name web "$@" localhost/go >/dev/null 2>&1; fi
}

for engine in $runs; do
  echo "agent-engines: $engine"
  node_up v2
  start_engine
  [ "$engine" = docker ] || node_run podman network create --subnet 10.89.0.0/24 two >/dev/null
  import
  create
  check_is "$engine: a raw server refuses the header" "$(answer_is "HTTP/1.1 400 Bad Request" | grep -o 400)" 400
  run_engine rm -f -t 0 web >/dev/null 2>&1 || run_engine rm -f web >/dev/null
  node_start agent "$agent" docker --truepeer "$truepeer"
  node_wait 20 curl -sf http://127.0.0.1:9464/readyz
  create "${labels[@]}"
  check_is "$engine: a labelled container sees the client" "$(answer_is "${client[*]}")" "${client[*]}"
  run_engine restart -t 0 web >/dev/null
  check_is "$engine: again after a restart of the container" "$(answer_is "${client[*]}")" "${client[*]}"
  check_is "$engine: one container is attached" "$(metric_is 'truepeer_agent_attachments{state="attached"}' 1)" 1
  if [ "$engine" = docker ]; then
    node_run docker run -d --name beside --network container:web --label truepeer.dev/ports=81 --label truepeer.dev/allow=any go sleep 1000 >/dev/null
    check_is "$engine: a second container of the same network is refused" "$(metric_is 'truepeer_agent_attachments{state="refused"}' 1)" 1
    check_is "$engine: the first one stays attached" "$(answer_is "${client[*]}")" "${client[*]}"
    run_engine rm -f beside >/dev/null
  fi
  run_engine rm -f web >/dev/null
  check_is "$engine: a removed container is forgotten" "$(metric_is 'truepeer_agent_attachments{state="attached"}' 0)" 0
  end_engine
  start_engine
  create "${labels[@]}"
  check_is "$engine: again after a restart of the engine" "$(answer_is "${client[*]}")" "${client[*]}"
  run_engine rm -f web >/dev/null
  create --label truepeer.dev/ports=http --label truepeer.dev/allow=any
  check_is "$engine: a wrong label is refused" "$(metric_is 'truepeer_agent_attachments{state="refused"}' 1)" 1
  check_is "$engine: the log says why" "$(grep -c 'truepeer.dev/ports: "http": expected ports, as numbers' "$target/logs/node-agent.log")" 1
  node_end
done
checks_end
