#!/bin/bash
# truepeer attach on containers of real Docker and Podman, in namespaces of their own: published ports by DNAT and by
# docker-proxy, IPv4 and IPv6, TCP and UDP; nginx, a static Go server, and one with musl. Needs root, and the programs of
# engines.txt (`make engines` unpacks them). engines.sh [v2|hybrid] [docker|podman].
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
. scripts/containers/images.sh
. scripts/containers/checks.sh
truepeer=$(realpath "${TRUEPEER:-$target/debug/truepeer}")
agent=$(realpath "${TRUEPEER_AGENT:-$target/debug/truepeer-agent}")
layouts=${1:-v2}
runs=${2:-docker podman}

node_needs engines
[ -x "$truepeer" ] || { echo "engines: no $truepeer: cargo build, or name one by TRUEPEER"; exit 1; }
mkdir -p "$target/logs"
trap node_end EXIT
make_images

ask=(python3 scripts/containers/ask.py)
from_lb() { node_run ip netns exec lb "${ask[@]}" "$@"; }
from_node() { node_run "${ask[@]}" "$@"; }
four=(203.0.113.9 5109) six=(2001:db8:9::9 5609)

import() { # image
  local archive="tar -C $images/$1 -c ." change
  change="CMD $(image_command "$1")"
  if [ "$engine" = docker ]; then node_run sh -c "$archive | docker import -c '$change' - $1" >/dev/null
  else node_run sh -c "$archive | podman import -q -c '$change' - localhost/$1" >/dev/null 2>&1; fi
}

# The number of an image adds to each published port.
start_container() { # image, number, more options of run
  local image=$1 ports=(-p "$((8080 + $2)):80" -p "$((5300 + $2)):53/udp")
  shift 2
  [[ "$*" = *--name* ]] || set -- --name "$image" "$@"
  if [ "$engine" = docker ]; then node_run docker run -d "${ports[@]}" "$@" "$image" >/dev/null
  else
    node_run podman ${hooked:+--hooks-dir /run/node/hooks} run -d --cgroup-parent /truepeer-node/podman --network two "${ports[@]}" "$@" "localhost/$image" >/dev/null 2>&1
  fi
}

# Waits for the server, and for IPv6's detection of duplicate addresses in a new container.
wait_for_servers() { # number
  local end=$((SECONDS + 15)) answers
  until
    answers="$(from_lb tcp 10.0.0.1 $((8080 + $1))), $(from_lb tcp fd00:200::1 $((8080 + $1)))"
    [[ $answers = 10.0.0.7\ *,\ fd00:200::7\ * ]]
  do [ $SECONDS -lt $end ] || { echo "waited in vain for container $1: $answers"; return 1; }; done
}

