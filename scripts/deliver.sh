#!/bin/bash
# What deploy/ and docs/kubernetes.md tell users, done literally, in namespaces of its own: the Dockerfile by Docker and by
# Podman, the Compose examples, the commands from nothing to a pod that sees its client, the sidecar and `run` in a pod. There is no
# registry: images of its base names are made here, and in the one of the compiler, cargo brings the static programs of
# scripts/static.sh. deliver.sh [DIRECTORY of these programs].
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
. scripts/containers/images.sh
. scripts/containers/cluster.sh
. scripts/containers/checks.sh
static=$(realpath "${1:-$target/static}")
truepeer=$static/truepeer

node_needs deliver
[ -x "$kube/helm" ] || { check_skip deliver "Kubernetes is not built: make kube"; checks_end; exit 0; }
[ -x "$static/truepeer-agent" ] || { echo "deliver: no $static/truepeer-agent: scripts/static.sh target/static"; exit 1; }
mkdir -p "$target/logs"
trap node_end EXIT
make_images

ask=(python3 scripts/containers/ask.py)
from_lb() { node_run ip netns exec lb "${ask[@]}" "$@"; }

# An image with the tools that scripts/static.sh calls, and the programs in place of the compiler.
make_compiler_image() {
  local root tool musl=x86_64-unknown-linux-musl
  root=$(root_with_busybox rust)
  rm "$root/bin/sh"
  mkdir -p "$root/usr/bin" "$root/built/$musl/release" "$root/built/release/build/truepeer/preloaded"
  for tool in bash cp cut dirname find grep id install mkdir readelf realpath sed sort strip tail uname; do
    cp -L "$(command -v "$tool")" "$root/usr/bin/"
    libraries_of "$(command -v "$tool")" "$root"
  done
  cp -L /lib64/ld-linux-x86-64.so.2 "$root/lib64/"
  for tool in bash sh; do ln -s ../usr/bin/bash "$root/bin/$tool"; done
  cp "$static"/truepeer{,-agent} "$root/built/$musl/release/"
  touch "$root/built/release/build/truepeer/preloaded/libtruepeer_preload.so"
  printf '#!/bin/bash\nmkdir -p target && cp -r /built/. target/\n' >"$root/usr/bin/cargo"
  printf '#!/bin/bash\n' | tee "$root"/usr/bin/{rustup,musl-gcc} >"$root/usr/bin/apt-get"
  printf '#!/bin/bash\necho /built\n' >"$root/usr/bin/rustc"
  chmod +x "$root"/usr/bin/*
  image_done "$root"
}

base_images() { # docker or podman
  local root name
  while read -r root name; do
    [ "$1" = docker ] || name=docker.io/library/$name
    node_run sh -c "tar -C $images/$root -c . | $1 import -c 'ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin' -c '$(image_entry "$root")' - $name" >/dev/null 2>&1
  done <<'IMAGES'
rust rust:1.95-bookworm
pause busybox:1.37-musl
haproxy haproxy:2.6
nginx nginx:1.28
nginx nginx:1.28-alpine
IMAGES
}
image_entry() { echo "CMD $(image_command "$1")"; }

# The commands of a page's first shell block after a heading.
commands_of() { # page, heading
  awk -v heading="$2" '$0 == heading { on = 1 } on && /^```$/ { exit } block && on { print } on && /^```shell$/ { block = 1 }' "$1"
}

dockerfile() {
  local builder image
  for builder in docker podman; do
    base_images $builder
    for image in truepeer truepeer-agent; do
      node_run $builder build -f deploy/docker/Dockerfile --target $image -t $image:0.1.0 . >"$target/logs/$builder-build.log" 2>&1 ||
        tail -5 "$target/logs/$builder-build.log"
      check_is "the Dockerfile, by $builder: $image runs" "$(node_run $builder run --rm --network none $image:0.1.0 --version 2>/dev/null)" "$image 0.1.0"
    done
  done
}

compose() { node_run docker-compose --project-directory "deploy/compose/$1" -f "deploy/compose/$1/compose.yaml" "${@:2}" >>"$target/logs/compose.log" 2>&1; }

# Two networks with a truepeer between, and the kernel's one: the server names the client, the address of the `lb` machine.
compose_examples() {
  : >"$target/logs/compose.log"
  compose attach up -d || tail -5 "$target/logs/compose.log"
  node_wait 15 sh -c "${ask[*]} tcp 10.5.6.2 80 | grep '^10.5.6.1 '"
  node_run truepeer attach --container web --port 80 --allow 10.5.6.7 >/dev/null
  check_is "Compose: HAProxy and attach --container" "$(from_lb tcp 10.0.0.1 8000 | cut -d' ' -f1)" 10.0.0.7
  compose attach down
  compose relay up -d || tail -5 "$target/logs/compose.log"
  node_wait 15 sh -c "${ask[*]} tcp 10.0.0.1 8000 | grep '^[0-9.]* [0-9]*$'" || true
  check_is "Compose: HAProxy and a relay, as in go-mmproxy's example" "$(from_lb tcp 10.0.0.1 8000 | cut -d' ' -f1)" 10.0.0.7
  [ "$checks_failed" = 0 ] || compose relay logs
  compose relay down
}

# docs/kubernetes.md, from nothing.
five_commands() {
  local commands
  commands=$(commands_of docs/kubernetes.md "## From nothing to a pod that sees its client")
  check_is "docs/kubernetes.md: at most five commands" "$(($(grep -c . <<<"$commands") <= 5))" 1
  echo "$commands" | sed 's/^/  /'
  node_run sh -euc "sudo() { \"\$@\"; }; $commands" >"$target/logs/five-commands.log" 2>&1 || tail -5 "$target/logs/five-commands.log"
  # kube-proxy opens the port a moment after the pod is ready.
  node_wait 10 sh -c "ip netns exec lb ${ask[*]} tcp 10.0.0.1 30080 203.0.113.9 5109 v2 | grep -v Refused" || true
  check_is "docs/kubernetes.md: the pod sees its client" "$(from_lb tcp 10.0.0.1 30080 203.0.113.9 5109 v2)" "203.0.113.9 5109"
}

pods_without_an_agent() {
  node_run kubectl apply -f deploy/kubernetes/sidecar.yaml -f deploy/kubernetes/run.yaml >/dev/null
  node_run kubectl wait --for=condition=Ready pod/web-sidecar pod/web-run --timeout=60s >/dev/null
  local pod port
  for pod in web-sidecar web-run; do
    port=8080
    node_wait 15 sh -c "ip netns exec lb ${ask[*]} tcp \$(kubectl get pod $pod -o jsonpath='{.status.podIP}') $port 203.0.113.9 5109 v2 | grep 203.0.113.9" || true
    check_is "$pod sees the client" "$(from_lb tcp "$(node_run kubectl get pod $pod -o jsonpath='{.status.podIP}')" $port 203.0.113.9 5109 v2)" "203.0.113.9 5109"
    node_run kubectl logs $pod --all-containers 2>/dev/null | tail -3 | sed 's/^/  /'
  done
}

make_compiler_image
echo "deliver: Dockerfile and Compose"
node_up v2
node_podman
node_docker
dockerfile
compose_examples
node_run sh -c 'docker save truepeer:0.1.0 -o /run/node/truepeer.tar && cat /run/node/truepeer.tar' >"$images/truepeer.tar"
node_end

echo "deliver: Kubernetes"
node_up v2
cluster_up
node_run sh -c 'ctr -n k8s.io images import -' <"$images/truepeer.tar" >/dev/null
node_docker_beside_cluster
base_images docker
pods_without_an_agent
five_commands
node_end
checks_end
