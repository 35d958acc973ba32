#!/bin/bash
# Builds Kubernetes' programs and helm from the Go module proxy, once for each machine: 15 minutes, 600 MiB, kept under
# ~/.cache/truepeer (XDG_CACHE_HOME). TRUEPEER_KUBE names a directory that has them. kube-programs.sh [PROGRAM...].
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
export PATH="$PATH:/usr/local/go/bin" CGO_ENABLED=0 GOFLAGS="-mod=mod -trimpath -buildvcs=false"
programs=("$@")
[ ${#programs[@]} -gt 0 ] || programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl helm)

missing=()
for program in "${programs[@]}"; do [ -x "$kube/$program" ] || missing+=("$program"); done
[ ${#missing[@]} -gt 0 ] || exit 0
if ! command -v go >/dev/null; then
  echo "kube: Go is missing: the tests with Kubernetes will be skipped"
  exit 0
fi
mkdir -p "$kube"
exec 9>"$kube/lock"
flock 9 # two test runs may start at the same time

# Kubernetes' go.mod replaces modules by directories that the published module lacks. They are published as well, as
# v0.34.4 for v1.34.4: build it as a dependency of an own module with these in their place.
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
staging=v0.${kube_version#1.}
cd "$module"
source=$(go mod download -json "k8s.io/kubernetes@v$kube_version" | sed -n 's/.*"Dir": "\(.*\)",/\1/p')
sed -e 's#^module .*#module truepeer/kube#' -e "s#=> ./staging/src/k8s.io/\(.*\)#=> k8s.io/\1 $staging#" "$source/go.mod" >go.mod
cat "$source/go.sum" >go.sum
go mod edit -require="k8s.io/kubernetes@v$kube_version"
echo 'package kube' >kube.go

version=k8s.io/component-base/version
flags="-s -w -X $version.gitVersion=v$kube_version -X $version.gitMajor=1 -X $version.gitMinor=$(cut -d. -f2 <<<"$kube_version")"
for program in "${missing[@]}"; do
  [ ! -x "$kube/$program" ] || continue
  echo "kube: building $program (once)"
  begin=$SECONDS
  if [ "$program" = helm ]; then GOBIN=$kube nice go install -ldflags "-s -w" helm.sh/helm/v3/cmd/helm@v3.19.5
  else nice go build -ldflags "$flags" -o "$kube/$program.new" "k8s.io/kubernetes/cmd/$program" && mv "$kube/$program.new" "$kube/$program"; fi
  echo "kube: $program took $((SECONDS - begin)) s"
done