published_ports() { # image, number
  local tcp=$((8080 + $2)) udp=$((5300 + $2)) bridge name="$layout $engine $1"
  wait_for_servers "$2"
  # So that the checks below can fail: without truepeer the header reaches the server.
  check_is "$name: a raw server sees the sender" "$(from_lb udp 10.0.0.1 $udp | cut -d' ' -f1)" 10.0.0.7
  check_is "$name: a raw server refuses the header" "$(from_lb tcp 10.0.0.1 $tcp "${four[@]}" v1 | grep -o 400)" 400

  begin=$(date +%s)
  node_run truepeer attach --container "$1" --port 80 --port 53/udp --allow 10.0.0.7 --allow fd00:200::7 2>&1 | sed 's/^/  /'
  check_is "$name: engines that do not run hold nobody up" $(($(date +%s) - begin < 6)) 1
  check_is "$name: TCP over IPv4, v1" "$(from_lb tcp 10.0.0.1 $tcp "${four[@]}" v1)" "${four[*]}"
  check_is "$name: TCP over IPv6, v2" "$(from_lb tcp fd00:200::1 $tcp "${six[@]}" v2)" "${six[*]}"
  check_is "$name: an IPv6 client over IPv4" "$(from_lb tcp 10.0.0.1 $tcp "${six[@]}" v2)" "${six[*]}"
  check_is "$name: UDP over IPv4" "$(from_lb udp 10.0.0.1 $udp "${four[@]}")" "${four[*]}"
  check_is "$name: UDP over IPv6" "$(from_lb udp fd00:200::1 $udp "${six[@]}")" "${six[*]}"
  check_is "$name: a sender without a header is refused" "$(from_lb tcp 10.0.0.1 $tcp)" "ConnectionResetError: [Errno 104] Connection reset by peer"
  check_is "$name: who is not listed passes" "$(from_node tcp 127.0.0.1 $tcp | cut -d' ' -f1)" "$gateway"

  # From the node itself the engine forwards in user space, or translates the source: the sender is the bridge.
  node_run truepeer attach --container "$1" --port 80 --port 53/udp --allow "$gateway" --allow "$gateway6" 2>&1 | sed 's/^/  /'
  check_is "$name: by way of the bridge, TCP, v2" "$(from_node tcp 127.0.0.1 $tcp "${four[@]}" v2)" "${four[*]}"
  check_is "$name: by way of the bridge, UDP" "$(from_node udp 127.0.0.1 $udp "${four[@]}")" "${four[*]}"
  if [ "$engine" = docker ]; then
    check_is "$name: by docker-proxy over IPv6, TCP, v1" "$(from_node tcp ::1 $tcp "${six[@]}" v1)" "${six[*]}"
    check_is "$name: by docker-proxy over IPv6, UDP" "$(from_node udp ::1 $udp "${six[@]}")" "${six[*]}"
  fi
  check_is "$name: detached" "$(node_run truepeer attach detach --container "$1" >/dev/null 2>&1; from_lb tcp 10.0.0.1 $tcp "${four[@]}" v1 | grep -o 400)" 400
}

# Starts a program there; `stop` ends it.
start() { node_run sh -c 'setsid "$@" >/run/node/started.log 2>&1 </dev/null & echo $! >/run/node/started' sh "$@"; }
stop() { node_run sh -c 'kill "$(cat /run/node/started)"'; }

# Waits for the client's name at a published port, then prints what the server says.
named() { # port
  local end=$((SECONDS + 10)) said
  until said=$(from_lb tcp 10.0.0.1 "$1" "${four[@]}" v2) && [ "$said" = "${four[*]}" ]; do [ $SECONDS -lt $end ] || break; done
  echo "$said"
}

restarts() {
  local name="$layout $engine" port=8081 named raw
  start truepeer attach --container go --port 80 --allow 10.0.0.7 --watch
  check_is "$name: --watch attaches" "$(named $port)" "${four[*]}"
  node_run $engine restart -t 1 go >/dev/null 2>&1
  check_is "$name: --watch attaches again after a restart" "$(named $port)" "${four[*]}"
  stop
  node_run $engine restart -t 1 go >/dev/null 2>&1
  wait_for_servers 1
  check_is "$name: without --watch a restarted container is raw" "$(from_lb tcp 10.0.0.1 $port "${four[@]}" v1 | grep -o 400)" 400

  if [ -x "$agent" ]; then
    if [ "$engine" = podman ]; then node_start podman podman system service --time 0 unix:///run/podman.sock; fi
    start_container go 7 --name labelled --label truepeer.dev/ports=80 --label truepeer.dev/allow=10.0.0.7
    start truepeer-agent docker --socket "/run/$engine.sock" --truepeer "$truepeer"
    check_is "$name: the agent attaches by labels" "$(named 8087)" "${four[*]}"
    node_run $engine restart -t 1 labelled >/dev/null 2>&1
    check_is "$name: the agent attaches again after a restart" "$(named 8087)" "${four[*]}"
    stop
    check_is "$name: without the agent what is attached goes on" "$(named 8087)" "${four[*]}"
  else check_skip "$name: the agent" "truepeer-agent is not built"; fi

  [ "$engine" = podman ] || return 0
  node_run mkdir -p /run/node/hooks
  sed "s|/usr/bin/truepeer|$truepeer|" deploy/oci/truepeer.json | node_run sh -c 'cat >/run/node/hooks/truepeer.json'
  local race=$target/logs/hook-race
  node_run ip netns exec lb python3 scripts/containers/load.py tcp 10.0.0.1 8088 8s >"$race" 2>&1 &
  local racing=$!
  hooked=1 start_container go 8 --name hooked --annotation "truepeer.dev/ports=80 53/udp" --annotation "truepeer.dev/allow=10.0.0.7 fd00:200::7"
  sleep 2
  node_run podman --hooks-dir /run/node/hooks restart -t 1 hooked >/dev/null 2>&1
  wait $racing
  sed 's/^/  /' "$race"
  read -r _ named _ raw _ <"$race"
  check_is "$name: the hook, UDP over IPv6" "$(from_lb udp fd00:200::1 5308 "${six[@]}")" "${six[*]}"
  check_is "$name: a wrong annotation fails the start, and says why" "$(node_run podman --hooks-dir /run/node/hooks run --rm --network two \
    --cgroup-parent /truepeer-node/podman --annotation truepeer.dev/ports=80x --annotation truepeer.dev/allow=10.0.0.7 localhost/go 2>&1 | grep -c 80x)" 1
  check_is "$name: the hook attaches before the start and each restart, under load: none is raw" "$((named > 100)) $raw" "1 0"
}

# In the place of Docker's userland proxy, where Docker has no DNAT.
docker_proxy() {
  local name="$layout docker-proxy"
  node_run ln -s "$truepeer" /run/node/truepeer-docker-proxy
  node_run sh -c 'mkdir -p "$HOME/.config/truepeer"; cat >"$HOME/.config/truepeer/docker-proxy.conf"' <<<$'8080 --allow 10.0.0.7\n5300/udp --allow 10.0.0.7\n8083 --allo 10.0.0.7'
  node_docker --iptables=false --userland-proxy-path /run/node/truepeer-docker-proxy
  import go
  start_container go 0 -p 8090:80
  check_is "$name: TCP, v1" "$(named 8080)" "${four[*]}"
  check_is "$name: UDP" "$(from_lb udp 10.0.0.1 5300 "${four[@]}")" "${four[*]}"
  check_is "$name: a port without a line is Docker's own" "$(from_lb tcp 10.0.0.1 8090 | cut -d' ' -f1)" 172.31.0.1
  check_is "$name: a wrong line fails the start, and says why" "$(node_run docker run -d -p 8083:80 go 2>&1 | grep -c 'docker-proxy.conf: .*--allo')" 1
  node_run docker rm -f go >/dev/null
  check_is "$name: nothing is left" "$(node_run ps -e -o args | grep -c '^truepeer proxy')" 0
}

for layout in $layouts; do
  if [ "$layout" = hybrid ] && ! findmnt -nt cgroup >/dev/null; then check_skip "$layout" "this machine has no cgroups of version 1"; continue; fi
  for engine in $runs; do
    echo "engines: $engine, cgroups $layout"
    node_up "$layout"
    case $engine in
      docker) gateway=172.31.0.1 gateway6=fd00:31::1; node_docker ;;
      podman) gateway=10.89.0.1 gateway6=fd00:89::1; node_podman
        node_run podman network create --ipv6 --subnet 10.89.0.0/24 --subnet fd00:89::/64 two >/dev/null ;;
    esac
    number=0
    for image in nginx go musl; do
      import $image
      start_container $image $number
      published_ports $image $number
      number=$((number + 1))
    done
    restarts
    node_end
  done
  [[ $runs != *docker* ]] || { engine=docker; node_up "$layout"; docker_proxy; node_end; }
done
checks_end
